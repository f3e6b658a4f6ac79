"""``ampsim card``: look at a CUDA card, or verify the file of somebody else's."""

import importlib.util
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from ampsim.cli.terminal import err, fail, out
from ampsim.core.files import BusyError

if TYPE_CHECKING:
    from ampsim.card.verify import Verdict

app = typer.Typer(
    help="Look at a CUDA card: probes of loss scaling on it, into one file that can be verified.",
    epilog="Each probe is on the disk before the next begins. After Ctrl-C, or killed, the same command goes on. "
    "Example: ampsim card --minutes 8",
)
COLOURS = {"holds": "green", "does not hold": "bold red", "not looked at": "dim"}
URL = "Repository"  # the label of the project's address in the package's metadata


@app.callback(invoke_without_command=True)
def probe_card(
    context: typer.Context,
    minutes: Annotated[float, typer.Option(min=0.05, max=600, help="Time for all probes together, in minutes.")] = 8.0,
    device: Annotated[
        str | None, typer.Option(help="cuda, or cpu to try it; by default cuda where there is one.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="By default ampsim-card-DEVICE-DIGITS.jsonl in this folder."),
    ] = None,
) -> None:
    """Run the probes that a file has not, and show how far they are."""
    if context.invoked_subcommand is not None:
        return
    if importlib.util.find_spec("torch") is None:
        fail("no module 'torch'; pip install 'ampsim[torch,card]', or the torch that fits the card")
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn()
    stopped = ["stopped before a probe began; the same command goes on"]
    progress = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
    with refusing("expected a place to write to; make room there, or pass another --out"), ExitStack() as held:
        held.enter_context(progress)
        leave_at_interrupt(held, stopped)
        task = progress.add_task("loading torch", total=60 * minutes)
        from ampsim.card.run import PROBES, missing, opened

        path, records = held.enter_context(opened(device, minutes, file))
        stopped.append(f"stopped; what is done is in {path}, and the same command goes on")
        who, done = records[0]["identity"], {each["probe"] for each in records[1:] if "error" not in each}
        out.print(f"{path}: {len(done)} of {len(PROBES)} probes are done")
        if who["device"]["type"] == "cpu" and device is None:
            out.print(f"torch {who['torch']} sees no card: the probes run on the CPU")

        def tell(probe: str, left: float) -> None:
            minute, second = divmod(max(0, round(left)), 60)
            progress.update(task, description=f"{probe}: {minute}:{second:02} left", completed=60 * minutes - left)

        for record in missing(path, records, tell):
            said = [f": {word}: {record[word]}" for word in ("skipped", "error") if word in record]
            out.print(f"{record['seconds']:7.1f} s  {record['probe']}{''.join(said)}")
    out.print(f"done; ampsim card verify {path} says what holds")


def leave_at_interrupt(held: ExitStack, said: Sequence[str]) -> None:
    """Let Ctrl-C close all that is held and end the process, with the last sentence.

    What it would raise could be lost: in a destructor Python drops it. Where Ctrl-C is ignored, as by a shell's job in
    the background, it stays so.
    """

    def leave(*_: object) -> None:
        try:
            held.close()
            out.print(said[-1])
        finally:
            os._exit(130)

    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler and threading.current_thread() is threading.main_thread():
        held.callback(signal.signal, signal.SIGINT, before)  # so that a second one ends what does not close
        signal.signal(signal.SIGINT, leave)


@app.command("verify")
def verify_card(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `ampsim card` wrote.", show_default=False)],
    submit: Annotated[
        bool, typer.Option("--submit", help="Also print the address of an issue, filled in; nothing is sent.")
    ] = False,
) -> None:
    """Replay every scale of FILE, and say which of the claims hold that were written before any card was looked at.

    Exit status 1 if something does not hold, 2 for a file that is not as it was written.
    """
    with refusing("expected a file of `ampsim card`"):
        from ampsim.card.verify import verify

        verdicts = verify(file)
    for each in verdicts:
        out.print(f"{each.outcome:14}", style=COLOURS[each.outcome], end="")
        out.print(each.text)
    if submit:
        out.print(f"\n{_issue(file, verdicts)}")
    raise typer.Exit(1 if any(each.outcome == "does not hold" for each in verdicts) else 0)


@contextmanager
def refusing(expected: str) -> Iterator[None]:
    """Turn what is wrong with what was asked for into status 2."""
    try:
        yield
    except (ValueError, BusyError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{f'{error.filename}: ' if error.filename else ''}{error.strerror}; {expected}")


def _issue(file: Path, verdicts: "list[Verdict]") -> str:
    """Return the address of a new issue with what was found; or say that the project has told none."""
    from ampsim.card.verify import read

    told = metadata.metadata("ampsim").get_all("Project-URL") if any(metadata.distributions(name="ampsim")) else None
    urls = dict(each.split(", ", 1) for each in told or [])
    if URL not in urls:
        return f"the package names no {URL} address, so there is no issue to link to; keep {file}"
    who = read(file)[0]["identity"]
    body = [
        f"attach {file.name}, sha256 {sha256(file.read_bytes()).hexdigest()}",
        f"{who['device']['name']}, ampsim {who['ampsim']}, torch {who['torch']}, python {who['python']}\n",
        *(f"{each.outcome}: {each.text}" for each in verdicts),
    ]
    query = {"title": f"card: {who['device']['name']}", "body": "\n".join(body)[:4000]}
    return f"{urls[URL]}/issues/new?{urlencode(query)}"

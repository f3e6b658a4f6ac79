"""``ampsim traces``: export conformance vectors, and verify a program against them."""

import os
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ampsim import __version__
from ampsim.cli.options import STATUS, Force
from ampsim.cli.terminal import (
    fail,
    out,
    usage_errors,
)
from ampsim.core import conformance_vectors as vectors
from ampsim.core import dialects
from ampsim.core.conformance_vectors import Outcome, Vector
from ampsim.core.files import check_own, write_atomically

app = typer.Typer(
    help="Export conformance vectors, or verify a program.\n\n"
    "Example: ampsim traces verify -- node scaler.js",
    no_args_is_help=True,
)
TITLE = "# Vectors for loss scalers\n"
PAGE = Path(vectors.__file__).with_suffix(".md")
LONGEST = 1 << 26  # bytes of output that are read
TAIL = 4096  # bytes of standard error that an error shows


@app.command("export", epilog=STATUS)
def export_vectors(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="JSON Lines file to write."),
    ],
    force: Force = False,
) -> None:
    """Write conformance vectors to a file.

    A vector has settings, an overflow sequence, and the expected scales. A page that describes the
    format is written next to FILE, with suffix .md.

    Example: ampsim traces export vectors.jsonl
    """
    data = vectors.as_file(vectors.make(), __version__)
    page = file.with_suffix(".md")
    with usage_errors():
        check_own(file, '{"vectors":', force=force)
        check_own(page, TITLE, force=force)
        write_atomically(file, data)
        write_atomically(page, PAGE.read_bytes())
    out.print(
        f"{file}: version {vectors.VERSION}, {len(data):,} bytes, {vectors.LICENCE}; format: {page}"
    )


@dataclass(frozen=True)
class Verdict:
    """Result of one vector."""

    vector: Vector
    kind: str
    """passed, failed, or declined."""
    message: str = ""


@app.command("verify", epilog=STATUS)
def verify_program(
    command: Annotated[
        list[str],
        typer.Argument(metavar="CMD", help="Program and its arguments."),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--dialect",
            "-d",
            metavar="NAME",
            help="Dialect to verify. Repeatable; default: all.",
            autocompletion=dialects.names,
        ),
    ] = None,
    limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            help="Time limit of CMD.",
            min=0.01,
            max=1e6,
        ),
    ] = 60.0,
) -> None:
    """Verify a loss scaler in any language.

    CMD reads lines with settings and overflow flags from standard input, and writes a line with
    scales for each. `ampsim traces export` writes a page that describes the lines.

    Example: ampsim traces verify -- node scaler.js
    """
    with usage_errors(dialects.UnknownDialectError):
        chosen = _chosen(vectors.make(), only or ())
    try:
        lines, failure = _run(command, [vector.question() for vector in chosen], limit)
    except OSError as error:
        fail(
            f"{command[0]}: {error.strerror}; expected an executable program after `--`"
        )
    verdicts = [_verify(*pair) for pair in zip(chosen, lines, strict=False)]
    raise typer.Exit(_report(chosen, verdicts, failure))


def _run(
    command: Sequence[str], questions: Sequence[str], limit: float
) -> tuple[list[str], str]:
    """Return the output lines of a program that is given questions, and how it failed, or ""."""
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as errors:
        asked.write("\n".join([*questions, ""]).encode())
        asked.seek(0)
        with subprocess.Popen(  # noqa: S603
            command,
            stdin=asked,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        ) as process:
            late = threading.Timer(limit, _kill, [process])
            late.start()
            output = process.stdout.read(LONGEST) if process.stdout else b""
            if len(output) == LONGEST:
                _kill(process)
            status = process.wait()
            is_late = not late.is_alive()
            late.cancel()
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - TAIL))
        said = errors.read().decode(errors="replace").splitlines()[-10:]
    lines = output.decode(errors="replace").splitlines()
    failure = ""
    if is_late:
        failure = f"not ended after {limit:g} s (--time-limit)"
    elif status < 0:
        failure = f"ended with signal {signal.Signals(-status).name}"
    elif status:
        failure = f"ended with exit status {status}"
    elif len(lines) != len(questions):
        failure = f"{len(lines)} output lines for {len(questions)} input lines"
    if failure:
        failure = f"{failure}; expected one line for each, and exit status 0"
        failure = "\n    ".join([failure, *said])
    return lines, failure


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a program and the processes that it started."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def _chosen(made: Sequence[Vector], names: Sequence[str]) -> list[Vector]:
    for name in names:
        dialects.get(name)  # raises if there is none
    return [vector for vector in made if not names or vector.dialect in names]


def _verify(vector: Vector, line: str) -> Verdict:
    try:
        outcome = vectors.answer(line, len(vector.found_inf))
    except ValueError as error:
        return Verdict(vector, "failed", f"{line.strip()[:200]!r}: {error}")
    if outcome is None:
        return Verdict(vector, "declined")
    step = vectors.first_difference(vector.outcome, outcome)
    if step is None:
        return Verdict(vector, "passed")
    expected, actual = (_entry(each, step) for each in (vector.outcome, outcome))
    message = f"update {step}: expected the scale {expected}, not {actual}"
    return Verdict(vector, "failed", message)


def _report(chosen: Sequence[Vector], verdicts: Sequence[Verdict], failure: str) -> int:
    """Print the first failure and the counts, and return the exit status."""
    first = next((verdict for verdict in verdicts if verdict.kind == "failed"), None)
    if first is not None:
        out.print(f"{_name(first.vector)}: {first.message}")
        out.print(f"input: {first.vector.question()}")
    if failure:
        name = (
            f"{_name(chosen[len(verdicts)])}: " if len(verdicts) < len(chosen) else ""
        )
        out.print(f"{name}{failure}")
    counts = Counter(verdict.kind for verdict in verdicts)
    counts["skipped"] = len(chosen) - len(verdicts)
    others = [
        f"{count} {kind}"
        for kind, count in counts.items()
        if count and kind != "passed"
    ]
    out.print(", ".join([f"{counts['passed']} of {len(chosen)} passed", *others]))
    if not counts["passed"]:
        out.print(
            "expected at least one to pass: a program may not decline all vectors"
        )
    return int(bool(first or failure or not counts["passed"]))


def _name(vector: Vector) -> str:
    params = " ".join(f"{name}={value}" for name, value in vector.params.items())
    return f"{vector.family}: {vector.dialect} {params}".rstrip()


def _entry(outcome: Outcome, n: int) -> str:
    if n >= len(outcome):
        return "nothing"
    scale = outcome[n]
    return vectors.GIVES_UP if scale is None else f"{scale!r} = {vectors.as_hex(scale)}"

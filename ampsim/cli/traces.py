"""``ampsim traces``: export conformance vectors, and verify a program against them."""

import os
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from ampsim import __version__
from ampsim.cli.options import STATUS, Force
from ampsim.cli.terminal import (
    fail,
    out,
    usage_errors,
    write_own,
)
from ampsim.core import conformance_vectors as vectors
from ampsim.core import dialects
from ampsim.core.conformance_vectors import Outcome, Vector

app = typer.Typer(
    help="Export conformance vectors, or verify a program.\n\n"
    "Example: ampsim traces verify -- node scaler.js",
    no_args_is_help=True,
)
TITLE = "# Vectors for loss scalers\n"
PAGE = Path(vectors.__file__).with_suffix(".md")
LONGEST = 1 << 26  # bytes of output that are read
TAIL = 800  # bytes of standard error that a failure shows
OTHERS = ("failed", "declined", "skipped")  # outcomes of a vector


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
    write_own(file, '{"vectors":', data, force=force)
    write_own(page, TITLE, PAGE.read_bytes(), force=force)
    out.print(
        f"{file}: version {vectors.VERSION}, {len(data):,} bytes, {vectors.LICENCE}; format: {page}"
    )


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
        for name in only or ():
            dialects.get(name)  # raises if there is none
    chosen = [each for each in vectors.make() if not only or each.dialect in only]
    questions = "".join(f"{vector.question()}\n" for vector in chosen)
    try:
        answers, failure = _run(command, questions.encode(), limit)
    except OSError as error:
        fail(
            f"{command[0]}: {error.strerror}; expected an executable program after `--`"
        )
    counts = Counter[str]()
    for vector, line in zip(chosen, answers, strict=False):
        verdict, message = _verify(vector, line)
        counts[verdict] += 1
        if verdict == "failed" and counts[verdict] == 1:
            out.print(f"{_name(vector)}: {message}\ninput: {vector.question()}")
    if not failure and len(answers) != len(chosen):
        failure = f"{len(answers)} output lines for {len(chosen)} input lines"
    if failure:
        at = "".join(f"{_name(vector)}: " for vector in chosen[len(answers) :][:1])
        out.print(f"{at}{failure}; expected a line for each, and exit status 0")
    counts["skipped"] = max(0, len(chosen) - len(answers))
    others = [f"{counts[kind]} {kind}" for kind in OTHERS if counts[kind]]
    summary = [f"{counts['passed']} of {len(chosen)} passed", *others]
    out.print(", ".join(summary))
    if not counts["passed"]:
        out.print("expected at least one to pass: a program may not decline them all")
    is_good = counts["passed"] and not counts["failed"] and not failure
    raise typer.Exit(0 if is_good else 1)


def _run(
    command: Sequence[str], questions: bytes, limit: float
) -> tuple[list[str], str]:
    """Return the output lines of a program that is given questions, and how it failed, or ""."""
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as errors:
        asked.write(questions)
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
        last_words = errors.read().decode(errors="replace").strip()
    failure = ""
    if is_late:
        failure = f"not ended after {limit:g} s (--time-limit)"
    elif status < 0:
        failure = f"ended with signal {signal.Signals(-status).name}"
    elif status:
        failure = f"ended with exit status {status}"
    if failure and last_words:
        failure = f"{failure} after the error output\n{last_words}\n"
    return output.decode(errors="replace").splitlines(), failure


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a program and the processes that it started."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def _verify(vector: Vector, line: str) -> tuple[str, str]:
    """Return whether a vector passed, failed, or was declined, and why it failed."""
    try:
        outcome = vectors.answer(line, len(vector.found_inf))
    except ValueError as error:
        return "failed", f"{line.strip()[:200]!r}: {error}"
    if outcome is None:
        return "declined", ""
    step = vectors.first_difference(vector.outcome, outcome)
    if step is None:
        return "passed", ""
    expected, actual = _entry(vector.outcome, step), _entry(outcome, step)
    return "failed", f"update {step}: expected the scale {expected}, not {actual}"


def _name(vector: Vector) -> str:
    params = " ".join(f"{name}={value}" for name, value in vector.params.items())
    return f"{vector.family}: {vector.dialect} {params}".rstrip()


def _entry(outcome: Outcome, n: int) -> str:
    if n >= len(outcome):
        return "nothing"
    scale = outcome[n]
    return vectors.GIVES_UP if scale is None else f"{scale!r} = {vectors.as_hex(scale)}"

"""``ampsim traces``: write the set of vectors, and judge any program by it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track
from rich.table import Table

from ampsim import __version__
from ampsim.cli.program import Program, ProgramError
from ampsim.cli.terminal import err, fail, out, print_table
from ampsim.core import conformance_vectors as vectors
from ampsim.core import dialects
from ampsim.core.conformance_vectors import Outcome, Vector
from ampsim.core.files import write_atomically

app = typer.Typer(
    help="Vectors of loss scalers: export them, judge a program in any language by them.",
    no_args_is_help=True,
)
PAGE = Path(vectors.__file__).with_suffix(".md")
BEFORE, AFTER = 4, 2


@app.command("export")
def export_vectors(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON Lines.", show_default=False)],
) -> None:
    """Write the vectors: settings, histories and scales by which a loss scaler in any language can be judged.

    The page that says what a line means is written beside FILE, as .md.
    """
    data = vectors.as_file(vectors.make(), __version__)
    page = file.with_suffix(".md")
    try:
        write_atomically(file, data)
        write_atomically(page, PAGE.read_bytes())
    except OSError as error:
        fail(f"{error}: expected a folder and files that can be written")
    out.print(
        f"{file}: version {vectors.VERSION}, {len(data):,} bytes, {vectors.LICENCE}; what a line means: {page}"
    )


@dataclass(frozen=True)
class Verdict:
    """A vector with what became of it: what was answered, and what is wrong with it if anything is."""

    vector: Vector
    kind: str
    """right, wrong or declined."""
    said: str = ""
    outcome: Outcome = ()
    step: int | None = None
    """The first update that is wrong."""


@app.command("verify")
def verify_program(
    command: Annotated[
        list[str],
        typer.Argument(metavar="CMD", help="The program and its arguments.", show_default=False),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--dialect", "-d", help="This one alone; again for more.", autocompletion=dialects.names
        ),
    ] = None,
    limit: Annotated[
        float, typer.Option("--time-limit", help="Seconds per answer.", min=0.01, max=1e6)
    ] = 10.0,
) -> None:
    """Judge a program that reads a line of settings and flags and writes a line of scales, again and again.

    `ampsim traces export` writes the page that says what the lines hold. Exit status 1: there are findings.
    Example: ampsim traces verify -- node scaler.js
    """
    try:
        asked = _chosen(vectors.make(), only or ())
    except dialects.UnknownDialectError as error:
        fail(str(error))
    verdicts: list[Verdict] = []
    trouble = ""
    try:
        with Program(command, limit) as program:
            try:
                for vector in track(
                    asked, "verifying", console=err, transient=True, disable=not err.is_terminal
                ):
                    verdicts.append(_judge(vector, program.ask(vector.question())))  # noqa: PERF401 - it may raise
                program.end()
            except ProgramError as error:
                trouble = str(error)
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}; expected a program that can be run, after `--`")
    raise typer.Exit(_report(asked, verdicts, trouble))


def _chosen(made: Sequence[Vector], names: Sequence[str]) -> list[Vector]:
    for name in names:
        dialects.get(name)  # raises if there is none
    return [vector for vector in made if not names or vector.dialect in names]


def _judge(vector: Vector, line: str) -> Verdict:
    try:
        outcome = vectors.answer(line, len(vector.found_inf))
    except ValueError as error:
        return Verdict(vector, "wrong", f"{line.strip()[:200]!r}: {error}")
    if outcome is None:
        return Verdict(vector, "declined")
    step = vectors.first_difference(vector.outcome, outcome)
    return Verdict(vector, "right" if step is None else "wrong", "", outcome, step)


def _report(asked: Sequence[Vector], verdicts: Sequence[Verdict], trouble: str) -> int:
    """Print what was found, first the first of it, and return the exit status."""
    first = next((verdict for verdict in verdicts if verdict.kind == "wrong"), None)
    if first is not None:
        _show(first)
    if trouble:
        told = f"{_name(asked[len(verdicts)])}: " if len(verdicts) < len(asked) else ""
        out.print(f"{told}{trouble}")
    _count(asked, verdicts)
    right = sum(verdict.kind == "right" for verdict in verdicts)
    out.print(
        f"{right} of {len(asked)} right"
        + ("" if right else "; expected some: it may decline, but not all")
    )
    return int(bool(first or trouble or not right))


def _name(vector: Vector) -> str:
    params = " ".join(f"{name}={value}" for name, value in vector.params.items())
    return f"{vector.family}: {vector.dialect} {params}".rstrip()


def _show(verdict: Verdict) -> None:
    """Print a wrong answer: its form, or the first update that is wrong and the history around it."""
    vector, step = verdict.vector, verdict.step
    if step is None:
        out.print(f"{_name(vector)}: {verdict.said}")
    else:
        out.print(f"{_name(vector)}: update {step} is the first that is wrong")
        table = Table(
            "update", "", "expected", "the program", box=None, pad_edge=False, header_style="bold"
        )
        for n in range(max(0, step - BEFORE), min(len(vector.found_inf), step + AFTER + 1)):
            flag = "overflow" if vector.found_inf[n] else "clean"
            table.add_row(
                str(n), flag, *(_entry(outcome, n) for outcome in (vector.outcome, verdict.outcome))
            )
        print_table(table)
    out.print(f"what it read: {vector.question()}")


def _entry(outcome: Outcome, n: int) -> str:
    if n >= len(outcome):
        return ""
    scale = outcome[n]
    return vectors.GIVES_UP if scale is None else f"{scale!r} = {vectors.as_hex(scale)}"


def _count(asked: Sequence[Vector], verdicts: Sequence[Verdict]) -> None:
    """Print how many of each family are right."""
    kinds = "right", "wrong", "declined", "not asked"
    counts = Counter((verdict.vector.family, verdict.kind) for verdict in verdicts)
    counts.update((vector.family, "not asked") for vector in asked[len(verdicts) :])
    shown = [kind for kind in kinds if any(counts[vector.family, kind] for vector in asked)]
    table = Table("family", *shown, box=None, pad_edge=False, header_style="bold")
    for family in dict.fromkeys(vector.family for vector in asked):
        table.add_row(family, *(str(counts[family, kind]) for kind in shown))
    print_table(table)

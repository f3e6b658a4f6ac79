"""The ledger: every number, table, figure and claim of the paper with its value and where that comes from.

`collect` evaluates what `numbers` and `tables` declare and refuses, with all that is wrong at once, what cannot be
traced to a fresh data file. The result is `paper/numbers.json`, which the text reads.
"""

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper import paths, printed, sources
from paper.sources import ROOT, Refused, Source

WIDTHS = {237.6: "one column", 496.8: "two columns"}  # points; 3.3 and 6.9 inches, at which 7 pt stay 7 pt


@dataclass(frozen=True)
class Number:
    """One number: its source (a data file's stem, or formulas, field, traces, runs), its path there, and its form."""

    stem: str
    path: str
    form: str = ".2f"


@dataclass(frozen=True)
class Claim:
    """A sentence in words that the data must go on bearing out: the path must be true."""

    stem: str
    path: str


@dataclass(frozen=True)
class Table:
    """A table of results: cells are text or numbers. `align` has a letter (l, c, r) a column."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | Number, ...], ...]
    align: str


@dataclass(frozen=True)
class Declared:
    """All that the text may use."""

    numbers: Mapping[str, Number]
    claims: Mapping[str, Claim]
    tables: Mapping[str, Table]
    figures: tuple[str, ...]


@functools.cache
def source(stem: str, root: Path = ROOT) -> Source:
    """Where a stem's numbers come from."""
    made = {
        "formulas": sources.formulas,
        "field": sources.field_of_scalers,
        "traces": sources.recorded,
        "runs": sources.runs,
    }
    return made[stem](root) if stem in made else sources.data(stem, root)


def collect(declared: Declared, root: Path = ROOT) -> dict[str, Any]:
    """The ledger, as plain JSON.

    Raises:
        Refused: every missing data file or figure, path that finds nothing and claim that no longer holds.
    """
    wrong: list[str] = []
    book: dict[str, Any] = {"numbers": {}, "claims": {}, "tables": {}, "figures": {}, "sources": {}}
    numbers = dict(declared.numbers)
    for name, table in declared.tables.items():
        book["tables"][name] = _lay_out(name, table, numbers)
    stems = {number.stem for number in numbers.values()} | {claim.stem for claim in declared.claims.values()}
    for stem in sorted(stems.union(*(data_of(figure, root) for figure in declared.figures))):
        with _noting(wrong):
            book["sources"][stem] = _describe(source(stem, root))
    for name, number in numbers.items():
        if number.stem in book["sources"]:
            with _noting(wrong, f"number {name!r}: "):
                book["numbers"][name] = _entry(number, root)
    for name, claim in declared.claims.items():
        if claim.stem in book["sources"]:
            with _noting(wrong, f"claim {name!r}: "):
                book["claims"][name] = _hold(claim, root)
    for stem in declared.figures:
        with _noting(wrong):
            book["figures"][stem] = _figure(stem, root)
    if wrong:
        raise Refused("\n".join(wrong))
    return book


def stale(book: Mapping[str, Any], root: Path = ROOT) -> list[str]:
    """The data files that their experiments would not write today, each with the reason and the cure."""
    reasons = {stem: sources.stale(source(stem, root)) for stem, made in book["sources"].items() if made["seeds"]}
    return [
        f"{book['sources'][stem]['file']}: stale, {why}; `python -m experiments.{stem} --force`"
        for stem, why in reasons.items()
        if why
    ]


def data_of(stem: str, root: Path = ROOT) -> tuple[str, ...]:
    """The data files that a figure reads, by its own ``DATA``; none for one drawn from the library."""
    script = root / "figures" / f"{stem}.py"
    if not script.exists():
        return ()
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "DATA" for target in targets):
                return tuple(ast.literal_eval(node.value))
    return ()


class _noting:  # noqa: N801 - reads as a statement
    """Collects a refusal instead of letting it pass."""

    def __init__(self, wrong: list[str], prefix: str = "") -> None:
        self.wrong, self.prefix = wrong, prefix

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        if isinstance(error, Refused | ValueError):
            self.wrong.append(f"{self.prefix}{error}")
            return True
        return False


def _lay_out(name: str, table: Table, numbers: dict[str, Number]) -> dict[str, Any]:
    """The table's cells; its numbers enter the ledger under the table's name, row and column."""

    def cell(row: int, column: int, content: str | Number) -> dict[str, str]:
        if isinstance(content, str):
            return {"text": content}
        key = f"{name}[{row},{column}]"
        numbers[key] = content
        return {"number": key}

    rows = [[cell(i, j, content) for j, content in enumerate(row)] for i, row in enumerate(table.rows)]
    return {"columns": list(table.columns), "align": table.align, "rows": rows}


def _describe(found: Source) -> dict[str, Any]:
    return {
        "file": found.file,
        "script": found.script,
        "device": found.device,
        "seeds": list(found.seeds),
        "commit": found.commit,
    }


def _entry(number: Number, root: Path) -> dict[str, Any]:
    value = paths.evaluate(source(number.stem, root), number.path)
    plain, markup = printed.show(value, number.form)
    return {"text": plain, "typst": markup, "value": value, "stem": number.stem, "path": number.path}


def _hold(claim: Claim, root: Path) -> dict[str, Any]:
    if paths.evaluate(source(claim.stem, root), claim.path) is not True:
        raise Refused(f"no longer true of {source(claim.stem, root).file}: {claim.path}; change the text")
    return {"stem": claim.stem, "path": claim.path}


def _figure(stem: str, root: Path) -> dict[str, Any]:
    pdf, svg = (root / "figures" / f"{stem}.{suffix}" for suffix in ("pdf", "svg"))
    for path in (pdf, svg):
        if not path.exists():
            raise Refused(f"{path.relative_to(root)}: no such figure; `python -m figures {stem}` draws it")
    width = re.search(r'width="([\d.]+)pt"', svg.read_text(encoding="utf-8")[:2000])
    if width is None or float(width[1]) not in WIDTHS:
        raise Refused(
            f"figures/{stem}.svg: {width and width[1]} pt wide, expected one of {[*WIDTHS]}, not to be scaled"
        )
    return {
        "file": f"figures/{stem}.pdf",
        "script": f"figures/{stem}.py",
        "wide": WIDTHS[float(width[1])] == "two columns",
        "data": list(data_of(stem, root)),
    }


def unused(book: Mapping[str, Any], uses: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """What is declared and does not appear in the text; `uses` has what does, by kind."""
    for kind in ("numbers", "claims", "figures", "tables"):
        for name in sorted(book[kind].keys() - {use["name"] for use in uses[kind]}):
            yield f"{kind[:-1]} {name!r} is declared and the text does not use it; delete it or use it"

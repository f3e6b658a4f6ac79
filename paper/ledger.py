"""The ledger: every number, table, figure and claim of the paper with its value and where that comes from.

`collect` evaluates what `numbers` and `tables` declare and refuses, with all that is wrong at once, what cannot be
traced to a data file. The result is `paper/numbers.json`, which the text reads.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ampsim import records
from figures.claims import CLAIMS
from figures.results import Result
from figures.verdicts import judge
from paper import printed, sources
from paper.printed import Value
from paper.sources import ROOT, PaperError, Uses
from paper.syntax import source_of, strings

WIDTHS = {237.6: "one column", 496.8: "two columns"}  # points; 3.3 and 6.9 inches, at which 7 pt stay 7 pt
Entry = dict[str, object]
UNKNOWN = {"text": "?", "typst": "#text(fill: red)[?]", "value": None, "form": "text"}  # of data that says no number
Book = dict[str, dict[str, Entry]]  # by kind, then by name; plain JSON


@dataclass(frozen=True)
class Number:
    """A number of a data file: the file's stem, a function of what the file says, and the form it is printed in."""

    stem: str
    value: Callable[[Result], Value]
    form: str = ".2f"


@dataclass(frozen=True)
class Formula:
    """A number that nothing was run for: a closed form, or what a dialect does."""

    value: Callable[[], Value]
    form: str = ".2f"


Cell = str | Number | Formula


@dataclass(frozen=True)
class Table:
    """A table of results: cells are text or numbers. `align` has one letter (l, c, r) per column.

    `groups`, if any, are heads over the heads: a text and over how many columns it stands.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    align: str
    groups: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Declared:
    """All that the text may use: numbers, names of `figures.claims.CLAIMS`, tables and figures."""

    numbers: Mapping[str, Number | Formula]
    claims: Sequence[str]
    tables: Mapping[str, Table]
    figures: Sequence[str]


def collect(declared: Declared, root: Path = ROOT, *, strict: bool = True) -> Book:
    """Return the ledger, as plain JSON.

    Args:
        declared: what the text may use.
        root: where data and figures are.
        strict: refuse what the data does not bear out. Otherwise the ledger says so, for the text to mark: a claim
            has ``holds`` and ``now``, a number that cannot be computed is a question mark.

    Raises:
        PaperError: all missing data files and figures, functions that find nothing and claims that no longer hold.
    """
    wrong: list[str] = []
    book: Book = {"numbers": {}, "claims": {}, "tables": {}, "figures": {}, "sources": {}}
    numbers = dict(declared.numbers)
    for name, table in declared.tables.items():
        book["tables"][name] = _lay_out(name, table, numbers)
    for stem in sorted(_stems(declared, root)):
        with _noting(wrong):
            book["sources"][stem] = _describe(sources.load(stem, root), root)
    for name, number in numbers.items():
        if isinstance(number, Formula) or number.stem in book["sources"]:
            found: list[str] = []
            with _noting(found, f"number {name!r}: "):
                book["numbers"][name] = _entry(number, root)
            if found and not strict:
                book["numbers"][name] = {**UNKNOWN, "stem": getattr(number, "stem", "formula"), "code": found[0]}
            wrong += found if strict else []
    for name in declared.claims:
        if name not in CLAIMS or CLAIMS[name].stem in book["sources"]:
            with _noting(wrong, f"claim {name!r}: "):
                book["claims"][name] = _hold(name, root, strict=strict)
    for stem in declared.figures:
        with _noting(wrong):
            book["figures"][stem] = _figure(stem, root)
    if wrong:
        raise PaperError("\n".join(wrong))
    return book


def data_of(stem: str, root: Path = ROOT) -> tuple[str, ...]:
    """Return the stems of the data files that a figure reads; none for one that is drawn from the library."""
    return tuple(strings(root / "figures" / f"{stem}.py", "DATA"))


def unused(book: Book, uses: Uses) -> Iterator[str]:
    """Name what is declared and does not appear in the text; `uses` has what does, by kind."""
    for kind in ("numbers", "figures", "tables"):
        for name in sorted(book[kind].keys() - {use["name"] for use in uses[kind]}):
            yield f"{kind[:-1]} {name!r} is declared and the text does not use it; delete it or use it"


@contextlib.contextmanager
def _noting(wrong: list[str], prefix: str = "") -> Iterator[None]:
    """Collect what goes wrong instead of letting it pass."""
    try:
        yield
    except PaperError as error:
        wrong.append(f"{prefix}{error}")
    except (LookupError, TypeError, ArithmeticError, ValueError, AttributeError) as error:
        wrong.append(f"{prefix}{type(error).__name__}: {error}")


def origins(declared: Declared, root: Path = ROOT) -> list[records.Record]:
    """Return the headers of the files of `sources.DATA` that are read; one that cannot be read is refused elsewhere."""
    found = []
    for stem in sorted(stem for stem in _stems(declared, root) - {"traces"} if "@" not in stem):
        with contextlib.suppress(PaperError):
            found.append(sources.load(stem, root).provenance)
    return found


def _stems(declared: Declared, root: Path) -> set[str]:
    """Return all that is read."""
    cells = (cell for table in declared.tables.values() for row in table.rows for cell in row)
    found = {number.stem for number in (*declared.numbers.values(), *cells) if isinstance(number, Number)}
    found |= {CLAIMS[name].stem for name in declared.claims if name in CLAIMS}
    return found.union(*(data_of(figure, root) for figure in declared.figures))


def _lay_out(name: str, table: Table, numbers: dict[str, Number | Formula]) -> Entry:
    """Return the table's cells; its numbers enter the ledger under the table's name, row and column."""

    def cell(row: int, column: int, content: Cell) -> dict[str, str]:
        if isinstance(content, str):
            return {"text": content}
        key = f"{name}[{row},{column}]"
        numbers[key] = content
        return {"number": key}

    rows = [[cell(i, j, content) for j, content in enumerate(row)] for i, row in enumerate(table.rows)]
    groups = [list(group) for group in table.groups]
    return {"columns": list(table.columns), "align": table.align, "groups": groups, "rows": rows}


def _describe(run: Result, root: Path) -> Entry:
    return {
        "file": run.path.relative_to(root).as_posix(),
        "script": run.provenance["script"],
        "device": run.device,
        "seeds": list(run.seeds),
        "commit": run.provenance["commit"],
    }


def _entry(number: Number | Formula, root: Path) -> Entry:
    if isinstance(number, Formula):
        stem, value = "formula", number.value()
    else:
        stem, value = number.stem, number.value(sources.load(number.stem, root))
    if isinstance(value, float) and number.form != "2^":
        value = float(f"{value:.12g}")  # numpy's last bits are the processor's
    plain, markup = printed.show(value, number.form)
    code = source_of(number.value)
    return {"text": plain, "typst": markup, "value": value, "form": number.form, "stem": stem, "code": code}


def _hold(name: str, root: Path, *, strict: bool) -> Entry:
    if name not in CLAIMS:
        raise PaperError("the text marks it with #holds; expected one of figures/claims.py")
    claim = CLAIMS[name]
    entry: Entry = {"stem": claim.stem, "sentence": claim.sentence, "code": source_of(claim.judge)}
    run = sources.load(claim.stem, root)
    if not strict:
        found = judge(claim, run.path.parent)
        return entry | {"holds": found.holds is True, "now": found.now}
    answer = claim.judge(run)
    if not answer.holds:
        raise PaperError(f"no longer true of {claim.stem}.jsonl: {claim.sentence}; {answer.now}; change the text")
    return entry


def _figure(stem: str, root: Path) -> Entry:
    svg = root / "figures" / f"{stem}.svg"
    if not svg.exists():
        raise PaperError(f"{svg.relative_to(root)}: no such figure; `python -m figures {stem}` draws it")
    width = re.search(r'width="([\d.]+)pt"', svg.read_text(encoding="utf-8")[:2000])
    if width is None or float(width[1]) not in WIDTHS:
        raise PaperError(
            f"figures/{stem}.svg: {width and width[1]} pt wide, expected one of {[*WIDTHS]}, not to be scaled"
        )
    return {
        "file": f"figures/{stem}.svg",
        "script": f"figures/{stem}.py",
        "wide": WIDTHS[float(width[1])] == "two columns",
        "data": list(data_of(stem, root)),
    }

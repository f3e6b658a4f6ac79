"""Build the PDF from the numbers and the text, and report all problems."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typst

from ampsim.runs.record import data_file
from figures.claim_results import judge
from figures.claims import CLAIMS
from paper import sources, values
from paper.numbers import NUMBERS
from paper.sources import PAPER, ROOT, PaperError
from paper.tables import TABLES
from paper.values import Cell, Number

PDF = PAPER / "ampsim.pdf"
FIGURES = ROOT / "figures"
WIDE = {
    "237.6": False,
    "496.8": True,
}  # width of a figure, points -> whether it spans both columns
UNKNOWN = "#text(fill: red)[?]"  # for a number that the data does not give
FAILURES = (LookupError, TypeError, ArithmeticError, ValueError, AttributeError)
Content = dict[
    str, dict[str, Any]
]  # by kind, then by name; plain JSON, which `lib.typ` reads


class Evaluation:
    """Compute everything that the text shows by name from the data files.

    Attributes:
        strict: Whether missing numbers and refuted claims are problems.
        figures: A folder of figures; committed figures replace missing ones.
        problems: The problems found; complete once `content` has returned.
    """

    def __init__(self, *, strict: bool = True, figures: Path = FIGURES) -> None:
        """Prepare an evaluation."""
        self.strict = strict
        self.figures = figures
        self.problems: list[str] = []

    def content(self) -> Content:
        """Return what the text shows; it is complete if there are no problems."""
        claims = [name for name in sources.named("holds") if name in CLAIMS]
        return {
            "numbers": {
                name: self.number(name, number) for name, number in NUMBERS.items()
            },
            "tables": {name: self.table(name) for name in TABLES},
            "claims": {name: self.claim(name) for name in claims},
            "figures": {stem: self.figure(stem) for stem in sources.named("fig")},
        }

    def number(self, name: str, cell: Cell) -> str:
        """Return a number as Typst markup."""
        try:
            return values.markup(cell)
        except PaperError as error:
            self.problems.append(str(error))
        except FAILURES as error:
            if self.strict:
                self.problems.append(
                    f"number {name!r}: {type(error).__name__}: {error}"
                )
        return UNKNOWN

    def table(self, name: str) -> dict[str, object]:
        """Return a table with its cells as Typst markup."""
        try:
            table = TABLES[name]()
        except PaperError as error:
            self.problems.append(str(error))
            return {}
        rows = [
            [
                self.number(f"{name}[{row},{column}]", cell)
                for column, cell in enumerate(cells)
            ]
            for row, cells in enumerate(table.rows)
        ]
        return {
            "columns": table.columns,
            "align": table.align,
            "groups": table.groups,
            "rows": rows,
        }

    def claim(self, name: str) -> dict[str, object]:
        """Return whether the data supports a claim, and the result."""
        claim = CLAIMS[name]
        verdict = judge(claim, *sources.FOLDERS)
        if self.strict and not verdict.holds:
            problem = (
                f"no longer true of {claim.stem}.jsonl: {claim.sentence}; {verdict.now}"
            )
            self.problems.append(f"claim {name!r}: {problem}; change the text")
        return {"holds": verdict.holds is True, "now": verdict.now}

    def figure(self, stem: str) -> dict[str, object]:
        """Return the file and the width of a figure, and the seeds of the data file of its name."""
        svg = self.figures / f"{stem}.svg"
        if not svg.exists():
            svg = FIGURES / svg.name
        if not svg.exists():
            missing = f"figures/{svg.name}: no such figure"
            self.problems.append(f"{missing}; run `python -m figures {stem}`")
            return {}
        width = re.search(r'width="([\d.]+)pt"', svg.read_text(encoding="utf-8")[:2000])
        if width is None or width[1] not in WIDE:
            expected = f"expected a width of {' or '.join(WIDE)} pt"
            self.problems.append(
                f"figures/{svg.name}: {expected}, so that it is not scaled"
            )
            return {}
        seeds = self.number(stem, Number(stem, lambda run: len(run.seeds), "d"))
        file = f"/{svg.relative_to(ROOT).as_posix()}"
        return {"file": file, "wide": WIDE[width[1]], "seeds": seeds}


def build(*, draft: bool = False) -> bytes:
    """Return the paper as a PDF.

    Args:
        draft: Build with stale data and print a notice on each page instead of raising.

    Raises:
        PaperError: All problems that were found, one per line.
    """
    evaluation = Evaluation()
    content = evaluation.content()
    problems = [*misnamed(), *evaluation.problems]
    raise_problems(problems)
    stale = sources.stale(stems())
    if not draft:
        raise_problems(stale)
    return compile_text(content, "DRAFT: some data is stale" if stale else "")


def build_here(data: Path, figures: Path) -> tuple[bytes, list[str]]:
    """Build with other data and figures, and use committed files where these are missing.

    Args:
        data: A folder of data files of this machine.
        figures: A folder of figures that were drawn from them, in the checkout.

    Returns:
        The PDF, and the names of the claims whose sentences are marked in it.

    Raises:
        PaperError: A data file or figure cannot be read.
    """
    evaluation = Evaluation(strict=False, figures=figures)
    with sources.reading(data):
        content = evaluation.content()
    raise_problems(evaluation.problems)
    names = {
        data_file.read_provenance(path)["device"]["name"]
        for path in data.glob("*.jsonl")
    }
    notice = (
        f"NOT THE PUBLISHED TEXT: built from data made on {', '.join(sorted(names))}"
    )
    marked = [name for name, claim in content["claims"].items() if not claim["holds"]]
    return compile_text(content, notice), marked


def raise_problems(problems: list[str]) -> None:
    """Raise an error with all problems, each once, if there are any."""
    if problems:
        raise PaperError("\n".join(dict.fromkeys(problems)))


def misnamed(text: str = sources.TEXT) -> Iterator[str]:
    """Yield names that the text uses undeclared, and declared names that it does not use."""
    for call, kind, declared in (
        ("num", "number", NUMBERS),
        ("datatable", "table", TABLES),
    ):
        used = sources.named(call, text)
        for name in used:
            if name not in declared:
                yield f"{kind} {name!r}: used by the text; expected a name that `paper` declares"
        for name in declared:
            if name not in used:
                yield f"{kind} {name!r} is declared and not used by the text; delete it or use it"
    for name in sources.named("holds", text):
        if name not in CLAIMS:
            yield f"claim {name!r}: used by the text; expected one of figures/claims.py"


def stems() -> set[str]:
    """Return the data files that the paper reads."""
    cells = [cell for table in TABLES.values() for row in table().rows for cell in row]
    read = {
        number.stem
        for number in [*NUMBERS.values(), *cells]
        if isinstance(number, Number)
    }
    return (
        read
        | {CLAIMS[name].stem for name in sources.named("holds")}
        | {*sources.named("fig")}
    )


def compile_text(content: Content, notice: str = "") -> bytes:
    """Return the PDF of the text, with Typst's own fonts only.

    Raises:
        PaperError: Typst's errors and warnings, such as a citation that leads nowhere.
    """
    inputs = {"content": json.dumps(content), "notice": notice}
    text = PAPER / "paper.typ"
    try:
        pdf, warnings = typst.compile_with_warnings(
            text, root=ROOT, ignore_system_fonts=True, sys_inputs=inputs
        )
    except RuntimeError as error:  # TypstError is one
        raise PaperError(f"paper/paper.typ: {error}") from None
    raise_problems([f"paper/paper.typ: {warning}" for warning in warnings])
    return bytes(pdf)


def pages(pdf: bytes) -> int:
    """Return the number of pages of a PDF that was made here."""
    return len(re.findall(rb"/Type\s*/Page\b", pdf))

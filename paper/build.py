"""From the ledger and the text to the PDF, and the refusals on the way."""

import functools
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import typst

from ampsim import records
from paper import ledger, sources
from paper.ledger import Book, Declared, Formula
from paper.sources import ROOT, PaperError, Use, Uses

KINDS = ("numbers", "claims", "figures", "tables", "tests", "theorems", "proofs", "marks")


def declared(root: Path = ROOT) -> Declared:
    """Return what `numbers` and `tables` declare, and the claims that the text marks."""
    from paper import numbers, tables

    claims = sources.claims(root)
    measured = Declared(numbers.NUMBERS, claims, tables.TABLES, numbers.FIGURES)
    count = Formula(lambda: len(claims), "d")
    digest = Formula(lambda: sources.claims_sha256()[:12], "text")
    origins = functools.partial(ledger.origins, measured, root)
    minutes = Formula(lambda: sum(origin["unit_seconds"] for origin in origins()) / 60, ".0f")
    return replace(
        measured,
        numbers={**numbers.NUMBERS, "claims": count, "claims.hash": digest, "artefact.minutes": minutes}
        | {
            "artefact.processors": _listed(origins, lambda origin: origin["cpu"]),
            "artefact.threads": _listed(origins, lambda origin: str(origin["threads"])),
            "artefact.python": _listed(origins, lambda origin: origin["versions"]["python"]),
            "artefact.torch": _listed(origins, lambda origin: origin["versions"]["torch"]),
        },
    )


def _listed(origins: Callable[[], Sequence[records.Record]], read: Callable[[records.Record], str]) -> Formula:
    """Return what the headers of data files say of the machine; where they differ, each value that they have."""
    return Formula(lambda: " and ".join(sorted({read(origin) for origin in origins()})), "text")


def build(root: Path = ROOT, *, draft: bool = False, here: str = "") -> dict[str, bytes]:
    """Return the paper's files, by their path from the root: the ledger and the PDF. Only the ledger is written.

    Args:
        root: the checkout, or a folder with copies of ``paper``, ``figures``, ``tests`` and ``experiments/data``.
        draft: build with stale data and say so at the top of each page, instead of refusing.
        here: of which machine the data is, for the top of each page; sentences that it does not bear out are marked.

    Raises:
        PaperError: with all that is wrong, each with its file.
    """
    said = declared(root)
    book = ledger.collect(said, root, strict=not here)
    old = [] if here else sources.stale(book["sources"], root)
    if old and not draft:
        raise PaperError("\n".join(old))
    text = encode(book)
    target = root / "paper" / "numbers.json"
    if not target.exists() or target.read_bytes() != text:
        target.write_bytes(text)
    pdf = compile_text(root, "DRAFT: some data is stale" if old else here)
    if not here and (unused := [*ledger.unused(book, used(root))]):
        raise PaperError("\n".join(unused))
    return {"paper/numbers.json": text, "paper/ampsim.pdf": pdf}


def encode(book: Book) -> bytes:
    """Return the ledger as it is committed: one line per entry, so that a change shows."""
    kinds = []
    for kind, entries in book.items():
        lines = [f"  {json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in entries.items()]
        kinds.append(f'"{kind}": {{\n' + ",\n".join(lines) + "\n}")
    return ("{\n" + ",\n".join(kinds) + "\n}\n").encode()


def compile_text(root: Path, notice: str = "") -> bytes:
    """Return the PDF of what lies in ``paper``, with Typst's own fonts only.

    Raises:
        PaperError: Typst's errors and warnings, such as a citation that leads nowhere.
    """
    try:
        text, inputs = str(root / "paper" / "paper.typ"), {"draft": notice}
        pdf, warnings = typst.compile_with_warnings(text, root=str(root), ignore_system_fonts=True, sys_inputs=inputs)
    except RuntimeError as error:  # TypstError is one
        raise PaperError(f"paper/paper.typ: {error}") from None
    if warnings:
        raise PaperError("\n".join(f"paper/paper.typ: {warning}" for warning in warnings))
    return bytes(pdf)


def used(root: Path) -> Uses:
    """Return what the compiled text has, by kind and in its order."""
    try:
        text = str(root / "paper" / "paper.typ")
        found = typst.query(text, "<used>", field="value", root=str(root), ignore_system_fonts=True)
    except RuntimeError as error:
        raise PaperError(f"paper/paper.typ: {error}") from None
    kinds: dict[str, list[Use]] = {kind: [] for kind in KINDS}
    for value in json.loads(found):
        kinds[value["kind"]].append(value)
    return kinds


def build_here(data: Path, figures: Path) -> dict[str, bytes]:
    """Build in a copy of the paper with other data and figures, and committed ones where these lack some.

    Returns:
        The paper's files, and as `marks` the names of the claims whose sentences are marked, one per line.

    Args:
        data: a folder of data files of this machine.
        figures: a folder of figures that were drawn from them.
    """
    with tempfile.TemporaryDirectory(prefix="ampsim-paper-") as name:
        root = Path(name)
        copy(ROOT, root)
        for path in [*(ROOT / "figures").glob("*.svg"), *figures.glob("*.svg")]:
            shutil.copy(path, root / "figures")
        for path in data.glob("*.jsonl"):
            shutil.copy(path, root / sources.DATA)
        names = {records.read_provenance(path)["device"]["name"] for path in data.glob("*.jsonl")}
        files = build(root, here=f"NOT THE PUBLISHED TEXT: built from data made on {', '.join(sorted(names))}")
        sources.load.cache_clear()  # the folder goes
        marks = dict.fromkeys(use["name"] for use in used(root)["marks"])
        return files | {"marks": "\n".join(marks).encode()}


def check(root: Path = ROOT) -> list[str]:
    """Build again in a clean folder, figures included, and name each file whose bytes differ.

    Raises:
        PaperError: it cannot be built there.
    """
    from figures.rendering import render  # it loads matplotlib

    with tempfile.TemporaryDirectory(prefix="ampsim-paper-") as name:
        clean = Path(name)
        copy(root, clean)
        made = [path for stem in declared().figures for path in render(stem, clean / "figures")]
        files = build(clean) | {f"figures/{path.name}": path.read_bytes() for path in made}
    del files["paper/numbers.json"]  # built, and not committed
    old = {name: (root / name).read_bytes() for name in files if (root / name).exists()}
    return [name for name, new in sorted(files.items()) if old.get(name) != new]


def copy(root: Path, clean: Path) -> None:
    """Copy what the paper is built from, without what the build makes."""
    leave = shutil.ignore_patterns("*.pdf", "*.svg", "numbers.json", "__pycache__", "*.part", ".*")
    for part in ("paper", "figures", "tests", "experiments/data"):
        shutil.copytree(root / part, clean / part, ignore=leave)


def pages(pdf: bytes) -> int:
    """Return the number of pages of a PDF that was made here."""
    return len(re.findall(rb"/Type\s*/Page\b", pdf))

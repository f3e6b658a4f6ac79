"""From the ledger and the text to the PDF, and the refusals on the way."""

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typst

from paper import ledger, lint
from paper.ledger import Declared
from paper.sources import ROOT, Refused

TIME = 0  # of the PDF's making, for the same bytes every time; the document itself has no date


def declared() -> Declared:
    """What `numbers` and `tables` declare."""
    from paper import numbers, tables

    return Declared(numbers.NUMBERS, numbers.CLAIMS, tables.TABLES, numbers.FIGURES)


def build(root: Path = ROOT, *, draft: bool = False) -> dict[str, bytes]:
    """The paper's files, by their path from the root: the ledger and the PDF. Nothing is written but the ledger.

    Args:
        root: the checkout, or a folder with copies of ``paper``, ``figures``, ``tests`` and ``experiments/data``.
        draft: build with stale data and say so at the top of each page, instead of refusing.

    Raises:
        Refused: with all that is wrong, each with its file.
    """
    wrong = list(lint.digits(root))
    try:
        book = ledger.collect(declared(), root)
    except Refused as error:
        raise Refused("\n".join([*wrong, str(error)])) from None
    old = ledger.stale(book, root)
    if wrong or (old and not draft):
        raise Refused("\n".join([*wrong, *([] if draft else old)]))
    text = encode(book)
    target = root / "paper" / "numbers.json"
    if not target.exists() or target.read_bytes() != text:
        target.write_bytes(text)
    pdf = compile_text(root, "DRAFT: some data is stale" if old else "")
    uses = used(root)
    if left := [*ledger.unused(book, uses), *lint.references(uses, root)]:
        raise Refused("\n".join(left))
    return {"paper/numbers.json": text, "paper/ampsim.pdf": pdf}


def encode(book: Mapping[str, Any]) -> bytes:
    """The ledger as it is committed: one line an entry, so that a change shows."""
    lines = []
    for kind, entries in book.items():
        inner = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in entries.items()
        )
        lines.append(f'"{kind}": {{\n{inner}\n}}')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def compile_text(root: Path, notice: str = "") -> bytes:
    """The PDF of what lies in ``paper``, with Typst's own fonts only.

    Raises:
        Refused: Typst's errors and warnings, such as a citation that leads nowhere.
    """
    try:
        pdf, warnings = typst.compile_with_warnings(
            str(root / "paper" / "paper.typ"), root=str(root), ignore_system_fonts=True, timestamp=TIME,
            sys_inputs={"draft": notice},
        )  # fmt: skip
    except RuntimeError as error:  # TypstError is one
        raise Refused(f"paper/paper.typ: {error}") from None
    if warnings:
        raise Refused("\n".join(f"paper/paper.typ: {warning}" for warning in warnings))
    return bytes(pdf)


def used(root: Path) -> dict[str, list[dict[str, Any]]]:
    """What the compiled text has, by kind and in its order: names, of numbers their text, of theorems their tests."""
    try:
        found = typst.query(
            str(root / "paper" / "paper.typ"), "<used>", field="value", root=str(root), ignore_system_fonts=True
        )
    except RuntimeError as error:
        raise Refused(f"paper/paper.typ: {error}") from None
    kinds: dict[str, list[dict[str, Any]]] = {
        kind: [] for kind in ("numbers", "claims", "figures", "tables", "tests", "theorems", "proofs")
    }
    for value in json.loads(found):
        kinds[value["kind"]].append(value)
    return kinds


def check(root: Path = ROOT) -> list[str]:
    """Build again in a clean folder, figures included, and name each file whose bytes differ.

    Raises:
        Refused: it cannot be built there.
    """
    from figures import __main__ as figures

    with tempfile.TemporaryDirectory(prefix="ampsim-paper-") as name:
        clean = Path(name)
        copy(root, clean)
        made = []
        for stem in declared().figures:
            made += figures.render(stem, clean / "figures")
        files = build(clean) | {f"figures/{path.name}": path.read_bytes() for path in made}
    return [
        name for name, new in sorted(files.items()) if not (root / name).exists() or (root / name).read_bytes() != new
    ]


def copy(root: Path, clean: Path) -> None:
    """What the paper is built from, without what the build makes."""
    leave = shutil.ignore_patterns("*.pdf", "*.svg", "numbers.json", "__pycache__", "*.part", ".*")
    for part in ("paper", "figures", "tests", "experiments/data"):
        shutil.copytree(root / part, clean / part, ignore=leave)


def pages(pdf: bytes) -> int:
    """How many pages a PDF of ours has."""
    return len(re.findall(rb"/Type\s*/Page\b", pdf))

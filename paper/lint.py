"""What the text may not have: a typed digit where a measurement should stand, a theorem without proof or test."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Required, TypedDict

from paper.sources import ROOT
from paper.syntax import functions


class Use(TypedDict, total=False):
    """One thing in the compiled text."""

    kind: Required[str]
    name: Required[str]
    text: str  # of a number: as it is printed
    code: list[str]  # of a theorem: its functions
    tests: list[str]  # of a theorem
    assumes: bool  # of a theorem: whether it says what it assumes
    page: str  # of the edge of a table or figure: the page, points from its top, whether in both columns or in the left
    y: float
    wide: bool
    left: bool


Uses = Mapping[str, Sequence[Use]]  # by kind

# Numbers of three digits and more that formulas are written with; others there are results: ranks in an example,
# growth intervals (torch's is 2000) and exponents of float32.
IN_FORMULAS = {"1024", "2000", "800", "200", "128", "126"}
IN_PROSE = {"65504", "65520"}  # the largest number of fp16, and from where on it overflows
THEORY = "tests/core/test_theory.py"
MAIN = 10  # pages that the text may have before its references
_NUMBER = re.compile(r"(?<![\w.\-_])\d[\d.,]*\d|(?<![\w.\-_])\d")
_NAMED = r'#num\("([^"]+)"\)'
OUTWARDS = (  # where a number stands as a bound, and how its form begins there
    (rf"\b(?:at\s+most|within|no\s+more\s+than|up\s+to|(?<!no\s)less\s+than|fewer\s+than|below)\s+{_NAMED}", "<="),
    (rf"\b(?:at\s+least|no\s+less\s+than|(?<!no\s)more\s+than|above|between)\s+{_NAMED}", ">="),
    (rf'\bbetween\s+#num\("[^"]+"\)\s+and\s+{_NAMED}', "<="),
    (rf"(?<!from)\s{_NAMED}\s+to\s+#num\(", ">="),
    (rf'(?<!from)\s#num\("[^"]+"\)\s+to\s+{_NAMED}', "<="),
)
_NOT_PROSE = (
    r"//[^\n]*",
    r"`[^`]*`",
    r"#given\[[^\]]*\]",
    r"@[\w:.\-]+",
    r"<[\w:.\-]+>",
    r"(?:size|space): [\d.]+pt",
    r"columns: 1",
)


def claims(root: Path = ROOT) -> list[str]:
    """Return the names of the claims that the text marks with ``#holds``, each once."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((root / "paper" / "text").glob("*.typ")))
    return list(dict.fromkeys(re.findall(r'#holds\("([^"]+)"\)', text)))


def digits(root: Path = ROOT) -> Iterator[str]:
    """Name the numbers typed into the text that are neither definitions nor marked as given."""
    for path in sorted((root / "paper" / "text").glob("*.typ")):
        text = path.read_text(encoding="utf-8")
        for pattern in _NOT_PROSE:
            text = re.sub(pattern, blank, text)
        found = [(m.start(), m[0]) for m in _NUMBER.finditer(re.sub(r"\$[^$]*\$", blank, text)) if m[0] not in IN_PROSE]
        for formula in re.finditer(r"\$[^$]*\$", text):
            found += [(formula.start() + at, number) for at, number in _results(formula[0])]
        for at, number in sorted(found):
            yield (
                f"{path.relative_to(root)}, line {text.count(chr(10), 0, at) + 1}: {number!r} is typed by hand; "
                'expected #num("name") with its function in paper/numbers, or #given[...] for a definition or quotation'
            )


def swallowed(root: Path = ROOT) -> Iterator[str]:
    """Name the semicolons that end an expression of Typst's, and so are not printed."""
    for path in sorted((root / "paper" / "text").glob("*.typ")):
        text = path.read_text(encoding="utf-8")
        for found in re.finditer(r"#[\w.\-]+(?:\([^()\n]*\)|\[[^\[\]\n]*\])+;", text):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{path.relative_to(root)}, line {line}: {found[0]!r} prints no semicolon; expected '\\;' after it"


def bounds(forms: Mapping[str, str], root: Path = ROOT) -> Iterator[str]:
    """Name the numbers that stand as a bound and are not rounded outwards.

    Args:
        forms: name of a number -> the form that it is printed in.
        root: where the text is.
    """
    for path in sorted((root / "paper" / "text").glob("*.typ")):
        text = path.read_text(encoding="utf-8")
        for pattern, wanted in OUTWARDS:
            for found in re.finditer(pattern, text):
                if (form := forms.get(found[1], wanted))[:2] != wanted:
                    yield (
                        f"{path.relative_to(root)}, line {text.count(chr(10), 0, found.start()) + 1}: "
                        f"{' '.join(found[0].split())} is printed as {form!r}; expected {wanted + form!r}, "
                        "so that rounding cannot make the bound false"
                    )


def length(uses: Uses) -> Iterator[str]:
    """Say that the main text is too long, if it is."""
    for use in uses["ends"]:
        if int(use["name"]) > MAIN:
            yield f"the main text ends on page {use['name']}; expected at most {MAIN}: shorten it, or use an appendix"


def _results(formula: str) -> Iterator[tuple[int, str]]:
    """Yield the numbers that formulas are not written with: fractions, large ones, and ones that stand alone."""
    alone = _NUMBER.fullmatch(formula.strip("$ ")) is not None
    for match in _NUMBER.finditer(formula):
        small = match[0].isdigit() and len(match[0]) < 3 and not (alone and int(match[0]) > 2)
        if not small and match[0] not in IN_FORMULAS:
            yield match.start(), match[0]


def blank(match: re.Match[str]) -> str:
    """Return as many spaces as were found, and as many lines."""
    return re.sub(r"[^\n]", " ", match[0])


def references(uses: Uses, root: Path = ROOT) -> Iterator[str]:
    """Name missing tests that the text names, and theorems without a proof or whose tests are not all named.

    Args:
        uses: what the compiled text has, as `build.used` gives it.
        root: where the tests are.
    """
    for name in dict.fromkeys(use["name"] for use in uses["tests"]):
        file, _, function = name.partition("::")
        if function not in functions(root / file):
            yield f"no such test: {name}; a test that shows what the text says must exist"
    present = functions(root / THEORY)
    named = {theorem["name"]: set(theorem["tests"]) for theorem in uses["theorems"]}
    for theorem, names in named.items():
        if theorem not in [proof["name"] for proof in uses["proofs"]]:
            yield f"theorem {theorem} has no proof"
        yield from (f"theorem {theorem}: no such test in {THEORY}: {name}" for name in sorted(names - present))
    for name in sorted(present):
        if (match := re.match(r"test_(t\d+)_", name)) and name not in named.get(match[1].upper(), ()):
            yield f"{THEORY}: {name} holds {match[1].upper()}, which does not name it"

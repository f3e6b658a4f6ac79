"""Words that say as much as a number: a count, a quantifier or a range is borne out by a claim, a theorem or a test.

A sentence with such a word names what bears it: ``#holds("claim")``, where the claim's own sentence has the same word,
``#tested(...)``, ``#thm(...)`` or ``#eqref(...)``. What is so by definition, or is said of others' work that is cited,
is marked like a number is, ``#given[two]``. And a claim that names a range is asked of all that was run in it.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from figures.claims import CLAIMS, Claim
from figures.results import Result
from paper import sources
from paper.lint import blank
from paper.sources import ROOT, PaperError

_VALUE = r"(?:2\^-?\d+|\d*\.?\d+)(?!\s+slash)"
_RANGE = re.compile(
    rf"\bfrom\s+{_VALUE}\s+to\s+{_VALUE}|\b(?:below|above|at\s+most|at\s+least)\s+{_VALUE}", re.IGNORECASE
)
_WORD = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|one\s+(?:of|seed|run|step|case|law|loop|scaler|network)"
    r"|every|all|none|no|nobody|nothing|never|always|only|below|above|at\s+most|at\s+least|first)\b",
    re.IGNORECASE,
)
# a number of the ledger says itself how far it goes
_COUNTED = re.compile(
    r"\b(?:at\s+most|at\s+least|below|above|only|all\s+but|first|no\s+(?:more|less)\s+than)\s+(?=#num\()", re.I
)
_UNITS = re.compile(r"\b(?:powers?|factors?)\s+of\s+two\b", re.IGNORECASE)
_BORNE = re.compile(r"#(?:tested|thm|eqref)\(")
_SENTENCE = re.compile(r"[.;!?][\"_*)\]]*(?:#(?:tested|holds)\([^()]*\))*(?=\s)|\n\s*\n|\n(?=[=/-])")
_BLOCKS = ("theorem", "proof", "findings", "given")


def untied(root: Path = ROOT) -> Iterator[str]:
    """Name the words of the text that nothing bears out."""
    for path in sorted((root / "paper" / "text").glob("*.typ")):
        text = plain(path.read_text(encoding="utf-8"))
        start = 0
        for end in [*(found.end() for found in _SENTENCE.finditer(text)), len(text)]:
            sentence = text[start:end]
            names = re.findall(r'#holds\("([^"]+)"\)', sentence)
            borne = {name: " ".join(CLAIMS[name].sentence.lower().split()) for name in names if name in CLAIMS}
            if names or not _BORNE.search(sentence):
                line = text.count("\n", 0, end - len(sentence.lstrip())) + 1
                for word in said(sentence):
                    if not any(re.search(rf"\b{re.escape(word)}(?!\w)", claim) for claim in borne.values()):
                        whose = f"is not what {' or '.join(borne)} says" if borne else "is borne out by nothing"
                        yield (
                            f"{path.relative_to(root)}, line {line}: {word!r} {whose}; expected #holds of a claim that "
                            "says it, a theorem, a test, a number of the ledger, or #given[...] for a definition"
                        )
            start = end


def said(sentence: str) -> list[str]:
    """Return the ranges, counts and quantifiers of a sentence, each once and in lower case."""
    sentence = re.sub(r'"[^"]*"', "", sentence)  # the names of numbers, claims and tests
    sentence = _UNITS.sub("", _COUNTED.sub("", sentence))
    ranges = _RANGE.findall(sentence)
    words = _WORD.findall(_RANGE.sub("", sentence))
    return list(dict.fromkeys(" ".join(found.lower().split()) for found in [*ranges, *words]))


def plain(text: str) -> str:
    """Return a text without what is no prose, place by place; powers of two are written as claims write them."""
    text = re.sub(r"//[^\n]*", blank, text)
    for name in _BLOCKS:
        for start in reversed([found.start() for found in re.finditer(rf"#{name}[(\[]", text)]):
            end = _end(text, start)
            text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
    text = re.sub(r"`[^`]*`|#(?!num|holds|tested|thm|eqref)[\w\-]+\((?:[^()\"]|\"[^\"]*\")*\)", blank, text)
    text = re.sub(r"(?<![(\w])\"[^\"]*\"|@[\w:.\-]+|<[\w:.\-]+>", blank, text)  # quotations, citations, labels
    return re.sub(r"2\^\((-\d+)\)", r"2^\1  ", text).replace("$", " ")


def unasked(names: Sequence[str], root: Path = ROOT) -> Iterator[str]:
    """Name what the claims of the text leave out of the ranges that they name; lost data is told elsewhere."""
    for name in names:
        if name in CLAIMS and _RANGE.search(CLAIMS[name].sentence):
            with contextlib.suppress(PaperError):
                yield from (
                    f"claim {name!r}: {text}" for text in left_out(CLAIMS[name], sources.load(CLAIMS[name].stem, root))
                )


def left_out(claim: Claim, run: Result) -> Iterator[str]:
    """Name the arms that a range in a claim's sentence covers, and without which its judge says the same."""
    for found in _RANGE.findall(claim.sentence):
        low, high = _limits(found.split())
        power = "2^" in found
        asked = {name for name in run.arms if _answer(claim, run) != _answer(claim, run, without=name)}
        kinds = {_kind(name, power)[0] for name in asked}
        covered = [name for name in run.arms if _kind(name, power)[0] in kinds and low <= _kind(name, power)[1] <= high]
        if not covered:
            yield f"{claim.sentence!r}: nothing was run {found}"
        if left := [name for name in covered if name not in asked]:
            yield f"{claim.sentence!r}: its judge does not ask {', '.join(left)}"


def _answer(claim: Claim, run: Result, without: str = "") -> object:
    """Return what a judge says of the data, or of the data without an arm."""
    left = tuple(record for record in run.records if record["arm"] != without)
    try:
        found = claim.judge(dataclasses.replace(run, records=left))
    except (LookupError, ValueError, ArithmeticError):
        return None
    return found.now, found.parts


def _kind(name: str, power: bool) -> tuple[str, float]:
    """Return an arm's name with its number left out, and that number; NaN if it has none."""
    found = re.search(r"2\^(-?\d+)" if power else r"(?<![\d^])(\d*\.?\d+)$", name)
    return (name.replace(found[0], "#"), _value(found[0])) if found else (name, float("nan"))


def _limits(words: Sequence[str]) -> tuple[float, float]:
    """Return the ends of a range; those of `above` and `below` do not belong to it."""
    value, inf = _value(words[-1]), float("inf")
    if words[0].lower() == "from":
        return _value(words[1]), value
    if words[0].lower() == "at":
        return (-inf, value) if words[1].lower() == "most" else (value, inf)
    return (-inf, value * (1 - 1e-9)) if words[0].lower() == "below" else (value * (1 + 1e-9), inf)


def _value(text: str) -> float:
    return 2.0 ** int(text[2:]) if text.startswith("2^") else float(text)


def _end(text: str, start: int) -> int:
    """Return where a call of Typst's ends, its brackets included."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] in "([") - (text[at] in ")]")
        if text[at] in ")]" and depth == 0 and text[at + 1 : at + 2] not in ("(", "["):
            return at + 1
    return len(text)

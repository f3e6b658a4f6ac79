"""Named numbers of a line. Lines that differ in their digits alone are read alike, by a pattern of the first."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from ampsim.diagnose.formats import pattern
from ampsim.diagnose.readers.fields import (
    LOGARITHM,
    MEAN,
    Entry,
    chosen,
    entry_of,
    field_of,
    in_company,
    settled,
)
from ampsim.diagnose.readers.lines import CUT

Token = tuple[
    str, str, int
]  # A name, the number behind it as it is written, and where in its line that begins
PLANS = 8  # forms of lines that are kept; the last one used is tried first
_VALUE, _NAME, _LONE, _STEP, _SPACED, _PAIR, _BATCH = map(
    pattern, ("value", "name", "lone", "step", "spaced", "pair", "batch")
)
_PARTS = re.compile(r"\d+|\D+")
_MORE = re.compile(r"\s*[/|]?\s*\d")  # of a list
_FLOAT = re.compile(r"\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+")


class Form(NamedTuple):
    """A reading of a line's words: what its numbers are."""

    total: bool  # its skips are DeepSpeed's, of the whole run
    megatron: bool
    epochs: bool
    step: bool  # there is the number of a step under no name of a value,
    pair: bool  # there are an epoch and a batch in brackets,
    batch: bool  # there is a batch in brackets and an epoch


def form_of(text: str) -> Form:
    """Return the form of a line."""
    megatron = "iteration" in text and bool(CUT["mark"].search(text))
    epochs = "epoch" in text.lower()
    steps = (bool(each.search(text)) for each in (_STEP, _PAIR, _BATCH))
    return Form("log_dist" in text, megatron, epochs, *steps)


class Plan(NamedTuple):
    """One form of lines, and what its numbers are."""

    pattern: re.Pattern[str]  # its groups are the numbers of `fields`
    fields: tuple[str, ...]
    fixed: Entry  # fields that are no digits, such as a NaN
    form: Form

    def read(self, numbers: Sequence[str]) -> Entry:
        """Return what a line says in named numbers."""
        return settled(dict(zip(self.fields, map(float, numbers), strict=True)) | self.fixed)


def numbers_of(text: str, torn: bool) -> tuple[Entry, list[Token]]:
    """Return what a line says in named numbers, and these; a scale may stand alone if nothing else is there."""
    tokens = [(found[1], found[2], found.start(2)) for found in _SPACED.finditer(text)] + list(
        _pairs(text)
    )
    tokens = [
        each
        for each in tokens
        if field_of(each[0])[0] != "scale" or not _MORE.match(text, each[2] + len(each[1]))
    ]
    entry = entry_of(token[:2] for token in tokens)
    if "scale" in entry and "step" not in entry and (found := _STEP.search(text)):
        tokens.append(("step", found[1], found.start(1)))
        entry["step"] = float(found[1])
    entry = in_company(entry)
    if not entry and (lone := _LONE.fullmatch(text.strip())) and text[0] not in " \t" and not torn:
        entry = {"scale": float(lone[1])} if float(lone[1]) > 0 else {}
    return entry, tokens if entry else []


def _pairs(text: str) -> Iterator[Token]:
    """Yield names, the numbers behind them, and where these begin."""
    end = 0
    for found in _VALUE.finditer(text):
        name = _name(text[max(end, found.start() - 90) : found.start()].rpartition("|")[2])
        end = found.end()
        if name:
            yield name, found[1], found.start(1)


@lru_cache(1_000)  # what stands between two numbers is the same in many lines
def _name(text: str) -> str:
    found = _NAME.search(text)
    return found[1] if found else ""


def plan_of(text: str, tokens: Sequence[Token], tag: int) -> Plan | None:
    """Return the plan of a line; the digits of its first `tag` characters are its rank's, and stay.

    None if it has logarithms, means or several norms, of which each time another one may be the largest.
    """
    names = [field_of(name) for name, _, _ in tokens]
    if (
        any(last in LOGARITHM | MEAN for *_, last in names)
        or sum(field == "norm" for field, *_ in names) > 1
    ):
        return None
    best = chosen(tokens)
    fixed = {
        field: number
        for field, (number, (_, written, _)) in best.items()
        if not written[0].isdigit()
    }
    fields = sorted(best.keys() - fixed.keys(), key=lambda field: best[field][1][2])
    parts, at = [re.escape(text[:tag])], tag
    for _, number, begin in (best[field][1] for field in fields):
        float_or_not = r"\d+\.?\d*(?:[eE][-+]?\d+)?" if _FLOAT.fullmatch(number) else _loose(number)
        parts += [_loose(text[at:begin]), "(", float_or_not, ")"]
        at = begin + len(number)
    return Plan(
        re.compile("".join([*parts, _loose(text[at:])])), tuple(fields), fixed, form_of(text)
    )


def _loose(text: str) -> str:
    return "".join(
        r"\d+" if part[0].isdigit() else re.escape(part) for part in _PARTS.findall(text)
    )

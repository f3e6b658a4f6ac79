"""Lines that differ in their digits alone are read alike: a pattern of the first one reads the others at once."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from ampsim.diagnose.readers.fields import LOGARITHM, MEAN, Entry, as_number, field_of, settled
from ampsim.diagnose.readers.lines import CUT

Token = tuple[str, str, int]
"""A name, the number behind it as it is written, and where in its line that begins."""
PLANS = 8
"""Forms of lines that are kept; the last one used is tried first."""
_ANY_LOSS = re.compile(r"loss(?![ _]scale)", re.IGNORECASE)
_PARTS = re.compile(r"\d+|\D+")
_FLOAT = re.compile(r"\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+")


class Form(NamedTuple):
    """What the words of a line say of its numbers."""

    total: bool
    """Its skips are DeepSpeed's, of the whole run."""
    megatron: bool
    loss: bool
    """There is a loss, be it under a name that is not known."""
    epochs: bool


def form_of(text: str) -> Form:
    """Return the form of a line."""
    megatron = "iteration" in text and bool(CUT["mark"].search(text))
    return Form("log_dist" in text, megatron, bool(_ANY_LOSS.search(text)), "epoch" in text.lower())


class Plan(NamedTuple):
    """One form of lines, and what its numbers are."""

    pattern: re.Pattern[str]
    """Its groups are the numbers of `fields`."""
    fields: tuple[str, ...]
    fixed: Entry
    """Fields that are no digits, such as a NaN."""
    key: str
    """The rank or engine that prints it."""
    form: Form
    settles: bool
    """Whether what its program leaves out is put back."""

    def read(self, numbers: Sequence[str]) -> Entry:
        """Return what a line says in named numbers."""
        entry = dict(zip(self.fields, map(float, numbers), strict=True))
        if self.fixed:
            entry |= self.fixed
        return settled(entry) if self.settles else entry


def plan_of(text: str, tokens: Sequence[Token], key: str, tag: int) -> Plan | None:
    """Return the plan of a line; the digits of its first `tag` characters are its rank's, and stay.

    None if it has logarithms or means, or numbers that are written otherwise than as digits.
    """
    best: dict[str, tuple[int, Token]] = {}
    for token in tokens:
        field, rank, last = field_of(token[0])
        if last in LOGARITHM or last in MEAN or not field:
            return None
        if rank < best.get(field, (999, token))[0] and as_number(token[1]) is not None:
            best[field] = rank, token
    fixed = {field: as_number(best.pop(field)[1][1]) or 0.0 for field in [*best] if not best[field][1][1][0].isdigit()}
    parts, at = [re.escape(text[:tag])], tag
    fields = sorted(best, key=lambda field: best[field][1][2])
    for _, number, begin in (best[field][1] for field in fields):
        parts += [_loose(text[at:begin]), "(", _number(number), ")"]
        at = begin + len(number)
    settles = not {"nans", "loss"}.isdisjoint([*best, *fixed])
    pattern = re.compile("".join([*parts, _loose(text[at:])]))
    return Plan(pattern, tuple(fields), fixed, key, form_of(text), settles)


def _number(text: str) -> str:
    return r"\d+\.?\d*(?:[eE][-+]?\d+)?" if _FLOAT.fullmatch(text) else _loose(text)


def _loose(text: str) -> str:
    return "".join(r"\d+" if part[0].isdigit() else re.escape(part) for part in _PARTS.findall(text))

"""Sentences of programs whose numbers need the words around them, and events that they report."""

import math
import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ampsim.runs.read.history import Event
from ampsim.runs.read.rows import as_number, two_to_the

_N = r"\[?([-+]?\d[\d.]*(?:[eE][-+]?\d+)?|inf|nan)"
# The start of a line that reports an event, and neither a condition nor a note about one.
_TOLD = (
    r"^(?!.*\b(?:[Ii]f|[Ww]hen(?:ever)?|[Ww]ill|[Ss]hould|[Nn]o(?!\s+longer)|[Ww]ithout|[Nn]ote|[Hh]andling|[Ff]ix(?:ed|es)?"
    r"|[Bb]ug|False)\b).*?"
)


@dataclass(frozen=True)
class Sentence:
    """One sentence: its kind of event, its pattern, and what the groups of the pattern are."""

    kind: str
    pattern: re.Pattern[str]
    groups: tuple[str, ...]


@cache
def sentences() -> list[Sentence]:
    """Return the table of sentences; see ``sentences.toml``."""
    rows = [
        (
            row["kind"],
            row["pattern"].replace("NUMBER", _N).replace("TOLD", _TOLD),
            row.get("groups", ""),
        )
        for row in _table()["sentence"]
    ]
    return [
        Sentence(kind, re.compile(pattern), tuple(groups.split()))
        for kind, pattern, groups in rows
    ]


@cache
def _layouts() -> list[tuple[re.Pattern[str], list[str]]]:
    return [
        (re.compile(row["pattern"]), row["names"].split()) for row in _table()["layout"]
    ]


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(
        Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    )


def names_of(shape: str, count: int) -> list[str]:
    """Return the names of the numbers of a line by their places; [] if the text before the numbers
    names them.

    Args:
        shape: The line, stripped, with "#" for each number.
        count: How many numbers there are.

    Returns:
        A name for each number, "_" for none.
    """
    for pattern, names in _layouts():
        if match := pattern.search(shape):
            before = shape[: match.start()].count("#") + match[0].partition("[#")[
                0
            ].count("#") * ("INFO" in match[0])
            return (["_"] * before + names + ["_"] * count)[:count]
    return []


_ANY = re.compile(
    r"verflow|OVERFLOW|cale|cost-scal|Skipp|skipp|inf\b|NaN|nan|NAN|inite|invalid|fp16_enabled"
    r"|(?i:collaps|diverg|explod|unstable|abort|no longer finite|infs?\b)|溢出|发散"
)
_RANK = re.compile(r"\b[Rr]ank[ :=_]?(\d+)|rank(\d+)\]")
_DIGITS = re.compile(r"[\d.,:-]+|\brank\b", re.IGNORECASE)
_TIME = re.compile(r"[-\d]+[ T]|\d+:\d+:\d+[.,]?\d*")


def sentence_in(text: str) -> Sentence | None:
    """Return the first sentence of the table that a line has."""
    if not _ANY.search(text):
        return None
    return next((each for each in sentences() if each.pattern.search(text)), None)


class EventReader:
    """Turns sentences into events, one event for each skipped step.

    Several ranks, log handlers, and sentences of one program report the same step. A sentence that
    repeats the numbers of a recent one is the same event, unless a record of a step or a different
    event stands between them.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._since: dict[
            object, int
        ] = {}  # key -> place of its event, since the last record

    def record(self) -> None:
        """Note that a line with the numbers of a step was read."""
        self._since.clear()

    def read(self, line: int, text: str, step: float, sentence: Sentence) -> None:
        """Add the event of a line, unless another line has reported it."""
        match = sentence.pattern.search(text)
        if match is None:
            return
        numbers = dict(zip(sentence.groups, match.groups(), strict=False))
        shown = {name: as_number(text) for name, text in numbers.items()}
        values = {name: number for name, number in shown.items() if number is not None}
        if "log2" in values:
            values["after"] = two_to_the(values.pop("log2"))
        if (
            "hysteresis" in text
            and "before" in values
            and "after" not in sentence.groups
        ):
            values["after"] = values["before"]
        step = values.pop("step", step)
        before, after = values.get("before", math.nan), values.get("after", math.nan)
        self._add(Event(sentence.kind, line, step, text.strip()[:300], before, after))

    def _add(self, event: Event) -> None:
        if self._completes_last(event):
            return
        key, rank = _key(event), _RANK.search(event.text)
        of_rank = (*key, rank[0]) if rank and len(key) > 2 else key
        # The same rank again reports another step.
        is_repeated = key in self._since and (
            of_rank == key or of_rank not in self._since
        )
        if is_repeated:
            at = self._since[key]
            self.events[at] = replace(
                self.events[at], copies=self.events[at].copies + 1
            )
        else:
            at = len(self.events)
            self.events.append(event)
            if rank or len(key) == 2:  # the scale moved, so what came before is over
                self._since.clear()
        self._since |= {key: at, of_rank: at}

    def _completes_last(self, event: Event) -> bool:
        """Join a skip that has its scales to the line just before it that has none; return whether
        it was joined.
        """
        last = self.events[-1] if self.events else event
        if (
            last is event
            or not last.kind == event.kind == "skip"
            or event.line - last.line > 4
        ):
            return False
        is_open = math.isnan(last.after)
        if is_open and math.isnan(last.before):
            same = math.isfinite(event.before) or math.isfinite(event.after)
        elif is_open and event.before == last.before:
            same = True
        else:
            same = math.isnan(event.after) and event.before in (last.before, last.after)
        if same and is_open:
            step = last.step if math.isfinite(last.step) else event.step
            self.events[-1] = replace(event, line=last.line, step=step)
            self._since[_key(self.events[-1])] = len(self.events) - 1
        return same


def _key(event: Event) -> tuple[object, ...]:
    """Return what two reports of one event have in common: the new scale, or the old one, the step,
    and the words.
    """
    if math.isfinite(event.after) and event.after != event.before:
        return event.kind, event.after
    if _RANK.search(event.text):
        return event.kind, str(event.before), _DIGITS.sub("", event.text)
    words = "" if math.isfinite(event.step) else _TIME.sub("", event.text)
    return event.kind, str(event.before), str(event.step), words

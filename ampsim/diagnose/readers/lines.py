"""Lines as their program wrote them: put together where a terminal cut them, which the next line tells."""

import itertools
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from ampsim.diagnose.formats import PROGRAMS, SENTENCES, pattern
from ampsim.diagnose.readers.fields import as_number, field_of

Line = tuple[str, int, bool]  # text, number, and whether its end may be torn
LONGEST = (
    1 << 14
)  # characters of a line that are looked at; the patterns take more than linear time on some lines
NARROW = 60  # characters of a line of the narrowest terminal in use
PARTS = 12  # lines that a terminal makes of one, at most
_BEGIN, _GAP, _CELL = map(pattern, ("begin", "gap", "cell"))
_DIGITS = re.compile(r"\d+")
_REST = re.compile(r"[. ]*(?:\d|[eE][-+]?\d|[-+]\d|nan)")  # of a number that a terminal has cut
CUT = next(each for each in PROGRAMS if "tail" in each)  # the program whose lines are put together


class Width:
    """The longest lines of a log: whether a terminal has cut them there."""

    def __init__(self) -> None:
        self.longest = self.times = self.lines = self.joined = 0

    def see(self, text: str, following: str) -> None:
        """Take a line that none before it is longer than, and the one after it."""
        if len(text) > self.longest:
            self.longest, self.times = len(text), 0
        self.times += text[-1] not in "|})]." and _differ(text, following)

    @property
    def cut(self) -> bool:
        """Whether so many lines are of the greatest length, and so few of them end as lines do, that they are cut."""
        return NARROW <= self.longest <= 400 and self.times >= 3 and self.times * 5 > self.lines


def rows(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield lines: of a table a row as one, with names.

    Each line has a name and a number, as guided-diffusion's, or the first one names the columns, as a notebook's.
    """
    cells, begin, name, at, columns = dict[str, str](), 0, "", 0, list[str]()
    for text, number, torn in itertools.chain(lines, [("", 0, False)]):
        quoted = text.lstrip()[:1] == '"'  # of an object, in which there may be words, too
        found = (
            _CELL.fullmatch(text)
            if not torn and (quoted or "|" in text[:20] or "--> " in text)
            else None
        )
        if (
            found and found[1] == name and len(cells) > 1
        ):  # a list of one key: what stood before is another record
            value = cells.pop(name)
            yield from _record(cells, begin)
            cells, begin = {name: value}, at
        if cells and (found[1] in cells or found[1] == "GLOBAL_STEP" if found else not quoted):
            yield from _record(cells, begin)
            cells = {}
        if not found and text:
            if "oss" in text and ":" not in text and "=" not in text:
                names = _GAP.split(text.strip(" |\t"))
                columns = (
                    names
                    if len({"loss", "step", "epoch"} & {field_of(each)[0] for each in names}) > 1
                    else columns
                )
            elif columns and len(values := _GAP.split(text.strip(" |\t"))) == len(columns):
                if as_number(values[0]) is not None:
                    text = _row(columns, values)
                elif values[0].isidentifier():  # of another table
                    columns = []
            yield text, number, torn
        if found and (
            found[1] != "step" or "e" not in found[2]
        ):  # a step of three digits only is no step
            begin = begin if cells else number
            cells[found[1]] = found[2]
        name, at = found[1] if found else "", number


def _record(cells: dict[str, str], begin: int) -> Iterator[Line]:
    """Yield what pieces make; nothing if they are of a configuration."""
    if any(field_of(name)[0] in ("loss", "norm") for name in cells):
        yield _row(cells, cells.values()), begin, False


def _row(names: Iterable[str], values: Iterable[str]) -> str:
    numbers = ((value, as_number(value)) for value in values)
    written = (value if number is None else f"{number:.15g}" for value, number in numbers)
    return " | ".join(f"{name}: {value}" for name, value in zip(names, written, strict=True))


def whole(lines: Iterable[str], width: Width) -> Iterator[Line]:
    """Yield each line with its number, put together where a terminal cut it, and whether its end may be torn."""
    begun, parts, ended = "", list[tuple[str, int]](), True
    for text, number, ended in _lines(lines):  # noqa: B007 - the last line's is asked for
        if begun and _goes_on(begun) and len(parts) < PARTS and not _begins(text):
            parts.append((text, number))
            begun += (
                " " * (text[0] == " " != text[1:2]) + text.strip()
            )  # a cut may lie before a space
            if not _goes_on(begun):
                width.joined += len(parts)
                parts = [(begun, parts[0][1])]
            continue
        if begun:
            width.lines += 1
            if wide := len(parts[-1][0]) >= max(width.longest, NARROW):  # all are cut at one width
                width.see(parts[-1][0], text)
            if len(parts) == 1:  # as nearly always
                yield begun, parts[0][1], wide and _may_go_on(begun, text)
            else:
                for (part, at), (after, _) in itertools.pairwise([*parts, (text, number)]):
                    yield part, at, wide and _may_go_on(part, after)
        begun, parts = text, [(text, number)]
    if begun and _goes_on(begun) and not ended:  # its other parts were not written yet
        parts = [(begun, parts[0][1])]
    for at, (part, number) in enumerate(parts):
        yield part, number, at + 1 == len(parts) and not ended and number > 1


def _lines(lines: Iterable[str]) -> Iterator[Line]:
    """Yield what is no empty line, with its number, and whether it has an end; a carriage return begins no new one."""
    number, within = 0, False
    for line in lines:
        number, within = number + (not within), line[-1:] == "\r"
        if text := line.rstrip("\r\n")[:LONGEST]:
            yield text, number, line[-1] in "\r\n"


def _goes_on(text: str) -> bool:
    """Return whether its program ends the line otherwise."""
    if "iteration" in text and not text.rstrip().endswith("|") and CUT["mark"].search(text):
        return True
    return "OVERFLOW" in text and not any(each["pattern"].search(text) for each in SENTENCES[:2])


def _begins(text: str) -> bool:
    return (
        "OVERFLOW" in text
        or text.lstrip().startswith(("time (ms)", "{'", "[20"))
        or bool(CUT["mark"].search(text))
    )


def _may_go_on(text: str, following: str) -> bool:
    """Return whether the number at a line's end may go on in the next line, which begins like no line before it."""
    goes_on = text[-1] in "0123456789.-+e" and bool(_REST.match(following))
    return goes_on and not _BEGIN.match(following) and _differ(text, following)


def _differ(text: str, following: str) -> bool:
    """Return whether two lines begin otherwise, whatever their digits are."""
    return _begun(text.lstrip()[:24]) != _begun(following.lstrip()[:24])


@lru_cache(4)  # a line is the following one of another before
def _begun(text: str) -> str:
    return _DIGITS.sub("9", text)[:8]

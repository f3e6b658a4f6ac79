"""Read the lines of a log, whatever program wrote them.

Theory of operation
-------------------
A print statement writes the same text with other numbers. The text without digits, signs, points, and spaces is the key
of a line. The first line with a new key is examined: its numbers get names and roles, and a pattern is compiled that
extracts only the numbers with a role. Each later line with this key costs one dictionary lookup and one match of this
pattern. Most lines of a log have one of few keys, so the slow examination is rare.

A number without a known name may be a loss scale, too: `is_dynamic_scale` decides by its values at
the end.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ampsim.runs.read.error_texts import error_id_in
from ampsim.runs.read.history import MOST_EVENTS, NAMELESS, History, Series
from ampsim.runs.read.names import (
    UNRELATED,
    is_logarithm,
    name_before,
    role_of,
)
from ampsim.runs.read.rows import RowReader, as_number, two_to_the
from ampsim.runs.read.sentences import EventReader, Sentence, names_of, sentence_in

LONGEST_LINE = 4000
"""Characters of a line that are read; patterns take more than linear time on some texts."""
MOST_TEXTS = 4000
"""Distinct texts that are kept for causes and errors."""
ASIDE = "aside"
"""Role of numbers of an evaluation that are not read, and whose name is taken."""
IN_A_PAIR, NAMED, OF_THE_RUN = 1, 2, 3
"""How well a number fits as the step: 120/5000, "step: 120", "global_step: 120"; the best counts."""
MOST_PLANS = 20_000
"""Distinct keys that are kept; more are forgotten and examined again."""

NUMBER = re.compile(
    r"(?<![\w.])(?<![A-Za-z]-)((?:2\^|2\*\*)?[-+]?(?:\d+(?:,\d{3}(?=[,\s|]|$))*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|[nN]a[nN](?:\.0)?|NAN|[iI]nf(?:inity)?|INF|[Tt]rue|[Ff]alse))x*(?!\.?\w|\.?%\w|\s?%)"
)
# colors, as in "\x1b[32mloss\x1b[0m"
_ANSI = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
# "[rank1]: loss 2.1", "Rank 1: loss 2.1"
_RANK = re.compile(r"\[(?:rank|default|Rank)[ _]?(\d+)\]|^\W*[Rr]ank[ =:_]?(\d+)\b")
# "tensor(2.1, device='cuda:0')", "Tensor(shape=[1], dtype=float32, value= [2.1])"
_TENSOR = re.compile(
    r"(?:Tensor\(shape=\[\d?\], dtype=\w+, (?:value= ?)?\[?|(?:tensor|[Aa]rray|np\.float\d+)\(\[?)\s*([-+\w.]+)[^()]*\)"
)
_NOT_FINITE = re.compile(
    r"-?nan\(\w+\)|-?1\.#[A-Z]+|(?<=\s)\.nan|(?<=loss\": )null", re.IGNORECASE
)
"""How C, older Windows, YAML, and JSON print NaN."""
_DIGITS = b"0123456789.+- \t"
_VARIES = re.compile(r"(?:\\?[0-9.+\-])+|(?:\\?[ \t])+")
"""What differs between the lines of one key, in an escaped pattern: a number, or spaces."""
_SAMPLES = re.compile(r"(?<=\[)\d+/\d+ \(\d+%")
"""Samples of an epoch, as in the "[640/60000 (1%)]" of torch's examples; no steps."""
# "Epoch 3/10", alone on its line
_HEADING = re.compile(r"^\W*epoch\W*\d+(?:\W+\d+)?\W*$", re.IGNORECASE)
_OF_A_RUN = re.compile(
    r"loss|epoch|scal|norm|skip|overflow|inf|nan|grad|\blr\b|\bls\b|amp|rate|step|iter|xent|entropy|cost|nll|\bl\b|inite|invalid|fp16|collaps|diverg|explod|unstable|abort|溢出|发散|损失|потер",
    re.IGNORECASE,
)
# "val loss: 2.1"
_HELD_OUT = re.compile(
    r"(?:^|[^\w.-])(?:val|valid|validation|eval|evaluation|dev|test|testing)(?:\b|_(?!loss))(?!\s*acc)",
    re.IGNORECASE,
)
# "Namespace(lr=0.1, loss_scale=128)"
_SETTINGS = re.compile(
    r"^\W*(?:arg(?:ument)?s|config\w*|options|hyper-?param\w*|settings|namespace|trainingarguments)\s*[:=(]",
    re.IGNORECASE,
)
# the 2.1 of "loss: 2.1 (val)"
_HELD_OUT_AFTER = re.compile(
    r"\s*\((?:val|valid|validation|eval|evaluation|dev|test)\b", re.IGNORECASE
)
_PROSE = re.compile(
    r"\b(?:the|an?|that|this|which|its?|is|are|was|were|be|not|if|so|than|to|from)\b",
    re.IGNORECASE,
)
"""Words of sentences."""
_WORD = re.compile(r"[^\W\d]{3}")
_FRAME = re.compile(r'^\W*File "[^"]+", line \d+')
"""A line of a traceback."""
# behind the 120 of "loss[120]: 2.3"
_INDEX_END = re.compile(r"\s*\]\s*[:=]")
# "Loss at step 30: nan", not "stop if the loss is nan"
_LOSS = re.compile(
    r"^(?!.*\b(?:if|when|where|previous|best|raise|stop|bug)\b).*\bloss\b",
    re.IGNORECASE,
)
_IS_SKIPPED = re.compile(
    r"skipped|overflow|found_inf|^skip$|(?:is|was|step|update)[_ ]skip|skip[_ ](?:step|update)"
)
"""Name of a flag that says whether a step was skipped; others with "skip" are options."""


@dataclass(slots=True)
class Column:
    """A number of a line that is kept, and its series by rank."""

    start: int  # place in the first line with the text
    name: str
    role: str
    is_logarithm: bool
    group: int = 0  # of the pattern, once there is one
    series: dict[int, Series] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    """What to do with the lines of one text; a group is the place of a number in the pattern."""

    pattern: re.Pattern[str]
    columns: list[Column]
    groups: dict[
        str, int
    ]  # of "step", "epoch", "rank", and what they count to: "total", "epochs"
    sentence: Sentence | None
    error: str
    is_record: bool  # with a number of the run
    is_row: bool  # of a table whose header names the columns
    is_prose: bool  # which is of a run only if it comes again
    is_heading: bool  # of an epoch


@dataclass(slots=True)
class _Hole:
    """A number in the text of a line."""

    start: int
    text: str
    before: str  # text from the previous number
    after: str  # text up to the next number


def _is_held_out(hole: _Hole) -> bool:
    """Return whether a number, and those behind it, are of an evaluation."""
    return bool(_HELD_OUT.search(hole.before) or _HELD_OUT_AFTER.match(hole.after))


def _is_pair(hole: _Hole) -> bool:
    """Return whether a number is the first of a pair such as 120/5000."""
    return hole.text.isdigit() and hole.after.strip() == "/"


def _mark(
    text: str, hole: _Hole, name: str, marks: dict[str, int], steps: dict[int, int]
) -> bool:
    """Return whether a number is a step or an epoch, and note its place if it is."""
    role = role_of(name)
    if role == "step":
        is_of_run = "num" in name or "global" in name
        steps.setdefault(OF_THE_RUN if is_of_run else NAMED, hole.start)
    elif role == "epoch":
        marks["epoch"] = hole.start
    elif _is_pair(hole) and not hole.before.rstrip().endswith("/"):
        if IN_A_PAIR in steps:  # of two pairs the first is the epoch
            marks.setdefault("epoch", steps[IN_A_PAIR])
        if not _SAMPLES.match(text, hole.start):
            steps[IN_A_PAIR] = hole.start
    else:
        return False
    return True


def _wholes(holes: list[_Hole], marks: dict[str, int]) -> dict[str, int]:
    """Return the places of what the step and the epoch count to, such as 5000 in 120/5000."""
    wholes = {marks.get("epoch"): "epochs", marks.get("step"): "total"}
    return {
        wholes[hole.start]: whole.start
        for hole, whole in itertools.pairwise(holes)
        if hole.start in wholes and _is_pair(hole)
    }


def _role_in(
    text: str, hole: _Hole, name: str, *, held_out: bool, least: float
) -> tuple[str, str] | None:
    """Return the name and the role of a number; None if the number is not kept.

    Args:
        text: The line.
        hole: The number.
        name: Its name.
        held_out: Whether it is of an evaluation.
        least: Least number without a role that may be a loss scale.
    """
    role = role_of(name)
    is_flag = hole.text.lower() in ("true", "false")
    if is_flag and role == "skips" and _IS_SKIPPED.search(name):
        return name, "flag"
    if is_flag and role != "trouble":
        return None
    is_setting = hole.text[-1] not in "nN" and UNRELATED.search(
        name
    )  # a maximum of inf
    if not role and _is_lost(hole) and not is_setting and (name or _is_bare(text)):
        return name or NAMELESS, "other"
    if not (role or _may_be_scale(name, hole, text, least)):
        return None
    if held_out and role == "loss":
        return f"evaluation {name}", "evaluation"
    if held_out and role in ("mean loss", "scale", "norm", "skips", "rate"):
        return name, ASIDE
    return name, role


class TextReader:
    """Collects series and events, line by line."""

    def __init__(self, source: str) -> None:
        self.history = History(source)
        self._rows = RowReader(self.history)
        self._plans: dict[bytes, Plan | None] = {}
        self._events = EventReader()
        self._header: list[str] = []
        self._separator: str | None = None  # of the cells of a table; None for spaces
        self._first = ""  # the first line
        self._before = ""  # the last line with a new text, if no error is in it
        self._epoch = math.nan  # of a heading such as "Epoch 3/10"

    def read(self, lines: Iterable[tuple[int, str]]) -> History:
        """Read numbered lines and return the history."""
        number = 0
        for number, text in lines:
            if "\x1b" in text:
                text = _ANSI.sub("", text)
            text = text[:LONGEST_LINE]
            if text and not text.isspace():
                self._first = self._first or text
                # A program prints its first words when it starts, also again.
                if text == self._first and _WORD.search(text):
                    self.history.starts.append(number)
                self._line(number, text)
        self.history.line_count = max(number, 1)
        self.history.events = self._events.events
        return self._rows.finish()

    def _line(self, number: int, text: str) -> None:
        if "ensor(" in text or "rray(" in text or "np.float" in text:
            text = _TENSOR.sub(r"\1", text)
        if "#" in text or "nan(" in text or ".nan" in text or "null" in text:
            text = _NOT_FINITE.sub("nan", text)
        key = text.encode(errors="replace").translate(None, _DIGITS)
        if key not in self._plans:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[key] = self._examined(number, text)
        plan = self._plans[key]
        if plan is None:
            return
        match = plan.pattern.match(text)
        if match is None:  # numbers at other places, such as 1.2.3 for 1 2 3
            plan = self._plans[key] = self._examined(number, text)
            match = plan.pattern.match(text) if plan else None
        if plan and match:
            self._apply(plan, match, number, text)

    def _apply(self, plan: Plan, match: re.Match[str], number: int, line: str) -> None:
        step, epoch = self._place(plan, match, number)
        if plan.error and len(self.history.errors) < MOST_EVENTS:
            self.history.errors.append((number, plan.error, line.strip()[:300]))
        if plan.sentence is not None and len(self._events.events) < MOST_EVENTS:
            known = step if math.isnan(epoch) else math.nan
            self._events.read(number, line, known, plan.sentence)
        if plan.is_row:
            cells = self._cells(line)
            if not cells[0][:1].isalpha():  # else of another table
                self._rows.add(number, dict(zip(self._header, cells, strict=False)))
                self._events.record()
        if plan.is_prose:
            plan.is_prose = False
            return
        rank = int(match[plan.groups["rank"]]) if "rank" in plan.groups else 0
        for column in plan.columns:
            if rank not in column.series:
                column.series[rank] = self._rows.series_of(
                    column.name, column.role, rank
                )
            value = as_number(match[column.group])
            if value is not None:  # the end of a log may be cut
                value = two_to_the(value) if column.is_logarithm else value
                column.series[rank].add(number, step, value, epoch)
        if plan.columns and not plan.sentence:
            self._events.record()

    def _place(
        self, plan: Plan, match: re.Match[str], number: int
    ) -> tuple[float, float]:
        """Return the step and the epoch of a line; see `StepCounter.count`."""
        names = ("step", "epoch", "total", "epochs")
        step, epoch, total, epochs = (_number(match, plan, name) for name in names)
        if plan.is_heading:
            self._epoch = epoch
        elif math.isnan(epoch):
            epoch = self._epoch
        if plan.is_record:
            self._rows.note_epoch(number, epoch)
        return self._rows.counter.count(step, epoch, total, epochs)

    # ---- examination of a new text

    def _examined(self, number: int, text: str) -> Plan | None:
        """Return what to do with lines of this text; None if they show nothing of a run."""
        error = self._error_in(text)
        if not (error or _OF_A_RUN.search(text) or self._header or _is_bare(text)):
            return None
        sentence = sentence_in(text)
        if len(self.history.texts) < MOST_TEXTS:
            self.history.texts.setdefault(text.strip()[:300], number)
        holes = _holes(text)
        if not (holes or sentence or error) and self._is_header(text):
            return None
        columns, marks = self._columns(text, holes)
        if sentence and sentence.kind == "alarm" and _are_told(columns, text):
            sentence = None
        if sentence and sentence.groups:  # the scale of a sentence is in its event
            columns = [column for column in columns if column.role in ("loss", "norm")]
        is_row = self._is_row(text, columns)
        is_heading = _HEADING.search(text) is not None
        if not (columns or sentence or error or is_row or is_heading):
            return None
        pattern, groups = _grouped(text, holes, columns, marks)
        return Plan(
            pattern=pattern,
            columns=[] if is_row else columns,
            groups=groups,
            sentence=sentence,
            error=error,
            is_record=any(column.role != "other" for column in columns),
            is_row=is_row,
            is_prose=len(_PROSE.findall(text)) >= max(2, len(holes)),
            is_heading=is_heading,
        )

    def _error_in(self, text: str) -> str:
        """Return the id of the error that ends on a line, which may begin on the line before."""
        error = error_id_in(f"{self._before} {text.strip()}")
        self._before = "" if error else text.strip()
        return error

    def _columns(
        self, text: str, holes: list[_Hole]
    ) -> tuple[list[Column], dict[str, int]]:
        """Return the numbers of a line that are kept, and the places of its step and its epoch."""
        if not _OF_A_RUN.search(text) and not _is_bare(text):
            return [], {}
        if _FRAME.search(text):
            return [], {}
        shape = NUMBER.sub("#", text.replace("#", "=")).strip()
        names = names_of(shape, len(holes)) or _names(text, holes)
        columns, marks = dict[str, Column](), dict[str, int]()
        steps: dict[int, int] = {}  # how well a number fits as the step -> its place
        held_out, indexed = bool(_SETTINGS.search(text)), ""
        for hole, own in zip(holes, names, strict=True):
            held_out = held_out or _is_held_out(hole)
            if hole.before.rstrip().endswith("[") and _INDEX_END.match(hole.after):
                indexed = own  # such as that of loss[120]: 2.3
                steps[NAMED] = hole.start
                continue
            name = own or indexed
            if _mark(text, hole, own, marks, steps) or name == "_":
                continue
            least = 0.0 if self._rows.may_be_scale(name) else 2.0
            kept = _role_in(text, hole, name, held_out=held_out, least=least)
            if kept:
                column = Column(hole.start, *kept, is_logarithm(name))
                columns.setdefault(name or kept[0], column)
        if steps:
            marks["step"] = steps[max(steps)]
        read = [each for each in columns.values() if each.role != ASIDE]
        return read, marks | _wholes(holes, marks)

    # ---- tables

    def _is_header(self, text: str) -> bool:
        """Keep the names of a table's columns if a line without a number is the header of one."""
        if "=" in text or not _OF_A_RUN.search(text):
            return False
        separator = next((mark for mark in "\t|,;" if mark in text.strip()), None)
        cells = _split(text, separator)
        roles = {role_of(cell) for cell in cells} - {""}
        if len(cells) < 2 or not roles - {"epoch", "rate"} or max(map(len, cells)) > 40:
            return False
        self._header, self._separator = cells, separator
        self._plans.clear()
        return True

    def _is_row(self, text: str, columns: list[Column]) -> bool:
        """Return whether a line is a row of the table, and names no number itself."""
        if not self._header or any(each.role not in ("", "other") for each in columns):
            return False
        return len(self._cells(text)) == len(self._header)

    def _cells(self, text: str) -> list[str]:
        cells = _split(text, self._separator)
        if len(cells) == 1:  # rows that are separated by tabs below a header of commas
            cells = _split(text, "\t")
        return cells[: len(self._header)] if self._separator is None else cells


def _split(text: str, separator: str | None) -> list[str]:
    """Return the cells of a row, in lower case."""
    return [
        cell.strip(" \"'\t").lower() for cell in text.strip("\r\n |").split(separator)
    ]


def _names(text: str, holes: list[_Hole]) -> list[str]:
    """Return the names of the numbers of a line, each from the text in front of it."""
    names, counted = list[str](), ""
    for hole in holes:
        before = counted + hole.before
        name = name_before(before)
        # The nan in "nan batches: 3" is a word of the name of the 3.
        is_value = role_of(name) or before.rstrip()[-1:] in ("=", ":")
        is_word = hole.text[0] in "nNiI" and not (is_value or _is_lost(hole))
        counted = before + hole.text if is_word else ""
        is_mean = hole.before.strip() == "(" and role_of("".join(names[-1:])) == "loss"
        if not name and is_mean:
            name = f"running {names[-1]}"  # that of the NaN in "loss 2.1 (nan)"
        elif not name and _is_lost(hole) and _LOSS.search(text[: hole.start]):
            name = "loss"  # such as "Loss at step 30: nan"
        names.append(name)
    return names


def _holes(text: str) -> list[_Hole]:
    """Return the numbers of a line."""
    matches = list(NUMBER.finditer(text))
    ends = [0, *(match.end() for match in matches)]
    starts = [*(match.start() for match in matches), len(text)]
    between = [text[end:start] for end, start in zip(ends, starts, strict=True)]
    return [
        _Hole(match.start(1), match[1], between[at], between[at + 1])
        for at, match in enumerate(matches)
    ]


def _grouped(
    text: str, holes: list[_Hole], columns: list[Column], marks: dict[str, int]
) -> tuple[re.Pattern[str], dict[str, int]]:
    """Return the pattern of a line, and the group of each mark; set the group of each column."""
    ends = {hole.start: hole.start + len(hole.text) for hole in holes}
    places = dict(marks)
    rank = _RANK.search(text)
    if rank and rank.lastindex:
        places["rank"] = rank.start(rank.lastindex)
        ends[places["rank"]] = rank.end(rank.lastindex)
    starts = sorted({*places.values(), *(column.start for column in columns)})
    for column in columns:
        column.group = starts.index(column.start) + 1
    groups = {mark: starts.index(start) + 1 for mark, start in places.items()}
    return _pattern(text, [(start, ends[start]) for start in starts]), groups


def _pattern(text: str, spans: list[tuple[int, int]]) -> re.Pattern[str]:
    """Return a pattern of lines that differ from a text in numbers and spaces; each span is a
    group.
    """
    parts, end = "", 0
    for start, stop in spans:
        parts += f"{_generalized(text[end:start])}({_generalized(text[start:stop])})"
        end = stop
    return re.compile(parts)


def _generalized(text: str) -> str:
    def varying(match: re.Match[str]) -> str:
        return r"[ \t]*+" if match[0][-1] in " \t" else r"[0-9.+\-]*+"

    return _VARIES.sub(varying, re.escape(text))


def _number(match: re.Match[str], plan: Plan, mark: str) -> float:
    """Return the step, the epoch, or the batches per epoch of a line; NaN for none."""
    number = as_number(match[plan.groups[mark]]) if mark in plan.groups else None
    return math.nan if number is None else number


def _is_lost(hole: _Hole) -> bool:
    """Return whether a number is printed as NaN or inf; "nan" in front of a sentence is none."""
    is_word = re.match(r"\s+[^\W\d]+(?:\s+[^\W\d]|\s*[:=])", hole.after)
    return hole.text[0] in "nNiI" and not is_word


def _are_told(columns: list[Column], text: str) -> bool:
    """Return whether the numbers of a line tell more of the run than its words."""
    return any(
        column.role in ("loss", "norm", "evaluation") or text[column.start].isdigit()
        for column in columns
    )


def _may_be_scale(name: str, hole: _Hole, text: str, least: float) -> bool:
    """Return whether a number without a role may be a loss scale: a power of two, or 0 after a
    collapse, and no argument.
    """
    if (
        UNRELATED.search(name)
        or hole.before.endswith("(")
        or (not name and "(" in text)
    ):
        return False
    value = as_number(hole.text)
    return value is not None and value >= least and math.frexp(value)[0] in (0.0, 0.5)


def _is_bare(text: str) -> bool:
    """Return whether a line is little else than numbers, such as the output of print(step, loss)."""
    letters = sum(map(str.isalpha, text))
    return letters <= 40 and 4 * letters <= 3 * len(text)


class Row(NamedTuple):
    """A row of a log: a line of the file, or a refresh of a progress bar.

    Attributes:
        number: Number of the row, from 1.
        line: Line of the file, as an editor counts.
        refresh: Which refresh of the line it is, from 1.
        text: Text without the end of the line.
    """

    number: int
    line: int
    refresh: int
    text: str

    @property
    def place(self) -> str:
        """The number; of a later refresh also its place in the file."""
        if self.number == self.line:
            return f"{self.number}"
        return f"{self.number} (line {self.line}, refresh {self.refresh})"


class Rows:
    """The rows of a log, so that the refreshes of a progress bar have an order.

    A carriage return ends a refresh: the bar starts again at the left end of its line.

    Args:
        lines: Lines of a file with their ends; an end may be a carriage return.

    Attributes:
        refreshes: Rows so far that share a line with the row before.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = lines
        self.refreshes = 0

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows; what is blank after a refresh is none."""
        number = line = refresh = 1
        is_over = False  # whether a carriage return ended the row
        for part in self._lines:
            text = part.rstrip("\r\n")
            is_blank = not text or text.isspace()
            if is_over and not is_blank:
                number, refresh, is_over = number + 1, refresh + 1, False
                self.refreshes += 1
            if not is_over:
                yield Row(number, line, refresh, text)
            if part.endswith("\n"):
                number, line, refresh, is_over = number + 1, line + 1, 1, False
            elif part.endswith("\r"):
                is_over = is_over or not is_blank

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Yield the number and the text of each row."""
        return ((row.number, row.text) for row in self)

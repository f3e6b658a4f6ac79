"""Read the lines of a log, whatever program wrote them.

Theory of operation
-------------------
A print statement writes the same text with other numbers. The text without digits, signs, points, and spaces is the key
of a line. The first line with a new key is examined: its numbers get names and roles, and a pattern is compiled that
extracts only the numbers with a role. Each later line with this key costs one dictionary lookup and one match of this
pattern. Most lines of a log have one of few keys, so the slow examination is rare.

A number without a known name may be a loss scale, too: `is_dynamic_scale` decides by its values at the end.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ampsim.runs.read.error_texts import error_id_in, may_have_error
from ampsim.runs.read.history import MOST_EVENTS, Floats, History, Series
from ampsim.runs.read.names import UNRELATED, is_logarithm, name_before, role_of
from ampsim.runs.read.sentences import EventReader, Sentence, names_of, sentence_in

LONGEST_LINE = 4000
"""Characters of a line that are read; patterns take more than linear time on some texts."""
MOST_TEXTS = 4000
"""Distinct texts that are kept for causes and errors."""
ASIDE = "aside"
"""Role of numbers of an evaluation that are not read, and whose name is taken."""
MOST_PLANS = 20_000
"""Distinct keys that are kept; more are forgotten and examined again."""

NUMBER = re.compile(
    r"(?<![\w.])(?<![A-Za-z]-)((?:2\^|2\*\*)?[-+]?(?:\d+(?:,\d{3}(?=[,\s|]|$))*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|[nN]a[nN](?:\.0)?|NAN|[iI]nf(?:inity)?|INF|[Tt]rue|[Ff]alse))x*(?!\.?\w|\.?%\w|\s?%)"
)
_ANSI = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
_RANK = re.compile(r"\[(?:rank|default|Rank)[ _]?(\d+)\]|^\W*[Rr]ank[ =:_]?(\d+)\b")
_TENSOR = re.compile(
    r"(?:Tensor\(shape=\[\d?\], dtype=\w+, (?:value= ?)?\[?|(?:tensor|[Aa]rray|np\.float\d+)\(\[?)\s*([-+\w.]+)[^()]*\)"
)
_DIGITS = b"0123456789.+- \t"
_RUN = re.compile(r"([0-9.+\-]+|[ \t]+)")
_OF_A_RUN = re.compile(
    r"loss|scal|norm|skip|overflow|inf|nan|grad|\blr\b|\bls\b|amp|rate|step|iter|xent|entropy|cost|nll|\bl\b|inite|invalid|fp16",
    re.IGNORECASE,
)
_HELD_OUT = re.compile(
    r"(?:^|[^\w.-])(?:val|valid|validation|eval|evaluation|dev|test|testing)(?:\b|_(?!loss))(?!\s*acc)",
    re.IGNORECASE,
)
_SETTINGS = re.compile(
    r"^\W*(?:arg(?:ument)?s|config\w*|options|hyper-?param\w*|settings|namespace|trainingarguments)\s*[:=(]",
    re.IGNORECASE,
)
_HELD_OUT_AFTER = re.compile(
    r"\s*\((?:val|valid|validation|eval|evaluation|dev|test)\b", re.IGNORECASE
)
_INDEX_END = re.compile(r"\s*\]\s*[:=]")
_LOSS = re.compile(
    r"^(?!.*\b(?:if|when|where|previous|best|raise|stop|bug)\b).*\bloss\b", re.IGNORECASE
)
_FLAGS = {"true": 1.0, "false": 0.0}
_IS_SKIPPED = re.compile(
    r"skipped|overflow|^skip$|(?:is|was|step|update)[_ ]skip|skip[_ ](?:step|update)"
)
"""Name of a flag that says whether a step was skipped; others with "skip" are options."""
_Convert = Callable[[str], float | None]


@dataclass(slots=True)
class Column:
    """A number of a line that is kept: the group of the pattern, and its series by rank."""

    group: int
    name: str
    role: str
    convert: _Convert
    series: dict[int, Series] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    """What to do with the lines of one text."""

    pattern: re.Pattern[str]
    columns: list[Column]
    step: int  # group; 0 for none
    epoch: int
    total: int  # group of the batches per epoch, where the step is a batch
    rank: int
    sentence: Sentence | None
    error: str
    is_row: bool  # of a table whose header names the columns


@dataclass(slots=True)
class _Hole:
    """A number in the text of a line."""

    start: int
    end: int
    text: str
    before: str  # text from the previous number
    after: str  # text up to the next number


class _Marks:
    """Finds the step, the epoch, and the batches per epoch among the numbers of a line."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}  # how well a number fits as the step -> its place
        self._places: dict[str, int] = {}
        self._totals: dict[int, int] = {}  # place of a number -> place of the one behind its slash

    def take(self, holes: list[_Hole], at: int, name: str, role: str) -> bool:
        """Return whether a number is a step, an epoch, or the first of a pair such as 120/5000."""
        hole = holes[at]
        is_pair = hole.text.isdigit() and hole.after.strip() == "/" and at + 1 < len(holes)
        if is_pair:
            self._totals[hole.start] = holes[at + 1].start
        if role == "epoch":
            self._places["epoch"] = hole.start
        elif role == "step":
            is_count = name.endswith(("steps", "iterations"))  # such as those of an epoch
            self._steps.setdefault(
                4 if "num" in name or "global" in name else 3 - is_count, hole.start
            )
        elif is_pair and not hole.before.rstrip().endswith("/"):
            fit = 2 if name.endswith(("iter", "step", "iteration", "it")) else 1
            if fit in self._steps:  # of two pairs the first is the epoch
                self._places.setdefault("epoch", self._steps[fit])
            self._steps[fit] = hole.start
        elif at == 0 and not hole.before.strip(" \t[(") and hole.after[:1] in (":", "]", ")", ","):
            self._steps.setdefault(1, hole.start)
        else:
            return False
        return True

    def places(self) -> dict[str, int]:
        """Return the places of "step", "epoch", and "total", as far as the line has them."""
        if not self._steps:
            return self._places
        step = self._steps[max(self._steps)]
        total = {"total": self._totals[step]} if step in self._totals else {}
        return {**self._places, "step": step, **total}


def _column(name: str, hole: _Hole, text: str, *, held_out: bool) -> Column | None:
    """Return the column of a number; None if the number is not kept."""
    role = role_of(name)
    is_flag = hole.text.lower() in _FLAGS
    if (is_flag and not (role == "skips" and _IS_SKIPPED.search(name))) or not (
        role or _may_be_scale(name, hole, text)
    ):
        return None
    if held_out and role == "loss" and not name.startswith("train"):
        name, role = f"evaluation {name}", "evaluation"
    elif held_out and role in ("mean loss", "scale", "norm", "skips", "rate"):
        role = ASIDE
    return Column(hole.start, name, role, _converter(name, hole.text))


class TextReader:
    """Collects series and events, line by line."""

    def __init__(self, source: str) -> None:
        self.history = History(source)
        self._plans: dict[bytes, list[Plan]] = {}
        self._series: dict[tuple[str, int], Series] = {}
        self._events = EventReader()
        self._header: list[str] = []
        self._separator = ""
        self._step_column = -1
        self._table: list[tuple[int, Series]] = []
        self._epoch = self._last_step = self._shown = -math.inf
        self._offset = 0.0  # steps of the epochs before, where each epoch counts its own

    def read(self, lines: Iterable[tuple[int, str]]) -> History:
        """Read numbered lines and return the history."""
        number = 0
        for number, text in lines:
            if "\x1b" in text:
                text = _ANSI.sub("", text)
            text = text[:LONGEST_LINE]
            if text and not text.isspace():
                self._line(number, text)
        self.history.line_count = max(number, 1)
        return self._finish()

    def _line(self, number: int, text: str) -> None:
        if any(word in text for word in ("ensor(", "rray(", "np.float")):
            text = _TENSOR.sub(r"\1", text)
        key = text.encode(errors="replace").translate(None, _DIGITS)
        plans = self._plans.get(key)
        if plans is None:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            plans = self._plans[key] = self._examined(number, text)
        if not plans:
            return
        for plan in plans:
            if match := plan.pattern.match(text):
                self._apply(plan, match, number, text)
                return
        if len(plans) < 16 and (more := self._examined(number, text)):
            plans += more
            if match := more[0].pattern.match(text):
                self._apply(more[0], match, number, text)

    def _apply(self, plan: Plan, match: re.Match[str], number: int, line: str) -> None:
        step = self._step(plan, match, number) if plan.step or plan.epoch else math.nan
        if plan.error and len(self.history.errors) < MOST_EVENTS:
            self.history.errors.append((number, plan.error, line.strip()[:300]))
        if plan.sentence is not None and len(self._events.events) < MOST_EVENTS:
            self._events.read(number, line, step, plan.sentence)
        if plan.is_row:
            self._row(number, line)
            return
        rank = int(match[plan.rank]) if plan.rank else 0
        for column in plan.columns:
            series = column.series.get(rank)
            if series is None:
                series = self._series_of(column.name, column.role, rank)
                column.series[rank] = series
            if text := match[column.group]:  # empty where the end of a log is cut
                value = column.convert(text)
                if value is not None:  # another text of the same key, such as 1.2.3
                    series.add(number, step, value)
        if plan.columns and not plan.sentence:
            self._events.record()

    def _step(self, plan: Plan, match: re.Match[str], number: int) -> float:
        """Return the step of a line, counted over all epochs."""
        epoch = _number(match[plan.epoch]) if plan.epoch else math.nan
        if plan.columns and math.isfinite(epoch):
            if epoch < self._shown:
                self.history.starts.append(number)
            self._shown = epoch
        if not plan.step:
            return math.nan
        step = _number(match[plan.step])
        if plan.total and math.isfinite(epoch) and epoch == int(epoch):
            return step + epoch * _number(match[plan.total])
        if epoch > self._epoch and step < self._last_step:
            self._offset += self._last_step
        elif epoch < self._epoch:
            self._offset = 0.0
        if math.isfinite(epoch):
            self._epoch = epoch
        self._last_step = step
        return step + self._offset

    def _series_of(self, name: str, role: str, rank: int) -> Series:
        return self._series.setdefault((name, rank), Series(name, role, rank))

    # ---- examination of a new text

    def _examined(self, number: int, text: str) -> list[Plan]:
        """Return what to do with lines of this text: one plan, or [] if they show nothing of a run."""
        if not (_OF_A_RUN.search(text) or may_have_error(text) or self._header or _is_bare(text)):
            return []
        sentence, error = sentence_in(text), error_id_in(text)
        if len(self.history.texts) < MOST_TEXTS:
            self.history.texts.setdefault(text.strip()[:300], number)
        holes = _holes(text)
        if self._is_header(text, holes):
            return []
        columns, marks = self._columns(text, holes) if holes else ([], {})
        if sentence is not None and sentence.groups:  # the scale of a sentence is in its event
            columns = [column for column in columns if column.role in ("loss", "norm")]
        is_row = bool(self._header) and len(self._cells(text)) == len(self._header)
        is_row = is_row and not any(column.role for column in columns)
        if not (columns or sentence or error or is_row):
            return []
        rank = _RANK.search(text)
        wanted = {hole.start: (hole.start, hole.end) for hole in holes}
        groups = sorted({column.group for column in columns} | set(marks.values()))
        spans = [wanted[start] for start in groups]
        rank_group = rank.lastindex if rank and rank.lastindex else 0
        if rank:
            spans.append(rank.span(rank_group))
        spans.sort()
        order = {start: at for at, (start, _) in enumerate(spans, 1)}
        for column in columns:
            column.group = order[column.group]
        found = {mark: order[start] for mark, start in marks.items()}
        return [
            Plan(
                _pattern(text, spans), columns, found.get("step", 0), found.get("epoch", 0), found.get("total", 0),
                order[rank.start(rank_group)] if rank else 0, sentence, error, is_row,
            )
        ]  # fmt: skip

    def _columns(self, text: str, holes: list[_Hole]) -> tuple[list[Column], dict[str, int]]:
        """Return the numbers of a line that are kept, and where its step, epoch, and batches per epoch are."""
        if not _OF_A_RUN.search(text) and not _is_bare(text):
            return [], {}
        shape = NUMBER.sub("#", text.replace("#", "=")).strip()
        given = names_of(shape, len(holes))
        columns, marks = dict[str, Column](), _Marks()
        held_out, indexed = bool(_SETTINGS.search(text)), ""
        for at, hole in enumerate(holes):
            name = given[at] if given else name_before(hole.before)
            if not name and _is_lost(hole) and _LOSS.search(text[: hole.start]):
                name = "loss"  # such as "Loss at step 30: nan"
            held_out = held_out or bool(
                _HELD_OUT.search(hole.before) or _HELD_OUT_AFTER.match(hole.after)
            )
            if _INDEX_END.match(hole.after) and hole.before.rstrip().endswith("["):
                marks.take(holes, at, "step", "step")  # such as that of loss[120]: 2.3
                indexed = name
                continue
            name = name or indexed
            if name == "_" or marks.take(holes, at, name, role_of(name)) or name in columns:
                continue
            column = _column(name, hole, text, held_out=held_out)
            if column is not None:
                columns[name] = column
        return [column for column in columns.values() if column.role != ASIDE], marks.places()

    # ---- tables

    def _is_header(self, text: str, holes: list[_Hole]) -> bool:
        """Keep the names of a table's columns if a line is the header of one."""
        if holes or not _OF_A_RUN.search(text) or sentence_in(text) or error_id_in(text):
            return False
        separator = _separator(text)
        cells = [
            cell.strip().strip("\"'").lower() for cell in separator.split(text.strip().strip("|"))
        ]
        roles = {role_of(cell) for cell in cells} - {""}
        if (
            len(cells) < 2
            or not roles - {"epoch", "rate"}
            or "=" in text
            or max(map(len, cells)) > 40
        ):
            return False
        if len(roles) < 2 and len(cells) > 3 and separator.pattern == r"\s+":
            return False  # a sentence
        self._header, self._separator = cells, separator.pattern
        roles_by_column = list(map(role_of, cells))
        self._step_column = roles_by_column.index("step") if "step" in roles_by_column else -1
        self._table = [
            (at, self._series_of(name, role, 0))
            for at, (name, role) in enumerate(zip(cells, roles_by_column, strict=True))
            if role not in ("step", "epoch") and (role or not UNRELATED.search(name))
        ]
        self._plans.clear()
        return True

    def _cells(self, text: str) -> list[str]:
        cells = re.split(self._separator, text.strip("\r\n ").strip("|"))
        cells = [cell.strip().strip("\"'") for cell in cells]
        return cells[: len(self._header)] if self._separator == r"\s+" else cells

    def _row(self, number: int, text: str) -> None:
        """Read a row of a table."""
        cells = self._cells(text)
        if len(cells) != len(self._header) or not any(map(str.isdigit, cells[0])):
            return  # of another table
        step = _number(cells[self._step_column]) if self._step_column >= 0 else math.nan
        for at, series in self._table:
            try:
                series.add(number, step, float(cells[at]))
            except ValueError:  # an empty cell, or a text
                continue
        self._events.record()

    def _finish(self) -> History:
        """Return the history: series with a role, by name or by value."""
        for series in self._series.values():
            if not series.role and is_dynamic_scale(series.values):
                series.role = "scale"
            series = _without_repeats(_without_settings(series))
            if series.role and len(series) and not _is_other_scale(series):
                self.history.series.append(series)
        losses = self.history.role("loss")
        for series in self.history.role(
            "mean loss"
        ):  # the mean of an epoch, if nothing else is printed
            series.role = "" if losses else "loss"
        begin = min((int(loss.lines[0]) for loss in losses), default=0)
        self.history.series = [
            series
            for series in self.history.series
            if series.role and not _is_setting(series, begin)
        ]
        self.history.events = self._events.events
        return self.history


def _holes(text: str) -> list[_Hole]:
    """Return the numbers of a line."""
    found = list(NUMBER.finditer(text))
    ends = [0, *(match.end() for match in found)]
    starts = [*(match.start() for match in found), len(text)]
    return [
        _Hole(
            match.start(1),
            match.end(1),
            match[1],
            text[ends[at] : starts[at]],
            text[ends[at + 1] : starts[at + 1]],
        )
        for at, match in enumerate(found)
    ]


def _pattern(text: str, spans: list[tuple[int, int]]) -> re.Pattern[str]:
    """Return a pattern of lines that differ from a text in numbers and spaces; each span is a group."""
    parts, end = [], 0
    for start, stop in spans:
        parts.append(_generalized(text[end:start], after_digit=end > 0))
        parts.append(f"({_generalized(text[start:stop])})")
        end = stop
    return re.compile("".join(parts))


def _generalized(text: str, *, after_digit: bool = False) -> str:
    """Return a pattern of a text with other numbers and other spaces."""
    pieces = [piece for piece in _RUN.split(text) if piece]
    parts = list[str]()
    for at, piece in enumerate(pieces):
        if piece[0] in " \t":
            left = after_digit if at == 0 else pieces[at - 1][-1] in "0123456789."
            right = at + 1 == len(pieces) or pieces[at + 1][0] in "0123456789.+-"
            # Between two numbers a space separates; elsewhere a program may pad its numbers.
            parts.append(r"[ \t]++" if left and right else r"[ \t]*+")
        elif piece[0] in "0123456789.+-":
            parts.append(r"[0-9.+\-]*+")
        else:
            parts.append(re.escape(piece))
    return "".join(parts)


def _number(text: str) -> float:
    """Return the number that a text shows, such as 0.5, 65,536, 2^16, or True; NaN if it shows none."""
    low = text.strip().lower()
    if low in _FLAGS:
        return _FLAGS[low]
    power = low.removeprefix("2^").removeprefix("2**")
    try:
        value = float(
            power.replace(",", "").removesuffix(".0") if low[:1] == "n" else power.replace(",", "")
        )
        return value if power == low else 2.0**value
    except (OverflowError, ValueError):
        return math.nan


def _power(text: str) -> float:
    """Return two to the power that a text shows."""
    value = _number(text)
    return 2.0 ** max(-1000.0, min(1000.0, value)) if math.isfinite(value) else value


def _converter(name: str, text: str) -> _Convert:
    if is_logarithm(name):
        return _power
    plain = re.fullmatch(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?", text)
    return _decimal if plain else _number


def _is_lost(hole: _Hole) -> bool:
    """Return whether a number is printed as NaN or inf; "nan" in front of a word is none."""
    return hole.text[0] in "nNiI" and not hole.after.strip()[:1].isalpha()


def _decimal(text: str) -> float | None:
    """Return the number of a text, which may end a sentence; None if it is none."""
    try:
        return float(text.removesuffix("."))
    except ValueError:
        return None


def _may_be_scale(name: str, hole: _Hole, text: str) -> bool:
    """Return whether a number without a role may be a loss scale: a power of two of at least 2, and no argument."""
    if UNRELATED.search(name) or hole.before.endswith("(") or (not name and "(" in text):
        return False
    value = _number(hole.text)
    return math.isfinite(value) and value >= 2 and math.log2(value).is_integer()


def _is_bare(text: str) -> bool:
    """Return whether a line is little else than numbers, such as the output of print(step, loss)."""
    letters = sum(map(str.isalpha, text))
    return letters <= 40 and 4 * letters <= 3 * len(text)


def _separator(text: str) -> re.Pattern[str]:
    """Return what separates the cells of a table."""
    mark = next((re.escape(mark) for mark in ("\t", "|", ",", ";") if mark in text.strip()), r"\s+")
    return re.compile(mark)


def _without_settings(series: Series) -> Series:
    """Return a scale without the numbers of a printed configuration: they have no step, and most others have one."""
    has_step = np.isfinite(series.steps)
    if series.role == "scale" and 0.5 * len(series) <= has_step.sum() < len(series):
        return series.part(has_step)
    return series


def _is_setting(series: Series, begin: int) -> bool:
    """Return whether a scale is of a configuration, which is printed before the first loss, on line `begin`."""
    return (
        series.role == "scale" and series.lines[-1] < begin and not np.isfinite(series.steps).any()
    )


def _without_repeats(series: Series) -> Series:
    """Return a series without numbers that a second log handler printed again."""
    if len(series) < 2:
        return series
    steps, values = series.steps, series.values
    same = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
    repeats = np.append(False, same & (steps[1:] == steps[:-1]))
    return series.part(~repeats) if repeats.any() else series


def _is_other_scale(series: Series) -> bool:
    """Return whether numbers that are named as a scale are a scale of something else, such as images."""
    if series.role != "scale":
        return False
    finite = series.finite
    if not len(finite):
        return False
    has_steps = len(finite) > 1 and np.isfinite(series.steps).any()
    if (finite < 0).any() or (len(finite) <= 4 and not finite.any() and not has_steps):
        return True  # -1 and 0 ask for a dynamic scale
    if re.search(r"loss|grad|amp|fp16|scaler|get_scale|^scale$|^ls$", series.name):
        return False
    return bool(_is_power_of_two(finite).mean() < 0.8 or finite.max() < 2)


def _is_power_of_two(values: Floats) -> Floats:
    positive = np.where((values > 0) & np.isfinite(values), values, 3.0)
    logs = np.log2(positive)
    return np.asarray(logs == np.rint(logs), float)


def is_dynamic_scale(values: Floats) -> bool:
    """Return whether numbers behave as a dynamic loss scale: powers of two that double or halve."""
    if len(values) < 4 or not (np.isfinite(values) & (values > 0)).all() or values.max() < 256:
        return False
    logs = np.log2(values)
    moves = np.abs(np.diff(logs))
    whole = bool((logs == np.rint(logs)).all())
    rises, falls = (np.diff(logs) > 0).mean(), (np.diff(logs) < 0).mean()
    moves_as_a_scale = (
        bool(moves.any()) and (moves > 1).sum() <= len(moves) // 10 and moves.max() <= 8
    )
    # A scale rises seldom; it falls often only while it searches its first value.
    return whole and moves_as_a_scale and rises <= 0.34 and (falls <= 0.34 or rises == 0)


def numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield each line with its number, as an editor counts; a carriage return ends a part of a line."""
    number = 1
    for line in lines:
        yield number, line.rstrip("\r\n")
        number += line.endswith("\n")

"""Console logs: Megatron, DeepSpeed, fairseq, apex, Hugging Face's Trainer, and whatever prints names with numbers.

Lines of Megatron and Hugging Face differ in punctuation only: a name, ``:`` or ``=``, a number. What programs say in
sentences, such as DeepSpeed's OVERFLOW, has patterns of its own. A line is searched for a plain word before any
pattern looks at it: a log has millions of lines.
"""

import re
from collections.abc import Iterable

from ampsim.diagnose.history import History, HistoryBuilder
from ampsim.diagnose.readers.fields import Entry, entry_of

_NUMBER = r"[-+]?(?:\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|[nN][aA][nN]|(?:[iI]nf|INF)(?:inity)?)"
_PAIR = re.compile(rf"""([A-Za-z_][\w/. -]{{0,80}}+)['"]?\s*[:=]\s*['"]?({_NUMBER})(?![\w.:])""", re.ASCII)
_STEP = re.compile(r"\b(?:step|iter|iteration|update)s?[\s:=#]+(\d+)\b", re.IGNORECASE)
_SCALE = r"(?:(?<![A-Za-z] )|(?<=nan )|(?<=inf ))scale"  # "loss 2.5 scale 8", and no "lr scale 8"
_SPACED = re.compile(
    rf"\b((?:loss|grad)[_ ]scale|{_SCALE}|gnorm|grad[_ ]norm|num_updates|[lL]oss)\s+({_NUMBER})(?=[\s(,;|]|$)", re.ASCII
)
_EPOCH = re.compile(r"\bepoch\W{0,4}(\d+)", re.IGNORECASE)
_BAR = re.compile(r"\b(\d{1,9})/(\d{1,9}) \[[\d:?]+<")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WORDS = ("loss", "scale", "norm", "skip", "overflow")
"""In lower case; a line without one of them says nothing of a run."""
_DEEPSPEED = re.compile(rf"loss scale: ({_NUMBER}), (?:reducing to ({_NUMBER})|but hysteresis)")
_RANK = re.compile(r"Rank (\d+)")
_FAIRSEQ = re.compile(rf"setting loss scale to: ({_NUMBER})")
_APEX = re.compile(rf"reducing loss scale to ({_NUMBER})")
_AT_MINIMUM = ("loss scale already at minimum", "Minimum loss scale reached")

LONGEST = 1 << 14
"""Characters of a line that are looked at; the patterns take more than linear time on some lines."""
MOST_STEPS = 2**53
"""What is numbered beyond it is no step."""

PRINTED_AS_ZERO = {"Megatron": 0.05, "fairseq": 0.0005}
"""The largest scale that a program prints as 0, for want of digits; it stands for all of them."""

PROGRAMS = {
    "Megatron": re.compile(r"\biteration\s+\d+/\s*\d+\s*\|"),
    "DeepSpeed": re.compile(r"\[deepspeed\]|\[deepscale\]|OVERFLOW! Rank|\[logging\.py:\d+:log_dist\]"),
    "fairseq": re.compile(r"num_updates|setting loss scale to"),
    "apex": re.compile(r"reducing loss scale to"),
    "HF Trainer": re.compile(r"['\"]learning_rate['\"]:.*['\"]epoch['\"]:"),
}


class TextReader:
    """Makes a history of lines, one at a time."""

    def __init__(self, source: str) -> None:
        self.builder = HistoryBuilder(source, "a training log")
        self._step = -1
        self._numbered = False
        self._counted_skips = 0.0  # of sentences, since the program last gave its total
        self._total_skipped = 0.0
        self._overflows = 0
        self._overflowed = -1  # the last step of which a sentence said so
        self._rank: str | None = None
        self._last_scale: float | None = None
        self._said_skips: float | None = None  # by the last line with numbers
        self._bar = (-1, 0)  # where the longest progress bar stands, and its end
        self._epoch = (-1, 0)  # the last epoch, and the steps before it where they are counted anew

    def line(self, text: str) -> None:
        """Take one line; what says nothing of the run is passed over."""
        if "\r" in text:  # a progress bar is written over itself
            for part in text.split("\r"):
                self._part(part)
        else:
            self._part(text)

    def _part(self, text: str) -> None:
        text = text[:LONGEST]
        done = None
        if "[" in text and "<" in text and (bar := _BAR.search(text)) and int(bar[2]) >= self._bar[1]:
            done, _ = self._bar = int(bar[1]), int(bar[2])
        if not any(map(text.lower().__contains__, _WORDS)) or "| valid " in text:
            return
        if "\x1b" in text:
            text = _COLOUR.sub("", text)
        if self.builder.program == "a training log":
            self._recognize(text)
        if self._sentence(text):
            return
        entry = entry_of(dict(_SPACED.findall(text) + _PAIR.findall(text)))
        total = "log_dist" in text and "skipped" in entry  # of the run, where other programs count since the last line
        if entry.keys() & {"scale", "norm", "loss"} or total:
            if total:
                entry["skipped"] = self._since_last_total(entry["skipped"])
            if (least := PRINTED_AS_ZERO.get(self.builder.program)) and entry.get("scale") == 0:
                entry["scale"] = self.builder.settings["printed_as_zero"] = least
            step = self._step_of(entry.pop("step", None), done, text)
            if total and step > self._step and self._last_scale is not None:
                entry.setdefault("scale", self._last_scale)
            self._add(step, entry)

    def _add(self, step: int, entry: Entry) -> None:
        if step == self._overflowed and entry.get("scale") == self._last_scale:
            # Megatron-DeepSpeed ends a step with the scale that the overflow left, and counts no skip
            entry = {name: value for name, value in entry.items() if name not in {"scale", "skipped"}}
        said = entry.get("skipped")
        if step == self._step and said == self._said_skips:  # another rank says it again
            entry.pop("skipped", None)
        self._step, self._said_skips = step, said
        self._last_scale = entry.get("scale", self._last_scale)
        self.builder.add(step, **entry)

    def _step_of(self, step: float | None, done: int | None, text: str) -> int:
        """Return the step of an entry: its number, that of the bar in its line, of the last bar, or the next."""
        epochs = "epoch" in text.lower()
        if step is None and (found := _STEP.search(text)):
            step = float(found[1])
        elif step is None and epochs:
            step = done
        if step is None or not 0 <= step < MOST_STEPS:
            return max(self._step + 1, self._bar[0])
        self._numbered = True
        found = _EPOCH.search(text) if epochs else None
        epoch = int(found[1][:9]) if found else self._epoch[0]
        if epoch > self._epoch[0]:
            restarted = step + self._epoch[1] + self._overflows <= self._step
            self._epoch = epoch, self._step + 1 - int(step) - self._overflows if restarted else self._epoch[1]
        return int(step) + self._epoch[1] + self._overflows

    def _since_last_total(self, total: float) -> float:
        """Return the skips since the program last told its total, less those that it told in sentences."""
        new = max(0.0, total - self._total_skipped - self._counted_skips)
        self._total_skipped, self._counted_skips = total, 0.0
        return new

    def finish(self) -> History:
        """Return the history of the lines."""
        if not self._numbered and self._bar[0] <= 0 < self._step:
            self.builder.notes.append("The log has no step numbers: its lines are counted instead.")
        return self.builder.finish()

    def _recognize(self, text: str) -> None:
        for program, mark in PROGRAMS.items():
            if mark.search(text):
                self.builder.program = program
                return

    def _sentence(self, text: str) -> bool:
        """Take what a program says of an overflow; False if the line says something else."""
        if "OVERFLOW!" in text and (found := _DEEPSPEED.search(text)):
            named = _RANK.search(text)
            rank = named[1] if named else ""
            self._rank = rank if self._rank is None else self._rank
            if rank == self._rank:  # each rank prints the same overflow
                self._overflow(float(found[1]))
                self._after(found[2])
                if found[2] is None:
                    self.builder.settings["hysteresis"] = True
            return True
        if "overflow detected" in text and (found := _FAIRSEQ.search(text)):
            self._overflow(2.0 * float(found[1]))
            self._after(found[1])
            return True
        if "Gradient overflow" in text and (found := _APEX.search(text)):
            if float(found[1]) != self._last_scale:  # another rank's line has the same scale
                self._overflow(2.0 * float(found[1]))
                self._after(found[1])
            return True
        if any(each in text for each in _AT_MINIMUM):
            if not self.builder.alarms:
                said = "the program says that its loss scale is at the minimum"
                self.builder.alarms.append((max(self._step, 0), said))
            return True
        return False

    def _overflow(self, scale: float) -> None:
        self._step = self._overflowed = max(self._step + 1, self._bar[0])
        self._said_skips = None
        self._counted_skips += 1
        if self.builder.program == "fairseq":  # its updates count no skipped step
            self._overflows += 1
        self.builder.add(self._step, scale=scale, skipped=1.0)

    def _after(self, scale: str | None) -> None:
        """Keep the scale that the next step begins with."""
        if scale is not None:
            self._last_scale = float(scale)


def read_text(source: str, lines: Iterable[str]) -> History:
    """Return the history of a console log."""
    reader = TextReader(source)
    for line in lines:
        reader.line(line)
    return reader.finish()

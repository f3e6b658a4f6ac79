"""Console logs: Megatron, DeepSpeed, fairseq, Hugging Face's Trainer, and whatever prints names with numbers.

Lines of Megatron and Hugging Face differ in punctuation only: a name, ``:`` or ``=``, a number. What programs say in
sentences, such as DeepSpeed's OVERFLOW, has patterns of its own.
"""

import re
from collections.abc import Iterable, Iterator

from ampsim.diagnose.history import History, HistoryBuilder
from ampsim.diagnose.readers.fields import entry_of

_NUMBER = r"[-+]?(?:\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_PAIR = re.compile(rf"""['"]?([A-Za-z_][\w/. -]*?)['"]?\s*[:=]\s*['"]?({_NUMBER})(?![\w.:])""", re.IGNORECASE)
_STEP = re.compile(r"\b(?:step|iter|iteration|update)s?[\s:=#]+(\d+)\b", re.IGNORECASE)
_SEPARATORS = re.compile(r"[|,{}]")
_QUOTES = " \t\r\n'\""
_WORDS = ("scale", "loss", "norm", "overflow", "skip", "Scale", "Loss", "Norm", "OVERFLOW", "LOSS")

_DEEPSPEED = re.compile(r"OVERFLOW!.*loss scale: ([\d.eE+-]+), (?:reducing to ([\d.eE+-]+)|but hysteresis)")
_RANK = re.compile(r"Rank (\d+)")
_FAIRSEQ = re.compile(r"overflow detected.*?setting loss scale to: ([\d.eE+-]+)")
_AT_MINIMUM = ("loss scale already at minimum", "Minimum loss scale reached")

PROGRAMS = {
    "Megatron": re.compile(r"\biteration\s+\d+/\s*\d+\s*\|"),
    "DeepSpeed": re.compile(r"\[deepspeed\]|\[deepscale\]|OVERFLOW! Rank|\[logging\.py:\d+:log_dist\]"),
    "fairseq": re.compile(r"num_updates|setting loss scale to"),
    "HF Trainer": re.compile(r"['\"]learning_rate['\"]:.*['\"]epoch['\"]:"),
}


class TextReader:
    """Makes a history of lines, one at a time."""

    def __init__(self, source: str) -> None:
        self.builder = HistoryBuilder(source, "a training log")
        self._step = -1
        self._numbered = False
        self._total_skipped: float | None = None
        self._rank: str | None = None
        self._last_scale: float | None = None

    def line(self, text: str) -> None:
        """Take one line; what says nothing of the run is passed over."""
        if not any(word in text for word in _WORDS):
            return
        if self.builder.program == "a training log":
            self._recognize(text)
        if self._sentence(text):
            return
        entry = entry_of(dict(_pairs(text)))
        if "step" not in entry and (found := _STEP.search(text)):
            entry["step"] = float(found[1])
        if not entry.keys() & {"scale", "norm", "loss"}:
            return
        step = entry.pop("step", None)
        if step is None:
            step = self._step + 1
        else:
            self._numbered = True
        if "skipped" in entry and self.builder.program == "DeepSpeed":  # it counts from the start of the run
            total, before = entry["skipped"], self._total_skipped
            self._total_skipped, entry["skipped"] = total, total - (before or 0.0)
        self._step = int(step)
        self._last_scale = entry.get("scale", self._last_scale)
        self.builder.add(self._step, **entry)

    def finish(self) -> History:
        """Return the history of the lines."""
        if not self._numbered and self._step > 0:
            self.builder.notes.append("The log has no step numbers: its lines are counted instead.")
        return self.builder.finish()

    def _recognize(self, text: str) -> None:
        for program, mark in PROGRAMS.items():
            if mark.search(text):
                self.builder.program = program
                return

    def _sentence(self, text: str) -> bool:
        """Take what a program says of an overflow; False if the line says something else."""
        if found := _DEEPSPEED.search(text):
            named = _RANK.search(text)
            rank = named[1] if named else ""
            self._rank = rank if self._rank is None else self._rank
            if rank == self._rank:  # each rank prints the same overflow
                self._overflow(float(found[1]))
                self._after(found[2])
            return True
        if found := _FAIRSEQ.search(text):
            self._overflow(self._last_scale)
            self._after(found[1])
            return True
        if any(each in text for each in _AT_MINIMUM):
            self.builder.alarms.append((max(self._step, 0), "the program says that its loss scale is at the minimum"))
            return True
        return False

    def _overflow(self, scale: float | None) -> None:
        self._step += 1
        if scale is None:
            self.builder.add(self._step, skipped=1.0)
        else:
            self.builder.add(self._step, scale=scale, skipped=1.0)

    def _after(self, scale: str | None) -> None:
        """Keep the scale that the next step begins with."""
        if scale is not None:
            self._last_scale = float(scale)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield names with the texts of their numbers. Most lines are cut at ``|`` and ``,``; a pattern reads the rest."""
    for part in _SEPARATORS.split(text):
        name, mark, value = part.partition(":") if ":" in part else part.partition("=")
        if not mark:
            continue
        value = value.strip(_QUOTES)
        try:
            float(value)
        except ValueError:  # more than one pair, or words
            yield from _PAIR.findall(part)
        else:
            yield name.strip(_QUOTES), value


def read_text(source: str, lines: Iterable[str]) -> History:
    """Return the history of a console log."""
    reader = TextReader(source)
    for line in lines:
        reader.line(line)
    return reader.finish()

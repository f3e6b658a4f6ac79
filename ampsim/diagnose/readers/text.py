"""Console logs: whatever prints names with numbers, and what programs say in sentences.

A line is searched for a plain word before any pattern looks at it: a log has millions of lines. It is looked at when
the next one is there, which tells whether a terminal has cut it.
"""

import math
import re
from collections.abc import Iterable
from typing import Any

from ampsim.diagnose.formats import PROGRAMS, SENTENCES, TABLE, error_in, pattern, spelled
from ampsim.diagnose.history import MAYBE, History, HistoryBuilder
from ampsim.diagnose.readers.fields import Entry, as_number, with_loss
from ampsim.diagnose.readers.lines import Width, rows, whole
from ampsim.diagnose.readers.plan import PLANS, Form, Plan, Token, form_of, numbers_of, plan_of
from ampsim.diagnose.readers.stream import UNKNOWN, Stream

_LAST, _GAPS, _COLOUR, _TAG, _RANK = map(pattern, ("last", "gaps", "colour", "tag", "rank"))
_BAR, _ASIDE, _OTHER, _MEAN = map(pattern, ("bar", "aside", "other", "mean_norm"))
_WORDS, _ENDS = TABLE["words"]["run"], TABLE["words"]["error"]
_AVERAGED = [each["mark"] for each in PROGRAMS if each.get("scale") == "means"]
SHOWN = frozenset({"scale", "norm", "loss"})  # one of them makes a line a record of the run
LONG = 2_000  # characters of a line from which no pattern is made
STREAMS = 16  # ranks and engines that are told apart


class TextReader:
    """Makes a history of lines, one at a time."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.streams: dict[str, Stream] = {}
        self.number = 0
        self.before = ""  # the last record's line
        self.wide = Width()
        self.error: tuple[int, str] | None = None
        self.plans: list[tuple[Plan, Stream]] = []  # of lines that came lately

    def read(self, lines: Iterable[str]) -> History:
        """Return the history of the lines."""
        for text, number, torn in rows(whole(lines, self.wide)):
            self.number = number
            if torn and self.before.startswith(
                text
            ):  # the last line, which is the one before once more
                for each in self.streams.values():
                    each.builder.twice = True
            if torn or not self.planned(text):
                self.other(text, torn)
        builders = sorted(
            (each.builder for each in self.streams.values()), key=lambda each: -each.rows
        )
        main, *others = builders or [HistoryBuilder(self.source, UNKNOWN)]
        if self.wide.joined:
            main.notes.append(
                f"Joined, because a terminal seems to have wrapped them: {self.wide.joined} lines."
            )
        given = {
            "cut": self.wide.cut,
            "engines": any(key.startswith("engine ") for key in self.streams),
        }
        main.settings |= {name: True for name, so in given.items() if so}
        if self.error and self.error[0] > max((each.line for each in builders), default=0):
            main.says["error"], main.settings["error"] = [self.error[0]], self.error[1]
        if any("fp16" in each.says for each in builders):  # of several engines one has it
            for says in (each.says for each in builders):
                says.pop("no-fp16", None)
                says.pop("fp16", None)
        if main.says and not main.rows:
            main.add(line=next(iter(main.says.values()))[0])
        return main.finish(tuple(each.finish() for each in others if each.rows))

    def planned(self, text: str) -> bool:
        """Take a line of a form that has come lately; False if it is none."""
        for at, (plan, stream) in enumerate(self.plans):
            if found := plan.pattern.fullmatch(text):
                if at:
                    self.plans.insert(0, self.plans.pop(at))
                if plan.fields or plan.fixed:
                    self.entry(stream, plan.read(found.groups()), text, None, plan.form)
                return True
        return False

    def other(self, text: str, torn: bool) -> None:
        """Take any other line; what says nothing of the run is passed over. `torn`: a number at its end may go on."""
        text = _LAST.sub("", text) if torn and text[-1:] not in "|})]" else text
        low = text.lower()
        bar = (
            max(_BAR.finditer(text), key=lambda bar: int(bar[2]), default=None)
            if "<" in text
            else None
        )
        tells = any(map(low.__contains__, _WORDS))
        if bar is None and not tells:
            return
        text = spelled(_COLOUR.sub("", _GAPS.sub("", text)))
        stream = self.stream(text)
        done = None
        if bar and (int(bar[2]) >= stream.bar[1] or stream.bar[0] == stream.bar[1]):
            done, _ = stream.bar = int(bar[1]), int(bar[2])
        if not tells or (
            "OVERFLOW" not in text and _ASIDE.search(text)
        ):  # the validation, the whole run, an object's settings
            return
        text = _OTHER.sub("", text)
        stream.recognise(text)
        sentences = (each for each in SENTENCES if each["word"] in text)
        if said := next(
            ((each, found) for each in sentences if (found := each["pattern"].search(text))), None
        ):
            if bar:  # in whose line something else may print
                before = text[: said[1].start()]
                self.entry(stream, numbers_of(before, torn)[0], before, done, form_of(before))
            self.sentence(stream, text, *said)
        elif not self.fault(text):
            entry, tokens = numbers_of(text, torn)
            if "scale" in entry and any(
                mark.search(text) for mark in _AVERAGED
            ):  # whatever the program is
                stream.builder.settings["means"] = True
            if bar is None and not torn and len(text) < LONG and entry.keys() != {"scale"}:
                self._plan(stream, text, tokens)
            self.entry(stream, entry, text, done, form_of(text))

    def _plan(self, stream: Stream, text: str, tokens: list[Token]) -> None:
        """Keep what a line is like; of one that says nothing, that it says nothing."""
        tag = _TAG.match(text)
        if plan := plan_of(text, tokens, tag.end() if tag else 0):
            self.plans[PLANS - 1 :] = []
            self.plans.insert(0, (plan, stream))

    def fault(self, text: str) -> bool:
        """Take an error that is known; False if there is none. A warning ends no run of which lines were read."""
        programs = " ".join(each.builder.program for each in self.streams.values())
        error = error_in(text, programs) if any(word in text for word in _ENDS) else None
        if error and not (
            "Warning: " in text and any(each.builder.rows for each in self.streams.values())
        ):
            self.error = self.number, error["pattern"].pattern
        return error is not None

    def stream(self, text: str) -> Stream:
        """Return what the line's rank says."""
        tag = _TAG.match(text)
        key = next((group for group in tag.groups() if group), "") if tag else ""
        if key not in self.streams and len(self.streams) >= STREAMS:
            key = next(iter(self.streams))
        return self.streams.setdefault(key, Stream(self.source))

    def engine(self, stream: Stream, step: float) -> Stream:
        """Return the engine that counts its steps on this line: the first that has not come so far.

        None of them goes back, but in a run that was started again, and each begins at 0.
        """
        if not step or step < min(stream.engines, default=step):
            stream.engines = []
        if not step:
            return stream
        at = next((i for i, last in enumerate(stream.engines) if last < step), len(stream.engines))
        if at >= STREAMS:
            return stream
        stream.engines[at:] = [step, *stream.engines[at + 1 :]]
        return (
            stream if at == 0 else self.streams.setdefault(f"engine {at + 1}", Stream(self.source))
        )

    def sentence(
        self, stream: Stream, text: str, each: dict[str, Any], found: re.Match[str]
    ) -> None:
        """Take what a program says of an overflow."""
        if stream.builder.program == UNKNOWN and each["program"]:
            stream.known(each["program"])
        last = stream.told
        if "says" in each:
            stream.builder.say(each["says"], self.number)
        elif not self._said_before(stream, each, text, found):
            if stream.told and last == (
                each.get("repeats"),
                stream.told[1],
            ):  # of the same skip: its scale
                stream.builder.add(line=self.number, scale=float(found[each["after"]]))
            else:
                self._told(stream, each, found)
            stream.line = stream.builder.rows, _TAG.sub("", text[: found.end()]).strip()

    def _said_before(
        self, stream: Stream, each: dict[str, object], text: str, found: re.Match[str]
    ) -> bool:
        """Return whether another rank says the same, or another handler.

        Where no rank gives its name, any line does that repeats the last sentence; a handler repeats the whole line.
        """
        named = bool(_RANK.search(text))
        if named and self._other_rank(stream, text):
            return True
        value = (as_number(found[1]) or 0.0) if found.re.groups else math.nan
        again = stream.told == (each["word"], value)
        stream.told = str(each["word"]), value
        (rows, before), text = stream.line, _TAG.sub("", text[: found.end()]).strip()
        copied = rows == stream.builder.rows and (text.endswith(before) or before.endswith(text))
        fell = len({*found.groups()}) > 1
        stream.same = (
            copied and not fell and text == before and not stream.same
        )  # or it is of a skip of its own
        return (copied and not stream.same) or (
            again and not named and bool(each.get("ranks", True))
        )

    def _other_rank(self, stream: Stream, text: str) -> bool:
        """Return whether a line names another rank than the first one that was named."""
        named = _RANK.search(text)
        stream.rank = stream.rank or (named[1] if named else None)
        return named is not None and named[1] != stream.rank

    def _told(self, stream: Stream, each: dict[str, Any], found: re.Match[str]) -> None:
        columns = {"scale": each.get("before"), "left": each.get("after")}
        entry = {name: float(found[group]) for name, group in columns.items() if group}
        if each.get("logarithm"):
            entry = {name: 2.0**value for name, value in entry.items() if abs(value) < 1022}
        entry |= {name: math.inf for name in ("loss", "norm") if each.get(name)}
        entry["told"] = each.get("skips", 1) * (MAYBE if stream.same else 1.0)
        stream.builder.add(entry=entry | {"line": self.number})

    def entry(self, stream: Stream, entry: Entry, text: str, done: int | None, form: Form) -> None:
        """Add what a line says in named numbers."""
        stream.builder.loss = with_loss(entry, stream.builder.loss)
        stream.builder.twice |= text == self.before
        self.before = text
        self._besides(stream.builder, entry, text)
        if form.total and "skipped" in entry:
            if self._other_rank(stream, text):
                return
            if "step" in entry:
                stream = self.engine(stream, entry["step"])
                stream.known("DeepSpeed")
                entry["total"] = entry.pop("skipped")
        elif SHOWN.isdisjoint(entry):
            return
        step = stream.step_of(entry, done, text, form)
        stream.kind(entry)
        if "skipped" in entry:
            self._skips(stream, entry, form, step - stream.step)
        if step == step:
            stream.step = step
        entry["line"] = self.number
        stream.builder.add(step, entry)

    def _besides(self, builder: HistoryBuilder, entry: Entry, text: str) -> None:
        """Keep what a line says besides its numbers."""
        if not math.isfinite(entry.get("evaluated", 0.0)):
            builder.say("evaluation", self.number)
        if "norm" in entry and ("(inf)" in text or "(nan)" in text) and _MEAN.search(text):
            builder.say("mean-beside", self.number)
        if not 0 < entry.get("whole", 1.0) < math.inf:
            builder.say("whole-run", self.number)
        bare = {
            "step",
            "scale",
            "nans",
        } <= entry.keys() and "loss" not in entry  # a whole line of Megatron's
        if bare and builder.loss == "loss" and not entry["nans"] and entry.get("skipped") == 0:
            builder.say("left-out", self.number)

    def _skips(self, stream: Stream, entry: Entry, form: Form, steps: float) -> None:
        """Take a count for a total where it has shown to be one, or for a number of no known meaning."""
        name, counts = stream.row["name"], stream.row.get("counts")
        if (
            form.megatron and not entry["skipped"] and name == "DeepSpeed"
        ):  # which steps, so that 0 means nothing
            del entry["skipped"]
            return
        stream.totals |= counts == "since" and entry["skipped"] > steps > 0
        if stream.totals:
            entry["total"] = entry.pop("skipped")
        elif counts not in ("since", "each"):
            stream.builder.settings["count"] = "unsaid"


def read_text(source: str, lines: Iterable[str]) -> History:
    """Return the history of a console log."""
    return TextReader(source).read(lines)

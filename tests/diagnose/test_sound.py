"""Every statement is true of the run that printed the log, whatever the run, the program, and what is left of it."""

import math
import os
import re
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim.diagnose.evidence import Evidence
from ampsim.diagnose.explain import Explanation, explain
from ampsim.diagnose.formats import JUDGED, TABLE
from ampsim.diagnose.history import COLUMNS
from ampsim.diagnose.readers import text
from ampsim.diagnose.readers.stream import Stream
from ampsim.diagnose.readers.tables import history_of, json_rows, parsed
from ampsim.diagnose.readers.text import TextReader, read_text
from ampsim.diagnose.statements import Statement
from tests.diagnose.drawn_runs import ENDINGS, SICK, Log, logs
from tests.examples import examples

NUMBERED = re.compile(r"iteration +\d+/|step|\d+/\d+|\| ")
"""What only lines have that number their step."""
DECIMALS = {"Megatron": 0.05, "stale": 0.05, "insightface": 0.5, "gan": 0.000005}
"""Form -> error of a scale that it prints with few decimals."""
AVERAGED = ("epochs", "diffusion", "videomae")
NEAR = 0.01
"""Relative error of a scale that was printed with few digits."""


def explained(log: Log) -> Explanation | None:
    """Return what is said of a log; None if nothing is in it."""
    first = next(iter(log.text), "")
    rows = json_rows(log.text)
    history = history_of("-", "JSON Lines", rows) if parsed(first) else read_text("-", log.text)
    return explain(history) if len(history.step) else None


def false(log: Log, each: Statement) -> str:
    """Return in words how a statement is false of the run behind a log; nothing if it is true."""
    steps = log.run.steps[log.first : log.last + 1]
    meant = [step for run in log.starts for step in run.steps] if log.form in AVERAGED else steps
    values = {step.scale for step in meant} | {step.after for step in meant}
    numbers = {name: value for name, value in each.numbers.items() if isinstance(value, tuple)}
    for name in {"from", "to", "low", "high"} & numbers.keys() if "low scale" not in each.kind else ():
        value = numbers[name][0]
        between = min(values) * (1 - NEAR) <= value <= max(values) * (1 + NEAR)
        had = (value == 0 and (log.form == "rounded" or any(each < 0.5 for each in values))) or any(
            math.isclose(value, one, rel_tol=NEAR, abs_tol=DECIMALS.get(log.form, 0)) for one in values
        )
        if not (had or (between and log.form in AVERAGED)):
            return f"{name} {value} is no scale of the run"
    if "skips" in numbers:
        low, _ = numbers["skips"]
        since = 0 if log.form in ("DeepSpeed", "fused") or each.kind == "rate counts" else log.first
        if low > log.run.skips(since, log.last):
            return f"at least {low} skips, and there were {log.run.skips(log.first, log.last)}"
    if each.unit == "step" and log.form not in ("fairseq", "epochs"):  # these count updates, or epochs
        alone = [log.lines[at - 1] for at in each.lines if at <= len(log.lines)]
        alone = [log.number(first) for text, first, last in alone if first == last and not NUMBERED.search(text)]
        if alone and not each.first - 1 <= min(alone) <= max(alone) <= each.last + 1:
            return f"steps {each.first} to {each.last}, and it is of {min(alone)} to {max(alone)}"
        if each.kind == "skips" and each.first > log.first + 1:
            return f"from step {each.first} on, and it counts from {log.first} on"
    about = [span for at in each.lines for span in (log.lines[at - 1][1:] if at <= len(log.lines) else (0, 0),)]
    return CHECKS[each.kind](log, each, about) if each.kind in CHECKS else ""


def _of_lines(what):
    """Return a check that something holds at some step of each line."""

    def check(log, each, about):
        bad = [span for span in about if not any(what(log.run.steps[at]) for at in range(span[0], span[1] + 1))]
        return f"not so at steps {bad[0]}" if bad else ""

    return check


def _most(log, each):
    return each.numbers["to"][0] * (1 + NEAR) + DECIMALS.get(log.form, 0)


def _low(log, each, about):
    if log.run.ending == "scale 0":  # where an overflow does not halve the scale
        return ""
    return "" if any(step.skipped and step.scale <= _most(log, each) for step in log.run.steps) else "none did"


def _risen(log, each, about):
    """A line that was cut may tell of a scale that nobody can read."""
    read = max(last for *_, last in (*(log.lines[:-1] if log.torn else log.lines), *about))
    return "it rose" if log.run.steps[read].after > _most(log, each) else ""


def _grown(log, each, about):
    steps = log.run.steps[min(about)[0] : max(about)[1] + 1]
    grown = sum(step.after > step.scale for step in steps)
    return "" if each.numbers["growths"][0] == grown else f"it grew {grown} times"


def _wrong(log, each, about):
    return "" if log.run.ending in SICK else f"the run is {log.run.ending}"


CHECKS = {
    "forward overflow": _of_lines(lambda step: not math.isfinite(step.loss)),
    "some losses": _of_lines(lambda step: not math.isfinite(step.loss)),
    "evaluation": _of_lines(lambda step: not math.isfinite(step.loss)),
    "evaluation and training": _of_lines(lambda step: not math.isfinite(step.loss)),
    "loss 0": _of_lines(lambda step: not math.isfinite(step.loss)),
    "loss 0 throughout": _of_lines(lambda step: not math.isfinite(step.loss)),
    "last losses 0": _of_lines(lambda step: not math.isfinite(step.loss)),
    "norm not finite": _of_lines(lambda step: not math.isfinite(step.norm)),
    "mean norms": _of_lines(lambda step: not math.isfinite(step.norm)),
    "some norms": _of_lines(lambda step: not math.isfinite(step.norm)),
    "scale 0": _of_lines(lambda step: min(step.scale, step.after) < 0.005),  # so it is printed
    "floor reached": _of_lines(lambda step: step.skipped or not math.isfinite(step.norm)),
    "skipped to the end": _of_lines(lambda step: step.skipped or not math.isfinite(step.norm)),
    "no step seen": _of_lines(lambda step: step.skipped or not math.isfinite(step.norm)),
    "searching": _of_lines(lambda step: step.skipped),
    "low scale": lambda log, each, about: _low(log, each, about),
    "low scale before": lambda log, each, about: _low(log, each, about),
    "reconstructed": lambda log, each, about: _grown(log, each, about),
    "means": lambda log, each, about: "" if log.form in AVERAGED else "they are values",
    "restarted": lambda log, each, about: "" if log.stop else "it went on",
    "collapse": lambda log, each, about: _risen(log, each, about),
    "hidden skips": lambda log, each, about: "the log hides none" if log.form not in ("Megatron", "stale") else "",
}  # fmt: skip


def lies(log: Log) -> list[str]:
    """Return what is said of a log and is false of its run, alarms included."""
    explanation = explained(log)
    told = [(each, false(log, each)) for each in (explanation.statements if explanation else ())]
    told += [(each, _wrong(log, each, ())) for each, _ in told if each.verdict == "wrong"]
    return [f"{log.form}, {log.run.ending}: {each.what} {why}" for each, why in told if why]


@settings(max_examples=examples(ms=2))  # 10,000 in `deep`
@example(Log("searching", "Megatron", count=20, begin=0, seed=104, every=5, thin=2, torn=True))
@example(Log("searching", "apex", count=119, begin=36, seed=696237, every=1, width=60))
@example(Log("searching", "fairseq", count=20, begin=0, seed=1, every=1))
@example(Log("searching", "DeepSpeed", count=101, begin=0, seed=203, every=1, width=120))
@example(Log("searching", "videomae", count=20, begin=0, seed=0, every=1, stop=17))
@example(Log("searching", "fairseq", count=20, begin=0, seed=1, every=2, thin=3, torn=True, late=True))
@example(Log("searching", "generic", count=36, begin=0, seed=0, every=5, torn=True, stop=6, hole=5))
@example(Log("collapsed", "outputs", count=26, begin=1, seed=0, every=5, torn=True, stop=16, hole=5))
@example(Log("searching", "fused", count=20, begin=0, seed=1, every=5, stop=2, resumed=0))
@example(Log("searching", "DeepSpeed", count=20, begin=0, seed=1, every=10, torn=True, late=True))
@example(Log("thrash", "fused", count=30, begin=0, seed=104, every=5, stop=25, resumed=20))
@example(Log("never started", "gan", count=20, begin=0, seed=0, every=1, torn=True))
@example(Log("thrash", "fused", count=20, begin=0, seed=0, every=10, late=True))
@example(Log("healthy", "Megatron", count=20, begin=0, seed=0, every=5, width=60, torn=True, stop=10, hole=5))
@example(Log("never started", "gan", count=20, begin=0, seed=3, every=1))
@example(Log("searching", "fairseq", count=20, begin=0, seed=0, every=10, torn=True, twice=True))
@example(Log("scale 0", "fairseq", count=20, begin=1, seed=0, every=10, torn=True, twice=True))
@example(Log("searching", "Megatron", count=80, begin=0, seed=108, every=10, thin=7))
@given(logs())
def test_every_statement_is_true_of_the_run_behind_the_log(log: Log) -> None:
    assert not lies(log)


def shows(log: Log) -> bool:
    """Return whether the log shows what is wrong: some print neither scale nor norm."""
    return log.run.ending != "scale 0" or log.form not in ("DeepSpeed", "fused")


def acquitted(log: Log) -> bool:
    """Return whether a log that shows what is wrong is called healthy."""
    shown = shows(log) and log.last - max(log.run.begin, log.first) > 45
    return shown and (explanation := explained(log)) is not None and explanation.verdict == "healthy"


@settings(max_examples=examples(ms=8))
@example(Log("collapsed", "DeepSpeed", count=63, begin=15, seed=0, every=2, thin=3, width=120))
@example(Log("collapsed", "videomae", count=116, begin=58, seed=116, every=2, thin=3, hole=5))
@given(logs(sorted(SICK - {"thrash"})))
def test_no_part_of_a_sick_log_is_healthy(log: Log) -> None:
    assert not acquitted(log), f"{log.form}, {log.run.ending}"


def _units(text: str) -> str:
    """Return a line whose losses and norms are in other units, 1,024 times larger."""
    return re.sub(
        r"((?:loss|norm)['\"]?[ :=]+)([0-9]+\.[0-9]+)(?![0-9.eE])",
        lambda found: f"{found[1]}{1024 * float(found[2]):.4f}",
        text,
    )


def _other_rank(text: str) -> list[str]:
    """Return a line, and the same as another rank prints it."""
    return [f"[rank0]: {text}", f"[rank1]: {text.replace('Rank 0', 'Rank 1')}"]


CHANGES = {
    "a suffix": lambda lines: lines[len(lines) // 3 :],
    "a late suffix": lambda lines: lines[2 * len(lines) // 3 :],
    "every second line": lambda lines: lines[::2],
    "every fifth line": lambda lines: lines[4::5],
    "other units": lambda lines: [_units(line) for line in lines],
    "another rank in between": lambda lines: [each for line in lines for each in _other_rank(line)],
}


@pytest.mark.parametrize("change", CHANGES)
@settings(max_examples=examples(ms=30))
@given(data=st.data())
def test_what_is_left_of_a_log_or_printed_otherwise_never_turns_a_verdict_green(
    change: str, data: st.DataObject
) -> None:
    """A run that is sick to its end, and whose log shows it, is called healthy in no other form of the log."""
    assert not turns_green(data.draw(logs(sorted(SICK - {"thrash"}), whole=True)), change)


def turns_green(log: Log, *changes: str) -> bool:
    """Return whether a log is called healthy in one of other forms, and was not as it is."""
    mostly = log.last - log.run.begin > 2 * (log.run.begin - log.first) + 45  # sick
    if log.form == "epochs" or not (mostly and shows(log)):
        return False
    explanation = explained(log)
    if explanation is None or explanation.verdict == "healthy":
        return False
    lines = [text for text, _, _ in log.lines]
    histories = (read_text("-", [f"{line}\n" for line in CHANGES[change](lines)]) for change in changes)
    return any(len(history.step) and explain(history).verdict == "healthy" for history in histories)


def test_overflows_that_are_told_and_not_counted_end_a_log() -> None:
    assert not turns_green(Log("forward overflow", "fused", count=213, begin=38, seed=213, every=1), "every fifth line")


def test_an_acquittal_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [log for ending in ("collapsed", "never started", "static") for log in sample(60, ending)]
    assert not any(map(acquitted, many))
    status = Evidence.status.func
    taken = property(lambda evidence: np.where(status(evidence) == 0, 1, status(evidence)))
    monkeypatch.setattr(Evidence, "status", taken)  # what does not tell of a skip is a step
    assert any(map(acquitted, many))


def test_each_statement_has_words_that_its_numbers_fill() -> None:
    for kind, row in TABLE["statement"].items():
        assert row["verdict"] in ("wrong", "note", "fact"), kind
        assert (
            "cure" in row
            or row["verdict"] == "fact"
            or kind in ("engines", "restarted", "cut", "means", "rate counts", "some norms", "told")
        ), kind


@cache
def sample(number: int, ending: str) -> list[Log]:
    """Return logs of one ending."""
    found: list[Log] = []

    @settings(max_examples=number, database=None, derandomize=True)
    @given(logs([ending]))
    def gather(log: Log) -> None:
        found.append(log)

    gather()
    return found


@pytest.mark.parametrize("ending", ENDINGS)
def test_most_are_recognised(ending: str) -> None:
    """Completeness: how many logs get the verdict that is right of their run."""
    logs_ = [log for log in sample(60, ending) if log.last - max(log.run.begin, log.first) > 45]
    verdicts = [each.verdict for log in logs_ if (each := explained(log))]
    right = sum(each == ("wrong" if ending in SICK else "healthy") for each in verdicts)
    print(f"{ending}: {right} of {len(verdicts)} right, {verdicts.count('cannot tell')} cannot tell")
    least = {"searching": 0.2, "thrash": 0.05, "static": 0.25, "scale 0": 0.3, "healthy": 0.35}.get(ending, 0.5)
    assert right >= least * len(verdicts), (right, len(verdicts))


def plants() -> dict[str, tuple[object, str, object]]:
    """Return false beliefs: each an object, an attribute of it, and what to put there."""
    proved, told = Evidence.proved, TextReader._told

    def one_more(evidence: Evidence, point: int) -> int:
        return proved(evidence, point) + 1

    def told_twice(reader: TextReader, stream: Stream, *given: object) -> None:
        told(reader, stream, *given)
        told(reader, stream, *given)

    return {
        "a fall is one skip more": (Evidence, "proved", one_more),
        "a mean is a value": (Evidence, "means", property(lambda evidence: False)),
        "a sentence is two skips": (TextReader, "_told", told_twice),
        "each rank skips for itself": (TextReader, "_said_before", lambda *_: False),
        "a number is whole where its line ends": (text, "_LAST", re.compile("(?!)")),
        "every scale is a tiny one": (JUDGED, "tiny", 2.0**40),
        "sentences and what is printed are one series": (
            Evidence,
            "series",
            property(lambda evidence: [np.arange(0), np.arange(len(evidence.points[0]))]),
        ),
        "a run is never started again": (Evidence, "part", property(lambda evidence: np.zeros(len(evidence.step)))),
        "each record is of the training": (text, "_OTHER", re.compile("(?!)")),
    }


@pytest.fixture(scope="module")
def of_every_ending() -> list[Log]:
    """Logs of which nothing false is said."""
    many = [
        log for ending in ENDINGS for log in sample(120 if ending in ("healthy", "searching", "thrash") else 60, ending)
    ]
    many += [Log("searching", form, count=99, begin=0, seed=1, every=5, ranks=1) for form in ("apex", "stale")]
    many += [Log("healthy", "epochs", count=150, begin=0, seed=4, every=10)]
    many += [Log("healthy", "videomae", count=200, begin=0, seed=4, every=5)]
    assert not any(map(lies, many))
    return many


@pytest.mark.parametrize("belief", plants())
def test_a_false_belief_is_seen(belief: str, of_every_ending: list[Log], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*plants()[belief])
    assert any(map(lies, of_every_ending))


def test_a_plan_reads_what_the_whole_reader_reads(monkeypatch):
    """Lines that differ in their digits alone are read by a pattern: as they would be one by one."""
    every = 1 if os.environ.get("AMPSIM_DEEP") == "1" else 3
    for log in (log for ending in ENDINGS for log in sample(60, ending)[::every] if log.form != "epochs"):
        planned = read_text("-", log.text)
        with monkeypatch.context() as patched:
            patched.setattr(TextReader, "_plan", lambda *_: None)
            alone = read_text("-", log.text)
        for name in COLUMNS:
            np.testing.assert_array_equal(getattr(planned, name), getattr(alone, name), log.form)

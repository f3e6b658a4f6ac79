"""Every statement is true of the run that printed the log, whatever the run, the program, and what is left of it."""

import math
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim.diagnose.explain import Explanation, explain
from ampsim.diagnose.readers.sniff import NothingReadError, read_history
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


def explained(lines: list[str]) -> Explanation | None:
    """Return what is said of a log; None if nothing is in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        path.write_text("".join(lines), "utf-8")
        try:
            return explain(read_history(path))
        except NothingReadError:
            return None


def false(log: Log, each: Statement) -> str:
    """Return in words how a statement is false of the run behind a log; nothing if it is true."""
    steps = log.run.steps[log.first : log.last + 1]
    meant = [step for run in log.starts for step in run.steps] if log.form in AVERAGED else steps
    values = {step.scale for step in meant} | {step.after for step in meant}
    numbers = {name: value for name, value in each.numbers.items() if isinstance(value, tuple)}
    for name in (
        {"from", "to", "low", "high"} & numbers.keys() if "low-scale" not in each.kind else ()
    ):
        value = numbers[name][0]
        between = min(values) * (1 - NEAR) <= value <= max(values) * (1 + NEAR)
        had = (value == 0 and (log.form == "rounded" or any(each < 0.5 for each in values))) or any(
            math.isclose(value, one, rel_tol=NEAR, abs_tol=DECIMALS.get(log.form, 0))
            for one in values
        )
        if not (had or (between and log.form in AVERAGED)):
            return f"{name} {value} is no scale of the run"
    if "skips" in numbers:
        low, _ = numbers["skips"]
        since = 0 if log.form in ("DeepSpeed", "fused") or each.kind == "rate-counts" else log.first
        if low > log.run.skips(since, log.last):
            return f"at least {low} skips, and there were {log.run.skips(log.first, log.last)}"
    if each.unit == "step" and log.form not in (
        "fairseq",
        "epochs",
    ):  # these count updates, or epochs
        alone = [log.lines[at - 1] for at in each.lines if at <= len(log.lines)]
        alone = [
            log.number(first)
            for text, first, last in alone
            if first == last and not NUMBERED.search(text)
        ]
        if alone and not each.first - 1 <= min(alone) <= max(alone) <= each.last + 1:
            return f"steps {each.first} to {each.last}, and it is of {min(alone)} to {max(alone)}"
        if each.kind == "skips" and each.first > log.first + 1:
            return f"from step {each.first} on, and it counts from {log.first} on"
    about = [
        span
        for at in each.lines
        for span in (log.lines[at - 1][1:] if at <= len(log.lines) else (0, 0),)
    ]
    return CHECKS[each.kind](log, each, about) if each.kind in CHECKS else ""


def _of_lines(what):
    """Return a check that something holds at some step of each line."""

    def check(log, each, about):
        bad = [
            span
            for span in about
            if not any(what(log.run.steps[at]) for at in range(span[0], span[1] + 1))
        ]
        return f"not so at steps {bad[0]}" if bad else ""

    return check


def _most(log, each):
    return each.numbers["to"][0] * (1 + NEAR) + DECIMALS.get(log.form, 0)


def _low(log, each, about):
    if log.run.ending == "scale-0":  # where an overflow does not halve the scale
        return ""
    return (
        ""
        if any(step.skipped and step.scale <= _most(log, each) for step in log.run.steps)
        else "none did"
    )


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


LOST_LOSS = _of_lines(lambda step: not math.isfinite(step.loss))
LOST_NORM = _of_lines(lambda step: not math.isfinite(step.norm))
SKIPPED = _of_lines(lambda step: step.skipped)
SKIPPED_OR_LOST = _of_lines(lambda step: step.skipped or not math.isfinite(step.norm))
ZERO = _of_lines(lambda step: min(step.scale, step.after) < 0.005)  # it is printed as 0
CHECKS = {
    "loss-not-finite": LOST_LOSS,
    "some-losses": LOST_LOSS,
    "evaluation": LOST_LOSS,
    "evaluation-and-training": LOST_LOSS,
    "loss-0": LOST_LOSS,
    "loss-0-throughout": LOST_LOSS,
    "last-losses-0": LOST_LOSS,
    "norm-not-finite": LOST_NORM,
    "mean-norms": LOST_NORM,
    "some-norms": LOST_NORM,
    "scale-0": ZERO,
    "floor-reached": SKIPPED_OR_LOST,
    "skipped-to-the-end": SKIPPED_OR_LOST,
    "no-step-seen": SKIPPED_OR_LOST,
    "searching": SKIPPED,
    "low-scale": _low,
    "low-scale-before": _low,
    "reconstructed": _grown,
    "means": lambda log, each, about: "" if log.form in AVERAGED else "they are values",
    "restarted": lambda log, each, about: "" if log.stop else "it went on",
    "collapse": _risen,
    "hidden skips": lambda log, each, about: (
        "" if log.form in ("Megatron", "stale") else "none is hidden"
    ),
}


def lies(log: Log, explanation: Explanation | None) -> list[str]:
    """Return what is said of a log and is false of its run, alarms included."""
    told = [(each, false(log, each)) for each in (explanation.statements if explanation else ())]
    told += [(each, _wrong(log, each, ())) for each, _ in told if each.verdict == "wrong"]
    return [f"{log.form}, {log.run.ending}: {each.what} {why}" for each, why in told if why]


@settings(max_examples=examples(ms=2))  # 10,000 in `deep`
@example(Log("searching", "Megatron", count=20, begin=0, seed=104, every=5, thin=2, torn=True))
@example(Log("searching", "apex", count=119, begin=36, seed=696237, every=1, width=60))
@example(Log("searching", "fairseq", count=20, begin=0, seed=1, every=1))
@example(Log("searching", "DeepSpeed", count=101, begin=0, seed=203, every=1, width=120))
@example(Log("searching", "videomae", count=20, begin=0, seed=0, every=1, stop=17))
@example(
    Log("searching", "fairseq", count=20, begin=0, seed=1, every=2, thin=3, torn=True, late=True)
)
@example(Log("searching", "generic", count=36, begin=0, seed=0, every=5, torn=True, stop=6, hole=5))
@example(
    Log("collapsed", "outputs", count=26, begin=1, seed=0, every=5, torn=True, stop=16, hole=5)
)
@example(Log("searching", "fused", count=20, begin=0, seed=1, every=5, stop=2, resumed=0))
@example(Log("searching", "DeepSpeed", count=20, begin=0, seed=1, every=10, torn=True, late=True))
@example(Log("thrash", "fused", count=30, begin=0, seed=104, every=5, stop=25, resumed=20))
@example(Log("never started", "gan", count=20, begin=0, seed=0, every=1, torn=True))
@example(Log("thrash", "fused", count=20, begin=0, seed=0, every=10, late=True))
@example(
    Log(
        "healthy",
        "Megatron",
        count=20,
        begin=0,
        seed=0,
        every=5,
        width=60,
        torn=True,
        stop=10,
        hole=5,
    )
)
@example(Log("never started", "gan", count=20, begin=0, seed=3, every=1))
@example(Log("searching", "fairseq", count=20, begin=0, seed=0, every=10, torn=True, twice=True))
@example(Log("scale-0", "fairseq", count=20, begin=1, seed=0, every=10, torn=True, twice=True))
@example(Log("searching", "Megatron", count=80, begin=0, seed=108, every=10, thin=7))
@given(logs())
def test_every_finding_is_true(log: Log) -> None:
    assert not lies(log, explained(log.text))


def shows(log: Log) -> bool:
    """Return whether the log shows what is wrong: some print neither scale nor norm."""
    return log.run.ending != "scale-0" or log.form not in ("DeepSpeed", "fused")


def acquitted(log: Log) -> bool:
    """Return whether a log that shows what is wrong is called healthy."""
    shown = shows(log) and log.last - max(log.run.begin, log.first) > 45
    return (
        shown
        and (explanation := explained(log.text)) is not None
        and explanation.verdict == "healthy"
    )


@settings(max_examples=examples(ms=8))
@example(Log("collapsed", "DeepSpeed", count=63, begin=15, seed=0, every=2, thin=3, width=120))
@example(Log("collapsed", "videomae", count=116, begin=58, seed=116, every=2, thin=3, hole=5))
@given(logs(sorted(SICK - {"thrash"})))
def test_partial_unhealthy_log_is_never_healthy(log: Log) -> None:
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
def test_changed_unhealthy_log_is_never_healthy(change: str, data: st.DataObject) -> None:
    """A run that is sick to its end, and whose log shows it, is called healthy in no other form of the log."""
    assert not turns_green(data.draw(logs(sorted(SICK - {"thrash"}), whole=True)), change)


def turns_green(log: Log, *changes: str) -> bool:
    """Return whether a log is called healthy in one of other forms, and was not as it is."""
    mostly = log.last - log.run.begin > 2 * (log.run.begin - log.first) + 45  # sick
    if log.form == "epochs" or not (mostly and shows(log)):
        return False
    explanation = explained(log.text)
    if explanation is None or explanation.verdict == "healthy":
        return False
    lines = [text for text, _, _ in log.lines]
    changed = [explained([f"{line}\n" for line in CHANGES[change](lines)]) for change in changes]
    return any(each is not None and each.verdict == "healthy" for each in changed)


def test_thinned_forward_overflow_is_never_healthy() -> None:
    assert not turns_green(
        Log("loss-not-finite", "fused", count=213, begin=38, seed=213, every=1), "every fifth line"
    )


def sample(number: int, ending: str) -> list[Log]:
    """Return logs of one ending."""
    found: list[Log] = []

    @settings(max_examples=number, database=None, derandomize=True)
    @given(logs([ending]))
    def gather(log: Log) -> None:
        found.append(log)

    gather()
    return found


LEAST = {"searching": 0.2, "thrash": 0.05, "static": 0.25, "scale-0": 0.3, "healthy": 0.35}
"""Ending -> the share of logs whose verdict must be that of their run; a half for the others."""


@pytest.mark.parametrize("ending", ENDINGS)
def test_most_runs_are_recognized(ending: str) -> None:
    right, verdicts = "wrong" if ending in SICK else "healthy", []
    for log in sample(60, ending):
        explanation = explained(log.text)
        assert not lies(log, explanation)
        if explanation and log.last - max(log.run.begin, log.first) > 45:
            verdicts.append(explanation.verdict)
    assert verdicts.count(right) >= LEAST.get(ending, 0.5) * len(verdicts), verdicts

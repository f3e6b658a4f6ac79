"""What went wrong in a recorded run is found, and nothing is found where nothing is wrong."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim import Rule, dialects, init, replay, update
from ampsim.diagnose import history
from ampsim.diagnose.explain import Explanation, explain, in_words
from ampsim.diagnose.readers.sniff import read_history
from ampsim.diagnose.readers.text import read_text
from ampsim.runs.record.run_file import RunFile, pack_counts
from tests.diagnose.drawn_runs import Drawn, Step, deepspeed
from tests.examples import examples

NAN, INF = math.nan, math.inf
RULE = Rule(growth_interval=150)


def recorded(path: Path, **columns: Any) -> Explanation:
    """Record a run as `watch` does, a value of each column per step; return what is said."""
    with RunFile(path / "run.jsonl", {}) as file:
        for step, values in enumerate(zip(*columns.values(), strict=True)):
            file.append({"step": step, **dict(zip(columns, values, strict=True))})
    return explain(read_history(path / "run.jsonl"))


def logged(*lines: str) -> Explanation:
    return explain(read_text("-", [f"{line}\n" for line in lines]))


def trained(
    skips: Any,
    rule: Rule = RULE,
    steps: int = 400,
    **changed: Any,
) -> dict[str, Any]:
    """Return the columns of a run that skipped these steps, and was well apart from that."""
    random = np.random.default_rng(0)
    skipped = [step in skips for step in range(steps)]
    after = replay(rule, skipped).tolist()
    norm = np.where(skipped, INF, random.lognormal(0.0, 0.1, steps)).tolist()
    loss = (np.linspace(4, 2, steps) + random.normal(0, 0.05, steps)).tolist()
    columns = {
        "loss_scale": [rule.init_scale, *after[:-1]],
        "skipped": skipped,
        "grad_norm": norm,
        "loss": loss,
    }
    return columns | changed


def kinds(explanation: Explanation) -> set[str]:
    return {each.kind for each in explanation.statements}


def wrong(explanation: Explanation) -> list[str]:
    return [each.kind for each in explanation.wrong]


def numbers(explanation: Explanation, kind: str) -> Any:
    (found,) = [each.numbers for each in explanation.statements if each.kind == kind]
    return found


HEALTHY = {
    "clean": [],
    "a search from the start": range(9),
    "a skip after each growth": range(150, 400, 151),
    "one skip": [200],
    "a burst": [200, 201, 202],
}


@pytest.mark.parametrize("skips", HEALTHY.values(), ids=list(HEALTHY))
def test_healthy_run_has_no_problems(tmp_path: Path, skips: Any) -> None:
    columns = trained(skips)
    said = recorded(tmp_path, **columns)
    assert (said.verdict, wrong(said)) == ("healthy", [])
    if skips:
        assert numbers(said, "skips")["skips"] == (len(skips), len(skips))

    lines = []
    for step in range(0, 400, 10):
        count = sum(columns["skipped"][max(0, step - 9) : step + 1])
        shown = {name: columns[name][step] for name in ("loss_scale", "grad_norm", "loss")}
        line = "loss_scale: {loss_scale}, grad_norm: {grad_norm}, loss: {loss}".format(**shown)
        lines.append(f"step: {step}, {line}, skipped: {count}")
    assert wrong(logged(*lines)) == []


SLOW = Rule(growth_interval=2000)
FLOOR = Rule(growth_interval=2000, min_scale=256.0)
LEAPS = np.tile([2.0**16, 2.0**16, 2.0**17, 2.0**17], 6)
SICK: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a collapse": (trained(range(300, 400), SLOW), ["collapse"]),
    "the floor": (trained(range(100, 400), FLOOR), ["floor-reached"]),
    "three skips to the floor": (trained([100, 101, 102], SLOW.replace(min_scale=2.0**15)), []),
    "each step skipped": ({"loss_scale": [8.0] * 9, "skipped": [True] * 9}, ["no-step-seen"]),
    "two skipped steps": ({"loss_scale": [8.0] * 2, "skipped": [True] * 2}, []),
    "a scale of 0": (
        {"loss_scale": [0.0] * 4, "skipped": [False] * 4, "grad_norm": [NAN] * 4},
        ["scale-0"],
    ),
    "a norm with the scale in it": (
        {"loss_scale": LEAPS.tolist(), "grad_norm": (LEAPS / 2**8).tolist()},
        ["scaled-norm"],
    ),
    "a clip of scaled gradients": (trained([], SLOW, grad_norm=[1e-5] * 400), ["scaled-clip"]),
    "a few equal norms": (trained([], SLOW, 12, grad_norm=[1e-5] * 12), []),
    "a clip of true gradients": (trained([], SLOW, grad_norm=[1.0] * 400), []),
    "growth without an end": (
        trained([], Rule(growth_interval=2), 100, grad_norm=[0.0] * 100),
        ["endless-growth"],
    ),
    "growth beside norms": (trained([], Rule(growth_interval=2), 100), []),
    "one loss": (
        {"loss_scale": [8.0] * 6, "skipped": [False] * 6, "loss": [1.0, 1.0, INF, 1.0, 1.0, 1.0]},
        [],
    ),
    "one norm": (
        {
            "loss_scale": [8.0] * 6,
            "skipped": [False, True] + [False] * 4,
            "grad_norm": [1.0, INF] + [1.0] * 4,
        },
        [],
    ),
}


@pytest.mark.parametrize("name", SICK)
def test_unhealthy_run_reports_its_problems(tmp_path: Path, name: str) -> None:
    columns, expected = SICK[name]
    assert wrong(recorded(tmp_path, **columns)) == expected


def test_nan_losses_report_forward_overflow(tmp_path: Path) -> None:
    columns = trained(range(300, 400))
    said = recorded(tmp_path, **columns | {"loss": columns["loss"][:300] + [NAN] * 100})
    assert said.wrong[0].kind == "loss-not-finite"
    assert (said.wrong[0].first, said.wrong[0].last) == (300, 399)


def test_initial_scale_search_is_no_burst(tmp_path: Path) -> None:
    search = recorded(tmp_path, **trained(range(9)))
    (tmp_path / "run.jsonl").unlink()
    bursts = recorded(tmp_path, **trained([100, 101, 102, 300, 301, 302], Rule(growth_interval=20)))
    assert kinds(search) & {"spared", "burst"} == {"spared"}
    assert [each.first for each in bursts.statements if each.kind == "burst"] == [100, 300]


def test_one_skip_per_growth_is_probing(tmp_path: Path) -> None:
    scales = [2.0 ** (16 + (step % 51 == 50)) for step in range(1020)]
    assert "probing" in kinds(
        recorded(tmp_path, loss_scale=scales, skipped=[s > 2**16 for s in scales])
    )


def test_a_layer_without_gradients_is_named(tmp_path: Path) -> None:
    alive, dead = np.zeros(280, np.int64), np.zeros(280, np.int64)
    alive[140] = dead[0] = 100
    columns = trained([], SLOW, 201)
    samples = [None] * 201
    samples[::100] = [{"head": pack_counts(alive), "block.0": pack_counts(dead)}] * 3
    samples[100] = dict.fromkeys(samples[0], pack_counts(dead))  # one of three
    said = recorded(tmp_path, **columns, exponent_histograms=samples)
    assert wrong(said) == ["dead-layer"]
    assert "block.0" in said.wrong[0].what
    assert "head" not in said.wrong[0].what


def test_step_with_two_signals_counts_once(tmp_path: Path) -> None:
    said = recorded(tmp_path, loss_scale=[8.0] * 9, skipped=[True] * 9, grad_norm=[INF] * 9)
    assert numbers(said, "no-step-seen")["bad"] == (9, None)


def test_a_low_scale_bounds_the_gradients(tmp_path: Path) -> None:
    columns = {"loss_scale": [2.0**-10] * 40, "skipped": [step % 9 == 8 for step in range(40)]}
    low = numbers(recorded(tmp_path, **columns, grad_norm=[1.0] * 40), "low-scale")
    assert float(low["most"]) == pytest.approx(65504 * 2**10, rel=1e-3)


def test_the_deepest_bursts_are_named(tmp_path: Path) -> None:
    skips = [step for start in range(100, 1100, 100) for step in (start, start + 1)]
    columns = trained([*skips, 1100, 1101, 1102, 1103], Rule(growth_interval=20), 1200)
    said = recorded(tmp_path, **columns)
    first = [each.first for each in said.statements if each.kind == "burst"]
    assert (len(first), first[-1]) == (9, 1100)


@pytest.mark.parametrize(("steps", "said"), [(401, True), (90, False)])
def test_percentages_need_many_steps(tmp_path: Path, steps: int, said: bool) -> None:
    columns = trained(range(8, steps, 7), Rule(growth_interval=5), steps)
    found = recorded(tmp_path, **columns)
    shares = [each.numbers for each in found.statements if "percent" in each.numbers]
    assert len(shares) == said
    for each in shares:  # 57 of 400 are 14.25 %: never more than there are
        assert (each["skips"], each["steps"]) == ((57, None), "400")
        assert str(each["percent"]).split()[-1] == "14"


def test_a_gap_may_hide_skips(tmp_path: Path) -> None:
    with RunFile(tmp_path / "run.jsonl", {}) as file:
        for step in (0, 1, 2, 3):
            file.append({"step": step, "loss_scale": 8.0, "skipped": step == 1})
        assert numbers(explain(read_history(file.path)), "skips")["skips"] == (1, 1)
        file.append({"step": 5, "loss_scale": 8.0, "skipped": False})
    assert numbers(explain(read_history(file.path)), "skips")["skips"] == (1, None)


def test_loss_increase_reports_medians(tmp_path: Path) -> None:
    losses = [1.9] * 30 + [2.0] * 20 + [9.0] * 6
    rose = numbers(recorded(tmp_path, loss=losses), "loss-rose")
    assert (rose["from"], rose["to"]) == ("2", "9")


def test_scales_have_ends_and_extremes(tmp_path: Path) -> None:
    said = recorded(tmp_path, loss_scale=[4.0, 4.0, 16.0, 8.0, 1.0, 2.0], grad_norm=[1.0] * 6)
    found = numbers(said, "scale")
    assert [found[name][0] for name in ("from", "to", "low", "high")] == [4, 2, 1, 16]


def test_restarts_and_warnings_have_steps(tmp_path: Path) -> None:
    told = [None] * 9
    told[5] = "no parameter has moved"
    alarm = recorded(tmp_path, loss_scale=[8.0] * 9, warning=told)
    assert [each.first for each in alarm.statements if each.kind == "alarm"] == [5]

    again = logged(*(f"step: {step}, loss: 2.{step}" for step in (0, 5, 6, 1, 4)))
    assert [each.lines for each in again.statements if each.kind == "restarted"] == [(3, 4)]


def test_restart_discards_old_events(tmp_path: Path) -> None:
    def kept() -> tuple[Any, ...]:
        read = read_history(tmp_path / "run.jsonl")
        alarmed = "alarm" in kinds(explain(read))
        return [*read.bad], [sample.step for sample in read.samples], alarmed

    event = {
        "nonfinite": {"w": "has inf"},
        "exponent_histograms": {"w": pack_counts(np.ones(280, np.int64))},
    }
    with RunFile(tmp_path / "run.jsonl", {}) as file:
        for step in (0, 1, 2):
            more = event | {"warning": "still"} if step == 2 else event if step == 0 else {}
            file.append({"step": step, "loss_scale": 8.0, **more})
        assert kept() == ([0, 2], [0, 2], True)
        for step in (1, 2):
            file.append({"step": step, "loss_scale": 8.0})
    assert kept() == ([0], [0], False)


@pytest.mark.parametrize("sick", [0, 1])
def test_one_unhealthy_rank_is_a_problem(sick: int) -> None:
    def line(rank: int, step: int, loss: float) -> str:
        return f"{rank}: step: {step}, loss: {loss}, loss_scale: 1024.0, grad_norm: {1 + step}"

    well = [line(rank, step, 2.0) for step in range(99) for rank in (0, 1)]
    assert logged(*well).verdict == "healthy"
    lost = [line(rank, step, NAN if rank == sick else 2.0) for step in range(99) for rank in (0, 1)]
    assert logged(*lost).verdict == "wrong"


def test_short_run_may_be_undecided(tmp_path: Path) -> None:
    two = recorded(tmp_path, **trained(range(9, 48, 24), steps=48))
    (tmp_path / "run.jsonl").unlink()
    three = recorded(tmp_path, **trained(range(9, 48, 16), steps=48))
    assert (two.verdict, three.verdict) == ("healthy", "cannot tell")


@settings(max_examples=examples(ms=30))
@given(
    interval=st.integers(5, 60),
    level=st.integers(3, 12),
    every=st.sampled_from([1, 5, 10]),
    begin=st.integers(10, 16),
)
def test_hidden_growths_are_counted(interval: int, level: int, every: int, begin: int) -> None:
    """DeepSpeed prints no growth: what is said of growths holds for the run."""
    rule = dialects.get(
        "deepspeed.DynamicLossScaler",
        init_scale=2.0**begin,
        growth_interval=interval,
        raise_error_at_min_scale=False,
    )
    state, steps = init(rule), []
    for _ in range(12 * interval + 40):
        scale, bad = state.scale, state.scale > 2.0**level
        state = update(rule, state, bad)
        steps.append(Step(scale, state.scale, bad, 1.0, 1.0))

    printed = deepspeed(Drawn("healthy", tuple(steps), 0), every)
    said = explain(read_text("-", [text for text, _, _ in printed]))
    found = [each.numbers for each in said.statements if each.kind == "reconstructed"]
    assert found or every > 1
    first, *_, last = (at for at, step in enumerate(steps) if step.skipped)
    growths = sum(step.after > step.scale for step in steps[first:last])
    for each in found:
        assert each["growths"][0] == growths
        assert each["least"][0] <= interval <= each["most"][0]


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0.1, 10)), min_size=1, max_size=60),
    st.sampled_from([2, 4, 8]),
)
@example([(True, 1.0), (False, 2.0), (True, 3.0)], 2)
def test_merging_rows_keeps_every_skip(steps: list[tuple[bool, float]], entries: int) -> None:
    """Neighbours become one row where there are more than memory is for: their skips are added."""
    lines = []
    for at, (bad, norm) in enumerate(steps):
        lines.append(f"step: {at}, skipped: {int(bad)}, grad_norm: {norm}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "ENTRIES", entries)
        merged = read_text("-", lines)
    assert len(merged.step) <= entries
    assert np.nansum(merged.skipped) == sum(bad for bad, _ in steps)
    assert merged.norm.max() == max(norm for _, norm in steps)
    assert merged.step[-1] == len(steps) - 1


@pytest.mark.parametrize("scale", [5e-324, 1e308, INF, 0.0])
def test_absurd_numbers_are_explained(tmp_path: Path, scale: float) -> None:
    for step in range(4):
        record = {
            "step": step,
            "loss_scale": scale,
            "skipped": True,
            "grad_norm": -INF,
            "loss": NAN,
        }
        with RunFile(tmp_path / "run.jsonl", {}) as file:
            file.append(record)
    said = explain(read_history(tmp_path / "run.jsonl"))
    assert in_words(said)
    assert json.dumps(said.to_json())

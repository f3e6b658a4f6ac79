"""Bad batches, spikes and alarms: the parts, and what the committed runs must show, whatever the exact numbers are."""

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampsim import Rule, init, records, replay, update
from ampsim.core import theory
from ampsim.torch import GradScaler
from experiments import overflow_storm, runner
from experiments.training import crash_signals
from experiments.training import fp16 as _fp16
from experiments.training.crash_signals import Series, alarms, spells
from figures import _style, results
from figures import overflow_storm as figure

DATA = records.read(runner.DATA / "cpu" / "overflow_storm.jsonl")[1]
CONFIG = overflow_storm.Config()
RULE = Rule(growth_interval=5)
FLAGS = st.lists(st.booleans(), max_size=80)


def of_arm(name: str) -> list[dict[str, Any]]:
    return [row for row in DATA if row["arm"] == name]


def fresh(arm: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    config = dataclasses.replace(overflow_storm.SMOKE, **changes)
    return {"arm": arm, **overflow_storm.run(config, runner.Unit(arm, seed), "cpu", lambda step: None)}


def series(steps: int = 80, rule: Rule = RULE, **columns: Sequence[float]) -> Series:
    """A calm run, but for the columns given."""
    calm = {"found_inf": [False], "log2_scale": [16], "loss": [1], "norm": [1], "activation": [1], "ceiling": [18]}
    full = {name: np.array(columns.get(name, value * steps)) for name, value in calm.items()}
    others = {name: full[name].astype(np.float64) for name in full if name != "found_inf"}
    return Series(rule, full["found_inf"].astype(bool), **others)


def raised(run: Series) -> dict[str, list[list[int]]]:
    return {name: found for name, found in alarms(run).items() if found}


# ------------------------------------------------------------------------------------------------------ alarms


def test_a_calm_run_raises_nothing() -> None:
    assert raised(series()) == {}


@pytest.mark.parametrize(
    ("name", "column", "quiet", "loud"),
    [
        ("scale < init / 2^8", "log2_scale", 8, 7),
        ("gradient norm > 10 medians", "norm", 10, 10.01),
        ("loss > 2 medians", "loss", 2, 2.01),
        ("activation > 2^14", "activation", 2.0**14, 2.0**14 + 8),
        ("ceiling fell 4 bits", "ceiling", 15, 14),
    ],
)
def test_each_threshold_is_where_it_is_said_to_be(name: str, column: str, quiet: float, loud: float) -> None:
    calm = getattr(series(), column).tolist()
    for value, expected in ((quiet, {}), (loud, {name: [[40, 40]]})):
        assert raised(series(**{column: [*calm[:40], value, *calm[41:]]})) == expected


def test_a_loss_that_is_no_number_is_an_alarm_and_an_overflowed_norm_is_none() -> None:
    assert raised(series(loss=[1.0] * 60 + [math.nan, math.inf] + [1.0] * 18)) == {"loss > 2 medians": [[60, 61]]}
    assert raised(series(norm=[1.0] * 60 + [math.nan, math.inf] + [1.0] * 18)) == {}
    assert raised(series(norm=[1.0, 1.0, 1.0, 1.0, 99.0] + [1.0] * 75)) == {}  # a median needs five
    assert "gradient norm > 10 medians" in raised(series(norm=[1.0, 1.0, 1.0, 1.0, 1.0, 99.0] + [1.0] * 74))


def test_a_fallen_ceiling_is_forgotten_after_twenty_steps() -> None:
    assert raised(series(ceiling=[18] * 40 + [14] * 40)) == {"ceiling fell 4 bits": [[40, 59]]}


def test_three_skips_in_a_row_are_three() -> None:
    skips = [step in (3, 4, 10, 11, 12, 13, 20) for step in range(80)]
    assert alarms(series(found_inf=skips))["3 skips in a row"] == [[12, 13]]


@given(FLAGS)
def test_spells_are_the_runs_of_true(flags: list[bool]) -> None:
    found = spells(flags)
    assert [any(first <= step <= last for first, last in found) for step in range(len(flags))] == flags
    assert all(b[0] > a[1] + 1 for a, b in pairwise(found))


@given(st.lists(st.tuples(st.booleans(), *[st.floats(0, 1e6)] * 5), min_size=1, max_size=60), st.data())
def test_no_alarm_knows_the_future(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    run = Series.of(RULE, [crash_signals.Seen(*row) for row in rows])
    end = data.draw(st.integers(1, len(rows)))
    before = Series.of(RULE, [crash_signals.Seen(*row) for row in rows[:end]])
    for signal in crash_signals.SIGNALS.values():
        assert signal(run)[:end].tolist() == signal(before).tolist()


@given(FLAGS)
def test_the_budget_is_that_of_t1(flags: list[bool]) -> None:
    """A scale that has more skips in a window than it allows ends it more than one bit lower."""
    for first, last in alarms(series(found_inf=flags, steps=len(flags)))["T1 budget exceeded"]:
        for step in range(first, last + 1):
            window = flags[max(0, step + 1 - 2 * RULE.growth_interval) : step + 1]
            assert replay(RULE, window)[-1] < RULE.init_scale / 2


def test_the_budget_has_a_skip_less_than_is_too_many() -> None:
    skips = [step in (10, 12) for step in range(80)]  # (10 + 5) / 6 = 2.5 are allowed in a window of ten steps
    assert alarms(series(found_inf=skips))["T1 budget exceeded"] == []
    skips[14] = True
    assert alarms(series(found_inf=skips))["T1 budget exceeded"] == [[14, 19]]


@given(st.floats(14.0, 30.0), st.integers(1, 8))
def test_under_a_constant_ceiling_the_budget_is_never_exceeded_once_the_scale_has_found_it(
    log2: float, interval: int
) -> None:
    rule, flags = Rule(growth_interval=interval), []
    state = init(rule)
    for _ in range(30 * interval):  # 16 growths at most, until the ceiling is found
        flags.append(math.log2(state.scale) > log2)
        state = update(rule, state, flags[-1])
    settled = flags[20 * interval :]
    assert not crash_signals.skip_budget(series(found_inf=settled, steps=len(settled), rule=rule)).any()


def test_steps_before_the_first_are_not_looked_at() -> None:
    run = series(found_inf=[True] * 3 + [False] * 77, loss=[9.0] * 10 + [1.0] * 69 + [8.0])
    assert alarms(run)["3 skips in a row"] == [[2, 2]]
    assert alarms(run, first=1)["3 skips in a row"] == []
    assert alarms(run, first=10)["loss > 2 medians"] == [[79, 79]]


def test_a_lead_counts_from_the_first_alarm_up_to_the_crash() -> None:
    assert crash_signals.lead([[3, 4], [9, 9]], crash=10) == 7
    assert crash_signals.lead([[10, 12]], crash=10) == 0
    assert crash_signals.lead([[11, 12]], crash=10) is None
    assert crash_signals.lead([], crash=10) is None
    assert figure.lead([[3, 4]], 10) == 7


def test_the_largest_activation_is_that_of_the_last_forward_pass_and_nan_counts_as_overflow() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU(), torch.nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(-3.0)
        model[2].weight.fill_(1.0)
    largest = crash_signals.watch_activations(model)
    model(torch.tensor([[1.0, 1.0]]))
    assert largest() == 6.0  # before the ReLU, and negative
    model(torch.tensor([[-0.5, -0.25]]))
    assert largest() == 4.5  # after both
    model(torch.tensor([[math.nan, 0.0]]))
    assert largest() == math.inf


# ------------------------------------------------------------------------------------------------------ storms


def test_bad_steps_of_a_lower_rate_are_bad_at_a_higher_one_too() -> None:
    rare, often = (overflow_storm.bad_steps(4000, rate, seed=3) for rate in (0.05, 0.2))
    assert all(b for a, b in zip(rare, often, strict=True) if a)
    assert 100 < sum(rare) < 300 < 650 < sum(often) < 950
    assert overflow_storm.bad_steps(4000, 0.05, seed=4) != rare


def test_only_bad_batches_are_touched_and_the_images_stay_as_they_are() -> None:
    config = overflow_storm.SMOKE
    plain, _ = overflow_storm.sigmoid(config, 0, "cpu")
    expected = [plain.draw() for _ in range(3)]
    task, _ = overflow_storm.sigmoid(config, 0, "cpu")
    drawn = [corrupted.draw() for corrupted in [overflow_storm.corrupted(task, [False, True, False])] for _ in range(3)]
    differ = [(a[0] != b[0]).nonzero().tolist() for a, b in zip(expected, drawn, strict=True)]
    assert differ == [[], [[0, overflow_storm.PIXEL]], []]
    assert drawn[1][0].max() == overflow_storm.BAD
    assert all(torch.equal(a[1], b[1]) for a, b in zip(expected, drawn, strict=True))


@pytest.mark.parametrize("log2", [-20, 0, 16])
def test_a_bad_batch_overflows_at_every_scale_and_in_fp16_only(log2: int) -> None:
    task, _ = overflow_storm.sigmoid(CONFIG, 0, "cpu")
    x, y = overflow_storm.corrupted(task, [True]).draw()
    for fp16 in (True, False):
        with _fp16.autocast("cpu", fp16=fp16):
            loss = task.criterion(task.model(x), y)
        task.model.zero_grad()
        (loss * 2.0**log2).backward()
        assert math.isfinite(loss.item())  # the loss does not show it
        assert _fp16.all_finite(_fp16.flat_gradient(task.model)) != fp16


def rule_of(row: dict[str, Any]) -> Rule:
    floor = 2.0**CONFIG.floor_log2 if "floor" in row["arm"] else None
    return Rule(growth_interval=row["interval"], min_scale=floor)


def assert_replayed(row: dict[str, Any], steps: int) -> None:
    flags = [step in set(row["found_inf"]) for step in range(steps)]
    rule = rule_of(row)
    assert row["scale_changes"] == _fp16.changes([rule.init_scale, *replay(rule, flags).tolist()])


def storms() -> list[dict[str, Any]]:
    return [row for row in DATA if row["arm"].startswith("storm")]


def test_the_reference_machine_replays_the_storms() -> None:
    assert len(storms()) == (len(CONFIG.ratios) + 2) * len(CONFIG.seeds)
    for row in storms():
        assert_replayed(row, CONFIG.steps)


def test_the_reference_machine_replays_a_fresh_storm_and_a_seed_repeats() -> None:
    row = fresh("storm 2 floor=2^8", steps=120)
    assert len(row["found_inf"]) > 10
    assert_replayed(row, 120)
    steps = row["bad"][0] + 1
    assert_replayed(fresh("storm 2", steps=steps), steps)  # whose last step is skipped, and the scale after it known
    assert fresh("storm 2", seed=1, steps=8) == fresh("storm 2", seed=1, steps=8)
    assert fresh("storm 2", seed=1, steps=8) != fresh("storm 2", seed=2, steps=8)


def test_every_bad_batch_was_skipped_and_the_rate_is_what_the_arm_says() -> None:
    critical = theory.critical_bad_rate(Rule(growth_interval=CONFIG.growth_interval))
    for row in storms():
        assert set(row["bad"]) <= set(row["found_inf"])
        assert row["rate"] == pytest.approx(float(row["arm"].split()[1]) * critical)
        expected, deviation = row["rate"] * CONFIG.steps, math.sqrt(row["rate"] * CONFIG.steps)
        assert abs(len(row["bad"]) - expected) < 4 * deviation


def test_above_the_critical_rate_the_scale_falls_as_t8_says_and_below_it_stays() -> None:
    for ratio in CONFIG.ratios:
        rows = of_arm(f"storm {ratio:g}")
        drifts = [figure.drift(row) for row in rows]
        rule, rate = Rule(growth_interval=CONFIG.growth_interval), rows[0]["rate"]
        up = (1 - rate) ** rule.growth_interval
        visits = rate / (1 - up)  # a step
        deviation = math.sqrt(visits * 4 * up * (1 - up) / CONFIG.steps / len(rows))  # of the mean drift
        foretold = theory.bad_step_drift(rule, rate)
        assert (foretold < 0) == (ratio > 1)
        assert abs(np.mean(drifts) - min(0.0, foretold)) < 4 * deviation
    assert min(min(value for _, value in row["scale_changes"]) for row in of_arm("storm 0.5")) > 2.0**4


def test_where_the_scale_has_sunk_training_stops_and_both_cures_undo_it() -> None:
    calm, sunk = ([row["test_loss"] for row in of_arm(arm)] for arm in ("storm 0.25", "storm 2"))
    assert all(b > a + 0.2 for a, b in zip(calm, sunk, strict=True))
    assert all(row["zero"][-1] > 0.9 for row in of_arm("storm 2"))
    for cure in (f"floor=2^{CONFIG.floor_log2}", f"G={CONFIG.short_interval}"):
        cured = [row["test_loss"] for row in of_arm(f"storm 2 {cure}")]
        assert all(b < a - 0.2 for a, b in zip(sunk, cured, strict=True))
        assert max(row["zero"][-1] for row in of_arm(f"storm 2 {cure}")) < 0.5
    assert all(min(v for _, v in row["scale_changes"]) == 2.0**CONFIG.floor_log2 for row in of_arm("storm 2 floor=2^8"))


# ------------------------------------------------------------------------------------------------------ spikes


def test_a_spike_is_met_by_its_skips_and_by_the_first_step_at_the_old_scale() -> None:
    rule = Rule(growth_interval=3)
    state, scales, flags = init(rule), [], []
    for step in range(30):
        scales.append(state.scale)
        flags.append(step in (4, 5))
        state = update(rule, state, flags[-1])
    # a growth at 3; two backoffs, then two growths of three steps: back at 4 + 2 + 6
    found = overflow_storm.met(rule, scales, flags, start=4, height=2, lasts=3)
    assert found["skips"] == found["skips_t4"] == 2
    assert found["recovery"] == found["recovery_t4"] == 8
    assert found["log2_scale"] == 17
    assert overflow_storm.met(rule, scales[:8], flags[:8], 4, 2, 3)["recovery"] is None


def test_a_gain_puts_the_ceiling_as_far_below_the_scale_as_it_says() -> None:
    task, optimizer = overflow_storm.sigmoid(CONFIG, 0, "cpu")
    x, y = task.draw()
    for height, expected in ((0, False), (1, True), (3, True)):
        scaler = GradScaler("cpu", 2.0**10)
        gain = 2.0**height * overflow_storm.ceiling(task, x, y) / 2.0**10
        before = _fp16.flat_parameters(task.model)
        assert overflow_storm.clipped_step(task, x, y, optimizer, scaler, gain) == expected
        assert torch.equal(before, _fp16.flat_parameters(task.model)) == expected
        assert scaler.get_scale() == (2.0**9 if expected else 2.0**10)


def test_a_fresh_spike_that_is_shorter_than_high_costs_what_t4_says() -> None:
    for name in ("spike capped", "spike free"):
        for spike in fresh(name, spikes=((5, 3), (9, 3)), growth_interval=4)["spikes"]:
            assert (spike["skips"], spike["recovery"]) == (3, 15)


def test_the_committed_spikes_are_within_one_skip_of_t4_and_most_are_exact() -> None:
    spikes = [spike for row in DATA if row["arm"].startswith("spike") for spike in row["spikes"]]
    assert len(spikes) == 2 * len(CONFIG.spikes) * len(CONFIG.seeds)
    assert all(abs(spike["skips"] - spike["skips_t4"]) <= 1 for spike in spikes)
    assert sum(spike["recovery"] == spike["recovery_t4"] for spike in spikes) > len(spikes) / 2
    for spike in spikes:
        if spike["lasts"] < spike["height"]:
            assert spike["skips"] == spike["lasts"]
        if spike["recovery"] is not None:  # m skips and m growths, and a few steps where these were interrupted
            assert spike["recovery"] >= spike["skips"] * (CONFIG.growth_interval + 1)


# ------------------------------------------------------------------------------------------------------ crashes


def crashes() -> list[dict[str, Any]]:
    return [row for row in DATA if row["arm"].startswith("crash")]


def test_the_lowest_rate_never_crashes_and_the_highest_always() -> None:
    low, *_, high = (f"crash lr={lr}" for lr in CONFIG.crash_lrs)
    assert all(row["crash_step"] is None for row in of_arm(low))
    assert all(row["crash_step"] is not None for row in of_arm(high))
    assert all(row["watched"] == CONFIG.crash_steps for row in crashes() if row["crash_step"] is None)


def test_a_crash_lasts_to_the_end_and_its_forward_passes_overflow() -> None:
    for row in (row for row in crashes() if row["crash_step"] is not None):
        assert row["watched"] - row["crash_step"] >= CONFIG.patience
        assert row["found_inf"][-CONFIG.patience :] == list(range(row["watched"] - CONFIG.patience, row["watched"]))
        assert all(math.isinf(value) for value in row["activations"][row["crash_step"] :])


def test_the_reference_machine_replays_the_crashes() -> None:
    rule = Rule(growth_interval=CONFIG.crash_interval)
    for row in crashes():
        flags = [step in set(row["found_inf"]) for step in range(row["watched"])]
        assert row["log2_scales"] == [math.log2(x) for x in [2.0**16, *replay(rule, flags).tolist()[:-1]]]


def test_the_alarms_are_those_of_the_columns() -> None:
    exact = {"3 skips in a row", "scale < init / 2^8", "T1 budget exceeded", "ceiling fell 4 bits"}  # whole numbers
    rule = Rule(growth_interval=CONFIG.crash_interval)
    for row in crashes():
        flags = [step in set(row["found_inf"]) for step in range(row["watched"])]
        columns = [row[name] for name in ("log2_scales", "batch_losses", "norms", "activations", "ceilings")]
        run = Series.of(rule, [crash_signals.Seen(*values) for values in zip(flags, *columns, strict=True)])
        for column, first in (("alarms", 0), ("alarms_from_10", 10)):
            again = alarms(run, first)
            assert {name: again[name] for name in exact} == {name: row[column][name] for name in exact}
            assert set(row[column]) == set(crash_signals.SIGNALS)
            assert all(found[0][0] >= first for found in row[column].values() if found)


def test_an_overflowing_activation_is_seen_at_the_crash_and_the_ceiling_never_above_what_was_clean() -> None:
    for row in crashes():
        if row["crash_step"] is not None:
            found = row["alarms"]["activation > 2^14"]
            assert crash_signals.lead(found, row["crash_step"]) is not None
        skipped = set(row["found_inf"])
        for step, (scale, ceiling) in enumerate(zip(row["log2_scales"], row["ceilings"], strict=True)):
            assert (ceiling < scale) == (step in skipped)


def test_a_fresh_crash_run_ends_when_its_forward_pass_has_overflowed_for_a_while() -> None:
    seen = crash_signals.Seen(True, 16.0, math.nan, math.nan, math.inf, 15.0)
    assert overflow_storm.over([seen] * 3, patience=3)
    assert not overflow_storm.over([seen] * 2, patience=3)
    assert not overflow_storm.over([seen, seen._replace(activation=9.0), seen], patience=3)
    assert not overflow_storm.over([seen, seen._replace(found_inf=False), seen], patience=3)
    row = fresh("crash lr=0.05", crash_steps=4)
    assert row["watched"] == len(row["batch_losses"]) == 4


# ------------------------------------------------------------------------------------------------------ figure


@pytest.fixture(scope="module")
def axes() -> list[Any]:
    with _style.style():
        return list(figure.plot(*map(results.load, figure.DATA)).axes)


def lines(panel: Any, label: str) -> list[Any]:
    return [line for line in panel.lines if line.get_label() == label]


def test_a_drift_is_that_from_the_first_scale_to_the_one_after_the_last_step() -> None:
    record = {"every": 20, "mean_losses": [0.0, 0.0], "scale_changes": [[0, 4.0], [7, 1.0], [40, 0.5]]}
    assert figure.trajectory(record).tolist() == [2.0] * 7 + [0.0] * 33 + [-1.0]
    assert figure.drift(record) == -3 / 40


def test_storms_are_drawn_as_they_were(axes: list[Any]) -> None:
    scales, drift, final, _, _ = axes
    for name in figure.STORMS:
        rows = of_arm(f"storm {name}")
        assert [line.get_ydata()[-1] for line in lines(scales, name)] == [
            math.log2(row["scale_changes"][-1][1]) for row in rows
        ]
        assert lines(drift, name)[0].get_ydata().tolist() == [figure.drift(row) for row in rows]
        assert lines(drift, name)[0].get_xdata() == pytest.approx([float(name)] * len(rows))
        assert lines(final, name)[0].get_ydata().tolist() == [row["test_loss"] for row in rows]
    (t8,) = lines(scales, "T8 2")
    slope = theory.bad_step_drift(Rule(growth_interval=CONFIG.growth_interval), of_arm("storm 2")[0]["rate"])
    assert t8.get_ydata().tolist() == pytest.approx([16, 16 + slope * CONFIG.steps])
    assert not lines(scales, "T8 0.8")


def test_recoveries_and_alarms_are_drawn_as_they_were(axes: list[Any]) -> None:
    *_, spikes, warned = axes
    for arm in figure.SPIKES:
        drawn = [line.get_ydata().tolist() for line in lines(spikes, arm)]
        assert drawn == [[spike["recovery"] for spike in row["spikes"]] for row in of_arm(arm)]
    crashed = [row for row in crashes() if row["crash_step"] is not None]
    for watched in figure.WATCHED:
        for signal in figure.SIGNALS:
            leads = [figure.lead(row[watched][signal], row["crash_step"]) for row in crashed]
            (dots,) = lines(warned, f"{watched} {signal}")
            assert dots.get_xdata().tolist() == [figure.NONE if x is None else x for x in leads]
    calm = [row for row in crashes() if row["crash_step"] is None]
    false = [str(sum(bool(row[w][s]) for row in calm)) for s in figure.SIGNALS for w in figure.WATCHED]
    assert [text.get_text() for text in warned.texts if text.get_text().isdigit()] == false
    assert list(figure.SIGNALS) != list(crash_signals.SIGNALS)  # drawn in an order of its own
    assert set(figure.SIGNALS) == set(crash_signals.SIGNALS)

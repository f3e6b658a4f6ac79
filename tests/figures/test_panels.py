"""What the panels show is what the records say: of every arm, of every seed."""

import importlib
import math
import re
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import FancyArrowPatch

from ampsim.core import formats, theory
from ampsim.core.machine import Rule
from figures import __main__ as cli
from figures import (
    _training,
    adversary,
    crash_signals,
    exponent_heatmap,
    gradient_histogram,
    growth_interval,
    overflow_storm,
    overhead,
    policies,
    policies_closed,
    replay_fidelity,
    results,
    scale_crash,
    sigmoid_underflow,
    staleness,
    state_machine,
    static_sweep,
    theory_real,
    threads,
)
from figures import formats as formats_figure
from figures import theory as theory_figure
from tests.figures.drawings import drawn, lines, one

ONE_SEED = {"adversary", "overhead", "probe_overhead", "state_machine", "theory"}
SEVERAL = [stem for stem in cli.stems() if stem not in ONE_SEED]


def says(stem: str) -> list[str]:
    """Return every text of a figure."""
    found = drawn(stem).findobj(lambda artist: hasattr(artist, "get_fontsize"))
    return [text.get_text() for text in found if text.get_text()]


def shown(figure: Any) -> list[list[float]]:
    """Return the data of every line, area, bar, dot and image of a figure."""
    values = [axes_line.get_xydata() for axes in figure.axes for axes_line in axes.lines]
    values += [path.vertices for axes in figure.axes for area in axes.collections for path in area.get_paths()]
    values += [area.get_offsets() for axes in figure.axes for area in axes.collections]
    values += [patch.get_path().vertices for axes in figure.axes for patch in axes.patches]
    values += [bar.get_bbox().bounds for axes in figure.axes for bar in axes.patches if hasattr(bar, "get_bbox")]
    return [np.nan_to_num(np.ma.filled(np.ma.asarray(v, dtype=float), 0)).ravel().tolist() for v in values]


@pytest.mark.parametrize("stem", SEVERAL)
def test_a_figure_changes_if_a_seed_is_left_out_and_says_how_many_there_are(
    stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, before = results.load, drawn(stem)

    def without_one(name: str, folder: Path = results.CPU) -> results.Result:
        run = load(name, folder)
        kept = tuple(record for record in run.records if record["seed"] not in run.seeds[1:2])
        return results.Result(run.stem, run.path, run.provenance, kept)

    counts = {len(load(name).seeds) for name in importlib.import_module(f"figures.{stem}").DATA}
    assert {int(n) for text in says(stem) for n in re.findall(r"(\d+) seed", text)} <= counts
    if counts != {1}:
        monkeypatch.setattr(results, "load", without_one)
        assert shown(drawn.__wrapped__(stem)) != shown(before)


def test_adversary_draws_counts_and_both_traces() -> None:
    trace, counts = drawn("adversary").axes
    rows = results.load("adversary").records
    assert [bar.get_width() for bar in counts.patches] == [row["corruptions"] for row in rows]
    curves = {line.get_label(): line for line in trace.lines if str(line.get_label()) in adversary.NAME.values()}
    for row in (row for row in rows if "trace" in row):
        y = curves[adversary.NAME[row["arm"].partition(":")[0]]].get_ydata()
        assert len(y) == row["trace_steps"]
        for step, scale in row["trace"]:
            assert y[step] == (math.log2(scale) if scale else 2.0 * adversary.BOTTOM)


def test_async_depth_draws_losses_and_both_schedules() -> None:
    losses, ends, scales = drawn("async_depth").axes
    run = results.load("async_depth")
    for k in run.config["depths"]:
        arm = run.arm(f"depth {k}")
        assert list(one(ends, arm.name).get_ydata()) == arm.column("test_loss")
        last = arm.numbers("loss")[:, -10:].mean(axis=1)
        assert one(losses, arm.name).get_ydata()[-1] == pytest.approx(np.median(last))
    assert list(one(scales, "depth 4").get_ydata()) == list(one(scales, "depth 4 latest").get_ydata())


# ------------------------------------------------------------------------------------------------ exponent_heatmap


def counted(arm: str | None = None) -> list[Any]:
    """Return the records whose counts were kept."""
    return [r for r in results.load("exponent_heatmap").records if r["counts"] and arm in (None, r["arm"])]


def test_lightness_falls_in_equal_steps_and_no_colour_is_cut_off() -> None:
    for hue, slope, bump, colors in ((268, 10, 144, exponent_heatmap.INSIDE), (42, 45, 120, exponent_heatmap.OUTSIDE)):
        t = np.linspace(0, 1, 256)
        linear = exponent_heatmap.linear_srgb(95 - 75 * t, 3 + slope * t + bump * t * (1 - t), hue)
        assert linear.min() > -0.002
        assert linear.max() < 1
        srgb = colors(np.arange(256))[:, :3]
        light = np.where(srgb > 0.04045, ((srgb + 0.055) / 1.055) ** 2.4, srgb / 12.92)
        lightness = 116 * np.cbrt(light @ [0.2126, 0.7152, 0.0722]) - 16
        assert lightness == pytest.approx(95 - 75 * t, abs=0.5)


def test_shares_add_up_to_the_elements_that_are_not_zero() -> None:
    for row in counted():
        share = exponent_heatmap.shares(row, np.arange(-149, 128))
        assert share.sum(axis=0) == pytest.approx([sum(c[1:]) / row["elements"] for c in row["counts"]])
        lowest, *counts = row["counts"][3]
        assert share[lowest + 149, 3] == counts[0] / row["elements"]


def test_binades_inside_of_the_window_are_blue_and_all_others_red() -> None:
    for row in counted():
        exponents = np.arange(-149, 128)
        image = exponent_heatmap.picture(row, exponents)
        blue = image[..., 2] > image[..., 0]
        scale = np.log2(results.in_force(row["scale_changes"], row["every"] * len(row["lost"])))
        for sample in range(0, len(row["lost"]), 16):
            log2 = scale[sample * row["every"]]
            inside = (exponents + log2 >= -25) & (exponents + log2 < 16)
            filled = image[:, sample, 3] > 0
            assert (blue[filled, sample] == inside[filled]).all()
            assert filled.sum() == sum(count > 0 for count in row["counts"][sample][1:])


def test_the_window_and_the_skips_are_drawn_where_they_are() -> None:
    for panel, heat in zip(exponent_heatmap.PANELS, drawn("exponent_heatmap").axes[0:8:2], strict=True):
        (row,) = counted(panel.arm)
        log2 = np.log2(results.in_force(row["scale_changes"], row["every"] * len(row["lost"])))
        for name, limit in (("flushed", -25), ("subnormal", -14), ("overflowed", math.log2(65520))):
            (line,) = (patch for patch in heat.patches if patch.get_label() == name)
            assert line.get_data().values == pytest.approx(limit - log2)
        (ticks,) = (c for c in heat.collections if c.get_label() == "skips")
        assert [segment[0][0] - 0.5 for segment in ticks.get_segments()] == row["found_inf"]


def test_the_strips_show_every_seed() -> None:
    run = results.load("exponent_heatmap")
    for panel, strip in zip(exponent_heatmap.PANELS, drawn("exponent_heatmap").axes[1:8:2], strict=True):
        for name in ("lost", "rounded", "not_finite"):
            found = np.array([line.get_ydata() for line in lines(strip, name)])
            assert (found == 100 * run.arm(panel.arm).numbers(name)).all()


# ----------------------------------------------------------------------------------- formats, gradient_histogram


def test_formats_are_as_wide_as_their_numbers_and_shares_of_nothing_have_a_place() -> None:
    for fmt in (formats.FP16, formats.E5M2, formats.E4M3):
        flushed = math.log2(fmt.smallest_subnormal / 2)
        assert formats_figure.LOOKS[fmt.name].binades == pytest.approx(math.log2(fmt.overflow_threshold) - flushed)
    unit = {"log2_mean": -5.0, "log2_sigma": 2.0, "log2_largest": 1.5}
    assert formats_figure.normal(unit).mean == -7.0  # below 2^2, where the largest element's binade ends
    assert formats_figure.shown([0.0, 1e-9, 0.5]).tolist() == [formats_figure.NONE, formats_figure.NONE, 0.5]
    assert math.isclose(formats_figure.normal(unit).stdev, 2.0)


def test_the_crossing_is_where_the_error_falls_below() -> None:
    scales = np.array([-4, -2, 0, 2])
    assert gradient_histogram.crossing(scales, np.array([1.0, 1.0, 0.01, 0.01])) == pytest.approx(-1.0)
    for error in ([1.0, 1.0, 1.0, 1.0], [0.01, 0.01, 0.01, 0.01], [1.0, 1.0, np.nan, np.nan]):
        assert math.isnan(gradient_histogram.crossing(scales, np.array(error)))


def test_a_ridge_has_all_seeds_elements_and_a_name() -> None:
    units = results.ArmRecords("x", ({"parameters": [[[9, -3, 1, 0, 1]]]}, {"parameters": [[[0, -2, 2]]]}))
    shares = gradient_histogram.shares(units, "parameters", 0)
    exponents = range(gradient_histogram.LOWEST, gradient_histogram.HIGHEST)
    assert {k: v for k, v in zip(exponents, shares, strict=True) if v} == {-3: 0.25, -2: 0.5, -1: 0.25}
    run = results.load("gradient_histogram")
    spoken = [
        gradient_histogram.spoken(name) for arm in list(run.arms)[:3] for name in run.arm(arm).first["layers"][:3]
    ]
    assert spoken[:4] == ["layer 1", "layer 2", "layer 3", "input"]
    assert spoken[4:] == ["block 1a", "block 1b", "embedding", "attention 1", "MLP 1"]


# ------------------------------------------------------------------------------------ growth_interval, init_scale


def test_t3_is_t2_where_the_ceiling_stands_still() -> None:
    rate, unused = growth_interval.t3([{"ceilings": [[19, 40]], "ceiling": [19.4, 0.0]}], 20)
    assert rate == pytest.approx(1 / 21)
    assert unused == pytest.approx(0.4)


def test_headroom_is_over_the_ceilings_that_a_level_bears() -> None:
    # half of the ceilings at 2^0 and half at 2^1: with G=1 levels 0, 1, 2 are where the scale is
    x, form = theory.of_ceilings({0: 50, 1: 50}, 1)
    assert x.tolist() == [0, 1, 2]
    _, unused = growth_interval.t3([{"ceilings": [[0, 50], [1, 50]], "ceiling": [0.5, 0.5]}], 1)
    assert unused == pytest.approx(form.clean[0] * 0.5 + form.clean[1] * 0.0)


def test_growth_interval_draws_every_seed() -> None:
    rates, headroom, trade, losses = drawn("growth_interval").axes
    run = results.load("growth_interval")
    for arm in run.where(growth_bits=1.0, backoff_bits=1.0):
        for axes, values in (
            (rates, 100 * arm.numbers("skips") / arm.numbers("steps")),
            (headroom, arm.numbers("headroom")[:, 0]),
            (losses, arm.numbers("final_loss")),
        ):
            assert list(one(axes, arm.name).get_ydata()) == pytest.approx(values)
    assert set(run.arms) <= {line.get_label() for line in trade.lines}


def test_init_scale_draws_starts_costs_and_losses() -> None:
    a, b, c, d = drawn("init_scale").axes
    run = results.load("init_scale")
    for row in run.one(task="sigmoid", init_log2=4):
        y = one(a, f"2^4, seed {row['seed']}").get_ydata()
        assert (y[0], y[-1]) == (4, math.log2(row["scale_changes"][-1][1]))
    starts = [row for arm in run.where(task="sigmoid", growth_interval=run.config["interval"]) for row in arm]
    late = [row for row in starts if not row["predicted"]["climb_steps"] and row["climb_steps"] is not None]
    marks = one(b, "sigmoid lost_steps").get_ydata()
    assert sorted(np.sinh(marks).round()) == sorted(row["lost_steps"] for row in late)
    curve = run.one(task="sigmoid", init_log2=0, growth_interval=50)
    assert list(one(d, curve.name).get_ydata()) == pytest.approx(curve.numbers("block_loss").mean(axis=0))
    left = run.one(task="sigmoid", growth_interval=200).column("left_plateau")
    dots = [y for line in lines(c, "G=200") for y in line.get_ydata()]
    assert sorted(dots) == sorted(y or run.steps for y in left)


# ------------------------------------------------------------------------------------------------ time that it takes


def test_overhead_draws_the_medians() -> None:
    (record,) = results.load("overhead").records
    for axes, row in zip(drawn("overhead").axes, record["rows"], strict=True):
        tops = [bar.get_y() + bar.get_height() for bar in axes.patches]
        middle = {arm: statistics.median(times) / 1000 for arm, times in row["microseconds"].items()}
        assert tops == pytest.approx([top for arm in overhead.BARS for top in (middle["bare"], middle[arm])])


def test_probe_overhead_draws_the_medians() -> None:
    (record,) = results.load("probe_overhead").records
    dots = [x for line in drawn("probe_overhead").axes[0].lines if line.get_marker() == "o" for x in line.get_xdata()]
    series = [times for row in record["rows"] for times in (row["bare"], *row["above"].values())]
    assert sorted(dots) == pytest.approx(sorted(statistics.median(times) / 1000 for times in series))


# ---------------------------------------------------------------------------- replay_fidelity, resnet, static_sweep


def test_between_seeds_is_a_mean_over_pairs() -> None:
    changes = ([[0, 4.0]], [[0, 4.0], [2, 2.0]], [[0, 1.0]])
    units = results.ArmRecords("x", tuple({"runs": {"G=5": {"log2_changes": change}}} for change in changes))
    assert replay_fidelity.between_seeds(units, 5, 4) == pytest.approx((1 + 3 + 2) / 3)


def test_replay_fidelity_draws_every_seed_rule_and_recording() -> None:
    a, b, c, d, e = drawn("replay_fidelity").axes
    run = results.load("replay_fidelity")
    assert len(lines(c, "fp32")) == len(run.records) * len(run.config["intervals"])
    for upper, lower, network in ((a, d, "relu"), (b, e, "sigmoid")):
        units = run.arm(network)
        real = units.first["runs"][f"G={run.config['shown']}"]
        assert np.mean(one(upper, "real").get_ydata()) == pytest.approx(real["mean_log2_scale"], rel=1e-5)
        off = [replay_fidelity.replay(row, "fp32", 200)["distance"] for row in units]
        assert list(one(lower, "fp32 G=200").get_ydata()) == off
        assert lower.get_ylim()[1] > max(replay["distance"] for row in units for replay in row["replays"])


def test_resnet_shows_every_seed_of_every_arm() -> None:
    *_, ends, wrong = drawn("resnet_fp16").axes
    run = results.load("resnet_fp16")
    for arm in run.arms.values():
        dots = (next(line for line in lines(axes, arm.name) if line.get_marker() == "o") for axes in (ends, wrong))
        losses, errors = (line.get_xdata() for line in dots)
        assert list(losses) == pytest.approx(arm.numbers("test_loss"))
        assert list(errors) == pytest.approx(100 * (1 - arm.numbers("test_accuracy")))
    said = {text.get_text() for text in wrong.texts}
    assert " ".join(map(str, run.arm("static 2^16").skips())) in said


def test_static_sweep_shows_the_means_and_counts_the_bits_between_the_cliffs() -> None:
    run = results.load("static_sweep")
    means = {k: arm.mean("test_loss") for k, arm in static_sweep.static(run).items()}
    assert list(one(drawn("static_sweep").axes[0], "mean").get_ydata()) == pytest.approx(list(means.values()))
    good = [k for k, mean in means.items() if mean < run.arm("fp32").mean("test_loss") + static_sweep.NEAR]
    assert f"{good[-1] - good[0]:g} bits" in says("static_sweep")


@given(st.lists(st.integers(0, 9), min_size=2, max_size=9))
def test_the_cliffs_are_where_a_straight_line_crosses_the_level(heights: list[int]) -> None:
    x, y = np.arange(len(heights), dtype=float), np.array(heights, dtype=float)
    found = static_sweep.crossings(x, y, 4.5)
    assert len(found) == sum((a > 4.5) != (b > 4.5) for a, b in pairwise(heights))
    assert np.interp(found, x, y) == pytest.approx([4.5] * len(found))


# ------------------------------------------------------------------------------------------------ theory, threads


def test_theory_draws_every_number_and_error() -> None:
    agreement, errors, *_ = drawn("theory").axes
    held = [held for _, held in theory_figure.numbers(results.load("theory"))]
    points = [p for line in agreement.lines if line.get_label() in theory_figure.LOOK for p in line.get_xydata()]
    wanted = [(abs(h["predicted"]), abs(h["measured"])) for h in held if h["predicted"]]
    assert np.array(sorted(tuple(p) for p in points if not math.isnan(p[0]))) == pytest.approx(np.array(sorted(wanted)))
    drawn_errors = [y for dots in errors.collections for y in dots.get_offsets()[:, 1]]
    assert sorted(drawn_errors) == pytest.approx(sorted(max(h["error"], theory_figure.LEAST) for h in held))


def test_the_maps_are_t3_and_the_marks_are_simulated() -> None:
    axes = drawn("theory").axes
    grounds = dict(zip(("skip rate", "headroom"), theory_figure.maps(), strict=True))
    for panel, (name, ground) in zip(axes[2:4], grounds.items(), strict=True):
        image, mark = panel.images[0], panel.collections[0]
        assert image.get_array().data == pytest.approx(np.log10(ground) if name == "skip rate" else ground)
        marked = theory_figure.marked(results.load("theory"), name, float)
        assert len(mark.get_offsets()) == len(marked)
        for (interval, b, value), seen in zip(marked, mark.get_array(), strict=True):
            assert (10**seen if name == "skip rate" else seen) == pytest.approx(value)
            column = np.searchsorted(theory_figure.INTERVALS, interval) - 1
            assert value == pytest.approx(ground[b - 1, column], rel=0.2)  # a column is 15 % wide


def test_theory_real_draws_every_run_and_t3() -> None:
    rates, means, _ = drawn("theory_real").axes
    arms = theory_real.by_interval(results.load("theory_real"))
    for axes, measure, number in ((rates, theory_real.skip_rate, 0), (means, theory_real.mean_scale, 1)):
        dots = np.array([line.get_ydata() for line in axes.lines if line.get_marker() == "o"])
        assert dots == pytest.approx(np.array([[measure(row) for row in arm] for arm in arms.values()]).T)
        own = np.array([line.get_ydata() for line in axes.lines if line.get_marker() == "_"])
        foretold = [[theory_real.t3(dict(row["ceilings"]), g)[number] for row in arm] for g, arm in arms.items()]
        assert own == pytest.approx(np.array(foretold).T)


def test_threads_draws_the_shares() -> None:
    run = results.load("threads")
    wanted = [
        100 * threads.share(run.arm(f"{scaler} depth {depth}"))
        for scaler in threads.COLOR
        for depth in run.config["depths"]
    ]
    assert [bar.get_height() for bar in drawn("threads").axes[0].patches] == pytest.approx(wanted)


# ----------------------------------------------------------------- sigmoid_underflow, scale_crash, state_machine


def test_loss_curves_are_the_medians_of_the_records() -> None:
    axes, run = drawn("sigmoid_underflow").axes[0], results.load("sigmoid_underflow")
    assert len(axes.lines) == 4
    for line in axes.lines:
        loss = run.arm(line.get_label()).numbers("loss")
        assert line.get_ydata()[3] == pytest.approx(np.median(loss[:, 75:100].mean(axis=1)))
        assert line.get_color() == _training.color(run.arm(line.get_label()))
        assert len(line.get_ydata()) == loss.shape[1] // 25


def test_final_losses_skips_and_scales_are_those_of_the_records() -> None:
    rows = results.load("sigmoid_underflow").records
    figure = drawn("sigmoid_underflow")
    for arm in results.load("sigmoid_underflow").arms:
        (dots,) = lines(figure.axes[1], arm)
        assert list(dots.get_ydata()) == [row["train_loss"] for row in rows if row["arm"] == arm]
    for arm in ("dynamic G=50", "dynamic G=2000"):
        row = next(row for row in rows if row["arm"] == arm and row["seed"] == sigmoid_underflow.SEED)
        (ticks,) = lines(figure.axes[2], f"skips {arm}")
        assert list(ticks.get_xdata()) == row["found_inf"]
        (line,) = lines(figure.axes[2], arm)
        assert line.get_ydata()[0] == 16
        assert line.get_ydata()[-1] == math.log2(row["scale_changes"][-1][1])


def test_areas_add_up_and_follow_the_records() -> None:
    run = results.load("sigmoid_underflow")
    units = run.arm("unscaled")
    _, share = units.shares(run.config["count_every"], block=4)
    assert sum(share.values()) == pytest.approx(np.ones(len(share["zero"])))
    first = np.mean([np.array(row["zero"])[:4].sum() / 4 / sum(row["elements"]) for row in units])
    assert share["zero"][0] == pytest.approx(first)
    zero = drawn("sigmoid_underflow").axes[3].collections[0]
    assert zero.get_paths()[0].vertices[:, 1].max() == pytest.approx(100 * share["zero"].max())


def test_crash_panels_show_every_run_and_count_the_crashes() -> None:
    run = results.load("scale_crash")
    rows = run.records
    figure = drawn("scale_crash")
    rates = scale_crash.rates(run)
    assert all(len(lines(figure.axes[0], f"{lr:g}")) == len(run.seeds) for lr in rates)
    said = [text.get_text() for text in figure.axes[1].texts]
    truth = [sum(r["crash_step"] is not None for r in rows if r["arm"] == f"fp16 lr={lr}") for lr in rates]
    assert said == [f"{n} of {len(run.seeds)}" for n in truth]
    bars = [patch for patch in figure.axes[1].patches if patch.get_width() > 0]
    crashed = [r for r in rows if r["crash_step"] is not None]
    assert [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars] == [
        (r["crash_step"], run.steps) for r in crashed
    ]


def test_the_diagram_has_both_transitions_of_every_reachable_state() -> None:
    edges = state_machine.reachable(state_machine.RULE)
    states = {edge[0] for edge in edges}
    assert len(states) == 12
    assert {edge[1] for edge in edges} <= states
    assert all(sorted(e[2] for e in edges if e[0] == state) == [False, True] for state in states)
    arrows = [patch for patch in drawn("state_machine").axes[0].patches if isinstance(patch, FancyArrowPatch)]
    assert [arrow.get_label() for arrow in arrows] == ["overflow" if e[2] else "clean" for e in edges]


# ------------------------------------------------------------------------------ overflow_storm, spikes, crash_signals


def test_a_drift_is_that_from_the_first_scale_to_the_one_after_the_last_step() -> None:
    record = {"every": 20, "mean_losses": [0.0, 0.0], "scale_changes": [[0, 4.0], [7, 1.0], [40, 0.5]]}
    assert overflow_storm.trajectory(record).tolist() == [2.0] * 7 + [0.0] * 33 + [-1.0]
    assert overflow_storm.drift(record) == -3 / 40


def test_storms_are_drawn_as_they_were() -> None:
    scales, drift, final = drawn("overflow_storm").axes
    run = results.load("overflow_storm")
    for ratio in overflow_storm.STORMS:
        arm, name = overflow_storm.storm(run, ratio), f"{ratio:g}"
        ends = [math.log2(row["scale_changes"][-1][1]) for row in arm]
        assert [line.get_ydata()[-1] for line in lines(scales, name)] == ends
        assert list(one(drift, name).get_ydata()) == [overflow_storm.drift(row) for row in arm]
        assert one(drift, name).get_xdata() == pytest.approx([ratio] * len(arm))
        assert list(one(final, name).get_ydata()) == arm.column("test_loss")
    rule = Rule(growth_interval=run.config["growth_interval"])
    slope = theory.bad_step_drift(rule, overflow_storm.storm(run, 2.0).first["rate"])
    assert one(scales, "T8 2").get_ydata() == pytest.approx([16, 16 + slope * run.steps])
    assert not lines(scales, "T8 0.8")


def test_recoveries_are_drawn_as_they_were() -> None:
    for arm in results.load("spikes").arms.values():
        marks = [list(line.get_ydata()) for line in lines(drawn("spikes").axes[0], arm.name)]
        assert marks == [[spike["recovery"] for spike in row["spikes"]] for row in arm]


def test_alarms_are_drawn_as_they_were_those_with_the_fewest_false_ones_first() -> None:
    rows, axes = results.load("crash_signals").records, drawn("crash_signals").axes[0]
    crashed = [row for row in rows if row["crash_step"] is not None]
    for watched in crash_signals.WATCHED:
        for signal in rows[0]["alarms"]:
            leads = [crash_signals.lead(row[watched][signal], row["crash_step"]) for row in crashed]
            dots = one(axes, f"{watched} {signal}").get_xdata()
            assert list(dots) == [crash_signals.NONE if x is None else x for x in leads]
    calm = [row for row in rows if row["crash_step"] is None]
    false = sorted(crash_signals.false_alarms(calm, signal) for signal in rows[0]["alarms"])
    assert [int(text.get_text()) for text in axes.texts if text.get_text().isdigit()] == [
        n for row in false for n in row
    ]


# --------------------------------------------------------------------------------------------- policies, staleness


def test_policies_closed_draws_every_policy_and_seed() -> None:
    traces, skips, unused, *_ = drawn("policies_closed").axes
    run = results.load("policies_closed")
    for name in policies_closed.TRACES:
        assert list(one(traces, name).get_ydata()) == run.one(policy=name).first["shown"]
    for arm in run.arms.values():
        if arm.settings["family"]:
            for axes, values in (
                (skips, 100 * arm.numbers("skip_rate")),
                (unused, [row["headroom"][0] for row in arm]),
            ):
                dots = next(line for line in lines(axes, arm.name) if line.get_marker() == "o").get_xdata()
                assert list(dots) == pytest.approx(values)
                assert axes.get_xlim()[1] >= max(values)


def test_policies_and_staleness_draw_the_records() -> None:
    first = results.load("policies").arm("digits").first
    for name in policies.TRACES:
        assert list(one(drawn("policies").axes[0], name).get_ydata()) == first["policies"][name]["shown"]
    rows = results.load("staleness").arm("standing").first["rows"]
    skips, headroom, *_ = drawn("staleness").axes
    for policy in staleness.COLOR:
        for axes, key, factor in ((skips, "skip_rate", 100), (headroom, "headroom", 1)):
            wanted = [factor * row[key] for row in rows if row["policy"] == policy]
            assert list(one(axes, policy).get_ydata()) == wanted

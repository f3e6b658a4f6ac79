"""What the panels show is what the records say: of every arm, of every seed."""

import importlib
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ampsim.core import theory
from ampsim.core.machine import Rule
from figures import __main__ as cli
from figures import _style, derived_numbers, results
from figures.derived_numbers import t3
from figures.rendering import draw_results
from tests.figures.drawings import drawn, lines, one

F = SimpleNamespace(
    **{stem: importlib.import_module(f"figures.{stem}") for stem in cli.stems()}
)
SEVERAL = ["needs_scale", "scale_crash", "theory_real"]


def says(stem: str) -> list[str]:
    """Return every text of a figure."""
    found = drawn(stem).findobj(lambda artist: hasattr(artist, "get_fontsize"))
    return [text.get_text() for text in found if text.get_text()]


def shown(figure: Any) -> list[list[float]]:
    """Return the data of every line, area, bar, dot and image of a figure."""
    values = [
        axes_line.get_xydata() for axes in figure.axes for axes_line in axes.lines
    ]
    values += [
        path.vertices
        for axes in figure.axes
        for area in axes.collections
        for path in area.get_paths()
    ]
    values += [image.get_array() for axes in figure.axes for image in axes.images]
    values += [area.get_offsets() for axes in figure.axes for area in axes.collections]
    values += [
        patch.get_path().vertices for axes in figure.axes for patch in axes.patches
    ]
    values += [
        bar.get_bbox().bounds
        for axes in figure.axes
        for bar in axes.patches
        if hasattr(bar, "get_bbox")
    ]
    return [
        np.nan_to_num(np.ma.filled(np.ma.asarray(v, dtype=float), 0)).ravel().tolist()
        for v in values
    ]


@pytest.mark.parametrize("stem", SEVERAL)
def test_figure_depends_on_every_seed(
    stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, before = results.load, drawn(stem)

    def without_one(name: str, folder: Path = results.CPU) -> results.Result:
        run = load(name, folder)
        kept = tuple(
            record for record in run.records if record["seed"] not in run.seeds[1:2]
        )
        return results.Result(run.stem, run.path, run.provenance, kept)

    counts = {
        len(load(name).seeds)
        for name in importlib.import_module(f"figures.{stem}").DATA
    }
    assert {
        int(n) for text in says(stem) for n in re.findall(r"(\d+) seed", text)
    } <= counts
    if counts != {1}:
        monkeypatch.setattr(results, "load", without_one)
        assert shown(drawn.__wrapped__(stem)) != shown(before)


Values = Callable[[results.ArmRecords], Iterable[float]]
Shown = dict[str, Any]


def arms(values: Values, **settings: Any) -> Callable[[results.Result], Shown]:
    """Return what a line named after each arm with these settings shows."""
    return lambda run: {arm.name: values(arm) for arm in run.where(**settings)}


def storms(values: Values) -> Callable[[results.Result], Shown]:
    return lambda run: {
        f"{ratio:g}": values(arm)
        for ratio, (arm, _) in F.overflow_storm.storms(run).items()
    }


def policies(values: Values) -> Callable[[results.Result], Shown]:
    return lambda run: {
        arm.name: values(arm) for arm in run.arms.values() if arm.name != "fp32"
    }


# figure, panel, axis, values by label
LINES: list[tuple[str, int, str, Callable[[results.Result], Shown]]] = [
    ("overflow_storm", 1, "x", storms(lambda arm: [
        len(row["bad"]) / 800 / theory.critical_bad_rate(Rule(growth_interval=10)) for row in arm])),
    ("overflow_storm", 1, "y", storms(lambda arm: [F.overflow_storm.drift(row) for row in arm])),
    ("overflow_storm", 2, "x", storms(lambda arm: arm.column("test_loss"))),
    ("rules_trained", 0, "y", lambda run: {
        name: np.log2(run.arm(name).scales(run.steps))[0] for name in F.rules_trained.TRACES}),
    ("rules_trained", 1, "x", policies(lambda arm: 100 * arm.numbers("skip_rate"))),
    ("rules_trained", 2, "x", policies(lambda arm: arm.numbers("headroom")[:, 0])),
    ("rules_trained", 3, "x", arms(lambda arm: 100 * arm.numbers("zero")[:, 0])),
    ("rules_trained", 4, "x", lambda run: policies(
        lambda arm: arm.numbers("final_loss") - run.arm("fp32").numbers("final_loss"))(run)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("stem", "panel", "axis", "values"),
    LINES,
    ids=[f"{s}-{n}-{axis}" for s, n, axis, _ in LINES],
)
def test_lines_match_records(stem: str, panel: int, axis: str, values: Any) -> None:
    axes, wanted = drawn(stem).axes[panel], values(results.load(stem))
    assert wanted
    for label in wanted:
        found = lines(axes, label)
        line = (
            found[0]
            if len(found) == 1
            else next(line for line in found if line.get_marker() == "o")
        )
        assert line.get_data()["xy".index(axis)] == pytest.approx(
            np.array(wanted[label]), rel=1e-9
        )


@pytest.mark.parametrize(
    ("panel", "stem", "column"),
    [(0, "static_sweep", "test_loss"), (1, "sigmoid_underflow", "train_loss")],
)
def test_sweep_draws_means_and_plateau(panel: int, stem: str, column: str) -> None:
    run, axes = results.load(stem), drawn("needs_scale").axes[panel]
    means = {k: arm.mean(column) for k, arm in F.needs_scale.by_scale(run).items()}
    assert [*means] == sorted(means)
    x, y = one(axes, "mean").get_data()
    assert dict(zip(x, y, strict=True)) == pytest.approx(means)
    highest = run.arm("fp32").mean(column) + F.needs_scale.NEAR
    good = [k for k, mean in means.items() if mean < highest]
    assert one(axes, "plateau").get_xdata().tolist() == [good[0], good[-1]]
    assert f"{good[-1] - good[0]:g} bits" in says("needs_scale")


@pytest.mark.parametrize(("panel", "stem"), [(2, "resnet_fp16"), (3, "gpt_fp16")])
def test_differences_are_of_equal_seeds(panel: int, stem: str) -> None:
    run, axes = results.load(stem), drawn("needs_scale").axes[panel]
    loss = {(row["arm"], row["seed"]): row["test_loss"] for row in run.records}
    for name in run.arms.keys() - {"fp32", "global fp32"}:
        base = "global fp32" if name.startswith("global") else "fp32"
        wanted = [loss[name, seed] - loss[base, seed] for seed in run.seeds]
        assert one(axes, name).get_xdata() == pytest.approx(wanted)


def test_settled_scale_is_drawn_by_gpus() -> None:
    cells = derived_numbers.settled_by_gpus(results.load("cuda_runs")).values()
    axes = drawn("cuda_runs").axes[-1]
    lines_drawn = {
        tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata())
    }
    assert lines_drawn == {tuple(sorted(cell)) for cell in cells}


def counted(arm: str | None = None) -> list[Any]:
    """Return the records whose counts were kept."""
    return [
        r
        for r in results.load("exponent_heatmap").records
        if r["counts"] and arm in (None, r["arm"])
    ]


def test_shares_sum_to_nonzero_elements() -> None:
    for row in counted():
        share = F.exponent_heatmap.shares(row, np.arange(-149, 128))
        assert share.sum(axis=0) == pytest.approx(
            [sum(c[1:]) / row["elements"] for c in row["counts"]]
        )
        lowest, *counts = row["counts"][3]
        assert share[lowest + 149, 3] == counts[0] / row["elements"]


def test_representable_binades_are_blue() -> None:
    for row in counted():
        exponents = np.arange(-149, 128)
        image = F.exponent_heatmap.picture(row, exponents)
        blue = image[..., 2] > image[..., 0]
        scale = np.log2(
            results.in_force(row["scale_changes"], row["every"] * len(row["lost"]))
        )
        for sample in range(0, len(row["lost"]), 16):
            log2 = scale[sample * row["every"]]
            inside = (exponents + log2 >= -25) & (exponents + log2 < 16)
            filled = image[:, sample, 3] > 0
            assert (blue[filled, sample] == inside[filled]).all()
            assert filled.sum() == sum(count > 0 for count in row["counts"][sample][1:])


def test_crossing_is_where_error_falls() -> None:
    scales = np.array([-4, -2, 0, 2])
    assert F.gradient_histogram.crossing(
        scales, np.array([1.0, 1.0, 0.01, 0.01])
    ) == pytest.approx(-1.0)
    for error in (
        [1.0, 1.0, 1.0, 1.0],
        [0.01, 0.01, 0.01, 0.01],
        [1.0, 1.0, np.nan, np.nan],
    ):
        assert math.isnan(F.gradient_histogram.crossing(scales, np.array(error)))


def test_theory_real_draws_deviations_from_t3() -> None:
    run = results.load("theory_real")
    skips, scales, _ = drawn("theory_real").axes
    for axes, above in (
        (skips, F.theory_real.percents_above),
        (scales, derived_numbers.levels_above),
    ):
        bars = [bar.lines[0] for bar in axes.containers]
        seeds = [above(run, interval) for interval in derived_numbers.INTERVALS]
        assert [bar.get_ydata()[0] for bar in bars] == pytest.approx(
            [np.mean([more for more, _ in each]) for each in seeds]
        )
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        assert [list(line.get_ydata()) for line in dots] == [
            [more for more, _ in each] for each in seeds
        ]
    more, _ = derived_numbers.skips_above(run, 5)[0]
    row = run.arm("G=5").records[0]
    predicted = t3(derived_numbers.per_seed(run.arm("G=5"), "thresholds")[0], 5)
    assert more == pytest.approx(
        row["skipped"] - derived_numbers.real_steps(run) * predicted[0]
    )


def test_threads_draws_the_shares() -> None:
    run = results.load("threads")
    lines = [
        line for line in drawn("threads").axes[0].lines if line.get_linestyle() == "-"
    ]
    assert len(lines) == len(run.config["depths"])
    for line, depth in zip(lines, run.config["depths"], strict=True):
        arms = [
            run.arm(f"torch depth {depth} G={interval}")
            for interval in run.config["growth_intervals"]
        ]
        wanted = [
            100 * sum(arm.column("wrong")) / sum(arm.column("checked")) for arm in arms
        ]
        assert line.get_ydata() == pytest.approx(wanted)


def test_crash_panels_show_every_run() -> None:
    run = results.load("scale_crash")
    rows = run.records
    figure = drawn("scale_crash")
    rates = F.scale_crash.rates(run)
    assert all(len(lines(figure.axes[0], f"{lr:g}")) == len(run.seeds) for lr in rates)
    said = [text.get_text() for text in figure.axes[1].texts]
    truth = [
        sum(r["crash_step"] is not None for r in rows if r["arm"] == f"fp16 lr={lr}")
        for lr in rates
    ]
    assert said == [f"{n} of {len(run.seeds)}" for n in truth]
    bars = [patch for patch in figure.axes[1].patches if patch.get_width() > 0]
    crashed = [r for r in rows if r["crash_step"] is not None]
    assert [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars] == [
        (r["crash_step"], run.steps) for r in crashed
    ]


def test_drift_spans_first_to_last_scale() -> None:
    record = {
        "every": 20,
        "mean_losses": [0.0, 0.0],
        "scale_changes": [[0, 4.0], [7, 1.0], [40, 0.5]],
    }
    assert F.overflow_storm.trajectory(record).tolist() == [2.0] * 7 + [0.0] * 33 + [
        -1.0
    ]
    assert F.overflow_storm.drift(record) == -3 / 40


def test_first_nonfinite_step_is_found() -> None:
    lost = F.ranks_training.lost
    assert lost({"not_finite": [3, 4], "loss": [1.0, math.nan]}) == 3
    assert lost({"not_finite": [], "loss": [1.0, math.nan, math.nan]}) == 1
    assert lost({"not_finite": [], "loss": [1.0, 2.0]}) is None


def test_ranks_training_marks_nonfinite_parameters() -> None:
    run = results.load("ranks_training")
    first = {
        (each["way"], each["scaler"]): each["ranks"] for each in run.records[0]["runs"]
    }
    for axes, way in zip(
        drawn("ranks_training").axes, F.ranks_training.WAYS, strict=True
    ):
        crosses = [
            line.get_xdata().tolist() for line in axes.lines if line.get_marker() == "x"
        ]
        ranks = first[way, "torch"]
        assert crosses == [[F.ranks_training.lost(rank)] for rank in ranks]
        assert all(
            max(axes.get_xlim()) > x + 2 for (x,) in crosses
        )  # whole, not cut at the edge
        for scaler, rank in F.ranks_training.LINES:
            columns = first[way, scaler][rank]
            scales = results.in_force(columns["scale_changes"], run.steps)
            assert (
                one(axes, F.ranks_training.label(scaler, rank)).get_ydata().tolist()
                == np.log2(scales).tolist()
            )


@pytest.mark.parametrize(
    ("stem", "arm"),
    [
        ("scale_crash", "fp16 lr=0.02"),
        ("scale_crash", "fp32 lr=0.05"),
        ("theory_real", "G=20"),
    ],
)
def test_figure_is_drawn_without_an_arm(stem: str, arm: str) -> None:
    run = results.load(stem)
    kept = tuple(record for record in run.records if record["arm"] != arm)
    assert len(kept) < len(run.records)
    with _style.style():
        draw_results(stem, [results.Result(run.stem, run.path, run.provenance, kept)])

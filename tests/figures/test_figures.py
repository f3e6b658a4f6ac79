import importlib
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from ampsim import records
from figures import __main__ as cli
from figures import _gallery, _style, claims, results, scale_crash, sigmoid_underflow, state_machine

ROOT = Path(__file__).parents[2]


def drawn(module: Any) -> Figure:
    with _style.style():
        figure: Figure = module.plot(*map(results.load, module.DATA))
    return figure


def lines(axes: Any, label: str) -> list[Any]:
    return [line for line in axes.lines if line.get_label() == label]


@pytest.mark.parametrize("stem", cli.stems())
def test_committed_figures_are_what_the_committed_data_gives(stem: str, tmp_path: Path) -> None:
    assert [cli.differing(cli.render(stem, tmp_path, data)) for data in cli.sources(stem)] == [[]] * len(
        cli.sources(stem)
    )


def test_every_committed_figure_is_drawn_by_some_stem() -> None:
    wanted = {
        f"{stem}.{end}" if data.name == "cpu" else f"{stem}.{data.name}.{end}"
        for stem in cli.stems() for data in cli.sources(stem) for end in ("svg", "pdf")
    }  # fmt: skip
    assert {path.name for end in ("svg", "pdf") for path in _style.HERE.glob(f"*.{end}")} == wanted


def test_another_devices_data_gives_figures_of_its_own_that_name_it(tmp_path: Path) -> None:
    for device, name in (("cpu", "AMD EPYC"), ("some-gpu", "Some GPU 9"), ("half", "Half")):
        provenance, rows = records.read(results.CPU / "scale_crash.jsonl")
        kind = "cpu" if device == "cpu" else "cuda"
        records.write(
            tmp_path / device / "scale_crash.jsonl", {**provenance, "device": {"type": kind, "name": name}}, rows
        )
    (tmp_path / "half" / "scale_crash.jsonl").rename(tmp_path / "half" / "other.jsonl")
    found = cli.sources("scale_crash", tmp_path)
    assert [path.name for path in found] == ["cpu", "some-gpu"]
    paths = cli.render("scale_crash", tmp_path, found[1])
    assert [path.name for path in paths] == ["scale_crash.some-gpu.svg", "scale_crash.some-gpu.pdf"]
    with _style.style():
        figure = cli.draw("scale_crash", found[1])
    assert figure.texts[-1].get_text() == "CUDA: Some GPU 9"
    assert cli.sources("state_machine", tmp_path) == [tmp_path / "cpu"]


@pytest.mark.parametrize("stem", cli.stems())
def test_the_same_data_gives_the_same_bytes_whatever_the_users_settings(
    stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir(), second.mkdir()
    before = cli.render(stem, first)
    monkeypatch.setitem(_style.mpl.rcParams, "lines.linewidth", 7.0)
    assert cli.differing(cli.render(stem, second), first) == []
    text = before[0].read_text()
    assert "dc:date" not in text
    assert b"CreationDate" not in before[1].read_bytes()


def test_axes_stand_on_a_grid_so_that_the_layout_solvers_last_bits_do_not_reach_the_file(tmp_path: Path) -> None:
    figure = drawn(scale_crash)
    edges = [edge for axes in figure.axes for edge in axes.get_position().bounds]
    with _style.style():
        _style.save(figure, tmp_path, "x")
    after = [edge for axes in figure.axes for edge in axes.get_position().bounds]
    assert after != edges  # the layout did move them
    assert after == pytest.approx([round(edge, 5) for edge in after], abs=1e-12)


def test_figures_import_no_framework_no_experiment_and_no_pyplot() -> None:
    code = (
        "import importlib, sys; from figures import __main__ as f;"
        "[importlib.import_module(f'figures.{s}') for s in f.stems()];"
        "print({'torch', 'jax', 'experiments', 'sklearn', 'matplotlib.pyplot'} & set(sys.modules))"
    )
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_check_names_a_figure_whose_bytes_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.render("state_machine", tmp_path)
    assert cli.check(["state_machine"], tmp_path) == 0
    svg = tmp_path / "state_machine.svg"
    svg.write_bytes(svg.read_bytes() + b" ")
    assert cli.check(["state_machine"], tmp_path) == 1
    assert "state_machine.svg: expected the bytes" in capsys.readouterr().err
    svg.unlink()
    assert cli.check(["state_machine"], tmp_path) == 1


def test_the_gallery_shows_every_figure_once_with_its_command() -> None:
    text = (_style.HERE / "README.md").read_text()
    assert text == _gallery.page(cli.stems())
    for stem in cli.stems():
        assert text.count(f"]({stem}.svg)") == 1
        for name in importlib.import_module(f"figures.{stem}").DATA:
            assert f"`python -m experiments.{name}`" in text
    listed = [stem for part in _gallery.SECTIONS.values() for stem in part]
    assert len(listed) == len(set(listed))


def test_a_claim_is_judged_by_the_data_and_shows_its_spread() -> None:
    arms = ("unscaled", "dynamic G=50", "fp32")
    rows: list[Any] = [{"arm": arm, "seed": seed, "test_loss": 2 + seed / 100} for arm in arms for seed in range(3)]
    assert claims.mean_loss(rows) == (
        "unscaled 2.01 (2 to 2.02), dynamic 2.01 (2 to 2.02), fp32 2.01 (2 to 2.02)", claims.REPRODUCED
    )  # fmt: skip
    rows[0]["test_loss"] = 9.0
    assert claims.mean_loss(rows)[1] == claims.CONTRADICTED
    assert claims.verdict(True, False) == claims.PARTLY
    counts = [{"arm": f"fp16 lr={lr}", "seed": 0, "crash_step": 7} for lr in ("0.02", "0.03", "0.035", "0.05")]
    assert claims.crashes(counts)[1] == claims.CONTRADICTED


def test_a_figure_without_a_section_is_refused() -> None:
    with pytest.raises(ValueError, match="nowhere: expected in a section of"):
        _gallery.page(["nowhere", "theory"])


def test_check_of_the_committed_figures_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--check", "state_machine"]) == 0
    assert "state_machine: same bytes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "near"), [(["scale_crush"], "scale_crash"), (["--chek"], "--check"), (["--check", "x"], "")]
)
def test_wrong_use_exits_with_2_and_the_nearest_name(
    argv: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert repr(argv[-1]) in error
    assert near in error
    assert error.count("\n") == 1


def test_missing_or_damaged_data_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "scale_crash.jsonl"
    monkeypatch.setattr(cli, "render", lambda stem, folder, data: results.load("scale_crash", tmp_path))
    assert cli.main(["scale_crash"]) == 1
    path.write_text("{}\n")
    assert cli.main(["scale_crash"]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert [str(path) in line and "python -m experiments all" in line for line in errors] == [True, True]


def test_help_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "state_machine" in capsys.readouterr().out


@pytest.mark.parametrize("module", [sigmoid_underflow, scale_crash, state_machine])
def test_figures_fit_a_two_column_page_and_no_text_is_below_7_points(module: Any) -> None:
    figure = drawn(module)
    assert figure.get_figwidth() in (_style.ONE_COLUMN, _style.TWO_COLUMNS)
    texts = figure.findobj(lambda artist: hasattr(artist, "get_fontsize"))
    assert min(text.get_fontsize() for text in texts if text.get_text()) >= 7


def test_loss_curves_are_the_medians_of_the_records() -> None:
    rows = results.load("sigmoid_underflow").records
    axes = drawn(sigmoid_underflow).axes[0]
    for arm in sigmoid_underflow.CURVES:
        loss = np.array([row["loss"] for row in rows if row["arm"] == arm])
        (line,) = lines(axes, arm)
        assert line.get_ydata()[3] == pytest.approx(np.median([seed[75:100].mean() for seed in loss]))
        assert line.get_color() == _style.ARM[arm]
        assert len(line.get_ydata()) == loss.shape[1] // 25


def test_final_losses_skips_and_scales_are_those_of_the_records() -> None:
    rows = results.load("sigmoid_underflow").records
    figure = drawn(sigmoid_underflow)
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
    zero = drawn(sigmoid_underflow).axes[3].collections[0]
    assert zero.get_paths()[0].vertices[:, 1].max() == pytest.approx(100 * share["zero"].max())


def test_means_over_time_leave_out_what_was_counted_because_it_was_skipped() -> None:
    record = {"counted_steps": [0, 3, 5], "zero": [[1], [9], [3]], "subnormal": [[0]] * 3, "overflow": [[0]] * 3}
    steps, share = results.ArmRecords("x", ({**record, "elements": [10]},)).shares(every=5, block=2)
    assert (steps.tolist(), share["zero"].tolist()) == ([2.5], [0.2])


def test_crash_panels_show_every_run_and_count_the_crashes() -> None:
    run = results.load("scale_crash")
    rows = run.records
    figure = drawn(scale_crash)
    rates = scale_crash.rates(run)
    assert all(len(lines(figure.axes[0], lr)) == 5 for lr in rates)
    said = [text.get_text() for text in figure.axes[1].texts]
    truth = [sum(r["crash_step"] is not None for r in rows if r["arm"] == f"fp16 lr={lr}") for lr in rates]
    assert said == [f"{n} of 5" for n in truth]
    bars = [patch for patch in figure.axes[1].patches if patch.get_width() > 0]
    crashed = [r for r in rows if r["crash_step"] is not None]
    assert [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars] == [(r["crash_step"], 240) for r in crashed]


def test_a_scale_column_is_expanded_from_its_changes() -> None:
    record: dict[str, Any] = {"loss": [0.0] * 5, "scale_changes": [[0, 4.0], [3, 2.0]]}
    assert results.ArmRecords("x", (record,)).scales().tolist() == [[4.0, 4.0, 4.0, 2.0, 2.0]]


def test_labels_keep_their_distance_and_order() -> None:
    assert _style.spread([1.0, 0.0, 1.05], gap=0.5) == [1.0, 0.0, 1.5]


def test_the_diagram_has_both_transitions_of_every_reachable_state() -> None:
    edges = state_machine.reachable(state_machine.RULE)
    states = {edge[0] for edge in edges}
    assert len(states) == 12
    assert {edge[1] for edge in edges} <= states
    assert all(sorted(e[2] for e in edges if e[0] == state) == [False, True] for state in states)
    arrows = [patch for patch in drawn(state_machine).axes[0].patches if isinstance(patch, FancyArrowPatch)]
    assert [arrow.get_label() for arrow in arrows] == ["overflow" if e[2] else "clean" for e in edges]

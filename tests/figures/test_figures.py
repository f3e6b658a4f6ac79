import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampsim.runs.record import data_file
from figures import __main__ as cli
from figures import _gallery, _style, rendering, results
from tests.figures.drawings import drawn

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("stem", cli.stems())
def test_committed_figures_match_data(stem: str, tmp_path: Path) -> None:
    paths = rendering.render(stem, tmp_path)
    assert cli.differing(paths) == []
    assert "dc:date" not in paths[0].read_text()


def test_a_users_settings_change_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_style.mpl.rcParams, "lines.linewidth", 7.0)
    assert cli.differing(rendering.render("threads", tmp_path)) == []


def test_every_committed_figure_has_its_stem() -> None:
    assert {path.stem for path in _style.HERE.glob("*.svg")} == {*cli.stems()}


def test_figures_import_no_frameworks() -> None:
    code = (
        "import importlib, sys; from figures import __main__ as f;"
        "[importlib.import_module(f'figures.{s}') for s in f.stems()];"
        "print({'torch', 'jax', 'experiments', 'sklearn', 'matplotlib.pyplot'} & set(sys.modules))"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"


def test_check_names_differing_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [path] = rendering.render("threads", tmp_path)
    assert cli.check(["threads"], tmp_path) == 0
    path.write_bytes(path.read_bytes() + b" ")
    assert cli.check(["threads"], tmp_path) == 1
    assert "threads.svg" in capsys.readouterr().err
    path.unlink()
    assert cli.check(["threads"], tmp_path) == 1


def test_the_gallery_shows_every_figure_once() -> None:
    text = (_style.HERE / "README.md").read_text()
    assert text == _gallery.page(cli.stems())
    for stem in cli.stems():
        assert text.count(f"]({stem}.svg)") == 1


def test_own_data_is_rendered_beside_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, out = tmp_path / "own.jsonl", tmp_path / "out"
    out.mkdir()
    provenance, rows = data_file.read(results.CPU / "threads.jsonl")
    data_file.write(
        own, {**provenance, "device": {"type": "cpu", "name": "my own"}}, rows
    )
    committed = (_style.HERE / "threads.svg").read_bytes()
    assert cli.main(["threads", "--data", str(own)]) == 0
    assert str(tmp_path / "own.svg") in capsys.readouterr().out
    assert cli.main(["threads", "--data", str(own), "--out", str(out)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"own.jsonl", "own.svg", "out"}
    assert (
        (out / "own.svg").read_bytes()
        == (tmp_path / "own.svg").read_bytes()
        != committed
    )
    assert (_style.HERE / "threads.svg").read_bytes() == committed


def test_invalid_file_gives_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    provenance, rows = data_file.read(results.CPU / "exponent_heatmap.jsonl")
    data_file.write(tmp_path / "poor.jsonl", provenance, rows[:1])
    (tmp_path / "text.jsonl").write_text("words\n")
    crash = str(results.CPU / "scale_crash.jsonl")
    for stem, file, shown in (
        ("threads", crash, "made by scale_crash"),
        ("exponent_heatmap", str(tmp_path / "poor.jsonl"), "poor.jsonl"),
        ("threads", str(tmp_path / "text.jsonl"), "text.jsonl, line 1"),
        ("threads", str(tmp_path / "none.jsonl"), "none.jsonl"),
    ):
        assert cli.main([stem, "--data", file]) == 1
        error = capsys.readouterr().err
        assert shown in error
        assert error.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"poor.jsonl", "text.jsonl"}


@pytest.mark.parametrize(
    "argv",
    [
        ["--data", "x.jsonl"],
        ["threads", "--out", "x"],
        ["threads", "--check", "--data", "x.jsonl"],
        ["threads", "--data", "."],
        ["scale_crush"],
        ["--chek"],
    ],
)
def test_invalid_arguments_exit_with_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(argv)
    assert argv[-1] in capsys.readouterr().err


def test_folder_render_falls_back_to_committed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "cpu", tmp_path / "out"
    for stem, kept in (("threads", 48), ("exponent_heatmap", 1)):
        provenance, rows = data_file.read(results.CPU / f"{stem}.jsonl")
        data_file.write(
            data / f"{stem}.jsonl",
            {**provenance, "device": {"type": "cpu", "name": "mine"}},
            rows[:kept],
        )
    assert (
        cli.main(
            ["threads", "exponent_heatmap", "--data", str(data), "--out", str(out)]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "2 of 2: exponent_heatmap: not drawn; copied the committed figure: " in said
    assert [same(out / name) for name in ("exponent_heatmap.svg", "threads.svg")] == [
        True,
        False,
    ]
    page = _gallery.page(["threads"], data, results.CPU, folder=out)
    assert (
        f"[`{Path(os.path.relpath(data, ROOT)).as_posix()}/threads.jsonl`](../cpu/threads.jsonl): 48 records"
        in page
    )


def same(path: Path) -> bool:
    return path.read_bytes() == (_style.HERE / path.name).read_bytes()


@pytest.mark.parametrize("stem", cli.stems())
def test_figures_fit_the_page(stem: str) -> None:
    assert drawn(stem).get_figwidth() in (_style.ONE_COLUMN, _style.TWO_COLUMNS)


def test_labels_keep_their_distance_and_order() -> None:
    assert _style.spread([1.0, 0.0, 1.05], gap=0.5) == [1.0, 0.0, 1.5]


def test_subfigure_positions_are_rounded() -> None:
    figure = _style.new_figure(6.0, 3.6)
    half = figure.subfigures(2, 1, height_ratios=(1, 1.3))[0]
    half.subplots().set_xticks(range(3), ["first", "second", "third"], rotation=25)
    _style.settle(figure)
    points = half.bbox_relative.get_points()
    assert points.tolist() == points.round(5).tolist()

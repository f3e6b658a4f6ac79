"""`python -m experiments new STEM`: what it writes runs and is drawn as it stands."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import experiments
from experiments import runner
from experiments.__main__ import main
from experiments.runner import experiment
from figures import _style, results


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout without an experiment."""
    for name in ("experiments", "figures"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(experiment, "FOLDER", tmp_path / "experiments")
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(tmp_path / "experiments")])
    yield tmp_path
    sys.modules.pop("experiments.fresh", None)
    vars(experiments).pop("fresh", None)


def test_a_new_experiment_runs_and_is_drawn(folder: Path) -> None:
    assert main(["new", "fresh"]) == 0
    assert runner.main("fresh", ["--jobs", "1"]) == 0
    path = folder / "figures" / "fresh.py"
    spec = importlib.util.spec_from_file_location("fresh", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run = results.read(folder / "experiments" / "data" / "cpu" / "fresh.jsonl", *module.DATA)
    with _style.style():
        (axes,) = module.plot(run).axes
    assert [list(line.get_ydata()) for line in axes.lines] == [arm.column("skips") for arm in run.arms.values()]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "expected one name"),
        (["3x"], "'3x'"),
        (["../x"], "'../x'"),
        (["class"], "'class'"),
        (["new"], "'new' is taken"),
        (["here"], "'here' is taken"),
        (["drawn"], "'drawn' is taken"),
    ],
)
def test_a_bad_name_is_refused(
    names: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = {folder / "experiments" / "here.py", folder / "figures" / "drawn.py"}
    for path in taken:
        path.touch()
    assert main(["new", *names]) == 2
    assert message in capsys.readouterr().err
    assert set(folder.glob("*/*.py")) == taken

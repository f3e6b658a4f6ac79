"""`experiments new` writes an experiment, a figure, a claim, and a test that run."""

import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import experiments
import figures
from experiments.runner import experiment, new
from experiments.runner.cli import main as run_experiment
from figures import claims, rendering, results
from figures.claims import CLAIMS

NAME = "growth_rate"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout with nothing in it but the claims."""
    for folder in ("experiments", "figures", "tests/experiments"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(str(claims.__file__), tmp_path / "figures")
    monkeypatch.setattr(experiment, "FOLDER", tmp_path / "experiments")
    for package in (experiments, figures):
        folder = tmp_path / package.__name__
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    yield tmp_path
    CLAIMS.pop(NAME, None)
    for package in (experiments, figures):
        vars(package).pop(NAME, None)


def test_written_experiment_runs(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (root / "figures" / "claims.py").read_text()
    assert new.main([NAME], root) == 0
    data = root / "own.jsonl"
    few = ["--steps", "40", "--seeds", "0", "--growth-intervals", "5", "40"]
    assert run_experiment(NAME, [*few, "--jobs", "1", "--out", str(data)]) == 0
    assert rendering.render_file(NAME, data, root).exists()
    added = (root / "figures" / "claims.py").read_text().removeprefix(before)
    exec(added, vars(claims))  # noqa: S102
    assert CLAIMS[NAME].judge(results.read(data, NAME)).holds
    monkeypatch.syspath_prepend(str(root / "tests" / "experiments"))
    import_module(f"test_{NAME}").test_float32_skips_no_step()


@pytest.mark.parametrize("name", ["Growth", "2fast", "class", "a-b", NAME])
def test_other_names_are_rejected(
    name: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "figures" / f"{NAME}.py").touch()
    with pytest.raises(SystemExit):
        new.main([name], root)
    assert name in capsys.readouterr().err
    assert not list((root / "experiments").iterdir())

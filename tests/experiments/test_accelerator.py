"""`python -m experiments gpu`, on an experiment that takes no time."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ampsim.runs.record import data_file
from experiments.runner import device, gpu
from experiments.runner.experiment import Experiment
from tests.experiments import tiny


@pytest.fixture
def data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data file of `card`, an experiment for a device that is not there."""
    tiny.write(folder, "card")
    source = (folder / "card.py").read_text().replace('DEVICES = ("cpu",)', "")
    (folder / "card.py").write_text(source)
    monkeypatch.setattr(device, "require", lambda name: None)
    monkeypatch.setattr(device, "slug", lambda name: "b999")
    monkeypatch.setattr(
        device, "describe", lambda name: {"type": "cuda", "name": "B999"}
    )
    return folder / "data" / "b999" / "card.jsonl"


def test_device_data_has_its_folder(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main([]) == 0
    origin, rows = data_file.read(data)
    assert (origin["device"]["name"], len(rows)) == ("B999", 4)
    capsys.readouterr()
    assert gpu.main(["card"]) == 0
    assert "reused 4 units" in capsys.readouterr().out


def test_units_survive_the_time_limit(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = Experiment("card").module
    original = module.run

    def run(config: Any, arm: Any, seed: int, *rest: Any) -> Any:
        if (arm.power, seed) == (2, 1):
            signal.pause()
        return original(config, arm, seed, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(module, "run", run)
        assert gpu.main(["--minutes", "0.01"]) == 130
    assert not data.exists()
    assert gpu.main([]) == 0
    assert "resumed; 3 of 4 units" in capsys.readouterr().out


def test_others_run_after_a_failure(
    data: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.py").write_text("import no_such_package")
    assert gpu.main([]) == 1
    assert "no_such_package" in capsys.readouterr().err
    assert data.exists()


def test_device_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu.main([]) == 2


def test_starts_without_command_line_packages() -> None:
    blocked = "import sys; sys.modules |= dict.fromkeys(('rich', 'tyro', 'typer', 'matplotlib'))"
    code = f"{blocked}\nfrom experiments.__main__ import main\nmain(['gpu', '--help'])"
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603

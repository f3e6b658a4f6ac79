import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import experiments
from experiments.runner import experiment
from tests.experiments import tiny


@pytest.fixture(autouse=True)
def torch_settings_back() -> Iterator[None]:
    """Experiments make torch deterministic for the whole process; the next test file did not ask
    for that.
    """
    before, threads = (
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
    )
    onednn = torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()
    yield
    torch.backends.mkldnn.set_flags(onednn)
    torch.use_deterministic_algorithms(before)
    torch.set_num_threads(threads)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of experiments with one in it, in the place of ours."""
    monkeypatch.setattr(
        tempfile, "tempdir", str(tmp_path)
    )  # where a smoke run leaves its data
    monkeypatch.setattr(experiment, "FOLDER", tmp_path)
    monkeypatch.setattr(experiment, "HERE", tmp_path / "build" / "here")
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(tmp_path)])
    tiny.write(tmp_path, "tiny")
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(f"experiments.{path.stem}", None)
        vars(experiments).pop(path.stem, None)

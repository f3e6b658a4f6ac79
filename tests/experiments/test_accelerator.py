"""`python -m experiments gpu`, on experiments that take no time."""

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from ampsim.runs.record import data_file
from experiments.runner import archives, device, gpu
from experiments.runner.experiment import Experiment, stems
from experiments.runner.slot import Part, Slot
from tests.experiments import tiny


@pytest.fixture
def slot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Slot:
    """Ten minutes of a device, for `tiny` and for `slow`, which took a day on a CPU."""
    monkeypatch.setattr(gpu, "FIRST", ("tiny", "slow"))
    monkeypatch.setattr(gpu.device_tests, "run", lambda slot: Part("tests", "ran"))
    monkeypatch.setattr(gpu.provenance, "ROOT", folder)
    tiny.write(folder, "slow")
    for stem, seconds in (("slow", 86_400.0), ("tiny", 1.0)):
        data_file.write(folder / "data" / "cpu" / f"{stem}.jsonl", {"unit_seconds": seconds}, [])
    end = time.monotonic() + 600.0
    return Slot("cpu", folder / "data" / "b999", folder / "logs", end, jobs=1)


def outcomes(slot: Slot) -> dict[str, str]:
    return {part.name: part.outcome for part in gpu.perform(slot)}


def in_the_last_unit(action: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Experiment("tiny").module
    original = module.run

    def run(config: Any, arm: Any, seed: int, *rest: Any) -> Any:
        if (arm.power, seed) == (2, 1):
            action()
        return original(config, arm, seed, *rest)

    monkeypatch.setattr(module, "run", run)


def test_first_experiments_support_cuda() -> None:
    assert set(gpu.FIRST) <= set(stems())
    assert all("cuda" in Experiment(stem).devices for stem in gpu.FIRST)


def test_part_that_fits_runs_once(slot: Slot) -> None:
    assert outcomes(slot) == {"tests": "ran", "tiny": "ran", "slow": "skipped"}
    assert len(data_file.read(slot.data / "tiny.jsonl")[1]) == 4
    assert outcomes(slot)["tiny"] == "up to date"


def test_an_interrupted_part_is_resumed(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        in_the_last_unit(lambda: os.kill(os.getpid(), signal.SIGINT), patch)
        assert outcomes(slot)["tiny"] == "interrupted"
    assert outcomes(slot)["tiny"] == "resumed"


def test_slow_part_resumes_at_end(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PATIENCE", 0.0)
    monkeypatch.setattr(gpu, "LEAST", 2.0)
    once = iter([signal.pause])
    in_the_last_unit(lambda: next(once, bool)(), monkeypatch)
    *_, tiny, slow, again = gpu.perform(slot)
    assert (tiny, again) == (Part("tiny", "stopped"), Part("tiny", "resumed"))
    assert slow.outcome == "skipped"


def test_a_missing_package_is_named(slot: Slot, folder: Path) -> None:
    tiny.write(folder, "slow", "import no_such_package")
    parts = {part.name: part for part in gpu.perform(slot)}
    assert parts["slow"] == Part("slow", "skipped", "requires no_such_package")


def test_a_damaged_file_is_named(slot: Slot, capsys: pytest.CaptureFixture[str]) -> None:
    out = slot.logs / "out"
    assert gpu.report(slot, out) == 0
    other, cut = slot.data / "other.jsonl", slot.data / "cut.jsonl"
    data_file.write(other, {"device": {"type": "cuda", "name": "B999"}}, [])
    cut.write_bytes(other.read_bytes()[:-2])
    capsys.readouterr()
    assert gpu.report(slot, out) == 1
    said = capsys.readouterr().out
    assert f"{cut}, line 1: " in said
    assert f'{other}: name: "B999" then' in said
    with tarfile.open(out / "gpu-1.tgz") as archive:
        assert "data/b999/tiny.jsonl" in archive.getnames()


def test_archives_are_at_most_16_mib(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.jsonl" for number in range(4)]
    for path, mebibytes in zip(files, (9, 9, 6, 17), strict=True):
        path.write_bytes(os.urandom(mebibytes << 20))
    assert archives.pack(files, tmp_path, tmp_path / "out") == files[3:]
    written = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in written] == ["gpu-1.tgz", "gpu-2.tgz"]
    assert all(path.stat().st_size <= 16 << 20 for path in written)


def test_accelerator_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "accelerator", lambda: None)
    assert gpu.main([]) == 2


def test_starts_without_command_line_packages() -> None:
    blocked = "import sys; sys.modules |= dict.fromkeys(('rich', 'tyro', 'typer', 'matplotlib'))"
    code = f"{blocked}\nfrom experiments.__main__ import main\nmain(['gpu', '--help'])"
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own

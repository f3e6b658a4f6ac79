"""`make gpu-1` to `gpu-4`: what a card is asked to do, within which time, and that what it finds comes home."""

import itertools
import re
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest

from experiments.runner.experiment import Experiment
from tests import on_card
from tests.on_card import Here, Stage

ROOT = Path(__file__).parents[1]
PARTS = ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]
PLANTED = "nvidia-b999-7gb-hbm9"


def stages(here: Here) -> list[Stage]:
    return [stage for row in on_card.rows(here) for lane in row for stage in lane]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_takes_no_more_than_nine_minutes_and_no_two_stages_share_a_log(part: str) -> None:
    here = Here(part, PLANTED, dry=False)
    assert on_card.limit(here) <= 540
    names = [stage.name for stage in stages(here)]
    assert len(names) == len({*names}) > 1


@pytest.mark.parametrize("part", PARTS)
def test_what_an_experiment_writes_lies_in_the_folder_of_the_device(part: str) -> None:
    for stage in stages(Here(part, PLANTED, dry=False)):
        if "experiments" in stage.command and "--out" in stage.command:
            out = stage.command[stage.command.index("--out") + 1]
            assert out.startswith((f"experiments/data/{PLANTED}/", f"build/{part}/"))


@pytest.mark.parametrize("part", PARTS)
def test_what_is_asked_of_a_card_are_experiments_for_cuda(part: str) -> None:
    for stage in stages(Here(part, PLANTED, dry=False)):
        if "experiments" in stage.command:
            asked = stage.command[stage.command.index("experiments") + 1 :]
            stems = [*itertools.takewhile(lambda word: not word.startswith("-"), asked)]
            assert stems
            assert [stem for stem in stems if "cuda" not in Experiment(stem).devices] == []


@pytest.mark.parametrize("part", PARTS)
def test_a_dry_run_touches_neither_cuda_nor_data(part: str) -> None:
    for stage in stages(Here(part, "cpu", dry=True)):
        assert stage.name in ("ncu", "memcheck") or "cuda" not in stage.command
        assert "experiments" not in stage.command or stage.command[-1] == "--smoke" or stage.name == "ncu"


def test_every_test_that_is_marked_gpu_lies_where_a_part_runs_it() -> None:
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.gpu" in path.read_text()}
    asked = [path for part in PARTS for stage in stages(Here(part, PLANTED, dry=False)) for path in stage.command]
    paths = [ROOT / path for path in asked if path.startswith("tests/")]
    assert marked - {Path(__file__)}
    assert [path for path in marked - {Path(__file__)} if not any(path.is_relative_to(each) for each in paths)] == []


def test_no_file_knows_a_card_by_name() -> None:
    files = [ROOT / "Makefile", ROOT / "tests/on_card.py", *(ROOT / "ampsim").rglob("*.py")]
    found = {str(path) for path in files if re.search(r"nvidia-[a-z]*\d", path.read_text())}
    assert not found


def test_each_stage_leaves_an_archive_with_the_data_of_a_device_of_any_name(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(on_card, "ROOT", tmp_path)
    here = Here("gpu-1", PLANTED, dry=False)
    here.data.mkdir(parents=True)
    (here.data / "kernels.jsonl").write_text("{}\n")
    endless = ["timeit", "-n", "1", "import time; time.sleep(600)"]
    monkeypatch.setattr(
        on_card, "rows", lambda here: [[[Stage("well", 60, ["platform"])], [Stage("late", 1, endless)]]]
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    try:
        assert on_card.run(here, tmp_path / "out") == 1
    finally:
        signal.signal(signal.SIGINT, before)
    with tarfile.open(tmp_path / "out" / "gpu-1.tgz") as archive:
        names = set(archive.getnames())
    assert {f"experiments/data/{PLANTED}/kernels.jsonl", "build/gpu-1/well.log", "build/gpu-1/late.log"} <= names
    assert re.fullmatch(r"late: status -?\d+\n", (here.logs / "failed").read_text())
    assert "KeyboardInterrupt" in (here.logs / "late.log").read_text()
    assert "well: status 0" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("part", PARTS)
def test_make_runs_the_part_of_that_name(part: str) -> None:
    command = ["make", "--no-print-directory", "-n", part, "GPU_PY=python9"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)  # noqa: S603
    assert done.stdout.split() == ["python9", "-m", "tests.on_card", part]

"""`make gpu-1` to `gpu-4`: each part fits into nine minutes, and what it finds comes home."""

import itertools
import tarfile
from pathlib import Path

import pytest

from experiments.runner.experiment import Experiment
from tests import on_card
from tests.on_card import Here, Stage

PARTS = ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]
DEVICE = "nvidia-b999-7gb-hbm9"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_takes_nine_minutes(part: str) -> None:
    here = Here(part, DEVICE, dry=False)
    assert on_card.limit(here) <= 540
    for row in on_card.rows(here):
        for stage in itertools.chain.from_iterable(row):
            if "experiments" not in stage.command:
                continue
            arguments = stage.command[stage.command.index("experiments") + 1 :]
            stems = [*itertools.takewhile(lambda word: not word.startswith("-"), arguments)]
            assert stems
            for stem in stems:
                assert "cuda" in Experiment(stem).devices


def test_results_come_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(on_card, "ROOT", tmp_path)
    here = Here("gpu-1", DEVICE, dry=False)
    here.data.mkdir(parents=True)
    (here.data / "overhead.jsonl").write_text("{}\n")
    stage = Stage("well", 60, ["platform"])
    monkeypatch.setattr(on_card, "rows", lambda here: [[[stage]]])
    assert on_card.run(here, tmp_path / "out") == 0
    with tarfile.open(tmp_path / "out" / "gpu-1.tgz") as archive:
        names = set(archive.getnames())
    assert {f"experiments/data/{DEVICE}/overhead.jsonl", "build/gpu-1/well.log"} <= names

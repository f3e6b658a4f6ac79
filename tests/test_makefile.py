"""`make gpu-1` to `gpu-3`, as make prints them: what a borrowed card is asked to do, and within which time."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("part", ["gpu-1", "gpu-2", "gpu-3"])
def test_a_part_takes_no_more_than_nine_minutes_and_each_stage_leaves_an_archive(part: str) -> None:
    command = ["make", "--no-print-directory", "-n", part, "OUT=/out"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)  # noqa: S603
    lines = done.stdout.replace("\\\n", "").splitlines()
    limits = [[re.findall(r"timeout -k 10 (\d+) ", branch) for branch in line.split(" & ")] for line in lines]
    assert sum(max(sum(map(int, branch)) for branch in line) for line in limits) <= 540
    stages = re.findall(r"\{ timeout .*?; \}", done.stdout, re.DOTALL)
    assert len(stages) == done.stdout.count("timeout -k") >= 4
    for stage in stages:
        assert re.search(rf"tar czf /out/{part}\.tgz build/{part} .*experiments/data/nvidia-h200", stage)
        assert ("pytest.main" in stage) == ("--junitxml=" in stage)
    assert not any("; exit" in line or "|| exit" in line for line in lines[:-1])  # in .gpu-kit all lines are one script

"""Units on a Ray cluster, with the real package where it is installed (`make deep` installs it)."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments import runner
from experiments.runner import everything, on_ray
from tests.experiments import tiny

ROOT = Path(__file__).parents[2]
needs_ray = pytest.mark.peer("ray", how="pip install -c constraints.txt 'ampsim[ray]'")

# One unit kills its worker: of `tiny` once, of `zombie` whenever it is run. One waits, if it is to, for an answer.
KILLS = """
def run(config, arm, seed, device, tick):
    import os, pathlib, signal

    for step in range(config.steps):
        tick(step + 1)
    marker, answer = pathlib.Path({folder!r}, "killed"), pathlib.Path({folder!r}, "answer")
    if (arm.power, seed) == (2, 1) and ({always} or not marker.exists()):
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if answer.exists() and seed == 0:
        answer.read_text()
    return {{"loss": [config.factor**arm.power + seed] * config.steps}}
"""

RUN = """
import os
from pathlib import Path

from experiments.runner import everything, on_ray, pool, provenance
from experiments.runner.experiment import Experiment

if __name__ == "__main__":
    print("status", everything.main(["--on", "ray"]))
    steps, tiny = [], Experiment("tiny")
    os.mkfifo("answer")  # a reader waits for its writer

    def note(unit, step):
        steps.append(f"{unit}: {step}")
        if step == 50:
            Path("answer").write_text("")

    jobs = [pool.Job("tiny", tiny.module.Config(), unit, "cpu") for unit in tiny.units(tiny.module.Config())]
    machine = provenance.machine("cpu")
    print([type(done).__name__ for done in on_ray.run("ray", jobs[:1], 1, machine, note, repeats=True)], steps)
    os.remove("answer")
    other = machine | {"threads": 2}
    print(*(done.reason for done in on_ray.run("ray", jobs[:1], 1, other, note, repeats=False)))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with two experiments of its own: nodes get the code of the tree that the runner lies in."""
    for folder in ("ampsim", "experiments/runner"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "__main__.py"):
        shutil.copy(ROOT / "experiments" / name, tmp_path / "experiments")
    for stem, always in (("tiny", False), ("zombie", True)):
        tiny.write(tmp_path / "experiments", stem)
        source = (tmp_path / "experiments" / f"{stem}.py").read_text().replace("steps: int = 3", "steps: int = 50")
        kills = KILLS.format(folder=str(tmp_path), always=always)
        (tmp_path / "experiments" / f"{stem}.py").write_text(source + kills)
    (tmp_path / "run.py").write_text(RUN)
    return tmp_path


def call(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a checkout."""
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    return subprocess.run(  # noqa: S603 - our own
        [sys.executable, *command],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def content(checkout: Path) -> tuple[dict[str, Any], bytes]:
    """Return a file's provenance but for what measures time, and the bytes of its records."""
    first, rest = (checkout / "experiments/data/cpu/tiny.jsonl").read_bytes().split(b"\n", 1)
    origin = json.loads(first)["provenance"]
    return {name: value for name, value in origin.items() if name not in ("date", "unit_seconds")}, rest


@needs_ray
def test_a_unit_whose_worker_is_killed_is_run_again_and_the_file_is_the_same(checkout: Path) -> None:
    done = call(checkout, "run.py")
    said = f"{done.stdout}\n{done.stderr}"
    assert "tiny: power 2, seed 1: its worker died, run again: The worker died" in done.stderr, said
    assert "tiny: 4 units in" in done.stdout, said
    assert "zombie: power 2, seed 1 failed, the others go on: its worker died 3 times" in done.stderr, said
    assert "1 of 4 units failed: power 2, seed 1. The others are kept in" in done.stderr, said
    assert "status 1" in done.stdout, said
    assert "['Done'] ['power 1, seed 0: 25', 'power 1, seed 0: 50']" in done.stdout, said
    assert "a node unlike the first: threads: 2 then, 1 now; expected nodes of one kind" in done.stdout, said
    on_ray = content(checkout)
    here = call(checkout, "-m", "experiments", "tiny", "--force")
    assert here.returncode == 0, here.stderr
    assert content(checkout) == on_ray


@needs_ray
@pytest.mark.parametrize("on", ["auto", "ray://127.0.0.1:1", "127.0.0.1:1"])
def test_a_cluster_that_does_not_answer_is_refused(
    on: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(folder))  # where a cluster of someone else's is not
    assert everything.main(["--on", on, "--force"]) == 2
    error = capsys.readouterr().err
    assert f"experiments: error: on={on}: expected a Ray cluster that answers: " in error
    assert "start one with `ray start --head`, set RAY_AUTH_MODE as" in error
    assert error.count("\n") == 1


def test_a_place_that_is_none_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main("tiny", ["--on", "slurm"]) == 2
    assert "on=slurm: expected ray, auto or ray://HOST:PORT; pass --on ray for a" in capsys.readouterr().err


def test_ray_that_is_not_installed_is_named_with_its_cure(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert runner.main("tiny", ["--on", "ray"]) == 2
    error = capsys.readouterr().err
    assert "on=ray: expected Ray to be installed; pip install -c constraints.txt 'ampsim[ray]'" in error


def test_places_have_a_form() -> None:
    for on in ("ray://head:10001", "10.0.0.1:6379"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(importlib.util, "find_spec", lambda name: name)
            on_ray.check(on)

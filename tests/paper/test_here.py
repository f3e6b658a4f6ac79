"""A reproduction whose data differs succeeds, marks refuted claims, and changes no file."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ampsim.core.json_lines import Record
from ampsim.runs.record import data_file

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git checkout of the working tree."""
    git(ROOT, "rev-parse")
    names = git(
        ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z"
    ).split("\0")
    for name in filter(None, names):
        if (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(
        tmp_path,
        "-c",
        "user.name=a",
        "-c",
        "user.email=a",
        "commit",
        "--quiet",
        "-m",
        "all",
    )
    return tmp_path


def git(folder: Path, *argv: str) -> str:
    command = ["git", *argv]
    done = subprocess.run(  # noqa: S603
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"needs git and a checkout: {done.stderr}")
    return done.stdout


# One process, so that each module is imported once.
COMMANDS = """
import contextlib, importlib, io, json, sys
for package, *argv in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(output):
        status = importlib.import_module(f"{package}.__main__").main(argv)
    print(json.dumps([status, output.getvalue()]))
"""


def run(checkout: Path, *commands: Sequence[str]) -> list[str]:
    """Run commands in order in one process and return their outputs; all must succeed."""
    command = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    done = subprocess.run(  # noqa: S603
        command, cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [status for status, _ in results] == [0] * len(commands), results
    return [output for _, output in results]


def write_changed(
    source: Path, target: Path, change: Callable[[Record], object]
) -> None:
    """Write a data file with changed records, as if made on another processor."""
    origin, rows = data_file.read(source)
    for row in rows:
        change(row)
    origin |= {"device": {"type": "cpu", "name": "another processor"}}
    data_file.write(target, origin, rows)


def remove_crash(row: Record) -> None:
    """Remove the crash of a run, so that the claim of crashes fails."""
    row["crash_step"] = None


def remove_plateau_exit(row: Record) -> None:
    """Keep a run on the plateau, so that a number of the paper has no values to average."""
    row["left_plateau"] = None


@pytest.mark.deep
def test_failed_claim_is_reported_and_marked(checkout: Path) -> None:
    committed, here = (
        checkout / "experiments" / "data" / "cpu",
        checkout / "build" / "here" / "data" / "cpu",
    )
    write_changed(
        committed / "scale_crash.jsonl", here / "scale_crash.jsonl", remove_crash
    )
    write_changed(
        committed / "rules_trained.jsonl",
        here / "rules_trained.jsonl",
        remove_plateau_exit,
    )
    write_changed(
        committed / "ranks_training.jsonl",
        here / "ranks_training.jsonl",
        lambda row: None,
    )
    figures = (
        "figures",
        "scale_crash",
        "rules_trained",
        "--data",
        str(here),
        "--out",
        "build/here/figures",
    )
    commands = (
        figures,
        ("paper", "--here"),
        ("experiments", "records"),
        ("experiments", "claims"),
    )
    _, paper, equal, claims = run(checkout, *commands)
    assert paper.endswith("sentences that do not hold here are marked: crash.none\n")
    assert "1 of the 3 files that can be compared are equal" in equal
    assert (
        "here: 8 of the 9 claims that can be evaluated hold; do not hold: crash.none"
        in claims
    )
    assert git(checkout, "status", "--porcelain") == ""

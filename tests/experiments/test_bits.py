"""The kernels that data is made with, and the digests that tell which bits they give."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import experiments
from ampsim import records
from experiments.__main__ import main
from experiments.runner import bits

ROOT = Path(__file__).parents[2]
ROWS = [records.decode(line) for line in bits.KNOWN.read_text().splitlines()]
# Where OpenBLAS takes Haswell's kernels by itself, as on the EPYC, it need not be told.
COMMON = [row for row in ROWS if {"OPENBLAS_CORETYPE": "Haswell"} | row["settings"] == experiments.KERNELS]


def fresh(*argv: str, **environment: str) -> str:
    """Return what a new process prints, which chooses its kernels itself."""
    kept = {name: value for name, value in os.environ.items() if name not in (*bits.SETTINGS, "AMPSIM_KERNELS")}
    command = [sys.executable, *argv]
    done = subprocess.run(command, env=kept | environment, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout


def test_a_new_process_has_the_common_kernels_or_its_own() -> None:
    show = (
        "-c",
        "import experiments, json, os; print(json.dumps({n: os.environ.get(n) for n in experiments.KERNELS}))",
    )
    assert json.loads(fresh(*show)) == experiments.KERNELS
    assert set(json.loads(fresh(*show, AMPSIM_KERNELS="own")).values()) == {None}


def test_the_common_kernels_give_the_bits_of_every_processor_on_record() -> None:
    """Fails on a processor where they do not: then the sentence in `data/README.md` is wrong."""
    here = json.loads(fresh("-m", "experiments", "bits", "--json"))
    assert len({row["cpu"] for row in COMMON}) >= 2
    if here["versions"] != COMMON[0]["versions"]:
        pytest.skip(f"the digests are of {COMMON[0]['versions']}")
    for row in COMMON:
        assert row["bits"] == here["bits"], row["cpu"]
    assert len(here["bits"]) == 78


def test_other_kernels_are_seen() -> None:
    others = [records.encode(row["bits"]) for row in ROWS if row not in COMMON]
    assert len({*others, records.encode(COMMON[0]["bits"])}) == len(others) + 1


def test_a_difference_is_counted_and_named(tmp_path: Path) -> None:
    known = tmp_path / "bits.jsonl"
    known.write_text(records.encode({"cpu": "X", "settings": {}, "bits": {"exp": "a", "sum": "b", "old": "d"}}) + "\n")
    assert bits.compare({"exp": "a", "sum": "c", "new": "e"}, known) == ["1 of 2 as on X with no settings; not sum"]


def test_the_command_compares_and_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bits"]) == 0
    assert capsys.readouterr().out.count(" of 78 as on ") == len(ROWS)
    assert main(["bits", "--csv"]) == 2
    assert "'--csv': expected bits [--json [NAME]]" in capsys.readouterr().err

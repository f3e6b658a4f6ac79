"""Ctrl-C in a loop: wherever it strikes the loop goes on or is told; nothing hangs, and nothing is half done."""

import subprocess
from pathlib import Path

import pytest

from tests import warm

PROGRAM = Path(__file__).with_name("interrupts.py")


def strikes(*arguments):
    """Run the program; return how often it struck. It ends itself, with every thread's stack, if it hangs."""
    command = [warm.python(), str(PROGRAM), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no hang, nothing half done" in done.stdout
    return int(done.stdout.split()[0])


def test_an_interrupt_wherever_cpython_looks_for_one():
    assert strikes("every") > 300


def test_an_interrupt_at_any_moment():
    assert strikes("moments", "100", "1") == 100


@pytest.mark.deep
def test_an_interrupt_wherever_cpython_looks_for_one_whoever_calls():
    assert strikes("every", "deep") > 1000


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(4))
def test_interrupts_at_10000_moments(seed):
    assert strikes("moments", "2500", str(seed), "deep") == 2500

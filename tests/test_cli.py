"""The command line: exit status 0 good, 1 a finding, 2 wrong use."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ampsim import dialects
from ampsim.cli import app


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


@pytest.mark.parametrize("command", [[], ["traces"], ["traces", "check"], ["dialects"], ["replay"]])
def test_help_everywhere(command: list[str]) -> None:
    code, text = run(*command, "--help")
    assert code == 0
    assert "Usage" in text


def test_module_and_command_are_one_program() -> None:
    done = subprocess.run([sys.executable, "-m", "ampsim", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "No such command" in done.stderr


def test_dialects_lists_all() -> None:
    code, text = run("dialects")
    assert code == 0
    assert all(name in text for name in dialects.names())


def test_replay_prints_each_update() -> None:
    code, text = run("replay", "torch.amp.GradScaler", "0010", "-s", "interval=2", "-s", "init=8")
    assert code == 0
    assert text.split() == ["clean", "8.0", "clean", "16.0", "overflow", "8.0", "clean", "8.0"]


def test_replay_shows_a_scaler_giving_up() -> None:
    code, text = run("replay", "deepspeed.DynamicLossScaler", "111", "-s", "init=2", "-s", "delayed_shift=1")
    assert code == 0
    assert "raises    Exception: Current loss scale already at minimum" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["torch.amp.GradScale", "0"], "did you mean 'torch.amp.GradScaler'"),
        (["torch.amp.GradScaler", "012"], "expected digits 0 (clean) and 1 (overflow)"),
        (["torch.amp.GradScaler", ""], "expected digits"),
        (["torch.amp.GradScaler", "0", "-s", "interval"], "expected NAME=VALUE"),
        (["torch.amp.GradScaler", "0", "-s", "interval=x"], "expected a number"),
        (["torch.amp.GradScaler", "0", "-s", "interval=0"], "to never grow pass growth_factor=1.0"),
        (["torch.amp.GradScaler", "0", "-s", "interval=true"], "expected a whole number"),
        (["torch.amp.GradScaler", "0", "-s", "steps=3"], "has no parameter 'steps'"),
    ],
)
def test_wrong_use_says_what_was_expected(arguments: list[str], said: str) -> None:
    code, text = run("replay", *arguments)
    assert code == 2
    assert said in text
    assert "Traceback" not in text

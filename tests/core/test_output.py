"""A command whose output cannot be written ends with a status, and says why where there is
something to say.
"""

import io
import os
import subprocess
import sys

import pytest

from ampsim.core.output import printable, run_command

PRINT = "from ampsim.core.output import run_command; raise SystemExit(run_command('it', lambda: print('\\u2713') or 3))"


def run(stdout: int, **environment: str) -> "subprocess.CompletedProcess[str]":
    command, environment = [sys.executable, "-c", PRINT], os.environ | environment
    return subprocess.run(  # noqa: S603
        command,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        check=False,
    )


def test_ascii_output_escapes_characters() -> None:
    done = run(subprocess.PIPE, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stdout, done.stderr) == (3, "\\u2713\n", "")


@pytest.mark.parametrize(
    "character",
    [
        "\x1b",
        "\x9b",
        "\x7f",
        "\u202e",
        "\u2066",
        "\u200b",
        "\ufeff",
        "\u2028",
        "\udc80",
    ],
)
def test_invisible_characters_are_escaped(character: str) -> None:
    shown = printable(f"fc{character}.weight")
    assert (
        shown.isprintable(),
        shown.startswith("fc\\"),
        shown.endswith(".weight"),
    ) == (True,) * 3


@pytest.mark.parametrize(
    "text", ["", "fc.weight", "π ≈ 3\n\t", "重み", "a\u00a0b", "🙂"]
)
def test_visible_text_is_unchanged(text: str) -> None:
    assert printable(text) == text


def test_interrupted_command_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert run_command("it", stopped) == 130


def test_closed_stdout_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert run_command("it", lambda: print("lost") or 3) == 3
    sys.stdout.close()


def test_closed_pipe_is_not_an_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run(writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.skipif(
    not os.path.exists("/dev/full"),  # noqa: PTH110
    reason="this system has no full device",
)
def test_full_disk_is_reported() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    done = run(full)
    os.close(full)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "No space left on device" in done.stderr

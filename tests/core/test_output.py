"""A command whose output cannot be written ends with a status and, where there is something to say, a sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampsim.core import output

PRINT = (
    "from ampsim.core.output import run_command; raise SystemExit(run_command('it', lambda: print('\\u2713') or {}))"
)


def run(stdout: int, status: int = 0, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PRINT.format(status)]
    return subprocess.run(  # noqa: S603 - our own code
        command, stdout=stdout, stderr=subprocess.PIPE, env=os.environ | environment, text=True, check=False
    )


@pytest.mark.parametrize("status", [0, 3])
def test_the_status_is_the_commands_and_an_ascii_terminal_gets_an_escape_code(status: int) -> None:
    done = run(subprocess.PIPE, status, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stdout, done.stderr) == (status, "\\u2713\n", "")


def test_a_reader_that_has_gone_is_no_error_to_speak_of() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run(writer, 3)
    os.close(writer)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")  # noqa: PTH110
def test_a_full_disk_is_a_sentence() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    done = run(full)
    os.close(full)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("it: cannot write what was found: [Errno 28] No space left on device; expected")


@pytest.mark.skipif(os.name != "posix", reason="needs devices")
def test_a_terminal_gets_each_line_at_once_and_a_file_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, device = os.openpty()
    for path, at_once in ((Path(os.ttyname(device)), True), (tmp_path / "file", False)):
        with path.open("w", encoding="ascii") as file:
            monkeypatch.setattr(sys, "stdout", file)
            output._open_output()
            assert (sys.stdout.line_buffering, sys.stdout.encoding) == (at_once, "ascii")
    os.close(device)
    os.close(reader)


def test_an_interrupted_command_says_so() -> None:
    code = "import signal; from ampsim.core.output import run_command\n"
    code += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background of a shell
    code += "raise SystemExit(run_command('it', lambda: signal.raise_signal(signal.SIGINT)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "it: stopped\n")

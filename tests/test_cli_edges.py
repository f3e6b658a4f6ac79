"""The command where its output meets the world: a full disk, a reader that has gone, ASCII, a folder, a device."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

posix = pytest.mark.skipif(os.name != "posix", reason="needs a shell and /dev/full")
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
AMPSIM = f"{shlex.quote(sys.executable)} -m ampsim"
TRACE = "tests/traces/overflow_on_first_update.jsonl"
CHECK = "-m ampsim check torch.amp:GradScaler --check a_refused_state_dict_changes_nothing -n 5 --time-limit 0"


def shell(command: str, **environment: str) -> tuple[int, str, str]:
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(  # noqa: S603
        ["bash", "-o", "pipefail", "-c", command],  # noqa: S607
        capture_output=True, text=True, check=False, cwd=root, env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@posix
@pytest.mark.parametrize("command", ["dialects", "--help", "lint --rules", "lint --help"])
def test_a_reader_that_has_gone_is_no_failure(command: str) -> None:
    assert shell(f"{AMPSIM} {command} | true") == (0, "", "")


@FULL
@pytest.mark.parametrize("command", ["dialects", "lint --rules"])
def test_a_full_disk_is_a_sentence(command: str) -> None:
    code, _, said = shell(f"{AMPSIM} {command} > /dev/full")
    assert code == 2
    assert said == "ampsim: cannot write what was found: [Errno 28] No space left on device; expected room for it\n"


@posix
def test_a_closed_output_is_no_failure() -> None:
    assert shell(f"{AMPSIM} traces check {TRACE} >&-")[0] == 0


@FULL
def test_what_was_found_is_printed_where_the_report_cannot_be_written_and_in_ascii() -> None:
    pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
    code, printed, said = shell(f"{warm.python()} {CHECK} --report md --out /dev/full", PYTHONIOENCODING="ascii")
    assert code == 2
    assert said == "ampsim: [Errno 28] No space left on device: '/dev/full'\n"
    assert "a_refused_state_dict_changes_nothing  failed" in printed
    assert "torch.amp:GradScaler: 1 failed of 1 checks" in printed


def test_what_an_encoding_lacks_is_an_escape_code() -> None:
    code, printed, _ = shell(f"{AMPSIM} replay --help", PYTHONIOENCODING="ascii")
    assert (code, "Usage" in printed) == (0, True)
    code, _, said = shell(f"{AMPSIM} replay ünbekannt 01", PYTHONIOENCODING="ascii")
    assert (code, "unknown dialect '\\xfcnbekannt'" in said) == (2, True)


def test_the_folder_that_a_scaler_is_judged_in_stays_as_it_was(tmp_path: Path) -> None:
    assert shell(f"cd {shlex.quote(str(tmp_path))} && {warm.python()} {CHECK}")[0] == 1  # as known of torch's
    assert [*tmp_path.iterdir()] == []

"""Environments of peers: one that is missing, half built, of other pins, or cannot be had; and versions not read."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ampsim.peers import REGISTRY, connect, environments, load
from ampsim.peers.__main__ import main
from ampsim.peers.build import BuildError, _reason, build_all, interpreter
from ampsim.peers.environments import NoEnvironmentError
from ampsim.peers.peer import is_pinned

SATISFIED = ["--help"]  # installs nothing, and succeeds
TABLES = {
    "broken": {"stages": [["--no-index", "no-such-package==1.0"]], "seconds": 1},
    "good": {"stages": [SATISFIED], "seconds": 1, "variables": {"LEVEL": "2"}},
    "never": {"unavailable": "its newest wheel is [cp36]", "stages": [], "seconds": 1},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AMPSIM_PEERS", str(tmp_path))
    monkeypatch.setattr(environments, "tables", lambda: TABLES)
    return tmp_path


def half_built(home: Path, name: str) -> None:
    """What is left when a build is interrupted in its first stage."""
    (home / name / "bin").mkdir(parents=True)
    (home / name / "bin" / "python").symlink_to(sys.executable)
    (home / name / "bin" / "pip").touch()


def test_a_build_that_ended_within_venv_begins_anew(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half_built(home, "good")
    (home / "good" / "bin" / "pip").unlink()
    ran: list[str] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(command[2])
        return subprocess.CompletedProcess(command, 0, "")

    monkeypatch.setattr("ampsim.peers.build.subprocess.run", run)
    assert build_all(["good"], Console(file=io.StringIO())) == {}
    assert ran[0] == "venv"


def test_a_python_is_one_on_the_path_or_pyenvs_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim, there = tmp_path / "bin" / "python9.9", tmp_path / "versions" / "9.9.1" / "bin" / "python"
    monkeypatch.setenv("PATH", str(shim.parent))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert [interpreter(each) for each in (None, ours)] == [sys.executable] * 2
    for path, status in ((shim, 127), (there, 0)):
        with pytest.raises(
            BuildError, match=r"^no Python 9\.9 on the path; install one, such as with `pyenv install 9"
        ):
            interpreter("9.9")
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\nexit {status}\n")
        path.chmod(0o755)
    assert interpreter("9.9") == str(there)
    monkeypatch.setenv("PYENV_ROOT", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "versions").rename(tmp_path / "home" / "versions")
    (tmp_path / "home").rename(tmp_path / ".pyenv")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert interpreter("9.9") == str(tmp_path / ".pyenv" / there.relative_to(tmp_path))
    shim.write_text("#!/bin/sh\nexit 0\n")
    assert interpreter("9.9") == str(shim)


def test_an_environment_that_is_not_whole_is_refused_with_the_cure(home: Path) -> None:
    with pytest.raises(NoEnvironmentError, match=r"environment good in .* is missing: run `make peers`, or python -m"):
        environments.python("good")
    half_built(home, "good")
    with pytest.raises(NoEnvironmentError, match="is half built"):
        environments.python("good")
    (home / "good" / environments.STAMP).write_text("of other pins")
    with pytest.raises(NoEnvironmentError, match="is outdated"):
        environments.python("good")
    (home / "good" / environments.STAMP).write_text(environments.stamp("good"))
    assert environments.python("good") == str(home / "good" / "bin" / "python")
    assert environments.python("main") == sys.executable


def test_a_folder_is_the_same_from_any_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AMPSIM_PEERS", "elsewhere")
    assert environments.folder() == tmp_path / "elsewhere"
    monkeypatch.setenv("AMPSIM_PEERS", "")
    assert environments.folder() == Path(environments.__file__).parents[2] / ".peers"


def test_a_build_goes_on_where_it_ended_and_past_what_cannot_be_had(home: Path) -> None:
    half_built(home, "good")
    half_built(home, "broken")
    text = io.StringIO()
    failed = build_all([*TABLES], Console(file=text, width=200))
    assert environments.state("good") == "ready"
    assert environments.state("broken") == "half built"
    assert not (home / "good" / "bin" / "pip").stat().st_size, "what was there has stayed"
    assert failed["never"] == "its newest wheel is [cp36]"
    assert "ERROR: Could not find a version that satisfies the requirement no-such-package==1.0" in failed["broken"]
    assert "good: built" in text.getvalue()
    before = (home / "good.log").stat().st_mtime_ns
    assert build_all(["good"], Console(file=text)) == {}
    assert (home / "good.log").stat().st_mtime_ns == before, "what is ready is not built again"


def test_the_command_says_how_far_each_is_and_fails_where_one_could_not_be_had(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half_built(home, "broken")
    (home / "good").mkdir()
    (home / "good" / environments.STAMP).write_text(environments.stamp("good"))
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "broken: half built; peers: ", "good: ready; peers: ", "never: missing; peers: "
    ]  # fmt: skip
    assert main(["--list", "broken"]) == 0
    assert capsys.readouterr().out == "broken: half built; peers: \n"
    assert main(["good"]) == 0
    assert main(["good", "never"]) == 1
    assert "never could not be had: its newest wheel is [cp36]" in capsys.readouterr().out
    (home / "broken" / environments.STAMP).write_text(environments.stamp("broken"))
    assert main([]) == 1
    assert capsys.readouterr().out.splitlines()[-4:-1] == [
        "broken: ready; peers: ", "good: ready; peers: ", "never: missing; peers: "
    ]  # fmt: skip
    assert main(["good", "other"]) == 2
    assert capsys.readouterr().out == "no environment other; there are broken, good, never\n"
    assert main(["--all", "other"]) == 2
    assert capsys.readouterr().out == "no environment --all, other; there are broken, good, never\n"


def test_the_command_has_a_line_for_each_environment_however_many_peers_it_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--list", "numpy2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"numpy2: {environments.state('numpy2')}; peers: "
        + ", ".join(name for name, peer in REGISTRY.items() if peer.environment == "numpy2")
    ]


def test_the_reason_is_the_error_or_what_was_said_last() -> None:
    assert _reason("collecting\nERROR: no such package\nERROR: nothing was installed\n") == "ERROR: no such package"
    assert _reason("collecting\n killed \n\n") == "killed"
    assert _reason("without an ERROR\nkilled") == "killed"
    assert _reason("\n") == "it said nothing"


def test_a_peer_without_its_environment_or_name_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("AMPSIM_PEERS", str(home))
    with pytest.raises(NoEnvironmentError, match=r"environment deepspeed in .* is missing"):
        connect("deepspeed")
    with pytest.raises(KeyError, match="no peer 'torsh'; there are accelerate, "):
        connect("torsh")


def test_every_peer_names_an_environment_that_there_is_and_a_pin() -> None:
    for name in REGISTRY:
        peer = load(name)
        assert peer.name == name
        assert peer.environment in {"main", *environments.tables()}
        assert peer.requirement.count("==") == 1


def test_a_version_that_was_not_read_is_told_from_the_pinned_one() -> None:
    peer = load("torch")()
    assert is_pinned(peer, "2.13.0")
    assert is_pinned(peer, "2.13.0+cpu")
    assert not is_pinned(peer, "2.13.1")
    assert not is_pinned(peer, "2.13")
    assert not is_pinned(peer, "2.14.0+cpu")

"""Environments that are not whole and unknown frameworks are refused; versions are compared."""

import os
import sys
from pathlib import Path

import pytest

from ampsim.peers import REGISTRY, connect, environments, load
from ampsim.peers.__main__ import main
from ampsim.peers.build import BuildError, interpreter
from ampsim.peers.environments import NoEnvironmentError
from ampsim.peers.peer import is_pinned


def test_an_environment_must_be_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPSIM_PEERS", str(tmp_path))
    home = tmp_path / "deepspeed"
    with pytest.raises(NoEnvironmentError, match="missing"):
        connect("deepspeed")
    home.mkdir()
    with pytest.raises(NoEnvironmentError, match="half built"):
        environments.python("deepspeed")
    (home / environments.STAMP).write_text("of other pins")
    with pytest.raises(NoEnvironmentError, match="outdated"):
        environments.python("deepspeed")
    (home / environments.STAMP).write_text(environments.stamp("deepspeed"))
    assert environments.python("deepspeed") == str(home / "bin" / "python")
    assert environments.python("main") == sys.executable


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(KeyError, match="torsh"):
        connect("torsh")


@pytest.mark.parametrize("name", REGISTRY)
def test_a_peer_names_its_environment(name: str) -> None:
    peer = load(name)
    assert peer.name == name
    assert peer.environment in {"main", *environments.tables()}
    assert peer.requirement.count("==") == 1


def test_another_version_is_not_the_pinned() -> None:
    peer = load("torch")()
    assert is_pinned(peer, "2.13.0")
    assert is_pinned(peer, "2.13.0+cpu")
    for other in ("2.13.1", "2.13", "2.14.0+cpu"):
        assert not is_pinned(peer, other)


FAKE = """#!/bin/sh
[ "$2" = venv ] && mkdir -p "$4/bin" && cp "$0" "$4/bin/python" && touch "$4/bin/pip"
[ "$2" = pip ] && echo "$FLAG $5 $6" >> "$LOG"
case "$*" in *wrong*) echo "resolving"; echo "ERROR: no such version"; echo "bye"; exit 1;; esac
"""


@pytest.mark.skipif(os.name != "posix", reason="stands in for a Python as a script of a shell")
def test_an_environment_is_built_of_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = [["one"], ["two", "wrong"]]
    tiny = {"python": "0.1", "stages": stages, "variables": {"FLAG": "on"}, "seconds": 1}
    tables = {"tiny": tiny, "gone": {"unavailable": "withdrawn", "seconds": 1}}
    monkeypatch.setattr(environments, "tables", lambda: tables)
    (tmp_path / "python0.1").write_text(FAKE)
    (tmp_path / "python0.1").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("AMPSIM_PEERS", str(tmp_path / "peers"))
    monkeypatch.setenv("LOG", str(log := tmp_path / "log"))
    assert main(["tiny", "gone"]) == 1
    said = capsys.readouterr().out
    assert "tiny could not be had: ERROR: no such version" in said
    assert "gone could not be had: withdrawn" in said
    assert environments.state("tiny") == "half built"
    stages[1] = ["two", "right"]
    assert [main(["tiny"]), main(["tiny"]), environments.state("tiny")] == [0, 0, "ready"]
    assert log.read_text().splitlines() == ["on one ", "on two wrong", "on one ", "on two right"]
    stages[1] = ["two", "anew"]
    (rest := tmp_path / "peers/tiny/rest").touch()
    assert [main(["--list", "tiny"]), environments.state("tiny")] == [0, "outdated"]
    assert [main(["tiny"]), environments.state("tiny"), rest.exists()] == [0, "ready", False]
    assert [main(["tiny", "nowhere"]), environments.variables("tiny")] == [2, {"FLAG": "on"}]


def test_an_interpreter_is_of_the_version_that_is_asked() -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert interpreter(None) == interpreter(here) == sys.executable
    with pytest.raises(BuildError, match=r"no Python 0\.7"):
        interpreter("0.7")
    with pytest.raises(BuildError):
        interpreter(here[:-1] if len(here) > 3 else "0.8")  # no part of a version's number

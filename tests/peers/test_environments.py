"""Environments that are not whole and unknown frameworks are refused; versions are compared."""

import sys
from pathlib import Path

import pytest

from ampsim.peers import REGISTRY, connect, environments, load
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

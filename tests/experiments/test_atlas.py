"""The committed verdicts, and peers that cannot run here."""

import pytest

from ampsim import peers
from ampsim.peers.environments import NoEnvironmentError
from ampsim.peers.laws import LAWS
from ampsim.peers.laws.judging import promise
from ampsim.peers.wire import PeerRaisedError
from experiments import atlas, runner
from figures import results
from figures.atlas_page import parts

DATA = {row["arm"]: row for row in results.load("atlas").records}
PEERS = [row for row in DATA.values() if row["arm"] != "laws"]
RUN = [row for row in PEERS if row["version"]]


def test_the_laws_of_today_were_asked_of_every_peer_that_ran() -> None:
    assert DATA["laws"]["sentences"] == {name: law.law for name, law in LAWS.items()}
    assert DATA["laws"]["promises"] == {name: promise(name) for name in LAWS}
    assert RUN
    for row in RUN:
        assert row["laws"].keys() == LAWS.keys()


def test_every_broken_law_has_a_test_that_fails_where_the_peer_is() -> None:
    for row in RUN:
        for found in row["laws"].values():
            assert ("test" in found) == (found["outcome"] == "failed")
            assert found.get("fails_by") not in ("", "NameError", "SyntaxError", "TypeError")
            assert found["outcome"] != "unexpected pass"
            assert "ampsim" not in found.get("test", "").replace(row["target"], "") or "ampsim" in row["arm"]


@pytest.mark.parametrize("error", [NoEnvironmentError("run `make peers`"), PeerRaisedError("x", "ImportError", "no x")])
def test_a_peer_that_cannot_run_keeps_its_committed_record(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise error

    monkeypatch.setattr(peers, "connect", refuse)
    name = RUN[0]["arm"]
    config = atlas.Config(peers=(name,))
    row = atlas.run(config, atlas.Arm(name), 0, "cpu", lambda step: None)
    assert row.items() <= DATA[name].items()
    monkeypatch.setattr(runner, "DATA", runner.DATA / "nowhere")
    row = atlas.run(config, atlas.Arm(name), 0, "cpu", lambda step: None)
    assert (row["version"], row["laws"], row["not_run"]) == (None, {}, row["not_run"])
    assert atlas.table([{"arm": name, **row}]).row_count == 1


def test_the_page_holds_every_peer_and_every_law() -> None:
    laws, rows = parts(results.load("atlas"))
    assert (list(laws), list(rows)) == (list(LAWS), PEERS)

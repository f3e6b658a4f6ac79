"""The committed verdicts, and peers that cannot run here."""

import pytest

from ampsim import peers
from ampsim.peers.environments import NoEnvironmentError
from ampsim.peers.wire import PeerRaisedError
from experiments import atlas, runner
from figures import results

DATA = {row["arm"]: row for row in results.load("atlas").records}
PEERS = [row for row in DATA.values() if row["arm"] != "laws"]
RUN = [row for row in PEERS if row["version"]]


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

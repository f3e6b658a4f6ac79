"""The verdicts of a peer that cannot run here stay as they were."""

import pytest

from ampsim import peers
from ampsim.peers.environments import NoEnvironmentError
from ampsim.peers.wire import PeerRaisedError
from experiments import atlas
from figures import results

DATA = {row["arm"]: row for row in results.load("atlas").records}
PEERS = [row for row in DATA.values() if row["arm"] != "laws"]
RUN = [row for row in PEERS if row["version"]]


@pytest.mark.parametrize("error", [NoEnvironmentError("run `make peers`"), PeerRaisedError("x", "ImportError", "no x")])
def test_a_missing_peer_keeps_its_record(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise error

    monkeypatch.setattr(peers, "connect", refuse)
    name = RUN[0]["arm"]
    config = atlas.Config(peers=(name,))
    row = atlas.run(config, atlas.Arm(name), 0, "cpu", lambda step: None)
    assert row.items() <= DATA[name].items()

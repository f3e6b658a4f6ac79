"""Peers of torch's kind, each run for real where its package is in the project's environment."""

import pytest

from ampsim import dialects, init, update
from ampsim.peers import load, names

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
INF = float("inf")
MAIN = [name for name in names() if load(name).environment == "main"]


@pytest.mark.parametrize("name", MAIN)
def test_a_peer_goes_the_way_of_its_dialect(name: str) -> None:
    peer = load(name)()
    peer.start(init_scale=1024.0, growth_interval=2)
    rule = dialects.get(str(peer.dialect), init=1024.0, interval=2)
    state = init(rule)
    for overflow in (0, 0, 1, 0, 1, 1, 0, 0):
        step = peer.step([INF if overflow else 3.0 * state.scale])
        assert step.used == state.scale
        assert step.stepped is not bool(overflow)
        assert step.unscaled == (None if overflow else (3.0,))
        state = update(rule, state, bool(overflow))
        assert step.scale == state.scale

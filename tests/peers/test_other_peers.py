"""Peers that are not of torch's kind, each run for real: those of the project's environment, and others once built."""

import importlib.util
from collections.abc import Iterator

import pytest

from ampsim import dialects, init, update
from ampsim.peers import connect, load
from ampsim.peers.environments import state as environment_state
from ampsim.peers.peer import Peer, is_pinned

INF = float("inf")
MAIN = ["ampsim-jax", "flax", "jmp", "jmp-jit"]
ELSEWHERE = [
    *(
        "chainer",
        "fairscale-layerwise",
        "fairscale-sharded",
        "jaxamp",
        "keras-jax",
        "keras-tensorflow",
        "keras-torch",
        "mindspore-amp",
    ),
    *("mindspore-cell", "mindspore-manager", "mpx", "mxnet", "nnabla", "paddle", "paddle-kernel", "tensorflow-v1"),
    "tf-keras",
]
DIVIDES_WRONGLY = {"fairscale-layerwise", "mpx"}  # defects of theirs, which a law finds


@pytest.fixture
def peer(name: str) -> Iterator[Peer]:
    """The peer in this process if its environment is ours, else in its own; skip with what makes it."""
    kind = load(name)
    if kind.environment != "main":
        if (found := environment_state(kind.environment)) != "ready":
            pytest.skip(f"{name}'s environment is {found}: make peers")
        with connect(name) as remote:
            yield remote
        return
    package = kind.target.partition(".")[0]
    if importlib.util.find_spec(package) is None or importlib.util.find_spec("jax") is None:
        pytest.skip(f"needs {package}: pip install -c constraints.txt 'ampsim[peers]'")
    yield kind()


@pytest.mark.parametrize("name", [*MAIN, *ELSEWHERE])
def test_a_peer_goes_the_way_of_its_dialect(name: str, peer: Peer) -> None:
    wanted = {"init": 1024.0, "interval": 2}
    given = {mine: wanted[theirs] for mine, theirs in peer.constants.items() if theirs in wanted}
    peer.start(**given)
    rule = dialects.get(str(peer.dialect), **peer.options, **wanted)
    state = init(rule)
    assert peer.scale_loss(3.0) == 3.0 * state.scale
    for overflow in (0, 0, 1, 0, 1, 1, 0, 0, 0):
        step = peer.step([INF if overflow else 3.0 * state.scale, 0.0])
        assert step.used == state.scale
        if step.stepped is not None:
            assert step.stepped is not bool(overflow)
        if not overflow and step.unscaled is not None and name not in DIVIDES_WRONGLY:
            assert step.unscaled == pytest.approx((3.0, 0.0), rel=2.0**-22)
        state = update(rule, state, bool(overflow))
        assert step.scale == state.scale
    assert is_pinned(peer, peer.version())


@pytest.mark.parametrize("name", ["ampsim-jax", "flax", "jmp", "keras-jax", "paddle", "tf-keras"])
def test_a_saved_state_brings_the_scale_back_whatever_the_number_of_gradients(peer: Peer) -> None:
    peer.start()
    before, state = peer.get_scale(), peer.state_dict()
    assert [peer.step([INF] * size).stepped for size in (1, 3)] == [False, False]
    assert peer.get_scale() == before / 4
    peer.load_state_dict(state)
    assert peer.get_scale() == before

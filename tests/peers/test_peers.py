"""Every peer run for real: always those of the project's environment, the others where they are built."""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator

import pytest

from ampsim import init, update
from ampsim.peers import REGISTRY, connect, load
from ampsim.peers.environments import state as environment_state
from ampsim.peers.laws.subject import constants, fields, followed
from ampsim.peers.peer import Peer, is_pinned

INF = float("inf")
DIVIDE_BY_THE_NEXT = {"colossalai", "deepspeed-fp16", "deepspeed-unfused", "mpx"}  # defects of theirs: a law finds them
DIVIDES_OTHERWISE = {"fairscale-layerwise"}
WANTED = {"init_scale": 1024.0, "growth_interval": 2}


@contextlib.contextmanager
def quickly_compiled() -> Iterator[None]:
    import jax  # seconds, so only for peers that need it

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    """The peer in this process if its environment is ours, else in its own; skip with what makes it."""
    kind = load(name := request.param)
    if kind.environment != "main":
        if (found := environment_state(kind.environment)) != "ready":
            pytest.skip(f"{name}'s environment is {found}: make peers")
        with connect(name) as remote:
            yield remote
        return
    needs = [kind.target.partition(".")[0], *["jax"] * (name in ("ampsim-jax", "flax", "jmp", "jmp-jit"))]
    if missing := [each for each in needs if importlib.util.find_spec(each) is None]:
        pytest.skip(f"needs {missing[0]}: pip install -c constraints.txt 'ampsim[peers]' '{kind.requirement}'")
    if "jax" in needs:
        with quickly_compiled():
            yield kind()
        return
    yield kind()
    if "torch.distributed" in sys.modules and sys.modules["torch.distributed"].is_initialized():
        sys.modules["torch.distributed"].destroy_process_group()  # later tests of this process would meet it


@pytest.mark.filterwarnings("ignore")  # their own
@pytest.mark.parametrize("peer", REGISTRY, indirect=True)
def test_a_peer_goes_the_way_of_its_dialect(peer: Peer) -> None:
    given = constants(peer, {each: value for each, value in WANTED.items() if each in fields(peer)})
    peer.start(**given)
    rule = followed(peer, given)
    assert rule is not None
    state = init(rule)
    assert peer.scale_loss(3.0) == 3.0 * state.scale
    for overflow in (0, 0, 1, 0, 1, 1, 0, 0, 0):
        step = peer.step([INF if overflow else 3.0 * state.scale, 0.0])
        assert step.used == state.scale
        if step.stepped is not None:
            assert step.stepped is not bool(overflow)
        state = update(rule, state, bool(overflow))
        assert step.scale == state.scale
        if not overflow and step.unscaled is not None and peer.name not in DIVIDES_OTHERWISE:
            divisor = step.scale if peer.name in DIVIDE_BY_THE_NEXT else step.used
            assert step.unscaled == pytest.approx((3.0 * step.used / divisor, 0.0), rel=2.0**-22)
    assert is_pinned(peer, peer.version())


@pytest.mark.parametrize("peer", ["flax", "keras-jax", "tf-keras"], indirect=True)
def test_a_saved_state_brings_the_scale_back(peer: Peer) -> None:
    peer.start()
    before, state = peer.get_scale(), peer.state_dict()
    assert [peer.step([INF] * size).stepped for size in (1, 3)] == [False, False]
    assert peer.get_scale() == before / 4
    peer.load_state_dict(state)
    assert peer.get_scale() == before

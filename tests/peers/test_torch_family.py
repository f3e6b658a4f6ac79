"""Peers of torch's kind run for real: always those of the project's environment, the others where they are built."""

import importlib.util
import sys
from collections.abc import Iterator

import pytest

from ampsim import dialects, init, update
from ampsim.peers import connect, load
from ampsim.peers.environments import state as environment_state
from ampsim.peers.peer import Peer, is_pinned

INF = float("inf")
ELSEWHERE = [
    *("bmtrain", "colossalai", "composer", "deepspeed", "deepspeed-fp16", "deepspeed-unfused", "fairseq", "megatron"),
    *("mmcv", "nemo"),
]
DIVIDE_BY_THE_NEXT = {"colossalai", "deepspeed-fp16", "deepspeed-unfused"}  # deepspeedai/DeepSpeed#8588, and its kind
MAIN = ["accelerate", "ampsim-torch", "lightning", "roundpipe", "torch", "torch-sharded"]


def opened(name: str) -> Peer:
    """The peer in this process if its environment is ours, else in its own; skip with what makes it."""
    kind = load(name)
    if kind.environment != "main":
        if (found := environment_state(kind.environment)) != "ready":
            pytest.skip(f"{name}'s environment is {found}: make peers")
        return connect(name)
    package = kind.target.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install -c constraints.txt '{kind.requirement}'")
    return kind()


@pytest.fixture(autouse=True)
def no_group_stays() -> Iterator[None]:
    """Destroy the group of one process that a sharded scaler needs, which later tests of this process would meet."""
    yield
    if "torch.distributed" in sys.modules and sys.modules["torch.distributed"].is_initialized():
        sys.modules["torch.distributed"].destroy_process_group()


def values(peer: Peer) -> dict[str, float]:
    """Constants under which a short history grows and backs off, by the peer's names and by the dialect's."""
    wanted = {"init_scale": 1024.0, "growth_interval": 2, "min_scale": 256.0}
    return {name: wanted[name] for name in peer.constants if name in wanted}


@pytest.mark.filterwarnings("ignore")  # their own
@pytest.mark.parametrize("name", [*MAIN, *[pytest.param(each, marks=pytest.mark.deep) for each in ELSEWHERE]])
def test_a_peer_goes_the_way_of_its_dialect(name: str) -> None:
    peer = opened(name)
    given = values(peer)
    peer.start(**given)
    rule = dialects.get(str(peer.dialect), **{peer.constants[each]: value for each, value in given.items()})
    state = init(rule)
    for overflow in (0, 0, 1, 0, 1, 1, 0, 0, 0):
        step = peer.step([INF if overflow else 3.0 * state.scale, 0.0])
        state = update(rule, state, bool(overflow))
        assert step.scale == state.scale
        if step.stepped is not None:
            assert step.stepped is not bool(overflow)
        if not overflow and step.unscaled is not None:
            divisor = step.scale if name in DIVIDE_BY_THE_NEXT else step.used
            assert step.unscaled == (3.0 * step.used / divisor, 0.0)
    assert is_pinned(peer, peer.version())

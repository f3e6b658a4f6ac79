"""Each adapter run for real, where its package is installed."""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator

import pytest

from ampsim import init, update
from ampsim.frameworks import REGISTRY, load
from ampsim.frameworks.adapter import Adapter, is_pinned
from ampsim.frameworks.checks.subject import dialect_rule, rule_fields, start_arguments

INF = float("inf")
ON_JAX = {"ampsim-jax", "flax", "jaxamp", "jmp", "jmp-jit", "keras-jax", "mpx"}
DIVIDE_BY_THE_NEXT = {
    "deepspeed-fp16",
    "deepspeed-unfused",
    "mpx",
}  # defects of theirs: a check finds them
DIVIDES_OTHERWISE = {"fairscale-layerwise"}
WANTED = {"init_scale": 1024.0, "growth_interval": 2}


@contextlib.contextmanager
def quickly_compiled() -> Iterator[None]:
    import jax  # seconds, so only for adapters that need it

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def adapter(request: pytest.FixtureRequest) -> Iterator[Adapter]:
    """The adapter; skip with what installs its package."""
    kind = load(request.param)
    needs = [kind.target.partition(".")[0], *["jax"] * (kind.name in ON_JAX)]
    if missing := [each for each in needs if importlib.util.find_spec(each) is None]:
        pytest.skip(f"needs {missing[0]}: make frameworks")
    if "jax" in needs:
        with quickly_compiled():
            yield kind()
        return
    yield kind()
    if (
        "torch.distributed" in sys.modules
        and sys.modules["torch.distributed"].is_initialized()
    ):
        sys.modules[
            "torch.distributed"
        ].destroy_process_group()  # later tests of this process would meet it


@pytest.mark.filterwarnings("ignore")  # their own
@pytest.mark.parametrize("adapter", REGISTRY, indirect=True)
def test_framework_scaler_follows_its_dialect(adapter: Adapter) -> None:
    given = start_arguments(
        adapter,
        {each: value for each, value in WANTED.items() if each in rule_fields(adapter)},
    )
    adapter.start(**given)
    rule = dialect_rule(adapter, given)
    assert rule is not None
    state = init(rule)
    assert adapter.scale_loss(3.0) == 3.0 * state.scale
    for overflow in (0, 0, 1, 0, 1, 1, 0, 0, 0):
        step = adapter.step([INF if overflow else 3.0 * state.scale, 0.0])
        assert step.used == state.scale
        if step.stepped is not None:
            assert step.stepped is not bool(overflow)
        state = update(rule, state, bool(overflow))
        assert step.scale == state.scale
        if (
            not overflow
            and step.unscaled is not None
            and adapter.name not in DIVIDES_OTHERWISE
        ):
            divisor = step.scale if adapter.name in DIVIDE_BY_THE_NEXT else step.used
            assert step.unscaled == pytest.approx(
                (3.0 * step.used / divisor, 0.0), rel=2.0**-22
            )
    assert is_pinned(adapter, adapter.version())


@pytest.mark.filterwarnings("ignore")  # their own
@pytest.mark.parametrize("adapter", ["flax", "keras-jax"], indirect=True)
def test_saved_state_restores_scale(adapter: Adapter) -> None:
    adapter.start()
    before, state = adapter.get_scale(), adapter.state_dict()
    assert [adapter.step([INF] * size).stepped for size in (1, 3)] == [False, False]
    assert adapter.get_scale() == before / 4
    adapter.load_state_dict(state)
    assert adapter.get_scale() == before


@pytest.mark.parametrize("name", REGISTRY)
def test_adapter_pins_package_version(name: str) -> None:
    adapter = load(name)
    assert (adapter.name, adapter.requirement.count("==")) == (name, 1)


def test_unknown_framework_raises() -> None:
    with pytest.raises(KeyError, match="torsh"):
        load("torsh")


def test_other_version_is_not_pinned() -> None:
    adapter = load("torch")()
    assert is_pinned(adapter, "2.13.0")
    assert is_pinned(adapter, "2.13.0+cpu")
    for other in ("2.13.1", "2.13", "2.14.0+cpu"):
        assert not is_pinned(adapter, other)

# ruff: noqa: E501 - a table of calls
"""What the JAX scaler does and says, to the last bit, as it is committed: `python -m tests.golden jax` writes it anew."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ampsim.jax
from ampsim import Rule, State
from ampsim.core.machine import Arithmetic
from ampsim.core.policies import Headroom, Probe
from ampsim.core.quirks import StreakStartsAt
from ampsim.jax import LossScale, all_finite, interop, select_tree
from ampsim.jax.loss_scale import DEVIATIONS
from ampsim.jax.policy import PolicyScale
from ampsim.jax.sweep import sweep, sweep_policies
from tests.golden import agree, defaults

GOLDEN = Path(__file__).parent / "golden"


def shown(value: Any) -> str:
    """Return a value with each number's bits, and the types of arrays."""
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return f"{value.dtype}{tuple(value.shape)} {np.asarray(value).astype(np.float64).tolist() if value.dtype.kind in 'fVb' else value.tolist()}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    return f"{value!r}"


def said(call: Callable[[], Any]) -> str:
    try:
        return shown(call())
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def stable(text: str) -> str:
    return re.sub(r"frozenset\(\{([^}]*)\}\)", lambda found: "{" + ", ".join(sorted(found[1].split(", "))) + "}", text)


RULES = {
    "torch": Rule(init_scale=8.0, growth_interval=2),
    "patient": Rule(init_scale=8.0, growth_interval=2, hysteresis=2, min_scale=2.0, max_scale=16.0),
    "late": Rule(init_scale=8.0, growth_interval=1, delay=2),
    "divides": Rule(
        init_scale=7.0,
        growth_factor=3.0,
        backoff_factor=1 / 3,
        growth_interval=2,
        arithmetic=Arithmetic(backoff="divide"),
    ),
}
HISTORY = [False, True, True, False, False, True, False, False, False]


def test_what_becomes_of_a_scale() -> None:
    found = {}
    for name, rule in RULES.items():
        scale, states = LossScale.create(rule), []
        for flag in HISTORY:
            scale = scale.update(jnp.array(flag))
            states.append(scale.state)
        by_hand = scale.override(4.0), scale.override(6.0, synchronous=True), scale.update(math.nan, synchronous=True)
        states += [each.state for each in by_hand]
        lines = [f"{each.scale!r} {each.growth_tracker} {each.overflow_tracker} {each.pending}" for each in states]
        found[name] = "\n".join([*lines, f"newest {float(scale.newest)!r}"])
    policy = PolicyScale.create(Probe(growth_interval=2))
    for flag in (True, False, False):
        policy = policy.update(flag)
    found["policy"] = shown(
        [np.asarray(each) for each in (policy.loss_scale, policy.newest, policy.override(3.0).loss_scale)]
    )
    agree(GOLDEN / "scales.txt", found)


def test_what_is_multiplied_and_divided() -> None:
    scale = LossScale.create(Rule(init_scale=1024.0))
    tree = {
        "half": jnp.array([1.0, 2.0**-20, 100.0], jnp.float16), "bfloat16": jnp.array([1.0, 3.0], jnp.bfloat16),
        "float32": jnp.array([0.1, jnp.inf, 2.0**-120]), "integer": jnp.array([3]), "flag": jnp.array(True), "number": 2.5, "word": None,
        "complex": jnp.array([1 + 2j]), "_overwrite_with_gradient": {"fp8": jnp.array([3.0])},
    }  # fmt: skip
    without = {name: value for name, value in tree.items() if name not in ("complex", "word")}
    found = {
        "scale": shown({name: scale.scale(value) for name, value in without.items()}), "unscale": shown(scale.unscale(without)),
        "widen": shown(scale.unscale(without, widen=True)), "complex": f"{scale.scale(tree['complex'])} {scale.unscale(tree['complex'])}",
        "zero": shown(LossScale.from_state(Rule(), State(0.0)).unscale(jnp.ones(2))),
        "third": shown(LossScale.from_state(Rule(), State(3.0)).unscale(jnp.array([1.0, 9.0]))),
        "finite": shown([bool(all_finite(each)) for each in (tree["float32"], {"a": jnp.ones(2)}, {}, [jnp.array([3])], jnp.array([jnp.nan]), [jnp.ones(1), -jnp.inf])]),
        "select": shown([select_tree(jnp.array(flag), {"a": 1.0, "b": jnp.ones(1)}, {"a": 2.0, "b": jnp.zeros(1)}) for flag in (True, False)]),
        "off": shown(LossScale.create(enabled=False).update(True).state.scale),
    }  # fmt: skip
    result = scale.value_and_grad(lambda x, y: (x * x * y, {"aux": y}), has_aux=True)(jnp.float32(3.0), 2.0)
    found["gradient"] = shown(
        [result.loss_scale.state.scale, result.loss_scale.state.growth_tracker, result.finite, result.aux, result.grad]
    )
    agree(
        GOLDEN / "multiplied.txt",
        {**found, "deviations": "\n".join(f"{name}: {text}" for name, text in DEVIATIONS.items())},
    )


def test_what_goes_to_others_and_comes_back() -> None:
    late = LossScale.from_state(RULES["late"], State(8.0, 0, 0, (4.0,)))
    divided = Rule(8.0, min_scale=1.0, arithmetic=Arithmetic(backoff="divide", round_factors=True))
    flax = SimpleNamespace(
        growth_factor=2.0, backoff_factor=0.5, growth_interval=4, fin_steps=3, scale=jnp.float32(8.0), minimum_scale=1.0
    )
    jmp = SimpleNamespace(loss_scale=jnp.float32(8.0), counter=1, period=5, factor=2, min_loss_scale=jnp.float32(1.0))

    def of(**given: Any) -> LossScale:
        return LossScale.create(Rule(**given))

    calls: dict[str, Callable[[], Any]] = {
        "torch": lambda: interop.to_torch_state_dict(LossScale.from_state(RULES["torch"], State(4.0, 1))), "torch, late": lambda: interop.to_torch_state_dict(late),
        "torch, bounds": lambda: interop.to_torch_state_dict(of(min_scale=1.0)), "torch, elsewhere": lambda: interop.to_torch_state_dict(of(min_scale=1.0), elsewhere=("min_scale",)),
        "torch, patient": lambda: interop.to_torch_state_dict(of(hysteresis=2)), "from torch": lambda: interop.from_torch_state_dict(interop.to_torch_state_dict(late), RULES["late"]),
        "from torch, none": lambda: interop.from_torch_state_dict({}), "from torch, some": lambda: interop.from_torch_state_dict({"scale": 1.0}),
        "from flax": lambda: interop.from_flax(flax), "from flax, first": lambda: interop.from_flax(SimpleNamespace(**{**vars(flax), "growth_interval": 0, "minimum_scale": None, "scale": 0.1})),
        "from flax, double": lambda: interop.from_flax(SimpleNamespace(**{**vars(flax), "scale": np.float64(1)})), "to flax, patient": lambda: interop.to_flax(of(hysteresis=2)),
        "to flax, late": lambda: interop.to_flax(late), "to flax, ceiling": lambda: interop.to_flax(of(max_scale=2.0**20)), "to flax, factor": lambda: interop.to_flax(of(growth_factor=1.1)),
        "to flax, divides": lambda: interop.to_flax(LossScale.create(RULES["divides"])), "to flax, test": lambda: interop.to_flax(of(growth_test=">=")),
        "from jmp": lambda: interop.from_jmp(jmp), "from jmp, eager": lambda: interop.from_jmp(jmp, jit=False),
        "from jmp, half": lambda: interop.from_jmp(SimpleNamespace(**{**vars(jmp), "loss_scale": jnp.float16(8.0)})),
    }  # fmt: skip
    if __import__("importlib").util.find_spec("flax"):
        calls |= {
            "to flax": lambda: interop.to_flax(
                LossScale.from_state(Rule(growth_interval=4, min_scale=1.1), State(4.0, 1))
            )
        }
    if __import__("importlib").util.find_spec("jmp"):
        calls |= {
            "to jmp": lambda: interop.to_jmp(LossScale.create(divided)), "to jmp, floor": lambda: interop.to_jmp(of(min_scale=2.0)),
            "to jmp, count": lambda: interop.to_jmp(LossScale.from_state(Rule(growth_interval=3, min_scale=1.0), State(8.0, 3))),
            "to jmp, inf": lambda: interop.to_jmp(of(min_scale=1.0, arithmetic=Arithmetic(keeps_finite=False))),
            "to jmp, factor": lambda: interop.to_jmp(of(min_scale=1.0, backoff_factor=0.25)),
        }  # fmt: skip
    agree(GOLDEN / "others.txt", {name: stable(said(call)) for name, call in calls.items()})


def test_what_is_refused() -> None:
    scale, rules = LossScale.create(), [Rule(), Rule(delay=1)]
    calls: dict[str, Callable[[], Any]] = {
        "shape": lambda: scale.update(jnp.array([True])), "override": lambda: scale.override(jnp.ones(2)), "negative": lambda: scale.override(-1.0),
        "memory": lambda: LossScale.from_state(Rule(), State(1.0, memory=(1.0,))), "pending": lambda: LossScale.from_state(Rule(), State(1.0, pending=(2.0,))),
        "overflows": lambda: LossScale.from_state(Rule(), State(1.0, 0, 1)), "scale": lambda: LossScale.from_state(Rule(), State(0.1)),
        "count": lambda: LossScale.from_state(Rule(), State(1.0, 2**31)), "interval": lambda: LossScale.create(Rule(growth_interval=2**31)),
        "float64": lambda: LossScale.create(Rule(arithmetic=Arithmetic(dtype="float64"))), "hysteresis": lambda: LossScale.create(Rule(hysteresis=2**31)),
        "neither": lambda: sweep([Rule()]), "both": lambda: sweep([Rule()], [True], ceilings=[1.0]), "text": lambda: sweep([Rule()], "01"), "rows": lambda: sweep([Rule()], [[True], [False]]),
        "text in a list": lambda: sweep([Rule()], ceilings=["1.0"]), "no steps": lambda: sweep([Rule()], True), "cube": lambda: sweep([Rule()], [[[True]]]),
        "quirk": lambda: sweep([Rule(), Rule(quirks=(StreakStartsAt(),))], [True]), "none": lambda: sweep([Rule(), None], [True]),
        "depths": lambda: sweep(rules, [True]), "no rule": lambda: sweep([], [True]), "no policy": lambda: sweep_policies([], [1.0]),
        "no ceilings": lambda: sweep_policies([Probe()], []), "NaN": lambda: sweep_policies([Probe()], [1.0, math.nan]),
        "no policies": lambda: sweep_policies([Rule()], [1.0]), "two of them": lambda: sweep_policies([Probe()], [-1.0, math.nan]), "a rule among them": lambda: sweep_policies([Probe(), Rule()], [1.0]),
        "types": lambda: sweep_policies([Probe(), Headroom()], [1.0]), "unlike": lambda: sweep_policies([Probe(delay=1), Probe(delay=2)], [1.0]), "pred": lambda: select_tree(jnp.ones(2, bool), 1.0, 2.0), "number": lambda: select_tree(1.0, 1.0, 2.0),
        "leaves": lambda: select_tree(jnp.array(True), {"a": "x"}, {"a": "y"}), "same": lambda: select_tree(jnp.array(True), {"a": "x"}, {"a": "x"}),
    }  # fmt: skip
    if __import__("importlib").util.find_spec("optax"):
        import optax

        calls["errors"] = lambda: ampsim.jax.skip_nonfinite(optax.sgd(1.0), max_consecutive_errors=-1)
    agree(GOLDEN / "refused.txt", {name: stable(said(call)) for name, call in calls.items()})


@pytest.mark.peer("torch")
def test_what_is_said_of_tensors() -> None:
    import torch

    from ampsim.jax import dlpack

    calls: dict[str, Callable[[], Any]] = {
        "list": lambda: dlpack.to_jax([3]), "strides": lambda: dlpack.to_jax(torch.ones(4, 4).t()), "double": lambda: dlpack.to_jax(torch.ones(2).double()),
        "complex": lambda: dlpack.to_jax(torch.ones(2, dtype=torch.complex128)), "number": lambda: dlpack.to_torch(3),
        "there": lambda: [dlpack.to_jax(torch.ones(2, requires_grad=True)), dlpack.to_torch(jnp.ones(3, jnp.bfloat16)).dtype],
        "traced": lambda: jax.jit(dlpack.to_torch)(jnp.ones(2)), "half": lambda: dlpack.to_jax({"a": torch.ones(16).half()}),
        "int4": lambda: dlpack.to_jax(torch.empty(4, dtype=torch.int4)), "meta": lambda: dlpack.to_jax(torch.ones(2, device="meta")),
        "array": lambda: dlpack.to_torch(jnp.zeros(2, jnp.int4)), "inside": lambda: re.sub("0x[0-9a-f]+", "ADDRESS", said(lambda: dlpack.to_jax(torch.ones(65)[1:]))),
    }  # fmt: skip
    agree(GOLDEN / "tensors.txt", {name: stable(said(call)) for name, call in calls.items()})


@pytest.mark.peer("optax")
def test_what_an_optimizer_is_given() -> None:
    import optax

    found = []
    for limit in (None, 1):
        optimizer = ampsim.jax.skip_nonfinite(
            optax.sgd(0.5, momentum=0.5), Rule(8.0, growth_interval=2), max_consecutive_errors=limit
        )
        params = jnp.ones(2)
        state = optimizer.init(params)
        for grad in (1.0, math.inf, math.nan, 2.0):
            updates, state = optimizer.update(jnp.array([grad, 1.0]) * state.loss_scale.loss_scale, state, params)
            counts = [int(state.notfinite_count), int(state.total_notfinite)]
            found.append(
                f"{updates.tolist()} {state.loss_scale.state.scale} {bool(state.finite)} {counts} {state.inner[0].trace.tolist()}"
            )
    agree(GOLDEN / "skips.txt", {"skips": "\n".join(found)})


def test_what_is_taken_where_nothing_is_given() -> None:
    agree(GOLDEN / "defaults.txt", {"ampsim.jax": defaults(ampsim.jax)})

"""Scalers as source text: torch's methods by default, and those of other shapes that the kit is shown by an adapter."""

import inspect
import textwrap
from typing import Any

from ampsim.core.machine import Rule
from ampsim.testing.emit.case import Peer, number
from ampsim.testing.kit.from_flag import FromFlag
from ampsim.testing.kit.subject import CONSTANTS, Subject, arguments_of

FLAX = Peer(
    "import jax.numpy as jnp\nfrom flax.training.dynamic_scale import DynamicScale",
    lambda rule, *, enabled: (
        f"DynamicScale({number(rule.growth_factor)}, {number(rule.backoff_factor)}, {rule.growth_interval}, "
        f"scale=jnp.float32({number(rule.init_scale)}))"
    ),
    """
def iterate(found_inf):  # returns the scale that it used
    nonlocal scaler
    scale = float(scaler.scale)
    scaler = scaler.value_and_grad(lambda x: x * (jnp.inf if found_inf else 1.0))(jnp.float32(1.0)).dynamic_scale
    return scale
""",
    flags_only=True,
)
PEERS = {"flax.training.dynamic_scale:DynamicScale": (FLAX, "scaler.scale")}


def adapted(peer: Peer, read: str, name: str) -> Subject:
    """Return the Subject that runs what is emitted of a peer whose ``iterate`` is all that there is."""

    def make(rule: Rule) -> FromFlag:
        body = [f"scaler = {peer.make(rule, enabled=True)}", peer.iterate, f"return iterate, lambda: float({read})"]
        source = f"{peer.imports}\ndef start():\n" + textwrap.indent("\n".join(body), "    ")
        namespace: dict[str, Any] = {}
        exec(source, namespace)  # noqa: S102  our own text, above
        iterate, scale = namespace["start"]()
        return FromFlag(scale, iterate)

    return Subject(make, name=name)


def as_text(target: str, found: Any) -> Peer:
    """Return how a scaler of torch's methods is written: a class with torch's constructor, or make(rule)."""
    module, _, path = target.partition(":")
    arguments = arguments_of(found)

    def make(rule: Rule, *, enabled: bool = True) -> str:
        if arguments is None:
            constants = ", ".join(f"{name}={_value(getattr(rule, name))}" for name in CONSTANTS)
            return f"{path}(SimpleNamespace({constants}){'' if enabled else ', enabled=False'})"
        by_place, by_name = arguments(rule, enabled=enabled)
        defaults = _defaults(found)
        words = [f"{name}={_value(value)}" for name, value in by_name.items() if defaults.get(name, by_name) != value]
        return f"{path}({', '.join([*map(_value, by_place), *words])})"

    return Peer(f"import torch\nfrom {module} import {path.partition('.')[0]}", make)


def _value(value: object) -> str:
    return number(value) if isinstance(value, float) else f'"{value}"' if isinstance(value, str) else repr(value)


def _defaults(target: Any) -> dict[str, object]:
    return {name: each.default for name, each in inspect.signature(target).parameters.items()}

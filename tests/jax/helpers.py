"""Rules that JAX can follow, and what the reference machine makes of a history."""

import jax
import numpy as np

from ampsim import Rule, State, init, update

try:
    from jax import enable_x64 as enable_x64
except ImportError:  # before JAX 0.8
    from jax.experimental import enable_x64 as enable_x64


def bits(tree) -> list[bytes]:
    """Return every bit of a tree's arrays."""
    return [
        np.asarray(leaf).tobytes()
        for leaf in jax.tree.leaves(tree)
        if not callable(leaf)
    ]


def reference(
    rule: Rule, history: list[bool], state: State | None = None
) -> list[State]:
    state = init(rule) if state is None else state
    return [state := update(rule, state, found) for found in history]

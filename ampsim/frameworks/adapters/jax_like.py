"""Shared code of JAX adapters: a loss with prescribed gradients, and a state as a tree of arrays."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ampsim.frameworks.adapter import Adapter, Step


@cache
def prescribed() -> Callable[[Any, Any], Any]:
    """Return a loss of parameters and gradients whose gradient by the parameters is these, whatever
    multiplies it.
    """
    import jax
    import jax.numpy as jnp

    @jax.custom_vjp
    def loss(parameters: Any, scaled: Any) -> Any:
        return jnp.zeros((), parameters.dtype)

    loss.defvjp(
        lambda parameters, scaled: (loss(parameters, scaled), scaled),
        lambda scaled, _: (scaled, None),
    )
    return loss


@cache
def compiled(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a jitted function from a cache, so that known constants are not compiled again."""
    import jax

    return jax.jit(step)


def float32(numbers: Sequence[float]) -> Any:
    """Return numbers as an array of float32, shape (n,)."""
    import jax.numpy as jnp

    return jnp.array(numbers, jnp.float32)


def floats(array: Any) -> tuple[float, ...]:
    """Return the numbers of an array of shape (n,)."""
    return tuple(map(float, array))


class JaxLike(Adapter):
    """A scaler that is a pytree, with a function that steps the parameters and updates the scaler."""

    scaler: Any
    descend: Callable[..., Any]

    def scale_loss(self, loss: float) -> float:
        return float(self.scaler.scale(float32([loss])[0]))

    def step(self, scaled: Sequence[float]) -> Step:
        used = self.get_scale()
        params, finite, self.scaler = self.descend(
            self.scaler, float32([0.0] * len(scaled)), float32(scaled)
        )
        return Step(
            used, bool(finite), floats(-params) if finite else None, self.get_scale()
        )

    def state_dict(self) -> object:
        return leaves(self.scaler)

    def load_state_dict(self, state: object) -> None:
        self.scaler = with_leaves(self.scaler, state)


def leaves(tree: Any) -> list[float]:
    """Return the leaves of a tree of scalars, for a checkpoint."""
    import jax

    return [
        leaf.item() if hasattr(leaf, "item") else leaf for leaf in jax.tree.leaves(tree)
    ]


def with_leaves(tree: Any, numbers: Any) -> Any:
    """Return a tree of the same structure with these leaves, which are of 32 bits."""
    import jax
    import jax.numpy as jnp

    return jax.tree.unflatten(jax.tree.structure(tree), map(jnp.array, numbers))

"""Dynamic loss scaling as an optax transformation, for scales that are powers of two."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, export, lax

from ampsim.core.machine import Rule
from ampsim.jax.trees import Tree, all_finite, divide, widened


class DynamicLossScaleState(NamedTuple):
    """State of `dynamic_loss_scale`.

    Attributes:
        loss_scale: Factor of the next loss; shape (), float32.
        count: Number of finite steps since the last overflow or growth; shape (), int32. A step was
            skipped if it left a count of 0 and did not raise the loss scale.
        inner_state: State of the wrapped optimizer; a skipped step changes no bit of it.
    """

    loss_scale: Array
    count: Array  # type: ignore[assignment]
    inner_state: Tree


export.register_namedtuple_serialization(
    DynamicLossScaleState, serialized_name="ampsim.DynamicLossScaleState"
)


def scale_loss(state: Tree, loss: Array) -> Array:
    """Multiply a loss by the loss scale in an optimizer's state.

    Args:
        state: State of an optimizer that contains one `dynamic_loss_scale`, at any depth.
        loss: Loss of shape ().

    Returns:
        Array: The scaled loss, of shape () and dtype float32, or float64 for such a loss.

    Raises:
        ValueError: If the state has no loss scale.
    """
    scale = optax.tree_utils.tree_get(state, "loss_scale")
    if scale is None:
        raise ValueError(
            "no loss_scale in the state: expected one of dynamic_loss_scale(inner)"
        )
    return scale * loss  # type: ignore[no-any-return]


def dynamic_loss_scale(
    inner: optax.GradientTransformation,
    init_scale: float = 2.0**15,
    growth_interval: int = 2000,
    *,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    min_scale: float = 2.0**-126,
    max_scale: float = 2.0**127,
    axis_name: str | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Wrap an optimizer to unscale its gradients, skip overflows, and adapt the loss scale.

    ``update`` takes the gradients of `scale_loss`. If one is not finite once unscaled, the updates
    are zero, `inner` keeps its state, and the loss scale backs off. `inner` computes in float32.

    Args:
        inner: Optimizer to wrap.
        init_scale: Initial loss scale.
        growth_interval: Number of consecutive finite steps before a growth; at least 1.
        growth_factor: Factor of a growth, at least 1.
        backoff_factor: Factor of a backoff, in (0, 1].
        min_scale: Lower bound of a backoff; at least 2^-126, the smallest normal float32.
        max_scale: Upper bound of a growth; at most 2^127, the largest power of two in float32.
        axis_name: Mapped axis of gradients that are not averaged over it.

    Returns:
        optax.GradientTransformationExtraArgs: Its state is a `DynamicLossScaleState`.

    Raises:
        ValueError: If an argument is out of range, or a scale or factor is not a power of two.
    """
    factors = init_scale, growth_factor, backoff_factor
    rule = Rule(*factors, growth_interval, min_scale=min_scale, max_scale=max_scale)
    for name in (
        "init_scale",
        "growth_factor",
        "backoff_factor",
        "min_scale",
        "max_scale",
    ):
        value = getattr(rule, name)
        if math.frexp(value)[0] != 0.5 or not 2.0**-126 <= value <= 2.0**127:
            raise ValueError(
                f"{name}={value}: expected a power of two in 2**-126 to 2**127"
            )
    inner = optax.with_extra_args_support(inner)

    def init(params: Tree) -> DynamicLossScaleState:
        start = jnp.float32(init_scale), jnp.int32(0)
        return DynamicLossScaleState(*start, inner.init(widened(params)))

    def update(
        grads: Tree,
        state: DynamicLossScaleState,
        params: Tree = None,
        **extra_args: Any,
    ) -> tuple[Tree, DynamicLossScaleState]:
        scale, count, before = state
        grads = divide(grads, scale)

        def step() -> tuple[Tree, DynamicLossScaleState]:
            updates, after = inner.update(grads, before, widened(params), **extra_args)
            updates = jax.tree.map(lambda u, g: u.astype(g.dtype), updates, grads)
            grows = count + 1 == growth_interval
            grown = jnp.where(
                grows, jnp.minimum(scale * growth_factor, max_scale), scale
            )
            return updates, DynamicLossScaleState(
                grown, jnp.where(grows, 0, count + 1), after
            )

        def skip() -> tuple[Tree, DynamicLossScaleState]:
            # Both branches agree in dtypes and shardings, as updates have those of gradients.
            zeros = jax.tree.map(jnp.zeros_like, grads)
            lowered = jnp.maximum(scale * backoff_factor, min_scale)
            return zeros, DynamicLossScaleState(lowered, jnp.int32(0), before)

        return lax.cond(all_finite(grads, axis_name), step, skip)  # type: ignore[no-any-return]

    return optax.GradientTransformationExtraArgs(init, update)

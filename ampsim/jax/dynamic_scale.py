"""flax's names for a loss scale: import this module where a loop imports
``flax.training.dynamic_scale``.

In flax, ``scale`` is a number that loops log; in torch, jmp, and `LossScale`, it is a method that
multiplies a loss. So flax's loops have a separate class.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ampsim.jax import interop
from ampsim.jax.checkpoint import pytree
from ampsim.jax.loss_scale import LossScale
from ampsim.jax.trees import Tree

STATIC = {"static": True}


class DynamicScaleResult(NamedTuple):
    """The fields of flax's ``DynamicScaleResult``, in its order."""

    dynamic_scale: "DynamicScale"  # updated
    finite: Array  # (), bool
    aux: Tree  # the loss, or (loss, aux) with has_aux
    grad: Tree  # unscaled; float16 and bfloat16 widened to float32


@pytree()
@dataclass(frozen=True)
class DynamicScale:
    """A `LossScale` under the names of flax's ``DynamicScale``, with its arguments, defaults, and
    checkpoints.

    Under ``jit``, scales and counts equal flax's to the last bit; so do gradients at scales that
    are powers of two. Differences:

    1. The returned loss is that of the function, also if the scaled loss overflows; see
    `grad.value_and_grad`.
    2. The state is float32 and int32 from the first step on, so ``lax.scan`` can carry it and
    nothing is traced twice.
    3. Keyword arguments are passed to the function.
    4. The state of flax's fp8 layers, which is returned as a gradient, is not divided by the scale.
    """

    growth_factor: float = field(default=2.0, metadata=STATIC)
    backoff_factor: float = field(default=0.5, metadata=STATIC)
    growth_interval: int = field(default=2000, metadata=STATIC)
    """Finite steps before a growth, minus one: flax compares the count before it adds one."""
    fin_steps: ArrayLike = field(default_factory=np.int32)
    """(), int32: number of finite steps since the last overflow or growth."""
    scale: ArrayLike = field(default_factory=lambda: np.float32(65536.0))
    """(), float32: current loss scale."""
    minimum_scale: float | None = field(default=2.0**-126, metadata=STATIC)

    def to_loss_scale(self) -> LossScale:
        """Return the same state as a `LossScale`."""
        count = jnp.asarray(self.fin_steps, jnp.int32)
        scale = jnp.asarray(self.scale, jnp.float32)
        return LossScale(
            loss_scale=scale,
            growth_tracker=count,
            overflow_tracker=None,
            pending=None,
            waiting=None,
            rule=interop.rule_of_flax(self),
        )

    def replace(self, **fields: Any) -> Self:
        """Return a copy with other fields."""
        return replace(self, **fields)

    def value_and_grad(
        self,
        fun: Callable[..., Tree],
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        axis_name: str | None = None,
        *,
        grad: Callable[..., Callable[..., Tree]] = jax.value_and_grad,
    ) -> Callable[..., DynamicScaleResult]:
        """Return ``jax.value_and_grad`` with loss scaling, its result in flax's names; see
        `grad.value_and_grad`.
        """
        differentiate = self.to_loss_scale().value_and_grad(
            fun, argnums, has_aux, axis_name, grad=grad
        )

        @functools.wraps(fun)
        def wrapped(*args: Tree, **kwargs: Tree) -> DynamicScaleResult:
            after, finite, aux, grads = differentiate(*args, **kwargs)
            scaler = replace(
                self, fin_steps=after.growth_tracker, scale=after.loss_scale
            )
            return DynamicScaleResult(scaler, finite, aux, grads)

        return wrapped

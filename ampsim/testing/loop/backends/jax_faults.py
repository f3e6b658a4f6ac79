"""Faults in the gradients of compiled JAX programs, and the loss scales that let them in.

A loss that goes through `fallible` is not changed; its gradient is multiplied by a number that the
running program asks `FAULTS` for, 1 or inf. So a step that was compiled once, as a function or
under ``scan``, has an inf in the backward pass that a check chooses, and no other. A scale of a
class made by `fallible_class` sends each loss that it scales through there.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array

from ampsim.testing.loop.backend import NOTHING, Fault


@dataclasses.dataclass
class Faults:
    """Count backward passes, and seed a fault in some of them.

    Attributes:
        fault: the fault to seed.
        passes: how many of a scaled loss there have been.
    """

    fault: Fault = NOTHING
    passes: int = 0

    def factor(self, _: object = None) -> np.float32:
        """Return the factor of the gradient of this backward pass: 1, or the fault."""
        self.passes += 1
        is_bad = self.fault.only in (None, self.passes - 1)
        return np.float32(self.fault.value if is_bad else 1.0)

    def plant(self, fault: Fault) -> None:
        """Restart the counts, with a fault."""
        self.fault = fault
        self.passes = 0

    def loss(self, _: object = None) -> np.float32:
        """Return what the loss itself is multiplied by."""
        return np.float32(self.fault.value if self.fault.place == "loss" else 1.0)


FAULTS = Faults()  # one for all runs, as compiled programs know it

# One object each, so that nothing is compiled twice.
_FACTOR = FAULTS.factor
_LOSS = FAULTS.loss


@jax.custom_vjp
def fallible(loss: Array) -> Array:
    """Return the loss, which a fault can make inf, and its gradient."""
    return _times(_LOSS, loss, loss)


def _times(factor: Callable[[object], np.float32], loss: Array, value: Array) -> Array:
    shape = jax.ShapeDtypeStruct((), np.float32)  # type: ignore[no-untyped-call]
    # The loss tells passes apart.
    found: Array = jax.pure_callback(factor, shape, loss, vmap_method="sequential")
    times: Array = (value * found).astype(value.dtype)
    return times


def _forward(loss: Array) -> tuple[Array, Array]:
    return fallible(loss), loss


def _backward(loss: Array, gradient: Array) -> tuple[Array]:
    return (_times(_FACTOR, loss, gradient),)


fallible.defvjp(_forward, _backward)


def losses(tree: Any) -> Any:
    """Return a tree of losses, each of them fallible."""
    return jax.tree.map(fallible, tree)


@functools.cache
def fallible_class(wanted: type) -> type:
    """Return a class like `wanted`, a loss scale of ampsim, flax or jmp, that scales fallible
    losses.

    Made once, so that a function that was compiled for it is not compiled again.
    """
    return _CLASSES[wanted.__name__](wanted)


def _ampsim(wanted: Any) -> type:
    class FallibleLossScale(wanted):  # type: ignore[misc]
        def scale(self, tree: Any) -> Any:
            return super().scale(losses(tree))

    return _registered(FallibleLossScale)


def _registered(cls: type) -> type:
    """Return a class as a dataclass of ampsim's kind: a pytree that flax can save."""
    from ampsim.jax.checkpoint import pytree

    return pytree()(dataclasses.dataclass(frozen=True)(cls))


def _flax(wanted: Any) -> type:
    class FallibleDynamicScale(wanted):  # type: ignore[misc]
        def value_and_grad(
            self,
            fun: Any,
            argnums: Any = 0,
            has_aux: bool = False,
            *more: Any,
            **named: Any,
        ) -> Any:
            @functools.wraps(fun)
            def faulty(*args: Any, **kwargs: Any) -> Any:
                out = fun(*args, **kwargs)
                return (fallible(out[0]), out[1]) if has_aux else fallible(out)

            return super().value_and_grad(faulty, argnums, has_aux, *more, **named)

    return (
        FallibleDynamicScale
        if wanted.__module__.startswith("flax.")
        else _registered(FallibleDynamicScale)
    )


def _jmp(wanted: Any) -> type:
    @jax.tree_util.register_pytree_node_class
    class FallibleDynamicLossScale(wanted):  # type: ignore[misc]
        def scale(self, tree: Any) -> Any:
            return super().scale(losses(tree))

        def adjust(self, grads_finite: Array) -> Any:
            after = super().adjust(grads_finite)  # of the class without faults
            return type(self)(
                **{
                    each.name: getattr(after, each.name)
                    for each in dataclasses.fields(after)
                }
            )

    return FallibleDynamicLossScale


_CLASSES: dict[str, Callable[[Any], type]] = {
    "LossScale": _ampsim,
    "DynamicScale": _flax,
    "DynamicLossScale": _jmp,
}


def make_scale(wanted: type, scale: float, growth_interval: int) -> Any:
    """Return a fallible loss scale of the class `wanted`, which doubles after so many finite steps
    and halves.

    The scale is an array and no constant of the class, so that a step is compiled once for all
    scales.
    """
    if wanted.__name__ not in _CLASSES:
        raise TypeError(f"{wanted.__name__}: expected one of {', '.join(_CLASSES)}")
    number = jax.numpy.array(np.float32(scale))
    made = fallible_class(wanted)
    if wanted.__name__ == "LossScale":
        from ampsim.core.machine import Rule

        created = made.create(Rule(growth_interval=growth_interval))  # type: ignore[attr-defined]
        return dataclasses.replace(created, loss_scale=number)
    if wanted.__name__ == "DynamicScale":  # which compares before it counts
        return made(
            scale=number,
            fin_steps=jax.numpy.int32(0),
            growth_interval=growth_interval - 1,
        )
    return made(loss_scale=number, counter=jax.numpy.int32(0), period=growth_interval)

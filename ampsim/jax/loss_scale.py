"""The loss scale as a pytree: `core.machine` under ``jit``, ``vmap``, ``scan``, ``grad`` and
donation.

A training step, compiled or not, is::

    def train_step(params, loss_scale, batch):
        grads = jax.grad(lambda p: loss_scale.scale(loss(p, batch)))(params)
        grads = loss_scale.unscale(grads)
        finite = all_finite(grads)
        params = select_tree(finite, apply(params, grads), params)
        return params, loss_scale.update(~finite)

``loss_scale.loss_scale`` is the current value, also in a compiled step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ampsim.core.machine import Rule, State, init
from ampsim.jax import exact_product, machine, trees
from ampsim.jax.checkpoint import pytree
from ampsim.jax.exact_product import LAYOUTS, WordLayout
from ampsim.jax.grad import Result, value_and_grad
from ampsim.jax.trees import Tree

T = TypeVar("T")

DEVIATIONS = {
    "subnormal_scale": "A scale below 2^-126 is computed exactly, but XLA on CPU multiplies by it "
    "as by 0, so the gradients are NaN and every later step is skipped; torch continues. Pass "
    "min_scale=2.0**-126.",
    "quotient": "Gradients are divided by the scale; torch multiplies by its float32 reciprocal. "
    "The results are equal if the scale is a power of two, else they differ in the last place.",
    "subnormal_gradients": "XLA on CPU flushes a gradient below 2^-126 to 0 when it is unscaled; "
    "torch keeps it.",
    "quirks": "Quirks of single frameworks (ampsim.core.quirks) are Python code; create() raises.",
    "float64_needs_x64": "create() raises for float64 arithmetic unless jax_enable_x64 is set.",
    "counts_are_int32": "Trackers are int32, as in torch; create() raises for a larger "
    "growth_interval or hysteresis.",
}
"""Where this package cannot do as `core.machine` and `ampsim.torch` do: name -> what happens instead.

What is said of the CPU is not so on GPUs, which keep subnormals.
"""


@pytree(marked="growth_tracker")
@dataclass(frozen=True, kw_only=True)
class LossScale:
    """A loss scale as a pytree. Do not call the constructor: use ``LossScale.create(rule)``.

    Call `scale` on the loss, `unscale` on the gradients, and `update` once per step:

    >>> import jax, jax.numpy as jnp
    >>> from ampsim import Rule
    >>> from ampsim.jax import LossScale, all_finite, select_tree
    >>> @jax.jit
    ... def step(w, loss_scale, x):
    ...     grads = jax.grad(lambda w: loss_scale.scale(jnp.sum(w * x)))(w)
    ...     grads = loss_scale.unscale(grads)
    ...     finite = all_finite(grads)
    ...     return select_tree(finite, w - 0.5 * grads, w), loss_scale.update(~finite)
    >>> w, loss_scale = jnp.ones(2), LossScale.create(Rule(init_scale=1024.0))
    >>> for x in (jnp.ones(2), jnp.full(2, jnp.inf)):
    ...     w, loss_scale = step(w, loss_scale, x)
    >>> w.tolist(), float(loss_scale.loss_scale)
    ([0.5, 0.5], 512.0)

    Updates equal `ampsim.update` to the last bit for rules without quirks, eager or compiled, on
    any device, as they use integer arithmetic (see `exact_product`). `DEVIATIONS` lists the
    exceptions. Fields that the rule does not use are None, because each leaf adds about a
    microsecond to a compiled call.

    Attributes:
        loss_scale: Current loss scale, of shape () and dtype float32, or float64 if the rule's
            arithmetic is.
        growth_tracker: Number of finite steps since the last overflow or growth; shape (), int32.
        overflow_tracker: Number of overflows without a backoff; shape (), int32. Reset by the
            events of ``hysteresis_reset``. None if ``hysteresis`` is 1.
        pending: Scales that are computed and not yet used, oldest first; shape ``(delay,)``. Only
            the last `waiting` are valid; earlier places hold the current scale. None if ``delay``
            is 0.
        waiting: Number of valid entries of `pending`; shape (), int32. None if ``delay`` is 0.
        rule: The rule; static, no leaf. A restore of a checkpoint of another rule raises.
    """

    loss_scale: Array
    growth_tracker: Array
    overflow_tracker: Array | None
    pending: Array | None
    waiting: Array | None
    rule: Rule = field(metadata={"static": True})

    @classmethod
    def create(cls, rule: Rule | None = None, *, enabled: bool = True) -> Self:
        """Return the loss scale before the first update.

        Args:
            rule: The rule; default: torch's.
            enabled: If False, for bfloat16 and float32, the scale stays 1, whatever the rule.
                Gradients are still checked, and steps that are not finite are skipped, as bfloat16
                has NaN too.

        Returns:
            LossScale: The loss scale.

        Raises:
            TypeError: If `rule` is no `Rule`.
            ValueError: If the rule is not supported, see `DEVIATIONS`.
        """
        if not enabled:
            rule = Rule(1.0, growth_factor=1.0, backoff_factor=1.0)
        rule = Rule() if rule is None else rule
        machine.check(rule)
        return cls.from_state(rule, init(rule))

    @classmethod
    def from_state(cls, rule: Rule, state: State) -> Self:
        """Return the loss scale that continues a state.

        The state is one of the reference state machine or of another scaler.

        Args:
            rule: The rule that the loss scale follows from now on.
            state: The state to continue.

        Returns:
            LossScale: The loss scale.

        Raises:
            ValueError: If the rule is not supported, or the state is not one of the rule.
        """
        machine.constants(rule)
        _check_state(rule, state)
        layout = LAYOUTS[rule.arithmetic.dtype]
        padded = (state.scale,) * (rule.delay - len(state.pending)) + state.pending
        has_hysteresis = rule.hysteresis > 1
        has_delay = rule.delay > 0
        return cls(
            loss_scale=jnp.array(np.array(state.scale, layout.dtype)),
            growth_tracker=_int32(state.growth_tracker),
            overflow_tracker=_int32(state.overflow_tracker) if has_hysteresis else None,
            pending=jnp.array(np.array(padded, layout.dtype)) if has_delay else None,
            waiting=_int32(len(state.pending)) if has_delay else None,
            rule=rule,
        )

    @property
    def state(self) -> State:
        """The state as Python numbers, for a checkpoint; waits for the device.

        Raises:
            TypeError: In a compiled function, where the numbers are not known yet.
        """
        if isinstance(self.loss_scale, jax.core.Tracer):
            raise TypeError(
                "state has Python numbers, which a compiled function does not have: expected a "
                "call outside of jit; inside, use the arrays loss_scale and growth_tracker"
            )
        overflows = 0 if self.overflow_tracker is None else int(self.overflow_tracker)
        pending: list[float] = []
        if self.pending is not None and self.waiting is not None:
            pending = np.asarray(self.pending).tolist()[
                self.rule.delay - int(self.waiting) :
            ]
        return State(
            float(self.loss_scale), int(self.growth_tracker), overflows, tuple(pending)
        )

    @property
    def newest(self) -> Array:
        """The scale computed last; equal to `loss_scale` unless updates are delayed."""
        return self.loss_scale if self.pending is None else self.pending[-1]

    def scale(self, tree: T) -> T:
        """Multiply all floating-point and complex leaves by the loss scale.

        float16 and bfloat16 are multiplied in float32 and rounded once. A float16 loss overflows
        above 65504: keep the loss in float32, as torch's autocast does.

        Args:
            tree: A loss or a pytree of losses. Other leaves are returned unchanged.

        Returns:
            Pytree of the same structure and dtypes.
        """
        return trees.multiply(tree, self.loss_scale)

    def unscale(self, grads: T, *, widen: bool = False) -> T:
        """Divide all floating-point and complex leaves by the loss scale.

        Exact if the scale is a power of two and neither g nor g / scale is subnormal.

        Args:
            grads: Pytree of gradients. Integers and float0 are returned unchanged; so is the state
                of fp8 layers that flax passes as a gradient, under the key `trees.OVERWRITE`.
            widen: Whether float16 and bfloat16 leaves become float32, so that small gradients do
                not underflow; if False, dtypes are kept, as in torch.

        Returns:
            Pytree of the same structure.
        """
        return trees.divide(grads, self.loss_scale, widen=widen)

    def update(self, found_inf: ArrayLike, *, synchronous: bool = False) -> Self:
        """Return the loss scale after one iteration.

        Args:
            found_inf: Whether any gradient was not finite, of shape () and any dtype; NaN is an
                overflow. On a mapped axis it must be equal everywhere: pass
                ``~all_finite(grads, axis_name)``.
            synchronous: Whether the newest scale is used at once; older pending scales are dropped.

        Returns:
            LossScale: The updated loss scale.

        Raises:
            ValueError: If `found_inf` has another shape.
        """
        _require_scalar("found_inf", found_inf, "jnp.any(found_inf)")
        layout = LAYOUTS[self.rule.arithmetic.dtype]
        queue, (growth, overflow) = machine.step(
            layout,
            machine.constants(self.rule),
            self._queue(layout),
            (self.growth_tracker, _or_zero(self.overflow_tracker)),
            jnp.asarray(found_inf, bool),
            at_once=synchronous,
        )
        overflow_tracker = None if self.overflow_tracker is None else overflow
        return self._after(
            layout, queue, growth_tracker=growth, overflow_tracker=overflow_tracker
        )

    def override(self, new_scale: ArrayLike, *, synchronous: bool = False) -> Self:
        """Set the scale, as `ampsim.core.machine.override`.

        The trackers are kept and bounds are not applied. With a delay, the new scale waits for
        ``delay`` updates.

        Args:
            new_scale: Scale of shape (), at least 0; rounded to the format of the scale.
            synchronous: Whether the scale is used at once; older pending scales are dropped.

        Returns:
            LossScale: The updated loss scale.

        Raises:
            ValueError: If `new_scale` is not one number, or is negative (detected outside ``jit``).
        """
        _require_scalar("new_scale", new_scale, "one number")
        layout = LAYOUTS[self.rule.arithmetic.dtype]
        scale: Any = new_scale
        if not isinstance(scale, jax.core.Tracer):
            scale = self.rule.arithmetic.round(float(scale))
            if scale < 0:
                raise ValueError(
                    f"new_scale={scale!r}: expected at least 0; pass a power of two"
                )
        bits = exact_product.to_bits(layout, jnp.asarray(scale, layout.dtype))
        return self._after(
            layout, machine.publish(self._queue(layout), bits, at_once=synchronous)
        )

    def _after(self, layout: WordLayout, queue: machine.Queue, **counts: Any) -> Self:
        has_delay = self.pending is not None
        return replace(
            self,
            loss_scale=exact_product.from_bits(layout, queue.scale),
            pending=exact_product.from_bits(layout, queue.pending)
            if has_delay
            else None,
            waiting=queue.waiting if has_delay else None,
            **counts,
        )

    def _queue(self, layout: WordLayout) -> machine.Queue:
        pending = jnp.zeros(0, layout.dtype) if self.pending is None else self.pending
        return machine.Queue(
            exact_product.to_bits(layout, self.loss_scale),
            exact_product.to_bits(layout, pending),
            _or_zero(self.waiting),
        )

    def value_and_grad(
        self,
        fun: Callable[..., Tree],
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        axis_name: str | None = None,
        *,
        grad: Callable[..., Callable[..., Tree]] = jax.value_and_grad,
    ) -> Callable[..., Result[Self]]:
        """Return ``jax.value_and_grad`` with loss scaling.

        As flax's ``DynamicScale.value_and_grad``; for the differences, see `grad.value_and_grad`.

        Args:
            fun: Function to differentiate; returns the loss, or (loss, aux) with `has_aux`.
            argnums: Positions of the arguments to differentiate.
            has_aux: Whether `fun` returns auxiliary data too.
            axis_name: Mapped axis over which the gradients are averaged; None for none.
            grad: ``jax.value_and_grad``, or that of equinox or flax.nnx.

        Returns:
            A function of `fun`'s arguments that returns a `Result`.
        """
        return value_and_grad(self, fun, argnums, has_aux, axis_name, grad=grad)


def _require_scalar(name: str, value: ArrayLike, fix: str) -> None:
    if jnp.shape(value) != ():
        raise ValueError(
            f"{name} has shape {jnp.shape(value)}: expected (); pass {fix}, or use vmap"
        )


def _int32(count: int) -> Array:
    return jnp.array(count, jnp.int32)


def _or_zero(count: Array | None) -> Array:
    return jnp.int32(0) if count is None else count


def _check_state(rule: Rule, state: State) -> None:
    if state.memory:
        raise ValueError(
            f"memory={state.memory!r}: expected a state of a rule without quirks"
        )
    if len(state.pending) > rule.delay:
        raise ValueError(
            f"{len(state.pending)} pending scales with delay={rule.delay}: expected at most "
            f"{rule.delay}; pass the rule of this state"
        )
    if rule.hysteresis == 1 and state.overflow_tracker:
        raise ValueError(
            f"overflow_tracker={state.overflow_tracker} with hysteresis=1: expected 0; "
            "pass the rule of this state"
        )
    for scale in (state.scale, *state.pending):
        if math.isnan(scale):
            continue
        if scale < 0 or rule.arithmetic.round(scale) != scale:
            raise ValueError(
                f"scale={scale!r}: expected a number >= 0 in {rule.arithmetic.dtype}"
            )
    for name in ("growth_tracker", "overflow_tracker"):
        if not -machine.LARGEST_COUNT <= getattr(state, name) <= machine.LARGEST_COUNT:
            raise ValueError(
                f"{name}={getattr(state, name)}: expected an int32 count; restart it from 0"
            )

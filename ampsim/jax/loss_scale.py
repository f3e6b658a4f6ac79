"""The loss scale as a pytree: `core.machine` under ``jit``, ``vmap``, ``scan``, ``grad`` and donation.

A training step, compiled or not, is::

    def train_step(params, loss_scale, batch):
        grads = jax.grad(lambda p: loss_scale.scale(loss(p, batch)))(params)
        grads = loss_scale.unscale(grads)
        finite = all_finite(grads)
        params = select_tree(finite, apply(params, grads), params)
        return params, loss_scale.update(~finite)
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
from ampsim.jax import checkpoint, exact_product, machine
from ampsim.jax.exact_product import FORMATS, Format
from ampsim.jax.finite import Tree, is_inexact
from ampsim.jax.grad import Result, value_and_grad

T = TypeVar("T")

OVERWRITE = "_overwrite_with_gradient"
"""flax's name for state that a backward pass hands on as a gradient: fp8 scales, and windows of largest magnitudes."""

DEVIATIONS = {
    "subnormal_scale": "A scale below 2^-126 is computed exactly, but XLA on CPU multiplies by it as by 0, so the "
    "gradients are NaN and every later step is skipped; torch goes on. Pass min_scale=2.0**-126.",
    "reciprocal_of_a_huge_scale": "Above 2^126 the reciprocal of the scale is subnormal and XLA on CPU takes it for "
    "0, so gradients unscale to 0; torch keeps them. Pass max_scale=2.0**126.",
    "subnormal_gradients": "XLA on CPU flushes a gradient below 2^-126 to 0 when it is unscaled; torch keeps it.",
    "quirks": "What one framework does alone (ampsim.core.quirks) is Python code and is refused at create().",
    "float64_needs_x64": "A rule whose arithmetic is float64 is refused unless jax_enable_x64 is set.",
    "counts_are_int32": "Trackers are int32, as torch's is; a growth_interval or hysteresis above is refused.",
}
"""Where this package cannot do as `core.machine` and `ampsim.torch` do: name -> what happens instead.

What is said of the CPU is not so on GPUs, which keep subnormals.
"""


@checkpoint.saved
@jax.tree_util.register_dataclass  # from dataclasses.fields: no field can be forgotten
@dataclass(frozen=True, kw_only=True)
class LossScale:
    """A rule and its state. `scale` the loss, `unscale` the gradients, `update` once an iteration.

    Every update equals `ampsim.update` to the last bit, for every rule without quirks, eager or compiled, on
    every device: it is integer arithmetic (see `exact_product`). `DEVIATIONS` says what is not so. What the rule never
    uses is None, no leaf: each leaf costs a compiled call about a microsecond.

    Attributes:
        loss_scale: (), float32 (float64 if the rule's arithmetic is): in force, what the next loss is multiplied by.
        growth_tracker: (), int32: clean steps since the last overflow or growth; both reset it to 0.
        overflow_tracker: (), int32: overflows let pass without a backoff; the rule's ``hysteresis_reset`` resets it to
            0. None if ``hysteresis`` is 1.
        pending: (delay,), as `loss_scale`: computed and not yet in force, oldest first; the last `waiting` of them, the
            places before hold the scale in force. None if ``delay`` is 0.
        waiting: (), int32: how many of `pending` wait; counts up to ``delay``. None if ``delay`` is 0.
        rule: the constants; static, no leaf.
    """

    loss_scale: Array
    growth_tracker: Array
    overflow_tracker: Array | None
    pending: Array | None
    waiting: Array | None
    rule: Rule = field(metadata={"static": True})

    @classmethod
    def create(cls, rule: Rule | None = None, *, enabled: bool = True) -> Self:
        """Return the state before the first update; the default rule is torch's.

        Args:
            rule: see `DEVIATIONS` for what cannot be followed bit for bit.
            enabled: False, for bfloat16 and float32: the scale is 1 for ever, whatever the rule, and no other line of a
                loop changes. Gradients are checked as before and a non-finite step is skipped: bfloat16 has NaN too.

        Raises:
            ValueError, TypeError: a rule that cannot be followed bit for bit, see `DEVIATIONS`.
        """
        if not enabled:
            rule = Rule(1.0, growth_factor=1.0, backoff_factor=1.0)
        rule = Rule() if rule is None else rule
        machine.constants(rule)
        return cls.from_state(rule, init(rule))

    @classmethod
    def from_state(cls, rule: Rule, state: State) -> Self:
        """Go on where a reference machine, or another framework's scaler, stands."""
        machine.constants(rule)
        _check_state(rule, state)
        form = FORMATS[rule.arithmetic.dtype]
        padded = (state.scale,) * (rule.delay - len(state.pending)) + state.pending
        return cls(
            loss_scale=jnp.array(np.array(state.scale, form.dtype)),
            growth_tracker=jnp.array(state.growth_tracker, jnp.int32),
            overflow_tracker=jnp.array(state.overflow_tracker, jnp.int32)
            if rule.hysteresis > 1
            else None,
            pending=jnp.array(np.array(padded, form.dtype)) if rule.delay else None,
            waiting=jnp.array(len(state.pending), jnp.int32) if rule.delay else None,
            rule=rule,
        )

    @property
    def state(self) -> State:
        """What must survive a checkpoint, as Python numbers; waits for the device, not under ``jit``."""
        overflows = 0 if self.overflow_tracker is None else int(self.overflow_tracker)
        pending: list[float] = []
        if self.pending is not None and self.waiting is not None:
            pending = np.asarray(self.pending).tolist()[self.rule.delay - int(self.waiting) :]
        return State(float(self.loss_scale), int(self.growth_tracker), overflows, tuple(pending))

    @property
    def newest(self) -> Array:
        """The scale computed last; equal to `loss_scale` unless updates are delayed."""
        return self.loss_scale if self.pending is None else self.pending[-1]

    def scale(self, tree: T) -> T:
        """Multiply every floating-point or complex leaf by the scale; its dtype stays, as in torch.

        float16 and bfloat16 are multiplied in float32 and rounded once. A float16 loss overflows at 65504: keep
        the loss in float32, as torch's autocast does. Other leaves are returned as they are.
        """
        return jax.tree.map(lambda x: _times(x, self.loss_scale, widen=False), tree)  # type: ignore[no-any-return]

    def unscale(self, grads: T, *, widen: bool = False) -> T:
        """Multiply every floating-point or complex leaf by the reciprocal of the scale; its dtype stays.

        g * f32(1 / S), torch's arithmetic. A division would be the same: XLA turns g / S with a scalar S into this
        product, in some programs and not in others, so it is written out. The reciprocal is made of integers, as GPUs
        would round it otherwise. Exact if S is a power of two and neither g nor g / S is subnormal.

        Args:
            grads: arrays; integers and float0 are returned as they are, and so is the state of fp8 layers that flax
                hands on as a gradient, under the key `OVERWRITE`.
            widen: float16 and bfloat16 leaves become float32, so that a small gradient is not lost again.
        """
        form = FORMATS[self.rule.arithmetic.dtype]
        bits = exact_product.to_bits(form, self.loss_scale)
        inverse = exact_product.from_bits(form, exact_product.reciprocal(form, bits))
        # XLA computes a product anew for each reader of it, and with it the backward pass's conversion from float16,
        # but a quotient only once. So the gradients are divided by a 1 that the compiler cannot know to be 1: it is NaN
        # where the scale is, and where the loss was multiplied by 0, as a CPU does that takes a subnormal scale for 0.
        one = jnp.where(self.loss_scale > 0, 1.0, jnp.nan)

        def times(path: tuple[object, ...], g: Any) -> Any:
            return g if _overwrites(path) else _times(g, inverse, one, widen=widen)

        return jax.tree_util.tree_map_with_path(times, grads)  # type: ignore[no-any-return]

    def update(self, found_inf: ArrayLike, *, synchronous: bool = False) -> Self:
        """Return the loss scale after an iteration whose gradients were not all finite (`found_inf`) or were.

        Args:
            found_inf: shape (), any dtype; by its truth, so NaN is an overflow. On a mapped axis it must be
                the same everywhere: ``~all_finite(grads, axis_name)``.
            synchronous: True brings the newest scale into force at once and drops the ones before it.
        """
        if jnp.shape(found_inf) != ():
            raise ValueError(
                f"found_inf has shape {jnp.shape(found_inf)}: expected (); pass jnp.any(found_inf), or use vmap"
            )
        form = FORMATS[self.rule.arithmetic.dtype]
        queue, (growth, overflow) = machine.step(
            form,
            machine.constants(self.rule),
            self._queue(form),
            (self.growth_tracker, _or_zero(self.overflow_tracker)),
            jnp.asarray(found_inf) != 0,
            at_once=synchronous,
        )
        overflow_tracker = None if self.overflow_tracker is None else overflow
        return self._after(form, queue, growth_tracker=growth, overflow_tracker=overflow_tracker)

    def override(self, new_scale: ArrayLike, *, synchronous: bool = False) -> Self:
        """Return the loss scale after the scale was set by hand, as `ampsim.core.machine.override`.

        The trackers keep their counts, bounds are not applied, and with a delay the new scale waits its turn.

        Args:
            new_scale: shape (); at least 0, rounded to the format of the scale.
            synchronous: True brings it into force at once and drops the ones before it.

        Raises:
            ValueError: more than one number, or a negative one, where it is known outside of ``jit``.
        """
        if jnp.shape(new_scale) != ():
            raise ValueError(
                f"new_scale has shape {jnp.shape(new_scale)}: expected (); pass one number, or use vmap"
            )
        form = FORMATS[self.rule.arithmetic.dtype]
        scale: Any = new_scale
        if not isinstance(scale, jax.core.Tracer):
            scale = self.rule.arithmetic.round(float(scale))
            if scale < 0:
                raise ValueError(f"new_scale={scale!r}: expected at least 0; pass a power of two")
        bits = exact_product.to_bits(form, jnp.asarray(scale, form.dtype))
        return self._after(form, machine.publish(self._queue(form), bits, at_once=synchronous))

    def _after(self, form: Format, queue: machine.Queue, **counts: Any) -> Self:
        return replace(
            self,
            loss_scale=exact_product.from_bits(form, queue.scale),
            pending=None if self.pending is None else exact_product.from_bits(form, queue.pending),
            waiting=None if self.waiting is None else queue.waiting,
            **counts,
        )

    def _queue(self, form: Format) -> machine.Queue:
        pending = jnp.zeros(0, form.dtype) if self.pending is None else self.pending
        return machine.Queue(
            exact_product.to_bits(form, self.loss_scale),
            exact_product.to_bits(form, pending),
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
        """Return ``jax.value_and_grad`` with loss scaling; arguments and results as of flax's ``DynamicScale``.

        See `grad.value_and_grad`.
        """
        return value_and_grad(self, fun, argnums, has_aux, axis_name, grad=grad)


def _overwrites(path: Sequence[object]) -> bool:
    return any(getattr(entry, "key", None) == OVERWRITE for entry in path)


def _times(x: ArrayLike, factor: Array, one: Array | None = None, *, widen: bool) -> ArrayLike:
    if not is_inexact(x):
        return x
    x = jnp.asarray(x)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    result = x * factor.astype(wide)
    result = result if one is None else result / one.astype(wide)
    return result if widen else result.astype(x.dtype)


def _or_zero(count: Array | None) -> Array:
    return jnp.int32(0) if count is None else count


def _check_state(rule: Rule, state: State) -> None:
    if state.memory:
        raise ValueError(
            f"memory={state.memory!r}: expected a state without quirks' memory; pass a state of a rule without quirks"
        )
    if len(state.pending) > rule.delay:
        raise ValueError(
            f"{len(state.pending)} pending scales with delay={rule.delay}: expected at most {rule.delay}; "
            "pass the rule the state belongs to"
        )
    if rule.hysteresis == 1 and state.overflow_tracker:
        raise ValueError(
            f"overflow_tracker={state.overflow_tracker} with hysteresis=1: expected 0; pass the state's own rule"
        )
    for scale in (state.scale, *state.pending):
        if not (math.isnan(scale) or (scale >= 0 and rule.arithmetic.round(scale) == scale)):
            raise ValueError(
                f"scale={scale!r}: expected a number >= 0 that {rule.arithmetic.dtype} holds; pass a scaler's own scale"
            )
    for name in ("growth_tracker", "overflow_tracker"):
        if not -machine.LARGEST_COUNT <= getattr(state, name) <= machine.LARGEST_COUNT:
            raise ValueError(
                f"{name}={getattr(state, name)}: expected a count that int32 holds; restart it from 0"
            )

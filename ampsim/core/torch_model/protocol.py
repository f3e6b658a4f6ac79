"""A pure model of the sequential protocol of torch.amp.GradScaler.

Theory of operation
-------------------
The state machine (``ampsim.core.machine``) needs one bit per iteration. The protocol models how torch collects this
bit from several optimizers, and which calls raise. Each event is a pure function: it takes a `Protocol` and returns
the next one and an `Outcome`. An exception is an outcome too, because some of torch's calls change something before
they raise.

An iteration is ``scale``, backward, ``step`` for each optimizer, ``update``. The scale does not exist before the first
``scale``: until then it is the given number, unrounded, and all calls except ``scale`` raise. Each optimizer passes
through three stages, which a successful ``update`` resets::

    READY ----unscale_----> UNSCALED ----step----> STEPPED
      |                                               ^
      +-------------------step------------------------+       (unscales, or checks, on the way)

* ``unscale_`` checks the scaled gradients and multiplies them by the rounded reciprocal of the scale. It
  records found_inf: 0.0 or 1.0, or nothing if no parameter had a gradient.
* ``step`` **skips** if this optimizer's found_inf is not zero. A skip is per optimizer.
* A **fused** optimizer is not unscaled by ``step``: its gradients are checked only, and its kernel divides by
  the scale, or does nothing if found_inf is exactly 1. It is called even when it skips.
* ``update`` adds up found_inf over optimizers, and a sum that is not zero is an overflow for the one machine.
  So the **backoff is global**. ``update(new_scale)`` ignores found_inf and resets the stages too.

Notable cases: a ``step`` without gradients leaves its optimizer UNSCALED; an optimizer that was only looked up counts
as mid-iteration for pickling; a fused step that raises leaves ``grad_scale`` on its optimizer, and the next step
divides by both. The model reproduces these cases of torch; they are not recommendations.

Assumes one device and dense gradients. Not modeled: a tensor as a factor, a growth tracker beyond int32.
Source: torch/amp/grad_scaler.py of torch 2.13.0. The arithmetic is in ``gradients``, the texts in
``refusals``, and what is read, set, saved and loaded between iterations in ``checkpoint``.
"""

import enum
import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np

from ampsim.core import machine
from ampsim.core.machine import Rule, State, round_to_float32
from ampsim.core.torch_model import arithmetic, refusals
from ampsim.core.torch_model.arithmetic import Gradients
from ampsim.core.torch_model.refusals import Refusal

FIELDS = (
    "growth_factor",
    "backoff_factor",
    "growth_interval",
)  # what torch has getters and setters for
LAZY = "lazy"  # stands for the lazy map that torch makes of a generator: nothing is scaled until it is read


class Stage(enum.Enum):
    """An optimizer's place in the iteration; the values are torch's."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


@dataclass(frozen=True)
class Record:
    """The scaler's knowledge of one optimizer until the next update."""

    stage: Stage = Stage.READY
    found_inf: float | None = None
    """As torch sums it: any float32, not only 0 and 1. None: nothing was checked."""


@dataclass(frozen=True)
class Protocol:
    """All that a GradScaler carries."""

    rule: Rule = field(default_factory=Rule)
    state: State = field(
        default_factory=lambda: State(2.0**16)
    )  # before it `exists`: as given, unrounded
    exists: bool = False  # torch makes the scale tensor at the first scale()
    enabled: bool = True
    records: tuple[tuple[Hashable, Record], ...] = ()  # in the order of their first event
    unset: frozenset[str] = frozenset()  # a disabled scaler has no factors until they are set

    def record(self, key: Hashable) -> Record:
        """Return what is known of an optimizer; a fresh Record if nothing."""
        return dict(self.records).get(key, Record())

    def note(self, key: Hashable, **changes: object) -> "Protocol":
        """Return this protocol with an optimizer's record changed, or created."""
        records = {**dict(self.records), key: replace(self.record(key), **changes)}  # type: ignore[arg-type]
        return replace(self, records=tuple(records.items()))


@dataclass(frozen=True, eq=False)
class Optimizer:
    """An optimizer as the scaler sees it."""

    key: Hashable  # torch's is id(optimizer), which a later optimizer may get again
    grads: Gradients = ()
    fused: bool = False  # torch: _step_supports_amp_scaling
    grad_scale: tuple[
        float | None, ...
    ] = ()  # the attribute a failed fused step left; () if there is none


@dataclass(frozen=True)
class Tensor:
    """A tensor as ``update(new_scale)`` sees it."""

    value: float
    shape: tuple[int, ...] = ()
    device: str = "cpu"
    requires_grad: bool = False


@dataclass(frozen=True, eq=False)
class Outcome:
    """One event as its caller sees it."""

    value: object = None  # what the call returns
    refusal: Refusal | None = None  # what it raises instead
    optimizer: Optimizer | None = None  # the optimizer as it is left behind
    called: bool = False  # optimizer.step() was called
    stepped: bool = False  # and the parameters were its to move: no kernel skipped
    kernel: tuple[float | None, float | None] | None = (
        None  # grad_scale and found_inf of a fused kernel
    )


Result = tuple[Protocol, Outcome]


def refuse(p: Protocol, refusal: Refusal, optimizer: Optimizer | None = None) -> Result:
    """Return the outcome of an event that raises and changes nothing more."""
    return p, Outcome(refusal=refusal, optimizer=optimizer)


def create(rule: Rule, *, enabled: bool = True) -> Protocol:
    """Return a new scaler. Raises torch's AssertionError for the two constants that torch looks at."""
    if enabled and rule.growth_factor <= 1.0:
        raise AssertionError(refusals.GROWTH_FACTOR.text)
    if enabled and rule.backoff_factor >= 1.0:
        raise AssertionError(refusals.BACKOFF_FACTOR.text)
    unset = frozenset() if enabled else frozenset(FIELDS)
    return Protocol(rule, State(rule.init_scale), enabled=enabled, unset=unset)


def scale(p: Protocol, outputs: object) -> Result:
    """Do ``scale(outputs)``: an array, or lists and tuples of arrays, nested at will, times the scale."""
    if not p.enabled:
        return p, Outcome(value=outputs)
    if isinstance(outputs, np.ndarray):
        if not p.exists and (refusal := refusals.overflow(p.state.scale)):
            return refuse(p, refusal)
        state = p.state if p.exists else machine.override(p.rule, p.state, p.state.scale)
        p = replace(p, state=state, exists=True)
        return p, Outcome(value=arithmetic.scaled_loss(outputs, state.scale))
    if isinstance(outputs, list | tuple):
        values = []
        for output in outputs:  # a bad entry is found after the entries before it were scaled
            p, outcome = scale(p, output)
            if outcome.refusal:
                return p, outcome
            values.append(outcome.value)
        return p, Outcome(value=type(outputs)(values))
    if hasattr(type(outputs), "__iter__"):
        return p, Outcome(value=LAZY)
    return refuse(p, refusals.NOT_A_LOSS)


def unscale_(p: Protocol, optimizer: Optimizer) -> Result:
    """Do ``unscale_(optimizer)``: check, record found_inf, multiply by the reciprocal."""
    if not p.enabled:
        return p, Outcome(optimizer=optimizer)
    if not p.exists:
        return refuse(p, refusals.before_scale("unscale_"), optimizer)
    p = p.note(optimizer.key)
    stage = p.record(optimizer.key).stage
    if stage is Stage.UNSCALED:
        return refuse(p, refusals.UNSCALED_TWICE, optimizer)
    if stage is Stage.STEPPED:
        return refuse(p, refusals.UNSCALED_LATE, optimizer)
    if any(g is not None and g.dtype == np.float16 for g in optimizer.grads):
        return refuse(p, refusals.FLOAT16, optimizer)
    p = p.note(optimizer.key, stage=Stage.UNSCALED, found_inf=arithmetic.found_inf(optimizer.grads))
    grads = arithmetic.unscaled(optimizer.grads, arithmetic.reciprocal(p.state.scale))
    return p, Outcome(optimizer=replace(optimizer, grads=grads))


def step(
    p: Protocol,
    optimizer: Optimizer,
    *,
    closure: bool = False,
    returns: object = None,
    fails: Refusal | None = None,
) -> Result:
    """Do ``step(optimizer)``. `closure`: one is passed by keyword (torch lets a positional one through).

    `returns` and `fails` are what ``optimizer.step()`` will return or raise if it is called.
    """
    if not p.enabled:
        return p, Outcome(
            None if fails else returns, fails, optimizer, called=True, stepped=not fails
        )
    if closure:
        return refuse(p, refusals.CLOSURE, optimizer)
    if not p.exists:
        return refuse(p, refusals.before_scale("step"), optimizer)
    if p.record(optimizer.key).stage is Stage.STEPPED:
        return refuse(p, refusals.STEPPED_TWICE, optimizer)
    return (_step_fused if optimizer.fused else _step_plain)(p, optimizer, returns, fails)


def _step_plain(
    p: Protocol, optimizer: Optimizer, returns: object, fails: Refusal | None
) -> Result:
    if p.record(optimizer.key).stage is Stage.READY:
        p, outcome = unscale_(p, optimizer)
        if outcome.refusal or outcome.optimizer is None:
            return p, outcome
        optimizer = outcome.optimizer
    found = p.record(optimizer.key).found_inf
    if found is None:  # no parameter had a gradient; the optimizer stays UNSCALED
        return refuse(p, refusals.NOTHING_CHECKED, optimizer)
    if found == 0 and fails:
        return p, Outcome(refusal=fails, optimizer=optimizer, called=True)
    p, steps = p.note(optimizer.key, stage=Stage.STEPPED), found == 0  # NaN skips
    return p, Outcome(returns if steps else None, None, optimizer, called=steps, stepped=steps)


def _step_fused(
    p: Protocol, optimizer: Optimizer, returns: object, fails: Refusal | None
) -> Result:
    divisor = optimizer.grad_scale[0] if optimizer.grad_scale else None
    if p.record(optimizer.key).stage is Stage.READY:
        p = p.note(optimizer.key, found_inf=arithmetic.found_inf(optimizer.grads))
        if optimizer.grad_scale and divisor is None:
            return refuse(p, refusals.GRAD_SCALE_IS_NONE, optimizer)
        divisor = round_to_float32(p.state.scale * (1.0 if divisor is None else divisor))
    found = p.record(optimizer.key).found_inf
    kernel = (divisor, found)
    if found is None and any(g is not None for g in optimizer.grads):  # they came after unscale_
        fails = fails or refusals.FOUND_INF_IS_INT  # the empty sum() that torch hands to its kernel
    if fails:  # torch takes the attributes off the optimizer only after a step that returns
        left = replace(optimizer, grad_scale=(divisor,))
        return p, Outcome(refusal=fails, optimizer=left, called=True, kernel=kernel)
    skips = found == 1  # the kernel's test: a found_inf of 2 or NaN steps
    grads = (
        optimizer.grads
        if skips or divisor is None
        else arithmetic.divided(optimizer.grads, divisor)
    )
    left = replace(optimizer, grads=grads, grad_scale=())
    p = p.note(optimizer.key, stage=Stage.STEPPED)
    return p, Outcome(returns, None, left, called=True, stepped=not skips, kernel=kernel)


def update(p: Protocol, new_scale: object = None) -> Result:
    """Do ``update()``: the machine takes one step; or ``update(new_scale)``: the scale is set by hand."""
    if not p.enabled:
        return p, Outcome()
    if not p.exists:
        return refuse(p, refusals.before_scale("update"))
    if new_scale is not None:
        return _override(p, new_scale)
    recorded = [(key, r.found_inf) for key, r in p.records if r.found_inf is not None]
    if not recorded:
        return refuse(p, refusals.NOTHING_CHECKED_AT_ALL)
    total = arithmetic.sum_float32(found for _, found in recorded)
    if refusal := refusals.kernel_argument(p.rule):
        # torch has added up in place, into the first optimizer's found_inf
        return p.note(recorded[0][0], found_inf=total), Outcome(refusal=refusal)
    state = machine.update(p.rule, p.state, found_inf=total != 0)
    return replace(p, state=state, records=()), Outcome()


def _override(p: Protocol, new_scale: object) -> Result:
    if isinstance(new_scale, Tensor):
        if (new_scale.device, math.prod(new_scale.shape), new_scale.requires_grad) != (
            "cpu",
            1,
            False,
        ):
            return refuse(p, refusals.NEW_SCALE)
        if new_scale.shape:
            return refuse(p, refusals.shape(new_scale.shape))
        value = new_scale.value  # beyond float32 a tensor's value becomes inf, a float is refused
    elif isinstance(new_scale, float):
        if refusal := refusals.overflow(new_scale):
            return refuse(p, refusal)
        value = new_scale
    else:  # an int is no float and no tensor
        return refuse(p, refusals.no_tensor(new_scale))
    return replace(p, state=machine.override(p.rule, p.state, value), records=()), Outcome()

"""Exceptions of torch.amp.GradScaler: type and exact text.

Source: torch/amp/grad_scaler.py and the argument parser of torch 2.13.0. The texts are torch's, because a
drop-in must raise what the original raises; ``tests/torch`` compares each with the installed torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real

from ampsim.core.formats import FP32
from ampsim.core.machine import Rule


@dataclass(frozen=True)
class Refusal:
    """An exception that torch raises, or that an optimizer raised."""

    kind: type[Exception]
    text: str  # str(exception)

    def error(self) -> Exception:
        """Return the exception, to be raised."""
        return self.kind(self.text)


GROWTH_FACTOR = Refusal(AssertionError, "The growth factor must be > 1.0.")
BACKOFF_FACTOR = Refusal(AssertionError, "The backoff factor must be < 1.0.")
NOT_A_LOSS = Refusal(ValueError, "outputs must be a Tensor or an iterable of Tensors")
UNSCALED_TWICE = Refusal(
    RuntimeError, "unscale_() has already been called on this optimizer since the last update()."
)
UNSCALED_LATE = Refusal(RuntimeError, "unscale_() is being called after step().")
FLOAT16 = Refusal(ValueError, "Attempting to unscale FP16 gradients.")
OVERLAPS = Refusal(
    RuntimeError,
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation.",
)
CLOSURE = Refusal(RuntimeError, "Closure use is not currently supported if GradScaler is enabled.")
STEPPED_TWICE = Refusal(RuntimeError, "step() has already been called since the last update().")
NOTHING_CHECKED = Refusal(AssertionError, "No inf checks were recorded for this optimizer.")
NOTHING_CHECKED_AT_ALL = Refusal(AssertionError, "No inf checks were recorded prior to update.")
GRAD_SCALE_IS_NONE = Refusal(
    TypeError, "unsupported operand type(s) for *: 'Tensor' and 'NoneType'"
)
NEW_SCALE = Refusal(
    AssertionError,
    "new_scale should be a float or a 1-element torch.cuda.FloatTensor or torch.FloatTensor with requires_grad=False.",
)
FOUND_INF_IS_INT = Refusal(AttributeError, "'int' object has no attribute 'device'")
EMPTY_STATE_DICT = Refusal(
    RuntimeError,
    "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler.",
)
PICKLED_LATE = Refusal(
    AssertionError,
    "A GradScaler instance may only be pickled at the beginning of an iteration, or at the end after scaler.update().",
)


def before_scale(event: str) -> Refusal:
    """Return the error for a call before the first scale; `event` is "unscale_", "step", or "update"."""
    fix = "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration."
    return Refusal(AssertionError, f"Attempted {event} but _scale is None.  {fix}")


def overflow(x: float) -> Refusal | None:
    """Return the error for a finite number beyond float32, as of a float32 tensor; None for inf and NaN."""
    if math.isfinite(x) and abs(x) > FP32.max_finite:
        return Refusal(RuntimeError, "value cannot be converted to type float without overflow")
    return None


def unset(name: str) -> Refusal:
    """Return the error for an attribute that a disabled scaler lacks."""
    return Refusal(AttributeError, f"'GradScaler' object has no attribute '_{name}'")


def missing_key(name: str) -> Refusal:
    """Return the error for a state dict that lacks a key."""
    return Refusal(KeyError, repr(name))


def shape(shape: tuple[int, ...]) -> Refusal:
    """Return the error for a tensor of one element that is not 0-d, which cannot be copied into the scale."""
    return Refusal(
        RuntimeError, f"output with shape [] doesn't match the broadcast shape {[*shape]}"
    )


def no_parameter(value: object) -> Refusal:
    """Return the error for an object in an optimizer's groups that is no tensor."""
    return Refusal(AssertionError, f"expected param to be torch.Tensor, got {type(value).__name__}")


def no_tensor(value: object) -> Refusal:
    """Return the error for ``update(value)`` with neither a float nor a tensor, e.g. an int."""
    try:
        kind = value.device.type  # type: ignore[attr-defined]
    except AttributeError as error:
        return Refusal(AttributeError, str(error))
    raise TypeError(
        f"new_scale={value!r} on {kind}: expected a float; describe a tensor as protocol.Tensor"
    )


KERNEL_ARGUMENTS: Mapping[str, tuple[str, int]] = {
    "growth_factor": ("scale_growth_factor", 4),
    "backoff_factor": ("scale_backoff_factor", 5),
    "growth_interval": ("growth_interval", 6),
}


def kernel_argument(rule: Rule) -> Refusal | None:
    """Return the update kernel's error for an invalid factor or interval; the setters do not validate."""
    for name, (argument, position) in KERNEL_ARGUMENTS.items():
        value = getattr(rule, name)
        whole = name == "growth_interval"
        fits = (
            isinstance(value, Integral) and not isinstance(value, bool)
            if whole
            else isinstance(value, Real)
        )
        if not fits:
            module = (
                "numpy." if type(value).__module__ == "numpy" else ""
            )  # only a static type names its module
            expected = f"must be {'int' if whole else 'float'}, not {module}{type(value).__name__}"
            text = f"_amp_update_scale_(): argument '{argument}' (position {position}) {expected}"
            return Refusal(TypeError, text)
    if not -(2**63) <= rule.growth_interval < 2**63:
        return Refusal(ValueError, "Overflow when unpacking long long")
    return None

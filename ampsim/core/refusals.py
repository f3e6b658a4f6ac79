"""Exceptions of torch.amp.GradScaler: type and exact text.

Source: torch/amp/grad_scaler.py and the argument parser of torch 2.13.0. The texts are torch's,
because a drop-in must raise what the original raises; ``tests/torch`` compares each with the
installed torch.
"""

from dataclasses import dataclass


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
    RuntimeError,
    "unscale_() has already been called on this optimizer since the last update().",
)
UNSCALED_LATE = Refusal(RuntimeError, "unscale_() is being called after step().")
FLOAT16 = Refusal(ValueError, "Attempting to unscale FP16 gradients.")
OVERLAPS = Refusal(
    RuntimeError,
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation.",
)
CLOSURE = Refusal(
    RuntimeError, "Closure use is not currently supported if GradScaler is enabled."
)
STEPPED_TWICE = Refusal(
    RuntimeError, "step() has already been called since the last update()."
)
NOTHING_CHECKED = Refusal(
    AssertionError, "No inf checks were recorded for this optimizer."
)
NOTHING_CHECKED_AT_ALL = Refusal(
    AssertionError, "No inf checks were recorded prior to update."
)
NEW_SCALE = Refusal(
    AssertionError,
    "new_scale should be a float or a 1-element torch.cuda.FloatTensor or torch.FloatTensor with requires_grad=False.",
)
EMPTY_STATE_DICT = Refusal(
    RuntimeError,
    "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler.",
)


def before_scale(event: str) -> Refusal:
    """Return the error for a call before the first scale; `event` is "unscale_", "step", or
    "update".
    """
    fix = "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration."
    return Refusal(AssertionError, f"Attempted {event} but _scale is None.  {fix}")


def no_parameter(value: object) -> Refusal:
    """Return the error for an object in an optimizer's groups that is no tensor."""
    return Refusal(
        AssertionError, f"expected param to be torch.Tensor, got {type(value).__name__}"
    )

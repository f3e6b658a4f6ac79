"""Calibration of the initial loss scale, by backward passes without optimizer steps."""

import math
from typing import NamedTuple

from torch import nn

from ampsim.core.formats import FP16, Format
from ampsim.core.validation import as_int
from ampsim.probe.histogram import CastLoss, Histogram
from ampsim.probe.probe import Probe
from ampsim.probe.undoable_backward import Loss, backward, is_finite, undone

TRIALS = tuple(2.0**exponent for exponent in (16, 0, -16, -32))
"""Scales to try until the gradients are finite; usually the first one is."""


class Calibration(NamedTuple):
    """Result of `calibrate`.

    Attributes:
        init_scale: Initial loss scale, a power of two.
        threshold: Overflow threshold: the largest power of two at which no gradient of the batch
            overflows.
        lost: Fractions of the parameters' nonzero gradients that underflow or overflow at
            `init_scale`.
        passes: Number of backward passes: one to measure, one to confirm, and more if needed.
    """

    init_scale: float
    threshold: float
    lost: CastLoss
    passes: int


def calibrate(
    model: nn.Module, loss: Loss, *, headroom: int = 1, fmt: Format = FP16
) -> Calibration:
    """Find an initial loss scale that does not overflow on one batch.

    Runs backward passes without optimizer steps, and measures the gradients of parameters and of
    modules' outputs, where overflows begin. Parameters, ``.grad``, buffers, and RNG state are
    restored.

    >>> import torch
    >>> from ampsim.probe import calibrate
    >>> model = torch.nn.Linear(4, 1)
    >>> calibrate(model, lambda: 3.0 * model(torch.ones(1, 4)).sum()).init_scale
    8192.0

    Args:
        model: Module to measure, in training mode.
        loss: Callable that returns the scalar loss of one batch, under the autocast used for
            training.
        headroom: Factors of two to keep below the overflow threshold, for other batches; at least
            0.
        fmt: Floating-point format of the gradients.

    Returns:
        Calibration: The scale, the overflow threshold, and the fractions lost at that scale.

    Raises:
        ValueError: If gradients are not finite at any tested scale; see `find_fp32_modules`.
    """
    headroom = as_int("headroom", headroom, 0, "to start at the threshold pass 0")
    for passes, scale in enumerate(TRIALS, start=1):
        total, inner = _histograms(model, loss, scale)
        if total.not_finite or inner.not_finite:
            continue
        highest = total.overflow_threshold(fmt), inner.overflow_threshold(fmt)
        threshold = min(*highest, 2.0**126)
        passes += 1
        # A gradient inside a module may be larger. A loss of inf is so at each scale.
        while threshold and not is_finite(model, loss, threshold):
            threshold /= 2
            passes += 1
        if not threshold:
            break
        init_scale = math.ldexp(threshold, -headroom)
        lost = total.lost(init_scale, fmt)
        return Calibration(init_scale, threshold, lost, passes)
    raise ValueError(
        f"loss or gradients are not finite at scales {', '.join(f'{scale:g}' for scale in TRIALS)}: expected a finite "
        "loss and gradients; the forward pass overflows or the batch has NaN: run ampsim.probe.find_fp32_modules"
    )


def _histograms(
    model: nn.Module, loss: Loss, scale: float
) -> tuple[Histogram, Histogram]:
    """Return histograms of the unscaled gradients of parameters and of modules' outputs."""
    with undone(model), Probe(model, scale=scale, activations=True) as probe:
        backward(loss, scale)
        probe.step()
        rows = probe.drain()
    kinds: dict[str, Histogram] = {}
    for row in rows:
        kinds[row.kind] = (
            kinds[row.kind] + row.histogram if row.kind in kinds else row.histogram
        )
    if "parameter" not in kinds:
        raise ValueError(
            "no parameter got a gradient: expected a loss that depends on the model; compute it in loss()"
        )
    return kinds["parameter"], kinds.get("activation", kinds["parameter"])

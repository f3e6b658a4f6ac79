"""The right initial loss scale for a model and a batch, from backward passes without a step."""

import math
from typing import NamedTuple

from torch import nn

from ampsim.core.formats import FP16, Format
from ampsim.core.validation import as_int
from ampsim.probe.histogram import CastLoss, Histogram
from ampsim.probe.probe import Probe
from ampsim.probe.undoable_backward import Loss, backward, undone

TRIALS = tuple(2.0**exponent for exponent in (16, 0, -16, -32))
"""Scales that are tried until the gradients are finite; the first nearly always is."""


class Calibration(NamedTuple):
    """An initial scale, and how it was found by `calibrate`.

    Attributes:
        init_scale: the scale to begin with, a power of two.
        threshold: the largest power of two at which no gradient of this batch overflows.
        lost: what the format loses of the parameters' gradients at `init_scale`, as shares of the nonzero ones.
        passes: backward passes that it took: one to measure and one to confirm, unless more were needed.
    """

    init_scale: float
    threshold: float
    lost: CastLoss
    passes: int


def calibrate(
    model: nn.Module, loss: Loss, *, headroom: int = 1, fmt: Format = FP16
) -> Calibration:
    """Find the initial scale at which a batch just does not overflow, so that no first steps are skipped.

    Parameters' gradients and those of modules' outputs are looked at, as an overflow begins in the latter.
    Parameters, ``.grad``, buffers and random numbers stay as they were.

    >>> import torch
    >>> model = nn.Linear(4, 1)
    >>> calibrate(model, lambda: 3.0 * model(torch.ones(1, 4)).sum()).init_scale
    8192.0

    Args:
        model: the model, as it is trained.
        loss: computes the loss of one batch, under the autocast of the training loop.
        headroom: doublings between `init_scale` and the threshold, which other batches may need.
        fmt: the format of the gradients.

    Raises:
        ValueError: not finite at any scale that was tried: the forward pass overflows, see `find_fp32_modules`.
    """
    headroom = as_int("headroom", headroom, 0, "0 begins at the threshold")
    for passes, scale in enumerate(TRIALS, start=1):
        total, inner = _histograms(model, loss, scale)
        if not (total.not_finite or inner.not_finite):
            threshold, more = (
                min(total.overflow_threshold(fmt), inner.overflow_threshold(fmt), 2.0**126),
                1,
            )
            while not _finite(
                model, loss, threshold
            ):  # what lies between two modules' outputs was larger
                threshold, more = threshold / 2, more + 1
            init_scale = math.ldexp(threshold, -headroom)
            return Calibration(init_scale, threshold, total.lost(init_scale, fmt), passes + more)
    raise ValueError(
        f"gradients are not finite at scales {', '.join(f'{scale:g}' for scale in TRIALS)}: expected finite ones at "
        "some scale; the forward pass overflows, or the batch has NaN: ampsim.probe.find_fp32_modules finds the modules"
    )


def _finite(model: nn.Module, loss: Loss, scale: float) -> bool:
    with undone(model):
        backward(loss, scale)
        return all(
            bool(param.grad.isfinite().all())
            for param in model.parameters()
            if param.grad is not None
        )


def _histograms(model: nn.Module, loss: Loss, scale: float) -> tuple[Histogram, Histogram]:
    """Return where the unscaled gradients of the parameters lie, and those of the modules' outputs."""
    with undone(model), Probe(model, scale=scale, activations=True) as probe:
        backward(loss, scale)
        probe.step()
        rows = probe.drain()
    kinds: dict[str, Histogram] = {}
    for row in rows:
        kinds[row.kind] = kinds[row.kind] + row.histogram if row.kind in kinds else row.histogram
    if "parameter" not in kinds:
        raise ValueError(
            "no parameter got a gradient: expected a loss that depends on the model; compute it in loss()"
        )
    return kinds["parameter"], kinds.get("activation", kinds["parameter"])

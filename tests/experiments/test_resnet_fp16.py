"""What the residual network in fp16 must show, whatever the exact numbers are."""

import dataclasses
from typing import Any

import pytest

from experiments import resnet_fp16
from tests.experiments import runs

SHORT = dataclasses.replace(resnet_fp16.SMOKE, steps=6, batch_cpu=16, count_every=1)


def fresh(arm: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    return runs.fresh(resnet_fp16, arm, seed, SHORT, **changes)


def test_loss_scale_reduces_global_batch_underflow() -> None:
    shared, whole = fresh("global fp32", steps=4), fresh("fp32", steps=4)
    assert shared["loss"] == pytest.approx(
        whole["loss"], rel=1e-4
    )  # Adam does not see a factor
    unscaled, dynamic = (
        fresh("global unscaled", steps=4),
        fresh("global dynamic", steps=4),
    )
    assert unscaled["zero"][0] > 0.9
    assert dynamic["zero"][0] < 0.01
    assert (
        shared["zero"][0] < unscaled["zero"][0] - 0.3
    )  # rounding float32's gradient misses what was lost on the way


# ------------------------------------------------------------------------------------------------
# what it shows

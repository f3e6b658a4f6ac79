"""What the transformer experiment must show, whatever the exact numbers are; its text; its arms."""

import dataclasses
import gzip
import hashlib
from typing import Any

import pytest
import torch

from experiments import gpt_fp16
from experiments.training import tasks, text_data
from tests.experiments import runs

SHORT = dataclasses.replace(
    gpt_fp16.SMOKE, steps=4, on_cpu=tasks.GPT_TINY, batch=8, count_every=1
)


def fresh(arm: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    return runs.fresh(gpt_fp16, arm, seed, SHORT, **changes)


# ---------------------------------------------------------------------------------------------------
# the text


def test_text_and_split_are_constant() -> None:
    text = text_data.load("cpu")
    joined = bytes(torch.cat(text).tolist())
    assert len(joined) == 2**18
    assert hashlib.sha256(joined).hexdigest().startswith("5e85c58ecdd85155")
    assert tasks.inputs("gpt")["topics"].startswith("d29a5068821b88db")
    assert bytes(text.train[:22].tolist()) == b'The "assert" statement'
    assert [len(part) for part in text] == [229376, 32768]
    assert gzip.decompress(text_data.FILE.read_bytes()) == joined


def test_targets_are_the_next_bytes() -> None:
    tokens = torch.arange(40)
    x, y = text_data.windows(tokens, torch.tensor([0, 29]), 10)
    assert x.tolist() == [list(range(10)), list(range(29, 39))]
    assert torch.equal(y, x + 1)
    x, y = text_data.spaced(tokens, 4, 10)
    assert (x[0, 0], y[-1, -1]) == (0, 39)
    draws = [
        text_data.draw(tokens, 8, 10, torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0][0], draws[1][0])
    assert not torch.equal(draws[0][0], draws[2][0])
    many = text_data.draw(tokens, 1000, 10, torch.Generator().manual_seed(0))
    assert (many[0].min(), many[1].max()) == (0, 39)  # every window can be drawn


# ---------------------------------------------------------------------------------------------------
# the arms


def test_float32_loss_ignores_global_batch() -> None:
    mean_loss, shared, bf16, fp16 = (
        fresh(arm)["loss"] for arm in ("fp32", "global fp32", "bf16", "unscaled")
    )
    assert shared == pytest.approx(mean_loss, rel=1e-5)
    assert bf16[0] == pytest.approx(mean_loss[0], rel=1e-3)
    assert len({tuple(bf16), tuple(fp16), tuple(mean_loss)}) == 3


# ------------------------------------------------------------------------------------------------
# what it shows


def test_loss_scale_reduces_global_batch_underflow() -> None:
    unscaled, dynamic, rounded = (
        fresh(arm)["zero"]
        for arm in ("global unscaled", "global dynamic", "global fp32")
    )
    assert unscaled[0] > 0.9
    assert dynamic[0] < 0.01
    assert max(dynamic) < 0.2
    assert min(unscaled) > 0.9
    assert (
        rounded[0] < unscaled[0] - 0.3
    )  # rounding float32's gradient misses what was flushed on the way

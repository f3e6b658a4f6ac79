"""Digests of the bits that a processor gives, and products of halves with common kernels."""

import os
from pathlib import Path

import pytest
import torch

import experiments
from ampsim import records
from experiments.runner import bits, products


def test_a_difference_is_counted_and_named(tmp_path: Path) -> None:
    known = tmp_path / "bits.jsonl"
    row = {"cpu": "X", "settings": {}, "bits": {"exp": "a", "sum": "b", "old": "d"}}
    known.write_text(records.encode(row) + "\n")
    (said,) = bits.compare({"exp": "a", "sum": "c", "new": "e"}, known)
    assert said.startswith("1 of 2 as on X")
    assert said.endswith("not sum")


def test_own_kernels_are_left_alone() -> None:
    assert not experiments.KERNELS.items() <= os.environ.items()  # `conftest` asked for our own
    assert products.install() is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_product_is_added_up_in_turn(dtype: torch.dtype) -> None:
    pytest.importorskip("numba", reason="the kernels are compiled: pip install 'ampsim[replay]'")
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(300, 32, generator=generator).to(dtype).t()
    b = torch.randn(300, 32, generator=generator).to(dtype)
    assert products.order_of(a, b) == products.IN_TURN
    total = torch.zeros(32, 32)
    for column, row in zip(a.t(), b, strict=True):
        total += column.float()[:, None] * row.float()  # exact; each sum is rounded
    found = products.multiplied(a, b, 0, products.IN_TURN)
    assert torch.equal(found, total.to(dtype))
    assert torch.equal(products.multiplied(a, b, 0, products.LANES), found) is False

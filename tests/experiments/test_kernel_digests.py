"""Digests of the bits that a processor gives, and products of halves with common kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import experiments
from ampsim.core import json_lines
from experiments.runner import exact_half_matmul, kernel_digests

ROOT = Path(__file__).parents[2]


def test_a_difference_is_counted_and_named(tmp_path: Path) -> None:
    known = tmp_path / "kernel_digests.jsonl"
    row = {"cpu": "X", "settings": {}, "bits": {"exp": "a", "sum": "b", "old": "d"}}
    known.write_text(json_lines.encode(row) + "\n")
    (said,) = kernel_digests.compare({"exp": "a", "sum": "c", "new": "e"}, known)
    assert said.startswith("1 of 2 operations equal those on X")
    assert said.endswith("; different: sum")


def test_own_kernels_are_left_alone() -> None:
    assert not experiments.KERNELS.items() <= os.environ.items()  # `conftest` asked for our own
    assert exact_half_matmul.install() is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_matmul_sums_in_sequential_order(dtype: torch.dtype) -> None:
    pytest.importorskip("numba", reason="the kernels are compiled: pip install 'ampsim[replay]'")
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(300, 32, generator=generator).to(dtype).t()
    b = torch.randn(300, 32, generator=generator).to(dtype)
    assert exact_half_matmul.order_of(a, b) == exact_half_matmul.IN_TURN
    total = torch.zeros(32, 32)
    for column, row in zip(a.t(), b, strict=True):
        total += column.float()[:, None] * row.float()  # exact; each sum is rounded
    found = exact_half_matmul.multiplied(a, b, 0, exact_half_matmul.IN_TURN)
    assert torch.equal(found, total.to(dtype))
    assert (
        torch.equal(exact_half_matmul.multiplied(a, b, 0, exact_half_matmul.LANES), found) is False
    )


# Run where the common kernels are asked for, before torch is loaded: the tests' own process has torch's.
COMPARE = """
import experiments
import itertools, torch
from experiments.runner import exact_half_matmul

torch.backends.mkldnn.set_flags(False)  # as the convolutional networks here are trained
generator = torch.Generator().manual_seed(0)


def draw(dtype, *shape):
    numbers = 100 * torch.randn(*shape, generator=generator)
    odd = torch.rand(*shape, generator=generator) // 0.005
    for place, value in enumerate((float("inf"), float("nan"), 0.0, -0.0, 2.0**-24)):
        numbers[odd == place] = value
    return numbers.to(dtype)


def results(pairs, images):
    found = [a @ b for a, b in pairs]
    for image, weight in images:
        image, weight = image.requires_grad_(), weight.requires_grad_()
        out = torch.conv2d(image, weight, stride=2, padding=1)
        found += [out.detach(), *torch.autograd.grad(out.float().sum(), [image, weight])]
    return [torch.where(x.isnan(), torch.zeros_like(x) + 12345, x) for x in found]


pairs, images = [], []
for dtype in (torch.float16, torch.bfloat16):
    for m, k, n in ((64, 64, 64), (128, 32, 10), (31, 67, 33), (2, 2, 2)):
        pairs += [(draw(dtype, m, k), draw(dtype, k, n)), (draw(dtype, k, m).t(), draw(dtype, n, k).t())]
    images.append((draw(dtype, 3, 5, 7, 7), draw(dtype, 6, 5, 3, 3)))
torchs = results(pairs, images)
exact_half_matmul.install()
ours = results(pairs, images)
print(sum(torch.equal(a, b) for a, b in zip(torchs, ours, strict=True)), len(ours))
"""


@pytest.mark.deep  # numba compiles for ten seconds
def test_products_and_convolutions_match_torch() -> None:
    pytest.importorskip("numba", reason="the kernels are compiled: pip install 'ampsim[replay]'")
    own = (*kernel_digests.SETTINGS, "AMPSIM_KERNELS")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    command = [sys.executable, "-c", COMPARE]
    done = subprocess.run(  # noqa: S603
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    equal, total = done.stdout.split()
    assert equal == total
    assert int(total) >= 20

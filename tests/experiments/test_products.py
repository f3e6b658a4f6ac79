"""Products of halves for experiments are torch's to the last bit, in a new process with the common kernels."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from experiments.runner import products

ROOT = Path(__file__).parents[2]
SHAPES = (
    (64, 64, 64),
    (128, 32, 10),
    (10, 128, 32),
    (256, 64, 192),
    (31, 67, 33),
    (32, 10, 64),
    (192, 300, 7),
    (2, 2, 2),
)
DTYPES = (torch.float16, torch.bfloat16)


def pairs(dtype: torch.dtype, shape: tuple[int, int, int], *, odd: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield matrices in all layouts; `odd`: some of their numbers are inf, NaN, 0, -0 or subnormal."""
    m, k, n = shape
    generator = torch.Generator().manual_seed(m + k + n)

    def draw(*sizes: int) -> Tensor:
        x, chance = torch.randn(*sizes, generator=generator) * 100, torch.rand(*sizes, generator=generator)
        for place, value in enumerate((float("inf"), float("nan"), 0.0, -0.0, 2.0**-24) * odd):
            x[chance // 0.005 == place] = value
        return x.to(dtype)

    yield draw(m, k), draw(k, n)
    yield draw(k, m).t(), draw(k, n)
    yield draw(m, k), draw(n, k).t()
    yield draw(k, m).t(), draw(n, k).t()
    yield draw(2 * m, 2 * k)[::2, ::2], draw(k, n)


def bits(x: Tensor) -> Tensor:
    """Return the bits of each element, of any NaN the same."""
    return torch.where(x.isnan(), torch.tensor(float("nan"), dtype=x.dtype), x).view(torch.int16)


def show() -> None:
    """Print which products differ from torch's, and how many are added in how many sums, for the test below."""
    asked = [
        pair for dtype, shape, odd in product(DTYPES, SHAPES, (False, True)) for pair in pairs(dtype, shape, odd=odd)
    ]
    torches = [a @ b for a, b in asked]
    products.install()
    differ = [place for place, (a, b) in enumerate(asked) if not torch.equal(bits(torches[place]), bits(a @ b))]
    print(json.dumps([differ, Counter(products.lanes_of(a, b) for a, b in asked)]))


def test_they_are_those_of_torch() -> None:
    kept = {name: value for name, value in os.environ.items() if name != "AMPSIM_KERNELS"}
    command = [sys.executable, "-c", "import experiments; from tests.experiments import test_products as t; t.show()"]
    done = subprocess.run(command, env=kept, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    differ, lanes = json.loads(done.stdout)
    assert not differ
    assert min(lanes["1"], lanes[str(products.LANES)]) >= 20


def test_they_are_left_alone_without_the_common_kernels() -> None:
    assert products.install() is None

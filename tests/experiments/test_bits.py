"""The kernels that data is made with, the digests that tell which bits they give, and products of halves with them."""

import ast
import functools
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import experiments
from ampsim import records
from experiments.__main__ import main
from experiments.runner import bits, device, products, provenance

ROOT = Path(__file__).parents[2]
ROWS = [records.decode(line) for line in bits.KNOWN.read_text().splitlines()]
# Where OpenBLAS takes Haswell's kernels by itself, as on the EPYC, it need not be told.
COMMON = [row for row in ROWS if {"OPENBLAS_CORETYPE": "Haswell"} | row["settings"] == experiments.KERNELS]


def essence_of_kernels() -> str:
    """Return a digest of what the kernels are made by, without comments."""
    names = ("__init__", "runner/bits", "runner/half_convolutions", "runner/half_kernels", "runner/products")
    texts = [(ROOT / "experiments" / f"{name}.py").read_text() for name in names]
    return hashlib.sha256("".join(provenance.essence(ast.parse(text)) for text in texts).encode()).hexdigest()[:12]


# The kernels whose bits were asked: numba compiles them for ten seconds, so `make test` asks only where something else
# is installed or runs, or the kernels are others.
ASKED = "bb30e5be4d51"
HERE = {"torch": torch.__version__, "numpy": np.__version__}
ON_RECORD = COMMON[0]["versions"] == HERE and device.cpu_name() in {row["cpu"] for row in COMMON}
unless_asked = pytest.mark.skipif(
    ON_RECORD and essence_of_kernels() == ASKED and os.environ.get("AMPSIM_DEEP") != "1",
    reason="on record for this processor and these versions: run `make deep`",
)

SHAPES = (
    (64, 64, 64),
    (128, 32, 10),
    (10, 128, 32),
    (256, 64, 192),
    (31, 67, 33),
    (32, 10, 64),
    (192, 300, 7),
    (64, 200, 24),
    (33, 47, 70),
    (2, 2, 2),
)
CONVOLUTIONS = (  # batch, channels, side, channels out, side of the kernel, stride, padding
    (4, 1, 8, 8, 3, 1, 1),
    (3, 8, 8, 16, 3, 2, 1),
    (2, 16, 4, 16, 3, 1, 1),
    (3, 8, 8, 16, 1, 2, 0),
    (3, 5, 7, 6, 3, 1, 0),
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


def convolved(dtype: torch.dtype, *, odd: bool) -> Iterator[Tensor]:
    """Yield convolutions and their gradients; `odd`: some numbers are inf, NaN, 0, -0 or subnormal."""
    for batch, channels, side, out, kernel, stride, padding in CONVOLUTIONS:
        images, _ = next(pairs(dtype, (batch, channels * side**2, 2), odd=odd))
        weight, _ = next(pairs(dtype, (out, channels * kernel**2, 2), odd=odd))
        x = images.unflatten(1, (channels, side, side)).requires_grad_()
        w = (weight / 100).unflatten(1, (channels, kernel, kernel)).requires_grad_()
        y = torch.conv2d(x, w, stride=stride, padding=padding)
        back, _ = next(pairs(dtype, (batch, y[0].numel(), 2), odd=odd))
        yield from (y.detach(), *torch.autograd.grad(y, [x, w], back.view(y.shape), retain_graph=True))
        yield from torch.autograd.grad(y, [w], back.view(y.shape))


def digits(x: Tensor) -> Tensor:
    """Return the bits of each element, of any NaN the same."""
    return torch.where(x.isnan(), torch.tensor(float("nan"), dtype=x.dtype), x).view(torch.int16)


def results(asked: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Return products, products with a bias, and convolutions."""
    with_bias = [torch.addmm(b[0].contiguous(), a, b) for a, b in asked]
    images = [found for dtype, odd in product(DTYPES, (False, True)) for found in convolved(dtype, odd=odd)]
    return [a @ b for a, b in asked] + with_bias + images


def show() -> None:
    """Print which results differ from torch's, how many products are added in which order, and the digests."""
    torch.backends.mkldnn.set_flags(False)  # as the convolutional networks here are trained
    asked = [
        pair for dtype, shape, odd in product(DTYPES, SHAPES, (False, True)) for pair in pairs(dtype, shape, odd=odd)
    ]
    torches = results(asked)
    products.install()
    pairs_of_results = enumerate(zip(torches, results(asked), strict=True))
    differ = [place for place, (theirs, ours) in pairs_of_results if not torch.equal(digits(theirs), digits(ours))]
    print(json.dumps([differ, Counter(str(products.order_of(a, b)) for a, b in asked)]))
    main(["bits", "--json"])


@functools.cache
def shown() -> list[Any]:
    """Return what `show` prints in a process with the common kernels: each takes a second to load torch."""
    code = "import experiments; from tests.experiments import test_bits; test_bits.show()"
    kept = {name: value for name, value in os.environ.items() if name not in (*bits.SETTINGS, "AMPSIM_KERNELS")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=kept, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    return [json.loads(line) for line in done.stdout.splitlines()]


@unless_asked
def test_products_and_convolutions_of_halves_are_torchs_to_the_last_bit() -> None:
    differ, orders = shown()[0]
    assert not differ
    assert min(orders[str(order)] for order in (products.LANES, products.IN_TURN, products.DOTS)) >= 16
    assert essence_of_kernels() == ASKED, f"they are others, and right: write ASKED = {essence_of_kernels()!r}"


def test_they_are_left_alone_without_the_common_kernels() -> None:
    assert not experiments.KERNELS.items() <= os.environ.items()  # `conftest` asked for our own
    assert products.install() is None


@unless_asked
def test_the_common_kernels_give_the_bits_of_every_processor_on_record() -> None:
    """Fails on a processor where they do not: then the sentence in `data/README.md` is wrong."""
    here = shown()[1]
    assert here["settings"] == experiments.KERNELS
    assert len({row["cpu"] for row in COMMON}) >= 2
    if here["versions"] != COMMON[0]["versions"]:
        pytest.skip(f"the digests are of {COMMON[0]['versions']}")
    for row in COMMON:
        assert row["bits"] == here["bits"], row["cpu"]
    assert len(here["bits"]) == 78


def test_other_kernels_are_seen() -> None:
    others = [records.encode(row["bits"]) for row in ROWS if row not in COMMON]
    assert len({*others, records.encode(COMMON[0]["bits"])}) == len(others) + 1


def test_a_difference_is_counted_and_named(tmp_path: Path) -> None:
    known = tmp_path / "bits.jsonl"
    known.write_text(records.encode({"cpu": "X", "settings": {}, "bits": {"exp": "a", "sum": "b", "old": "d"}}) + "\n")
    assert bits.compare({"exp": "a", "sum": "c", "new": "e"}, known) == ["1 of 2 as on X with no settings; not sum"]


def test_the_command_compares_and_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bits"]) == 0
    assert capsys.readouterr().out.count(" of 78 as on ") == len(ROWS)
    assert main(["bits", "--csv"]) == 2
    assert "'--csv': expected bits [--json [NAME]]" in capsys.readouterr().err

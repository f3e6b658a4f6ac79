"""Products of halves as a device computes them: exact sums in integers, the package mmasim, and
torch.
"""

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

import experiments

pytest.importorskip(
    "numba", reason="the kernels are compiled: pip install 'ampsim[experiments]'"
)
from experiments import emulation
from experiments.emulation import half_products

ROOT = Path(__file__).parents[2]
UNIT = 200  # exact sums are integers, in units of 2^-200
BELOW_ALL = -150  # exponent of a zero
UNITS = {name: unit for name, unit in half_products.ARITHMETICS.items() if unit}
ELEMENTS = 10_000 if os.environ.get("AMPSIM_DEEP") == "1" else 400  # of each unit
Floats = NDArray[np.float32]


def draw(seed: int, *shape: int) -> Floats:
    """Return halves of many sizes, a fifth of them zero, as float32; no sum of 64 overflows."""
    random = np.random.default_rng(seed)
    x = random.standard_normal(shape) * 2.0 ** random.integers(-26, 4, shape)
    x[random.random(shape) < 0.2] = 0
    return x.astype(np.float16).astype(np.float32)


def exponent(x: float, least: int) -> int:
    return max(math.frexp(x)[1] - 1, least) if x else BELOW_ALL


def cut(x: int, bits: int) -> int:
    """Drop the lowest bits of a magnitude."""
    return int(math.copysign(1, x)) * (abs(x) >> bits << bits)


def exact(
    a: Sequence[float], b: Sequence[float], unit: half_products.MatrixUnit
) -> float:
    """Return one element as the unit adds it, in Python's integers."""
    total = 0.0
    zero = 4 - unit.fraction if unit.half_sums else BELOW_ALL
    for start in range(0, len(a), unit.block):
        pairs = list(
            zip(
                a[start : start + unit.block],
                b[start : start + unit.block],
                strict=True,
            )
        )
        of_sum = exponent(total, -14 if unit.half_sums else -126)
        of_pairs = [exponent(x, -14) + exponent(y, -14) for x, y in pairs]
        lost = max(of_sum, zero, *of_pairs) - unit.fraction + UNIT
        terms = [total, *(x * y for x, y in pairs)]
        added = sum(cut(int(math.ldexp(term, UNIT)), lost) for term in terms)
        if unit.half_sums:
            total = float(np.float16(math.ldexp(added, -UNIT)))
        else:
            total = math.ldexp(cut(added, max(added.bit_length() - 24, 0)), -UNIT)
    return total


def by_unit(a: Floats, b: Floats, unit: half_products.MatrixUnit) -> Floats:
    return half_products.sums_by_unit(
        unit, torch.from_numpy(a), torch.from_numpy(b)
    ).numpy()


@pytest.mark.parametrize(
    "name", [name for name, unit in UNITS.items() if unit.slices == 1]
)
def test_unit_equals_exact_integers(name: str) -> None:
    unit, columns = UNITS[name], ELEMENTS // 20
    a, b = draw(1, 20, 45), draw(2, 45, columns)
    found = by_unit(a, b, unit)
    for row in range(20):
        expected = [
            exact(a[row].tolist(), b[:, j].tolist(), unit) for j in range(columns)
        ]
        assert found[row].tolist() == expected


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("volta", "m8n8k4"),
        ("turing", "m16n8k8"),
        ("ampere", "m16n8k16"),
        ("hopper", "m16n8k16"),
    ],
)
def test_unit_equals_mmasim(name: str, shape: str) -> None:
    sim = pytest.importorskip("mmasim.nv_ptx", reason="pip install mmasim")
    model = sim.MMA(name.title(), f"{shape}.f32.f16.f16.f32")
    a, b = draw(1, 32, 64), draw(2, 64, 32)
    x = torch.from_numpy(a).half()[:, None].expand(-1, 32, -1)
    y = torch.from_numpy(b).half().T[None].expand(32, -1, -1)
    total = torch.zeros(32, 32)
    for start in range(0, 64, model.k):
        part = slice(start, start + model.k)
        total = model.dpa(x[..., part].contiguous(), y[..., part].contiguous(), total)
    assert np.array_equal(
        by_unit(a, b, UNITS.get(name, UNITS["ampere"])), total.numpy()
    )


@pytest.mark.parametrize(
    ("name", "block", "fraction"),
    [("volta", 4, 23), ("ampere", 8, 24), ("hopper", 16, 25)],
)
def test_unit_has_published_width(name: str, block: int, fraction: int) -> None:
    def total(*products: float) -> float:
        roots = [2.0**-12 if 0 < x < 1 else 1 for x in products]
        b = np.array([roots], np.float32).T
        return by_unit(np.array([products], np.float32) / b.T, b, UNITS[name]).item()

    assert total(1, 2.0**-fraction, -1) == 2.0**-fraction
    assert total(1, 2.0 ** -(fraction + 1), -1) == 0
    small, zeros = 2.0**-23, [0.0] * (block - 4)
    assert (
        total(1, 1, small, *zeros, -1, -1) == small
    )  # the block ends between -1 and -1
    assert total(1, 1, small, *zeros, 0, -1, -1) == 0  # 2 + small is cut at its end


def test_partial_sums_are_rounded() -> None:
    a, b = np.ones((1, 64), np.float32), np.ones((64, 1), np.float32)
    a[0, ::16] = [2048, 0, 0, 0]  # and 2048 + 15 is no half
    assert by_unit(a, b, UNITS["hopper"]).item() == 2048 + 60
    assert by_unit(a, b, UNITS["split-K"]).item() == 2064 + 15 + 15 + 15 + 3


@pytest.mark.parametrize("name", UNITS)
def test_unit_keeps_inf_and_nan(name: str) -> None:
    a, b = draw(1, 4, 40), draw(2, 40, 6)
    a[0, 3], a[1, 2], b[7, 1] = np.inf, np.nan, -np.inf
    plain = torch.from_numpy(a) @ torch.from_numpy(b)
    found = torch.from_numpy(by_unit(a, b, UNITS[name]))
    assert torch.equal(found.isnan(), plain.isnan())
    assert torch.equal(found.isinf(), plain.isinf())


def test_half_accumulator_overflows() -> None:
    a, b = np.full((1, 64), 128, np.float32), np.full((64, 1), 128, np.float32)
    assert by_unit(a, b, UNITS["fp16 accumulator"]).item() == math.inf
    assert by_unit(a, b, UNITS["hopper"]).item() == 2.0**20


# --------------------------------------------------------------------------------- in torch's place


def gradients(function: object, *tensors: Tensor) -> list[Tensor]:
    """Return what a function of half tensors gives, and its gradients."""
    inputs = [x.clone().requires_grad_() for x in tensors]
    out = function(*inputs)  # type: ignore[operator]
    seeded = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(
        out.dtype
    )
    return [out.detach(), *torch.autograd.grad(out, inputs, seeded)]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def convolution(x: Tensor, weight: Tensor) -> Tensor:
    return functional.conv2d(x, weight, stride=2, padding=1)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.matmul, ((5, 20), (20, 7))),
        (torch.matmul, ((3, 5, 20), (3, 20, 7))),
        (functional.linear, ((4, 6, 20), (7, 20), (7,))),
        (convolution, ((3, 4, 7, 9), (5, 4, 3, 3))),
        (functional.conv2d, ((2, 4, 8, 8), (5, 4, 1, 1))),
        (attention, ((2, 3, 8, 4), (2, 3, 8, 4), (2, 3, 8, 4))),
    ],
)
def test_unit_computes_values_and_gradients(
    function: object, shapes: list[list[int]]
) -> None:
    torch.backends.mkldnn.set_flags(False)
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator).half() for shape in shapes]
    with half_products.computed_by("hopper"):
        found = gradients(function, *tensors)
    with half_products.computed_by("fp16 accumulator"):
        rough = gradients(function, *tensors)
    truth = gradients(function, *(x.double() for x in tensors))
    for x, y in zip(found, truth, strict=True):
        assert x.dtype == torch.float16
        assert (x.double() - y).abs().max() <= 2.0**-9 * y.abs().max()
    assert any(not torch.equal(x, y) for x, y in zip(found, rough, strict=True))


def test_attention_backward_is_by_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(1, 1, 8, 4).half().requires_grad_()
    products = []
    original = half_products.batched
    monkeypatch.setattr(
        half_products,
        "batched",
        lambda a, b: products.append(a.shape) or original(a, b),
    )
    with half_products.computed_by("hopper"):
        out = attention(x, x, x)
        assert len(products) == 2
        out.sum().backward()  # type: ignore[no-untyped-call]
    assert len(products) == 7  # the logits again, and four gradients


def test_unit_ends_with_context() -> None:
    a = torch.randn(40, 40, generator=torch.Generator().manual_seed(0)).half()
    before = a @ a
    with half_products.computed_by("fp16 accumulator"):
        inside = a @ a
    assert not torch.equal(before, inside)
    assert torch.equal(before, a @ a)


def test_own_kernels_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        not experiments.KERNELS.items() <= os.environ.items()
    )  # `conftest` asked for our own
    monkeypatch.setattr(half_products, "install", lambda: pytest.fail("installed"))
    emulation.speed_up_halves()


# Run where the common kernels are asked for, before torch is loaded: the tests' own process has
# torch's.
COMPARE = """
import experiments
import itertools, torch
from experiments import emulation

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
    found += [torch.addmm(b[0], a, b) for a, b in pairs]
    for image, weight in images:
        image, weight = image.requires_grad_(), weight.requires_grad_()
        out = torch.conv2d(image, weight, stride=2, padding=1)
        found += [out.detach(), *torch.autograd.grad(out.float().sum(), [image, weight])]
    return [torch.where(x.isnan(), torch.zeros_like(x) + 12345, x) for x in found]


pairs, images = [], []
for dtype in (torch.float16, torch.bfloat16):
    for m, k, n in ((64, 64, 64), (128, 32, 10), (31, 67, 33), (20, 200, 70), (2, 2, 2)):
        a, b = (m, k), (k, n)
        pairs += [(draw(dtype, *a), draw(dtype, *b)), (draw(dtype, k, m).t(), draw(dtype, *b))]
        pairs += [(draw(dtype, *a), draw(dtype, n, k).t())]
    images.append((draw(dtype, 3, 5, 7, 9), draw(dtype, 6, 5, 3, 3)))
theirs = results(pairs, images)
emulation.speed_up_halves()
ours = results(pairs, images)
print(sum(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True)), len(ours))
"""


@pytest.mark.deep  # numba compiles for ten seconds
def test_cpu_sums_equal_torch() -> None:
    own = (*experiments.KERNELS, "AMPSIM_KERNELS")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    command = [sys.executable, "-c", COMPARE]
    done = subprocess.run(  # noqa: S603
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    equal, total = done.stdout.split()
    assert equal == total
    assert int(total) >= 60

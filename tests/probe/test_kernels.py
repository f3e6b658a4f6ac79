"""The Triton kernel: on the CPU in Triton's interpreter, see tests/torch/test_triton.py, and by `make gpu` on a device.

To run one test alone: ``TRITON_INTERPRET=1 python -m pytest tests/probe/test_kernels.py -k name``.
"""

import math
import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim._triton import tl
from ampsim.probe import Histogram, kernels
from ampsim.probe.binades import BINS
from ampsim.probe.kernels import BLOCK
from tests.examples import examples
from tests.probe.helpers import EVERY_16, HALVES, random_bits, reference, same
from tests.torch.helpers import DEVICE, compiled, compiles, kernel_on_device

few = settings(max_examples=min(settings.default.max_examples, 20))  # the interpreter takes milliseconds a tile


def check(*tensors: torch.Tensor) -> None:
    """All tensors at once against the reference."""
    counts = kernels.exponent_counts([values.to(DEVICE) for values in tensors])
    assert (counts.shape, counts.dtype, counts.device.type) == ((len(tensors), BINS + 1), torch.int64, DEVICE)
    for values, row in zip(tensors, counts.cpu().numpy(), strict=True):
        same(Histogram.from_counts(row), reference(values))


@kernel_on_device
@pytest.mark.parametrize("dtype", HALVES)
def test_every_16_bit_pattern(dtype: torch.dtype) -> None:
    values = EVERY_16.view(dtype)
    check(values, *values.split(20011))  # without inf and NaN in most parts, so that `largest` is compared


@kernel_on_device
@pytest.mark.parametrize("size", [1, BLOCK - 1, 2 * BLOCK + 7])
def test_random_float32_bit_patterns(size: int) -> None:
    check(random_bits(size, size))


@kernel_on_device
@few
@given(st.lists(st.lists(st.floats(width=32), max_size=9), min_size=1, max_size=6))
@example([[]])
@example([[], [0.0, -0.0], []])
@example([[math.nan, math.inf], [2.0**-149, -(2.0**-127), 2.0**-126], [-math.inf] * 3])
def test_any_float32(lists: list[list[float]]) -> None:
    check(*(torch.tensor(values, dtype=torch.float32) for values in lists))


@kernel_on_device
@few
@given(st.lists(st.sampled_from([0, 1, 17, BLOCK - 1, BLOCK, BLOCK + 1]), min_size=1, max_size=6), st.data())
def test_any_sizes_and_dtypes_in_one_table(sizes: list[int], data: st.DataObject) -> None:
    dtypes = [data.draw(st.sampled_from([torch.float32, *HALVES])) for _ in sizes]
    pairs = zip(sizes, dtypes, strict=True)
    check(*((torch.randn(size) * 2.0 ** (i - 3)).to(dtype) for i, (size, dtype) in enumerate(pairs)))


@kernel_on_device
def test_any_layout() -> None:
    base = torch.randn(6, 8, 4, 4) * 1e-3
    check(base.contiguous(memory_format=torch.channels_last), base.transpose(0, 1), base[::2, 1::3], base[0, 0, 0, 1:])
    check(torch.tensor(0.25).expand(3, 5), torch.tensor(3.0, requires_grad=True))


@kernel_on_device
def test_one_kind_of_element_alone() -> None:
    kinds = [0.0, -0.0, 2.0**-149, -(2.0**-127), 2.0**-126, -1.0, 2.0**127, math.inf, -math.inf, math.nan]
    check(*(torch.full((size,), kind) for kind in kinds for size in (3, BLOCK)))


@kernel_on_device
@pytest.mark.parametrize("apart", [0, 30, 31, 32, 62, 253])
def test_elements_that_lie_far_apart(apart: int) -> None:
    pair = [2.0**127, -(2.0 ** (127 - apart))]
    check(torch.tensor(pair), torch.tensor([*pair, 0.0, 2.0**-140] * 300), torch.tensor(pair * (BLOCK // 2 + 1)))


# ------------------------------------------------------------------------------------------------- without Triton


@settings(max_examples=examples(ms=4))
@given(st.lists(st.integers(1, 3 * BLOCK), min_size=1, max_size=9))
@example([1])
@example([BLOCK] * 8)
def test_each_tile_finds_its_tensor(sizes: list[int]) -> None:
    tensors = [torch.empty(size, dtype=torch.float16) for size in sizes]
    table, tiles = kernels._table(tensors, range(7, 7 + len(sizes)))
    first, address, elements, rows = table.numpy()
    assert len(first) >= len(sizes)
    assert len(first) & (len(first) - 1) == 0
    found = [int((first <= tile).sum()) - 1 for tile in range(tiles)]
    assert found == [i for i, size in enumerate(sizes) for _ in range(math.ceil(size / BLOCK))]
    assert address[: len(sizes)].tolist() == [tensor.data_ptr() for tensor in tensors]
    assert elements[: len(sizes)].tolist() == sizes
    assert rows[: len(sizes)].tolist() == list(range(7, 7 + len(sizes)))


@compiles
@pytest.mark.parametrize(("capability", "dtype"), [(80, "float16"), (90, "float32"), (90, "bfloat16")])
def test_a_gpu_adds_in_registers_and_flushes_nothing(capability: int, dtype: str) -> None:
    """Compiled, not run: no GPU is needed. A flush of subnormals to zero would lose the smallest gradients."""
    constants = {"dtype": getattr(tl, dtype), "TENSORS": 256, "BLOCK": BLOCK}
    signature = {"tensors": "*i64", "counts": "*i64", **dict.fromkeys(constants, "constexpr")}
    stages = compiled(kernels._count, signature, constants, capability, kernels.OPTIONS)
    threads = 32 * kernels.OPTIONS["num_warps"]
    moved = re.findall(r"ttg\.convert_layout.* -> tensor<([\dx]+)x", stages["ttgir"])
    assert all(math.prod(map(int, shape.split("x"))) <= threads for shape in moved)  # at most one word per thread
    assert re.search(r"(red|atom)\.global\S*\.add\.u64", stages["ptx"])  # Triton 3.6 writes the second
    assert not re.search(r"f64|\.ftz|vote|atom\S*\.shared", stages["ptx"])

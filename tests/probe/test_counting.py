"""Counts against numpy's frexp: each bit pattern, one tensor alone and many at once."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim.probe import Histogram, counting
from ampsim.probe.counting import counts_of_each, exponent_counts
from tests.examples import examples
from tests.probe.helpers import EVERY_16, HALVES, random_bits, reference, same


def check(*tensors):
    """Each tensor alone, and all at once."""
    rows = counts_of_each(list(tensors))
    for values, row in zip(tensors, rows, strict=True):
        expected = reference(values)
        same(Histogram.of(values), expected)
        same(Histogram.from_counts(row.numpy()), expected)
        assert Histogram.of(values).size == values.numel()


@pytest.mark.parametrize("dtype", HALVES)
def test_counts_of_16_bit_patterns(dtype):
    values = EVERY_16.view(dtype)
    check(values)
    check(
        *values.split(257)
    )  # most parts have no inf and no NaN, so that `largest` is compared


@pytest.mark.parametrize("size", [1, 1000, 2**15, 2**15 + 1, 2**17 + 1, 2**20 + 3])
def test_random_float32_bit_patterns(size):
    values = random_bits(size, size)
    check(values)
    check(values * 0, values, values[:1])


@settings(max_examples=examples(ms=5))
@given(st.lists(st.lists(st.floats(width=32), max_size=9), min_size=1, max_size=9))
@example([[]])
@example([[], [0.0, -0.0], []])
@example([[math.nan, math.inf], [2.0**-149, -(2.0**-127), 2.0**-126]])
def test_counts_of_generated_float32(lists):
    check(*(torch.tensor(values, dtype=torch.float32) for values in lists))


@settings(max_examples=examples(ms=10))
@given(
    st.lists(st.sampled_from([0, 1, 300, 2**15, 2**15 + 1]), min_size=1, max_size=12)
)
@example([i % 5 for i in range(2000)])
def test_counts_of_mixed_sizes(sizes):
    check(*(random_bits(i, size) for i, size in enumerate(sizes)))


def test_dtypes_are_counted_together():
    kinds = [random_bits(0, 900), *[EVERY_16.view(dtype)[7::61] for dtype in HALVES]]
    check(*(kinds[i % 3][i:] for i in range(20)))


def test_counts_of_any_layout():
    base = torch.randn(6, 8, 4, 4) * 1e-3
    channels_last = base.contiguous(memory_format=torch.channels_last)
    check(channels_last, base.transpose(0, 1), base[::2, 1::3])
    check(
        torch.tensor(0.25).expand(3, 5),
        torch.ones(1, requires_grad=True),
        torch.zeros(0, 4),
    )


def test_float64_raises():
    with pytest.raises(TypeError, match="float64"):
        Histogram.of(torch.zeros(1, dtype=torch.float64))


def test_subnormals_are_counted_despite_cpu_flush():
    small = torch.arange(-4096, 4096, dtype=torch.int32).view(torch.float32)
    tensors = [
        small,
        small[4096:],
        torch.cat([torch.zeros(4096), small]),
        EVERY_16.view(HALVES[1]),
    ]
    expected = [reference(values) for values in tensors]
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU keeps subnormals")
    try:
        alone = [exponent_counts(values).numpy() for values in tensors]
        together = counts_of_each(tensors).numpy()
    finally:
        torch.set_flush_denormal(False)
    for one, row, wanted in zip(alone, together, expected, strict=True):
        same(Histogram.from_counts(one), wanted)
        same(Histogram.from_counts(row), wanted)


def test_threads_count_independently():
    tensors = [random_bits(i, 2**18) for i in range(4)] * 20
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that buffers which threads share are seen
    try:
        with ThreadPoolExecutor(4) as pool:
            counted = [*pool.map(Histogram.of, tensors)]
    finally:
        sys.setswitchinterval(interval)
    for values, histogram in zip(tensors, counted, strict=True):
        same(histogram, reference(values))


@pytest.mark.parametrize("size", [1, 100, 2**17])
def test_device_counts_match_cpu(size):
    # the path of other devices, run on the CPU
    for values in (
        random_bits(size, size),
        EVERY_16.view(torch.float16),
        -torch.ones(3),
    ):
        same(
            Histogram.from_counts(counting._on_device(values).numpy()),
            reference(values),
        )


@settings(max_examples=examples(ms=4))
@given(
    st.lists(st.floats(width=32), max_size=8),
    st.lists(st.floats(width=32), max_size=8),
)
@example([1.0], [math.nan])
@example([math.nan], [math.inf])
def test_histograms_add_up(a, b):
    one, two = (
        torch.tensor(a, dtype=torch.float32),
        torch.tensor(b, dtype=torch.float32),
    )
    same(Histogram.of(one) + Histogram.of(two), Histogram.of(torch.cat([one, two])))

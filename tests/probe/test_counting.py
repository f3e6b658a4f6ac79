"""Counts against numpy's frexp over every bit pattern, one tensor at a time and many at once."""

import math
import threading

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim.probe import Histogram, counting
from ampsim.probe.binades import BINS
from ampsim.probe.counting import counter_of_many, exponent_counts, merge_counts
from tests.examples import examples
from tests.probe.helpers import EVERY_16, HALVES, random_bits, reference, same


def check(*tensors: torch.Tensor) -> None:
    """Each by itself, and all at once."""
    together = counter_of_many(torch.device("cpu"))
    assert together is not None
    rows = together(list(tensors))
    assert rows.shape == (len(tensors), BINS + 1)
    for values, row in zip(tensors, rows, strict=True):
        expected = reference(values)
        same(Histogram.of(values), expected)
        same(Histogram.from_counts(row.numpy()), expected)
        assert Histogram.of(values).size == values.numel()


@pytest.mark.parametrize("dtype", HALVES)
def test_every_16_bit_pattern(dtype: torch.dtype) -> None:
    values = EVERY_16.view(dtype)
    check(values)
    check(*values.split(257))  # without inf and NaN in most parts, so that `largest` is compared


@pytest.mark.parametrize("size", [1, 1000, 2**15, 2**15 + 1, 2**17 - 1, 2**17 + 1, 2**20 - 1, 2**20 + 3])
def test_random_float32_bit_patterns(size: int) -> None:
    values = random_bits(size, size)
    check(values)
    check(values * 0, values, values[:1])


@pytest.mark.parametrize("size", [7, 2**15 + 8])
def test_one_kind_of_element_alone(size: int) -> None:
    kinds = [0.0, -0.0, 2.0**-149, -(2.0**-127), 2.0**-126, -1.0, 2.0**127, math.inf, -math.inf, math.nan]
    check(*(torch.full((size,), kind) for kind in kinds))
    mixed = torch.tensor(kinds).repeat(size)
    check(*(mixed[i : i + size] for i in range(10)))


@settings(max_examples=examples(ms=5))
@given(st.lists(st.lists(st.floats(width=32), max_size=9), min_size=1, max_size=9))
@example([[]])
@example([[], [0.0, -0.0], []])
@example([[math.nan, math.inf], [2.0**-149, -(2.0**-127), 2.0**-126]])
def test_any_float32(lists: list[list[float]]) -> None:
    check(*(torch.tensor(values, dtype=torch.float32) for values in lists))


@settings(max_examples=min(settings.default.max_examples, 60))  # of up to 400,000 elements
@given(st.lists(st.sampled_from([0, 1, 300, 2**15, 2**15 + 1]), min_size=1, max_size=12), st.integers(0, 99))
def test_any_sizes_together(sizes: list[int], seed: int) -> None:
    check(*(random_bits(seed + i, size) for i, size in enumerate(sizes)))


def test_more_tensors_than_are_counted_in_one_call() -> None:
    check(*(random_bits(i, i % 5) for i in range(4 * counting._ROWS)))
    kinds = [random_bits(0, 900), EVERY_16.view(HALVES[0])[::60], EVERY_16.view(HALVES[1])[7::61]]
    check(*(kinds[i % 3][i:] for i in range(20)))


def test_any_layout() -> None:
    base = torch.randn(6, 8, 4, 4) * 1e-3
    check(base.contiguous(memory_format=torch.channels_last), base.transpose(0, 1), base[::2, 1::3])
    check(torch.tensor(0.25).expand(3, 5), torch.tensor(3.0, requires_grad=True), torch.zeros(0, 4))


def test_another_dtype_is_refused() -> None:
    with pytest.raises(TypeError, match=r"float64: expected float32, float16 or bfloat16; pass values.float()"):
        Histogram.of(torch.zeros(1, dtype=torch.float64))


def test_subnormals_are_counted_when_the_cpu_reads_them_as_zero() -> None:
    small = torch.arange(-4096, 4096, dtype=torch.int32).view(torch.float32)
    tensors = [small, small[4096:], torch.cat([torch.zeros(4096), small]), small.repeat(5), EVERY_16.view(HALVES[1])]
    expected = [reference(values) for values in tensors]
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU keeps subnormals")
    try:
        singly = [exponent_counts(values).numpy() for values in tensors]
        together = counting._of_many(tensors).numpy()
    finally:
        torch.set_flush_denormal(False)
    for one, row, wanted in zip(singly, together, expected, strict=True):
        same(Histogram.from_counts(one), wanted)
        same(Histogram.from_counts(row), wanted)


def test_threads_count_side_by_side() -> None:
    tensors = [random_bits(i, 50_000) for i in range(4)]
    wrong: list[int] = []
    start = threading.Barrier(4)

    def count(i: int) -> None:
        expected, few = exponent_counts(tensors[i]), list(tensors[i][:30_000].split(1000))
        rows = counting._of_many(few)
        start.wait()
        for _ in range(20):
            good = torch.equal(exponent_counts(tensors[i]), expected) and torch.equal(counting._of_many(few), rows)
            wrong.extend([] if good else [i])

    threads = [threading.Thread(target=count, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("size", [1, 100, 2**17])
def test_the_path_of_devices_counts_the_same(size: int) -> None:
    for values in (random_bits(size, size), EVERY_16.view(torch.float16), torch.zeros(3), -torch.ones(3)):
        same(Histogram.from_counts(counting._on_device(values).numpy()), reference(values))


def test_the_path_of_devices_waits_for_nothing() -> None:
    """Without memory there is nothing that a host could read."""
    assert counting._on_device(torch.empty(100, device="meta")).shape == (BINS + 1,)
    assert exponent_counts(torch.empty(100, device="meta")).shape == (BINS + 1,)
    assert counter_of_many(torch.device("meta")) is None


@settings(max_examples=examples(ms=4))
@given(st.lists(st.floats(width=32), max_size=8), st.lists(st.floats(width=32), max_size=8))
@example([1.0], [math.nan])
@example([math.nan], [math.inf])
def test_parts_add_up(a: list[float], b: list[float]) -> None:
    one, two = torch.tensor(a, dtype=torch.float32), torch.tensor(b, dtype=torch.float32)
    both = Histogram.of(torch.cat([one, two]))
    same(Histogram.of(one) + Histogram.of(two), both)
    same(Histogram.from_counts(merge_counts(exponent_counts(one), exponent_counts(two)).numpy()), both)


def test_ml_dtypes_bfloat16_is_torchs() -> None:
    """The reference of the bf16 rows above, against a third implementation."""
    bits = EVERY_16.numpy().view(ml_dtypes.bfloat16).astype(np.float32)
    same(Histogram.of(EVERY_16.view(torch.bfloat16)), reference(torch.tensor(bits)))

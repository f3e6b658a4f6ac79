"""The Triton kernel: on the CPU in Triton's interpreter, in a process of its own, and by `make gpu` on a device.

The interpreter must be chosen before Triton is imported, so one test runs this file again with TRITON_INTERPRET=1.
To run one test alone: ``TRITON_INTERPRET=1 python -m pytest tests/probe/test_kernels.py -k name``.
"""

import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim import _triton
from ampsim.probe import Histogram, counting, kernels
from ampsim.probe.binades import BINS
from ampsim.probe.kernels import BLOCK
from tests.examples import examples
from tests.probe.helpers import EVERY_16, HALVES, random_bits, reference, same

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda"

on_device = pytest.mark.peer("triton") if INTERPRETED else pytest.mark.gpu
few = settings(max_examples=min(settings.default.max_examples, 20))  # the interpreter takes milliseconds a tile


def check(*tensors: torch.Tensor) -> None:
    """All tensors at once against the reference."""
    counts = kernels.exponent_counts([values.to(DEVICE) for values in tensors])
    assert (counts.shape, counts.dtype, counts.device.type) == ((len(tensors), BINS + 1), torch.int64, DEVICE)
    for values, row in zip(tensors, counts.cpu().numpy(), strict=True):
        same(Histogram.from_counts(row), reference(values))


@on_device
@pytest.mark.parametrize("dtype", HALVES)
def test_every_16_bit_pattern(dtype: torch.dtype) -> None:
    values = EVERY_16.view(dtype)
    check(values, *values.split(5003))  # without inf and NaN in most parts, so that `largest` is compared


@on_device
@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 7])
def test_random_float32_bit_patterns(size: int) -> None:
    check(random_bits(size, size))


@on_device
@few
@given(st.lists(st.lists(st.floats(width=32), max_size=9), min_size=1, max_size=6))
@example([[]])
@example([[], [0.0, -0.0], []])
@example([[math.nan, math.inf], [2.0**-149, -(2.0**-127), 2.0**-126], [-math.inf] * 3])
def test_any_float32(lists: list[list[float]]) -> None:
    check(*(torch.tensor(values, dtype=torch.float32) for values in lists))


@on_device
@few
@given(st.lists(st.sampled_from([0, 1, 17, BLOCK - 1, BLOCK, BLOCK + 1]), min_size=1, max_size=6), st.data())
def test_any_sizes_and_dtypes_in_one_table(sizes: list[int], data: st.DataObject) -> None:
    dtypes = [data.draw(st.sampled_from([torch.float32, *HALVES])) for _ in sizes]
    pairs = zip(sizes, dtypes, strict=True)
    check(*((torch.randn(size) * 2.0 ** (i - 3)).to(dtype) for i, (size, dtype) in enumerate(pairs)))


@on_device
def test_any_layout() -> None:
    base = torch.randn(6, 8, 4, 4) * 1e-3
    check(base.contiguous(memory_format=torch.channels_last), base.transpose(0, 1), base[::2, 1::3], base[0, 0, 0, 1:])
    check(torch.tensor(0.25).expand(3, 5), torch.tensor(3.0, requires_grad=True))


@on_device
def test_one_kind_of_element_alone() -> None:
    kinds = [0.0, -0.0, 2.0**-149, -(2.0**-127), 2.0**-126, -1.0, 2.0**127, math.inf, -math.inf, math.nan]
    check(*(torch.full((size,), kind) for kind in kinds for size in (3, BLOCK)))


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


def test_without_triton_the_module_loads_and_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    spec = importlib.util.spec_from_file_location("triton_that_is_not_there", _triton.__file__)
    assert spec is not None
    assert spec.loader is not None
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    assert not alone.runs(kernels.exponent_counts, torch.device("cuda"))


@pytest.fixture
def forgotten():
    _triton.runs.cache_clear()
    yield
    _triton.runs.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_the_variable_switches_the_kernel_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPSIM_TRITON", "0")
    assert counting.counter_of_many(torch.device("cuda")) is None


@pytest.mark.peer("triton")
@pytest.mark.usefixtures("forgotten")
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a device that does not work")
def test_a_device_on_which_triton_fails_is_named_once(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.warns(RuntimeWarning, match=r"Triton on cuda:.*set AMPSIM_TRITON=0"):
        assert counting.counter_of_many(torch.device("cuda")) is None
    recwarn.clear()
    assert counting.counter_of_many(torch.device("cuda")) is None
    assert not recwarn


@pytest.mark.peer("triton")
@pytest.mark.skipif(INTERPRETED, reason="is in the interpreter")
def test_this_file_in_tritons_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "peer", "-p", "no:cacheprovider", __file__]
    root = Path(__file__).parents[2]
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=env, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d\d passed", done.stdout)


@pytest.mark.peer("triton")
@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize(("capability", "dtype"), [(80, "float16"), (90, "float32"), (90, "bfloat16")])
def test_a_gpu_counts_in_shared_memory_and_flushes_nothing(
    capability: int, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled, not run: no GPU is needed. A flush of subnormals to zero would lose the smallest gradients."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    signature = {"tensors": "*i64", "counts": "*i64"} | dict.fromkeys(("dtype", "TENSORS", "BLOCK"), "constexpr")
    source = ASTSource(kernels._count, signature, {"dtype": dtype, "TENSORS": 256, "BLOCK": BLOCK})
    ptx = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=kernels.OPTIONS).asm["ptx"]
    assert re.search(r"atom\.\S*shared\S*\.add", ptx)
    assert re.search(r"red\.global\S*\.add\.u64", ptx)
    assert not re.search(r"f64|\.ftz", ptx)

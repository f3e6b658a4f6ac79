"""The Triton kernels: on the CPU in Triton's interpreter, see test_triton, and by `make gpu` on a device.

To run one test alone: ``TRITON_INTERPRET=1 python -m pytest tests/torch/test_kernels.py -k name``.
"""

import gc
import math
import re
import threading
import weakref
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ampsim import _triton
from ampsim.torch.gradients import kernels, unscale
from ampsim.torch.gradients.kernels import BLOCK, norm_and_flag, tiles_of
from tests.examples import examples
from tests.torch.helpers import DEVICE, INF, INTERPRETED, NAN, bits, compiles, kernel_on_device, no_waits, ptx_of

MAX = torch.finfo(torch.float32).max

few = settings(max_examples=examples(ms=20, least=40))  # the interpreter takes 2 ms per tile
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")  # numpy's, of inf and NaN


# ------------------------------------------------------------------------------------------------ both, by numpy

sizes = st.sampled_from(
    [0, 1, 2, 3, 10, 17, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1]
)
layouts = st.sampled_from(["whole", "shifted", "transposed", "channels last", "every second", "expanded"])
exponents = st.integers(-149, 127)
dtypes = st.sampled_from(list(kernels.DTYPES))


@st.composite
def gradients(draw, max_tensors=4):
    """Gradients of one dtype whose sizes, layouts and magnitudes differ."""
    dtype, random = draw(dtypes), np.random.default_rng(draw(st.integers(0, 99)))
    return [
        laid_out(draw(layouts), (random.uniform(-2, 2, draw(sizes)) * 2.0 ** draw(exponents)), dtype)
        for _ in range(draw(st.integers(1, max_tensors)))
    ]


def laid_out(layout: str, values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    values = torch.from_numpy(values).to(dtype)
    if INTERPRETED and dtype is torch.bfloat16:  # whose subnormals the interpreter takes for others
        values[values.abs() < torch.finfo(dtype).tiny] = 0.0
    finite = values.nan_to_num(posinf=torch.finfo(dtype).max, neginf=torch.finfo(dtype).min).to(DEVICE)
    match layout:
        case "shifted":  # by one element: not at a multiple of 16 bytes, as in a bucket
            return torch.cat([torch.full((1,), NAN, device=DEVICE, dtype=dtype), finite])[1:]
        case "transposed":
            return finite[: len(finite) // 3 * 3].reshape(-1, 3).t()
        case "channels last":
            return finite[: len(finite) // 8 * 8].reshape(-1, 2, 2, 2).contiguous(memory_format=torch.channels_last)
        case "every second":
            return torch.stack([finite, torch.full_like(finite, NAN)], dim=1)[:, 0]
        case "expanded":
            return finite[:3].expand(5, -1)
    return finite


def wide(grads) -> np.ndarray:
    """All elements, float64."""
    return np.concatenate([g.detach().cpu().double().numpy().ravel() for g in grads])


def seen(grads, scale=None) -> list[float]:
    """Norm, flag and largest."""
    checked = norm_and_flag(grads, scale)
    return [value.item() for value in (checked.norm, checked.found_inf, checked.largest)]


def check(grads, scale=None) -> None:
    """`norm_and_flag` against float64 sums."""
    values, number = wide(grads), 1.0 if scale is None else 1 / scale.item()
    norm, found, largest = seen(grads, scale)
    peak = np.abs(values).max(initial=0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        assert found == float(not np.isfinite(np.float32(peak) * np.float32(number)))
    np.testing.assert_equal(largest, peak)
    exact = math.sqrt(np.square(values).sum()) * number
    if math.isfinite(exact) and exact < MAX * (1 - 1e-6):
        assert abs(norm - exact) <= 1e-6 * exact + 2.0**-149, (norm, exact)
    elif exact > MAX * (1 + 1e-6) or math.isnan(exact):
        np.testing.assert_equal(norm, np.float32(exact) if math.isnan(exact) else INF)


@kernel_on_device
@few
@given(grads=gradients(), exponent=st.none() | st.integers(-20, 126))
@example(grads=[torch.full((BLOCK + 1,), 2.0**-149)], exponent=None)  # squares that float32 makes 0
@example(grads=[torch.full((BLOCK + 1,), MAX)], exponent=20)  # squares that float32 makes inf
@example(grads=[torch.tensor([2.0**-149]), torch.tensor([MAX])], exponent=1)
@example(grads=[torch.full((BLOCK,), 2.0**-126), torch.tensor([2.0**-127])], exponent=-20)
@example(grads=[torch.tensor([MAX])], exponent=-1)  # finite, but not once divided
@example(grads=[torch.zeros(3)], exponent=None)
@example(grads=[torch.zeros(0)], exponent=None)
def test_norm_flag_and_largest_are_those_of_float64(grads, exponent) -> None:
    scale = None if exponent is None else torch.tensor(2.0**exponent, device=DEVICE)
    check([grad.to(DEVICE) if grad.device.type != DEVICE else grad for grad in grads], scale)


@kernel_on_device
@few
@given(
    dtype=dtypes, size=sizes.filter(bool), bad=st.sampled_from([INF, -INF, NAN]), shift=st.booleans(), data=st.data()
)
@example(dtype=torch.float32, size=BLOCK + 1, bad=NAN, shift=False, data=None)
def test_inf_and_nan_are_found_anywhere(dtype, size, bad, shift, data) -> None:
    at = size - 1 if data is None else data.draw(st.sampled_from([0, size // 2, size - 1]) | st.integers(0, size - 1))
    grad = torch.ones(size + shift, device=DEVICE, dtype=dtype)[int(shift) :]
    grad[at] = bad
    grads = [torch.ones(3, device=DEVICE, dtype=dtype), grad]
    norm, found, largest = seen(grads)
    assert found == 1.0
    assert (math.isnan(norm), math.isnan(largest)) == (math.isnan(bad), math.isnan(bad))
    assert math.isnan(bad) or norm == largest == INF


@kernel_on_device
def test_nan_beside_inf_is_nan() -> None:
    norm, found, largest = seen([torch.tensor([INF, NAN, -INF], device=DEVICE)])
    assert math.isnan(norm) and found == 1 and math.isnan(largest)  # noqa: PT018


@kernel_on_device
@pytest.mark.parametrize("number", [1, 300 if INTERPRETED else 10_000])
def test_many_tiny_tensors(number) -> None:
    check([torch.arange(i % 10 + 1.0, device=DEVICE) for i in range(number)])


@kernel_on_device
@pytest.mark.parametrize("programs", [1, 2, 5])
def test_more_tiles_than_programs(programs, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "PARTS", 8)
    monkeypatch.setattr(kernels, "_at_once", lambda _: programs)
    grads = [torch.full((BLOCK + 1,), value, device=DEVICE) for value in (4.0, 1.0, 1.0, 2.0)]
    assert seen(grads) == [pytest.approx(math.sqrt((BLOCK + 1) * 22)), 0.0, 4.0]


@kernel_on_device
def test_gradients_are_read_only_and_the_results_are_scalars() -> None:
    grad = torch.randn(100, device=DEVICE, requires_grad=True)
    before, version = grad.detach().clone(), grad._version
    checked = norm_and_flag([grad], torch.tensor(0.5, device=DEVICE))
    for value in (checked.norm, checked.found_inf, checked.divisor, checked.largest):
        assert (value.shape, value.dtype, value.requires_grad) == ((), torch.float32, False)
    assert torch.equal(grad, before)
    assert grad._version == version


@kernel_on_device
def test_the_tables_are_kept_while_addresses_or_sizes_are_the_same_and_keep_no_gradient() -> None:
    kernels._table.cache_clear()
    kernels._tiles.cache_clear()
    grads = [torch.ones(5, device=DEVICE), torch.ones(BLOCK + 5, device=DEVICE)]
    for i in range(3):
        check(grads)
        grads[0].add_(i)  # new values in the old place
    assert kernels._table.cache_info()[:2] == kernels._tiles.cache_info()[:2] == (2, 1)  # hits, misses
    check([grads[0], torch.ones(BLOCK + 6, device=DEVICE)[1:]])  # elsewhere, of the same size
    assert (kernels._table.cache_info().misses, kernels._tiles.cache_info().misses) == (2, 1)
    dead = weakref.ref(grads[1])
    del grads
    gc.collect()
    assert dead() is None
    for size in range(1, 30):
        check([torch.ones(size, device=DEVICE)])
    assert kernels._tiles.cache_info().currsize <= 8


@kernel_on_device
def test_no_gradients_are_refused_and_subclasses_not_taken(monkeypatch) -> None:
    with pytest.raises(ValueError, match=r"grads=\[\]: expected at least one"):
        norm_and_flag([])
    grad = torch.ones(3, device=DEVICE)
    monkeypatch.setattr(kernels, "available", lambda device: device == grad.device)
    assert kernels.takes([grad])
    assert not kernels.takes([grad, grad.as_subclass(type("Sub", (torch.Tensor,), {}))])
    assert not kernels.takes([grad.double()])


@pytest.fixture
def by_kernels(monkeypatch) -> None:
    """`unscale` sends gradients of this device to the kernels."""
    monkeypatch.setattr(unscale, "KERNEL_DEVICES", {DEVICE})
    monkeypatch.setattr(kernels, "available", lambda device: device.type == DEVICE)


@kernel_on_device
@given(grads=gradients(), bad=st.sampled_from([None, INF, NAN]), scale=st.sampled_from([2.0**-140, 0.5, 1.0, 2.0**16]))
@settings(few, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_unscale_does_with_the_kernels_what_it_does_without(by_kernels, grads, bad, scale) -> None:
    grads = [grad.clone(memory_format=torch.preserve_format) for grad in grads]
    for grad in grads[:1]:
        if bad is not None and grad.numel():
            grad[(0,) * grad.dim()] = bad
    groups = {(grads[0].device, grads[0].dtype): grads}
    at = torch.tensor(scale, device=DEVICE)
    wanted = wide(grads) / scale
    norm, flag = unscale.norm_and_check(groups, at.double().reciprocal().float())
    found, narrow = unscale.FoundInf(), unscale.FoundInf()
    unscale.check(groups, found)
    unscale.check_unscaled(groups, lambda device: at, narrow)
    assert [f.item() for f in found.values()] == [float(not np.isfinite(wide(grads)).all())]
    top = torch.finfo(grads[0].dtype).max
    assert [f.item() for f in narrow.values()] == [float(not (np.abs(wanted) <= top).all())]
    if scale >= 2.0**-126:  # below, the reciprocal is inf in float32
        assert flag.item() == float(not (np.abs(wanted) <= MAX).all())
        if not flag and np.linalg.norm(wanted) < MAX:
            np.testing.assert_allclose(norm.item(), np.linalg.norm(wanted), rtol=1e-6, atol=2.0**-149)


@kernel_on_device
@given(grads=gradients(), bad=st.sampled_from([None, INF, NAN]), scale=st.sampled_from([2.0**-140, 0.3, 2.0**16]))
@example(grads=[torch.full((BLOCK,), MAX)], bad=None, scale=0.5)  # finite, but not once divided: in a whole tile,
@example(grads=[torch.full((3,), MAX)], bad=None, scale=0.5)  # and in a part of one
@settings(few, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_gradients_are_divided_and_their_quotients_checked_in_one_launch(by_kernels, grads, bad, scale) -> None:
    grads = [grad.contiguous().to(DEVICE) for grad in grads]
    for grad in grads[:1]:
        if bad is not None and grad.numel():
            grad.view(-1)[0] = bad
    inverse = torch.tensor(scale, device=DEVICE).double().reciprocal().float()
    wanted = [(grad.float() * inverse).to(grad.dtype) for grad in grads]
    found, launched = unscale.FoundInf(), []
    reads = mock.patch.object(unscale, "check", lambda *args: launched.append(args))
    with reads, mock.patch.object(kernels, "_check", None):
        groups = {(grads[0].device, grads[0].dtype): grads}
        unscale.multiply_and_check_(groups, lambda device: inverse, found, below_one=True)
    assert not launched
    assert [f.item() for f in found.values()] == [float(not all(product.isfinite().all() for product in wanted))]
    if not (INTERPRETED and grads[0].dtype is torch.bfloat16):  # which the interpreter rounds towards zero
        given, expected = ([each.nan_to_num(nan=3.0).float() for each in some] for some in (grads, wanted))
        assert bits(*given) == bits(*expected)


@kernel_on_device
def test_in_a_capture_gradients_at_new_addresses_are_left_to_torch(by_kernels, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise _triton.NewAddressesError

    monkeypatch.setattr(kernels, "norm_and_flag", refuse)
    grads = [torch.full((5,), 2.0, device=DEVICE)]
    norm, flag = unscale.norm_and_check({(grads[0].device, grads[0].dtype): grads}, torch.tensor(0.5, device=DEVICE))
    assert (norm.item(), flag.item()) == (pytest.approx(5**0.5), 0.0)
    assert unscale.largest(grads).item() == 2.0


# ------------------------------------------------------------------------------------------------- without Triton


@given(st.lists(st.integers(0, 3 * BLOCK) | st.just(2**24 + 5), max_size=4))
@example([2**33 + 1, 2**31 + 5])
@few
def test_tiles_cover_every_element_once_and_in_order(numbers) -> None:
    rows = tiles_of(tuple(numbers))
    assert rows.dtype == np.int32
    assert rows.flags.c_contiguous
    assert len(rows) == sum(math.ceil(number / BLOCK) for number in numbers)
    for tensor, number in enumerate(numbers):
        assert np.array_equal(rows[rows[:, 0] == tensor, 1], np.arange(math.ceil(number / BLOCK)))


@given(layout=layouts, size=st.integers(0, 30))
def test_dense_is_what_fills_its_memory(layout, size) -> None:
    grad = laid_out(layout, np.ones(size), torch.float32)
    span = 1 + sum((n - 1) * s for n, s in zip(grad.shape, grad.stride(), strict=True))
    overlaps = any(s == 0 and n > 1 for n, s in zip(grad.shape, grad.stride(), strict=True))
    assert grad.numel() == 0 or _triton.is_dense(grad) == (grad.numel() == span and not overlaps)


@compiles
@pytest.mark.parametrize(
    ("capability", "dtype", "loads"), [(80, "float16", 2), (90, "float32", 4), (90, "bfloat16", 2)]
)
def test_a_gpu_loads_16_bytes_at_once_and_computes_in_float32(capability, dtype, loads) -> None:
    """Compiled, not run: no GPU is needed. A flush of subnormals to zero would lose the smallest gradients."""
    constants = {"dtype": getattr(kernels.tl, dtype), "BLOCK": BLOCK}
    place, kinds = {"tiles": "*i32", "table": "*i64"}, dict.fromkeys(constants, "constexpr")
    ptx = ptx_of(kernels, "_multiply", place | {"factor": "*fp32", "found": "*fp32"} | kinds, constants, capability)
    assert len(re.findall(r"ld\.global\.v4\.b32", ptx)) == len(re.findall(r"st\.global\.v4\.b32", ptx)) == loads
    assert BLOCK * getattr(torch, dtype).itemsize == loads * 16 * 32 * kernels.OPTIONS["num_warps"]
    assert not re.search(r"f64|\.ftz", ptx)


# ------------------------------------------------------------------------------------------------- CUDA alone


@pytest.mark.parametrize(("major", "programs"), [(8, 108 * 4), (9, 108 * 6), (12, 108 * 6)])
def test_as_many_programs_are_launched_as_run_at_once(major, programs, monkeypatch) -> None:
    gpu = SimpleNamespace(major=major, multi_processor_count=108)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    assert kernels._at_once.__wrapped__(torch.device("cuda")) == programs


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", kernels.DTYPES)
def test_on_cuda_the_smallest_subnormals_count(dtype) -> None:
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    check([torch.full((size,), smallest, dtype=torch.float64).to("cuda", dtype) for size in (1, BLOCK, BLOCK + 1)])


@pytest.mark.gpu
def test_on_cuda_nothing_waits_for_the_device() -> None:
    sizes, scale = (1, BLOCK + 1, 100_000), torch.tensor(2.0, device="cuda")
    check([torch.ones(size, device="cuda") for size in sizes], scale)  # compiles
    with no_waits("cuda"):
        old = [torch.ones(size, device="cuda") for size in sizes]
        for _ in range(3):
            new = [torch.ones(size, device="cuda") for size in sizes]  # other addresses: other tables
            results = [norm_and_flag(grads, scale) for grads in (old, new, [new[2][::2]])]
            old = new
    assert results[1].norm.item() == pytest.approx(0.5 * math.sqrt(sum(sizes)))


@pytest.mark.gpu
def test_on_cuda_a_captured_graph_reads_new_values_from_the_old_addresses() -> None:
    grads = [torch.ones(BLOCK + 1, device="cuda"), torch.ones(3, device="cuda")]
    norm_and_flag(grads)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        checked = norm_and_flag(grads)
    for size in range(1, 30):  # other tables take its place in the cache
        norm_and_flag([torch.ones(size, device="cuda")])
    for value in (2.0, NAN):
        grads[1].fill_(value)
        graph.replay()
        np.testing.assert_allclose(checked.norm.item(), np.linalg.norm(wide(grads)), rtol=1e-6)
        assert checked.found_inf.item() == float(math.isnan(value))


@pytest.mark.gpu
def test_on_cuda_new_addresses_in_a_capture_are_refused() -> None:
    norm_and_flag([torch.ones(3, device="cuda")])
    with pytest.raises(_triton.NewAddressesError, match="1 gradients at"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        norm_and_flag([torch.ones(4, device="cuda")])


@pytest.mark.gpu
@pytest.mark.parametrize("value", [3.0, NAN])
def test_on_cuda_a_tensor_of_more_than_2_to_the_31_elements(value) -> None:
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("needs 20 GB of GPU memory that are free")
    grad = torch.zeros(2**32 + 5, dtype=torch.bfloat16, device="cuda")
    grad[0], grad[2**31 + 7], grad[-1] = 4.0, 12.0, value
    checked = norm_and_flag([grad])
    np.testing.assert_allclose(checked.norm.item(), math.sqrt(16 + 144 + value**2), rtol=1e-6)
    assert checked.found_inf.item() == float(math.isnan(value))


@pytest.mark.gpu
def test_on_cuda_threads_and_streams_share_the_tables() -> None:
    grads = [torch.full((100_000,), 2.0, device="cuda"), torch.ones(3, device="cuda")]
    torch.cuda.synchronize()
    wrong, start = [], threading.Barrier(4)

    def read(number: int) -> None:
        own = torch.full((1000 + number,), 1.0 + number, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            start.wait()
            norms = [norm_and_flag(g).norm for _ in range(50) for g in (grads, [own])]
            values = [norm.item() for norm in norms]  # on the stream that made them
        expected = [math.sqrt(400_003), (1.0 + number) * math.sqrt(1000 + number)] * 50
        wrong.extend(e for n, e in zip(values, expected, strict=True) if not math.isclose(n, e, rel_tol=1e-6))

    kernels._table.cache_clear()
    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

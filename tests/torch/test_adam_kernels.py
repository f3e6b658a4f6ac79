"""Adam's two Triton kernels: to the bit in Triton's interpreter (test_triton), compiled for GPUs, and by `make gpu`."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ampsim.core.machine import Rule
from ampsim.torch.gradients import adam, kernels, kernels_adam
from ampsim.torch.state.device import DeviceVersion
from ampsim.torch.state.version import Outcome, Successor
from tests.examples import examples
from tests.torch.helpers import DEVICE, INF, INTERPRETED, NAN, bits, compiled, compiles, drawn, kernel_on_device

pytestmark = [
    pytest.mark.usefixtures("small_tiles"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),  # numpy's, of inf and NaN
]
F32 = np.float32
MAX = torch.finfo(torch.float32).max
no_fixtures = HealthCheck.function_scoped_fixture  # they patch the same for every example


def around_tiles() -> list[int]:
    small, block = (16, 32) if INTERPRETED else (adam.PART, kernels.BLOCK)
    return [0, 1, 3, small, small + 1, block - 1, block, 2 * block + 3]


magnitudes = st.sampled_from([0.0, 2.0**-149, 2.0**-126, 1e-20, 1e-5, 1.0, 1.0, 300.0, 1e19, 1e37])
scales = st.sampled_from([2.0**-10, 1.0, 3.0, 1024.0, 65536.0])
grad_dtypes = st.sampled_from(list(kernels.DTYPES))


@kernel_on_device
@settings(max_examples=examples(ms=10), suppress_health_check=[no_fixtures])
@given(
    scale=st.sampled_from([2.0**-126, 2.0**-125, 1.0, 3.0, 65536.0, 2.0**127, MAX]), tracker=st.integers(0, 5),
    interval=st.sampled_from([1, 2, 4, 2**31 + 5]), growth=st.sampled_from([1.0, 1.1, 2.0, 2.0**20]),
    backoff=st.sampled_from([1.0, 0.3, 0.5]), low=st.sampled_from([2.0**-126, 2.0]),
    high=st.sampled_from([None, 4.0, 2.0**127]), overflows=st.booleans(),
)  # fmt: skip
@example(scale=2.0**127, tracker=0, interval=1, growth=2.0, backoff=0.5, low=2.0, high=None, overflows=False)
def test_the_next_scale_is_the_updates(scale, tracker, interval, growth, backoff, low, high, overflows) -> None:
    bounds = {"min_scale": low, "max_scale": high, "init_scale": 3.0, "growth_test": ">="}
    rule = Rule(growth_factor=growth, backoff_factor=backoff, growth_interval=interval, **bounds)
    version = DeviceVersion(torch.tensor(scale, device=DEVICE), torch.tensor(tracker, device=DEVICE, dtype=torch.int32))
    grads = [torch.tensor([INF if overflows else 0.0], device=DEVICE)]
    checked = kernels.check(grads, version.scale, None, (version.scale, version.growth_tracker, rule))
    wanted = version.next(rule, Outcome([checked.found_inf]))
    successor = Successor(version, rule, checked.found_inf, checked.following)
    assert bits(*successor.state) == bits(wanted.scale, wanted.growth_tracker)
    assert version.next(rule, Outcome([checked.found_inf], successors=[successor])).scale is checked.following[0]
    changed = version.next(rule.replace(), Outcome([checked.found_inf], successors=[successor]))  # set in between
    assert changed.scale is not checked.following[0]
    other = torch.ones((), device=DEVICE)  # another optimizer's flag
    again = version.next(rule, Outcome([checked.found_inf, other], successors=[successor]))
    assert again.growth_tracker == 0
    assert again.scale is not checked.following[0]


@kernel_on_device
@settings(max_examples=examples(ms=20), suppress_health_check=[no_fixtures])
@given(
    sizes=st.lists(st.sampled_from(around_tiles()), min_size=1, max_size=4), dtype=grad_dtypes, magnitude=magnitudes,
    scale=scales, clip=st.sampled_from([None, 0.0, 0.5, 1e30, INF, NAN, -1.0]), on_device=st.booleans(),
    bad=st.sampled_from([None, None, INF, -INF, NAN]), seed=st.integers(0, 99), programs=st.integers(1, 3),
)  # fmt: skip
@example([3], torch.float32, 3e38, 1.0, 1.0, False, None, 0, 1)  # the norm leaves float32, no gradient does
@example([3], torch.float32, 3e38, 1.0, INF, False, None, 0, 1)
@example([3], torch.float32, 3e38, 2.0**-10, INF, False, None, 0, 1)  # gradients do once unscaled
@example([3], torch.float32, 1.0, 1.0, 0.5, False, None, 0, 1)  # torch adds 1e-6 to the norm
@example([3], torch.float32, 1.0, 1.0, -1.0, True, None, 0, 1)
@example([3], torch.float32, 1.0, 1.0, NAN, True, None, 0, 1)
def test_the_check_is_that_of_float64(sizes, dtype, magnitude, scale, clip, on_device, bad, seed, programs) -> None:
    grads = drawn(seed, sizes, magnitude, dtype)
    if INTERPRETED and dtype is torch.bfloat16:
        for grad in grads:
            grad[grad.abs() < torch.finfo(dtype).tiny] = 0.0
    if bad is not None and grads[-1].numel():
        grads[-1][-1] = bad
    at = torch.tensor(scale, device=DEVICE)
    refused = clip is not None and not clip >= 0
    bound = torch.tensor(clip, device=DEVICE) if clip is not None and (on_device or refused) else clip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_at_once", lambda _: programs)
        checked = kernels.check(grads, at, bound)
    norm, found, divisor = (value.item() for value in (checked.norm, checked.found_inf, checked.divisor))
    values = np.concatenate([grad.cpu().double().numpy() for grad in grads]) / scale
    with np.errstate(all="ignore"):
        exact = np.sqrt(np.square(values).sum())
        assert found == float(refused or not np.isfinite(values.astype(F32)).all())
    if found:
        return
    assert norm == pytest.approx(exact, rel=1e-6, abs=2.0**-149) or exact > MAX * (1 - 1e-6)
    wanted = scale / (min(1.0, clip / (norm + 1e-6)) or 1e-300) if clip is not None and norm + 1e-6 > clip else scale
    assert divisor == pytest.approx(wanted if wanted < MAX else INF, rel=4e-7)  # it is rounded a few times


class Sub(torch.Tensor):
    pass


SQUARE = torch.arange(16.0).reshape(4, 4)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"grads": SQUARE.half()}, None),
        ({"grads": SQUARE.bfloat16()}, None),
        (dict.fromkeys(("grads", "params", "exp_avgs", "exp_avg_sqs"), SQUARE.t()), None),
        ({"grads": SQUARE.t()}, "strides: "),
        ({"exp_avgs": SQUARE.t(), "grads": SQUARE.t()}, "strides: "),
        ({"params": SQUARE.t()}, "strides: "),
        ({"params": SQUARE.t(), "grads": SQUARE.t(), "exp_avgs": SQUARE.t()}, "strides: "),
        (dict.fromkeys(("grads", "params", "exp_avgs", "exp_avg_sqs"), torch.ones(4, 8)[:, ::2]), "strides: "),
        ({"grads": SQUARE.double()}, "dtypes: "),
        ({"params": SQUARE.half()}, "dtypes: "),
        ({"exp_avg_sqs": SQUARE.bfloat16()}, "dtypes: "),
        ({"steps": torch.zeros((), dtype=torch.int64)}, "dtypes: "),
        ({"params": SQUARE.as_subclass(Sub)}, "a tensor is on another device, or a subclass"),
        ({"exp_avgs": SQUARE.to("meta")}, "a tensor is on another device, or a subclass"),
    ],
)
def test_what_no_kernel_can_step_is_named(change, why) -> None:
    lists = dict.fromkeys(adam.Tensors._fields, SQUARE) | {"steps": torch.zeros(())} | change
    said = adam.why_not_step(adam.Tensors(**{name: [tensor] for name, tensor in lists.items()}))
    assert said is why if why is None else said.startswith(why)


# ------------------------------------------------------------------------------------------ compiled, without a GPU

POINTERS = {"tiles": "*i32", "table": "*i64", "state": "*i64", "done": "*i32",
            "partials": "*fp64", "scale": "*fp32", "found": "*fp32",
            "found_inf": "*fp32", "divisor": "*fp32", "number": "i32", "powers1": "*fp32", "powers2": "*fp32",
            "current": "*fp32", "tracker": "*i32", "interval": "i32", "counted": "*i32"}  # fmt: skip


def for_a_gpu(name, capability, **constants) -> dict:
    kernel = getattr(kernels if name == "_check" else kernels_adam, name)
    signature = {each: "constexpr" if each in constants else POINTERS.get(each, "fp32") for each in kernel.arg_names}
    options = kernels.OPTIONS if name == "_check" else adam.STEP_OPTIONS
    return compiled(kernel, signature, constants, capability, options)


def bytes_per_element(asm, threads, elements) -> tuple[float, float]:
    """Return what the accesses of 16 bytes load and store; all that is not one of them is of a tile's tail."""
    moved = (len(re.findall(rf"{access}\.global\.v4\.b32", asm["ptx"])) * 16 * threads for access in ("ld", "st"))
    return tuple(each / elements for each in moved)


def tensor_accesses(asm, elements) -> tuple[int, int]:
    """Return the number of loads and of stores of a tile: half of them for whole tiles, half for the last one."""
    code = asm["ttir"]
    return tuple(len(re.findall(rf"tt\.{name}.*tensor<{elements}x!tt\.ptr", code)) for name in ("load", "store"))


@compiles
def test_eight_words_per_element_are_moved_and_no_register_is_spilled(tmp_path) -> None:
    """The words of float32 and of float16 gradients, counted in what a GPU would run."""
    block, part, tl = kernels.BLOCK, adam.PART, kernels.tl
    flags = {"DECAYS": True, "DECOUPLED": True, "MAXIMIZE": False, "BLOCK": block, "PART": part}
    scaled = {"GROWTH": 2.0, "BACKOFF": 0.5, "LOW": 2.0**-126, "HIGH": None}
    read = for_a_gpu("_check", 90, dtype=tl.float32, BOUND="number", PARTS=kernels.PARTS, BLOCK=block, SLOT=4, **scaled)
    stepped = {
        width: for_a_gpu("adam", 90, dtype=dtype, **flags) for width, dtype in ((4, tl.float32), (2, tl.float16))
    }
    assert bytes_per_element(read, 32 * kernels.OPTIONS["num_warps"], block) == (4, 0)
    assert tensor_accesses(read, block) == (2 * 1, 0)
    for width, asm in stepped.items():
        assert bytes_per_element(asm, 32 * adam.STEP_OPTIONS["num_warps"], part) == (width + 12, 12)
        assert tensor_accesses(asm, part) == (2 * 4, 2 * 3)
        assert "extern_elementwise" not in asm["ttir"]  # a power of Triton's, which is another CUDA's than torch's
        assert not re.search(r"\.f64|div\.full|div\.approx|sqrt\.approx", asm["ptx"])  # torch's are rounded to nearest
        assert len(re.findall(r"div\.rn\.f32", asm["ptx"])) >= 2 * 3 * part // (32 * adam.STEP_OPTIONS["num_warps"])
    tool = Path(pytest.importorskip("triton").__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        pytest.skip("needs Triton's cuobjdump")
    for name, asm in {"check": read, **{f"adam {width}": asm for width, asm in stepped.items()}}.items():
        (tmp_path / "cubin").write_bytes(asm["cubin"])
        command = [tool, "--dump-resource-usage", tmp_path / "cubin"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        used = {what: int(number) for what, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", shown.stdout)}
        print(f"{name}: {used}")
        assert (used["STACK"], used["LOCAL"]) == (0, 0)
        assert used["REG"] <= 80  # so that 24 warps run at once


# ------------------------------------------------------------------------------------------------- CUDA alone


@pytest.mark.gpu
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_on_cuda_the_bits_are_those_of_torchs_kernel(decay, decoupled, maximize) -> None:
    n = adam.Hyperparameters(1e-3, 0.9, 0.999, 1e-8, decay, decoupled, maximize)
    torchs = torch._fused_adamw_ if decoupled else torch._fused_adam_
    sizes, flag = [*around_tiles(), 1_000_003], torch.zeros((), device="cuda")
    ours, theirs = (
        [drawn(1, sizes, 1.0), *([torch.zeros(k, device="cuda") for k in sizes] for _ in "mv")] for _ in "ab"
    )
    counts = [[torch.zeros((), device="cuda") for _ in sizes] for _ in "ab"]
    divisor = torch.tensor(1024.0 / 0.37, device="cuda")
    for number in range(1, 40):
        grads = drawn(number, sizes, 1024.0)
        adam.step(adam.Tensors(grads, *ours, counts[0]), flag, divisor, n)
        torch._foreach_add_(counts[1], 1)
        torchs(
            theirs[0], [grad.clone() for grad in grads], theirs[1], theirs[2], [], counts[1], amsgrad=False, lr=n.lr,
            beta1=n.beta1, beta2=n.beta2, weight_decay=decay, eps=n.eps, maximize=maximize, grad_scale=divisor,
            found_inf=flag,
        )  # fmt: skip
        for mine, its in zip(ours, theirs, strict=True):
            assert [i for i, (a, b) in enumerate(zip(mine, its, strict=True)) if not torch.equal(a, b)] == [], number
    assert [count.item() for count in counts[0]] == [39.0] * len(sizes)


@pytest.mark.gpu
def test_on_cuda_a_tensor_of_more_than_2_to_the_31_elements() -> None:
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GB of GPU memory that are free")
    size, tail = 2**31 + 5, 7
    param, grad = (torch.ones(size, device="cuda", dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    state, count = [torch.zeros(size, device="cuda") for _ in "mv"], torch.zeros((), device="cuda")
    grad[-tail:] = torch.arange(tail)
    checked = kernels.check([grad], torch.ones((), device="cuda"))
    n = adam.Hyperparameters(0.1, 0.9, 0.999, 1e-8, 0.0, decoupled=True, maximize=False)
    adam.step(adam.Tensors([grad], [param], *([each] for each in state), [count]), checked.found_inf, None, n)
    assert state[0][-tail:].tolist() == pytest.approx([0.1 * i for i in range(tail)])
    assert (param[:: 2**20] < 0.91).all()
    assert checked.norm.item() == pytest.approx((size - tail + sum(i * i for i in range(tail))) ** 0.5)

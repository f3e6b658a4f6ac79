"""All ways do the work that they are timed for, counts are what a trace holds, and nothing here asserts a time."""

import math
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.profiler import ProfilerActivity
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampsim.torch.gradients import kernels, unscale
from experiments import kernels as bench
from experiments import runner
from experiments.timing import clocks, roundpipe, step_variants
from experiments.timing.rounds import in_turn
from tests import warm

ROOT = Path(__file__).parents[2]
SIZES = ["7x300", "2x20000", "gpt2-1x16"]


def model(size: str, dtype: torch.dtype = torch.float32) -> step_variants.Model:
    torch.manual_seed(0)
    return step_variants.Model(size, dtype, "cpu")


def ignore(_: int) -> None:
    pass


# ------------------------------------------------------------------------------------------------------------ the ways


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", SIZES)
def test_reads_give_the_norm_and_leave_the_gradients_as_they_are(size: str, dtype: torch.dtype) -> None:
    of = model(size, dtype)
    before = [grad.clone() for grad in of.grads]
    exact = math.sqrt(sum(float(grad.double().square().sum()) for grad in of.grads))
    for name, way in step_variants.reads(of).items():
        way.work()
        assert all(map(torch.equal, of.grads, before)), name
    assert of.norm() == pytest.approx(exact, rel=1e-12)
    digits = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]  # clip_grad_norm_ loses some
    assert all(error < digits for error in step_variants.norm_errors(of).values())


class Words(TorchDispatchMode):
    """Counts elements read and written by operations, of tensors as large as a gradient."""

    def __init__(self, large: int) -> None:
        super().__init__()
        self.large, self.count = large, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [(a, v) for a, v in zip(func._schema.arguments, args, strict=False)]
        for argument, value in given:
            written = argument.alias_info is not None and argument.alias_info.is_write
            tensors = [t for t in tree_leaves(value) if isinstance(t, torch.Tensor) and t.numel() >= self.large]
            self.count += sum(t.numel() for t in tensors) * (1 + written)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["torch: check and unscale", "torch: clip_grad_norm_", "torch: unscale, then clip"])
def test_torchs_ways_move_the_words_that_are_counted_for_them(name: str) -> None:
    of = model("5x1000")
    way = step_variants.reads(of)[name]
    with Words(1000) as words:
        way.work()
    assert words.count == way.words * 5000


@pytest.mark.parametrize("size", SIZES)
def test_every_way_makes_the_same_step_and_its_gradients_can_be_put_back(size: str) -> None:
    moved = {}
    for name in step_variants.steps(model(size)):
        if name == step_variants.BARE:
            continue
        of = model(size)
        before, grads, restore = [p.detach().clone() for p in of.params], [g.clone() for g in of.grads], of.restorer()
        step_variants.steps(of)[name].work()
        moved[name] = [p.detach() - b for p, b in zip(of.params, before, strict=True)]
        assert not all(map(torch.equal, of.grads, grads)), name
        restore()
        assert all(map(torch.equal, of.grads, grads)), name
    theirs = moved.pop(step_variants.THEIRS)
    for name, ours in moved.items():
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


def test_without_triton_the_kernels_are_off_and_come_back() -> None:
    seen = []
    work = step_variants.without_triton(lambda: seen.append(unscale.KERNEL_DEVICES) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        work()
    assert seen == [set()]
    assert {"cuda"} == unscale.KERNEL_DEVICES


def test_a_tile_is_tried_with_its_own_constants_and_its_own_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def fake(grads: Any) -> None:
        table, _ = kernels._tiles(torch.device("cpu"), np.int64(5000).tobytes())
        seen.append((kernels.BLOCK, kernels.OPTIONS["num_warps"], len(table), table.data_ptr()))

    monkeypatch.setattr(kernels, "norm_and_flag", fake)
    before = (kernels.BLOCK, dict(kernels.OPTIONS), kernels._tiles)
    work = step_variants.read_with([], 2048, 4)
    work()
    work()
    assert seen[0] == seen[1]  # the same tiles
    assert seen[0][:3] == (2048, 4, 3)
    assert (kernels.BLOCK, kernels.OPTIONS, kernels._tiles) == before


INTERPRETED = """
import warnings
import torch
from ampsim.torch.gradients import kernels
from experiments import kernels as bench
from experiments.timing import step_variants
import tests.torch.conftest  # mends the interpreter of Triton 3.6
warnings.simplefilter("ignore")
kernels.available = lambda device: True
grads = [torch.randn(n) for n in (1, 2047, 2048, 20000)]
exact = torch.cat(grads).double().norm().item()
for block, warps in bench.Config().tiles:
    norm = step_variants.read_with(grads, block, warps)().norm.item()
    assert abs(norm / exact - 1) < 1e-6, (block, norm, exact)
print(len(bench.Config().tiles))
"""


@pytest.mark.peer("triton")
def test_every_tile_that_is_tried_gives_the_norm_in_tritons_interpreter() -> None:
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(  # noqa: S603 - our own script
        [warm.python(), "-c", INTERPRETED], capture_output=True, text=True, cwd=ROOT, env=env, check=False
    )
    assert done.stdout.strip() == str(len(bench.Config().tiles)), done.stderr


@pytest.mark.peer("triton")
@pytest.mark.parametrize("tile", bench.Config().tiles)
def test_a_thread_of_every_tile_has_whole_loads(tile: tuple[int, int]) -> None:
    block, warps = tile
    assert block & (block - 1) == 0
    assert block % (32 * warps * 4) == 0  # 16 bytes of float32 a thread
    assert block // (32 * warps) <= 64  # registers


@pytest.mark.peer("roundpipe", "beartype", "cpuinfo", "tqdm")
def test_an_error_on_roundpipes_thread_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    of = model("2x10")
    peer = roundpipe.load()
    scaler = peer.scaler()
    monkeypatch.setattr(of.optimizer, "step", lambda: 1 / 0)
    usable, errors = bench.working({"roundpipe": lambda: step_variants.step_on_thread(peer, scaler, of)}, ignore_all)
    assert not usable
    assert errors == {"roundpipe": "ZeroDivisionError: division by zero"}


@pytest.mark.peer("roundpipe", "beartype", "cpuinfo", "tqdm")
def test_a_roundpipe_that_does_not_load_is_one_way_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roundpipe, "load", lambda: 1 / 0)
    ways = {name: way.work for name, way in step_variants.steps(model("2x10")).items()}
    usable, errors = bench.working(ways, ignore_all)
    assert usable.keys() == ways.keys() - {"roundpipe"}
    assert errors == {"roundpipe": "ZeroDivisionError: division by zero"}


def ignore_all() -> None:
    pass


# ------------------------------------------------------------------------------------------------------ what is counted

REGION = {"ph": "X", "cat": "user_annotation", "name": clocks.REGION, "ts": 100.0, "dur": 50.0}


def event(cat: str, name: str = "", ts: float = 120.0) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": 1.0}


def test_counts_are_of_what_the_device_did_and_of_waits_within_the_region() -> None:
    events = [
        {"ph": "M", "name": "process_name"},
        event("cpu_op", "aten::add"),
        event("cuda_runtime", "cudaStreamSynchronize", ts=99.0),  # before
        REGION,
        event("cuda_runtime", "cudaLaunchKernel"),
        event("cuda_driver", "cuLaunchKernelEx"),
        event("cuda_runtime", "cudaMemcpyAsync"),
        event("cuda_runtime", "cudaStreamSynchronize", ts=101.0),
        event("cuda_driver", "cuStreamSynchronize", ts=150.0),
        event("gpu_user_annotation", clocks.REGION),
        event("gpu_user_annotation", "Optimizer.step#AdamW.step"),
        event("kernel", "_read", ts=160.0),  # the device is behind
        event("kernel", "_combine", ts=170.0),
        event("gpu_memcpy", "Memcpy DtoH", ts=160.0),
        *[event("gpu_memset", "Memset", ts=160.0)] * 3,
        event("cuda_runtime", "cudaDeviceSynchronize", ts=151.0),  # ours, after
    ]
    assert clocks.calls_in(events) == clocks.Calls(launches=2, copies=1, fills=3, waits=2)
    assert clocks.calls_in([REGION, event("cpu_op")]) == (None,) * 4  # the profiler did not see CUDA


def test_the_profiler_marks_the_region_as_it_is_looked_for() -> None:
    done = []
    events = clocks.trace(lambda: done.append(torch.ones(3) + 1), ignore_all, [ProfilerActivity.CPU])
    assert len(done) == 1
    (region,) = (e for e in events if e.get("name") == clocks.REGION)
    assert region["cat"] == "user_annotation"
    assert region["dur"] > 0
    (added,) = (e for e in events if e.get("name") == "aten::add")
    assert region["ts"] <= added["ts"] <= region["ts"] + region["dur"]


def test_all_that_is_counted_is_nothing_on_the_cpu() -> None:
    done = []
    count = bench.count(lambda: done.append("work"), "cpu", lambda: done.append("restore"))
    assert done == ["restore", "work"] * 3
    assert set(count.values()) == {0}


def test_every_arm_has_one_turn_per_round_and_the_first_rounds_do_not_count() -> None:
    log: list[str] = []
    ticks: list[int] = []

    def once(name: str) -> int:
        log.append(name)
        return len(log)

    found = in_turn("abc", once, 4, ticks.append)
    assert ["".join(log)[i : i + 3] for i in range(0, 21, 3)] == ["abc", "bca", "cab"] * 2 + ["abc"]
    assert found == {"a": [10, 15, 17, 19], "b": [11, 13, 18, 20], "c": [12, 14, 16, 21]}
    assert ticks == [0, 0, 0, 1, 2, 3, 4]
    assert in_turn("", once, 4, ignore) == {}


def test_every_way_is_timed_after_its_gradients_were_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(step_variants.Model, "restorer", lambda self: lambda: log.append("."))
    way = step_variants.Way(1, lambda: log.append("step"))
    monkeypatch.setattr(bench, "kinds", lambda model: {"reads": {}, "steps": {"a": way, "b": way}})
    found = bench.measure(model("2x10"), bench.Config(steps=2, tiles=()), ignore)
    assert log == [".", "step"] * 2 * (1 + 3 + 2)  # tried, then warm-up and rounds
    assert {name: len(seconds) for name, seconds in found.steps.items()} == {"a": 2, "b": 2}


def test_a_rate_counts_bytes_that_are_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"copy": [clocks.Seconds(2.0, 0.0)], "read": [clocks.Seconds(0.5, 0.0)]}
    monkeypatch.setattr(clocks, "in_turn", lambda *_: seconds)
    million = 10**6
    assert clocks.copy_rates(million, 1, "cpu") == {"copy": 0.0, "read": 0.0}
    for name in seconds:  # the median: neither the first nor the fastest
        seconds[name] += [clocks.Seconds(1e-6, 0.0), clocks.Seconds(1e-7, 0.0)]
    assert clocks.copy_rates(million, 1, "cpu") == {"copy": 8000.0, "read": 4000.0}


class Card:
    """A host and a device with clocks of their own: what the device is given begins when it is done with the rest."""

    def __init__(self) -> None:
        self.host = self.device = 0.0  # seconds; the device's: when it will be done

    def give(self, seconds: float) -> None:
        self.device = max(self.device, self.host) + seconds

    def launch_and_compute(self, number: int) -> None:
        for _ in range(number):
            self.host += 0.001  # Python
            self.give(0.0001)

    def event(self, **_: object) -> Any:
        class Event:
            def record(event: Any) -> None:  # noqa: N805
                event.at = max(self.device, self.host)

            def elapsed_time(event: Any, end: Any) -> float:  # noqa: N805
                return float(1000 * (end.at - event.at))

        return Event()

    def synchronize(self) -> None:
        self.host = max(self.host, self.device)


def test_on_cuda_the_time_of_the_device_is_not_that_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card()
    monkeypatch.setattr(torch.cuda, "Event", card.event)
    monkeypatch.setattr(torch.cuda, "synchronize", card.synchronize)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: card.give(cycles / 1e9))
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: card.host)
    monkeypatch.setattr(clocks, "_hosts", clocks.deque([0.005], maxlen=4))
    clocks._cycles_per_second.cache_clear()
    for launches in (5, 9, 15):  # each more than the host took before
        seconds = clocks.timed(lambda launches=launches: card.launch_and_compute(launches), "cuda")
        assert seconds.device == pytest.approx(0.0001 * launches)
        assert seconds.host == pytest.approx(0.001 * launches)
    clocks._cycles_per_second.cache_clear()


# ---------------------------------------------------------------------------------------------------------- the record


def trial(**steps: float) -> dict[str, Any]:
    return {name: {"device_us": [us, 2 * us]} for name, us in steps.items()}


def test_ratios_are_theirs_over_ours() -> None:
    found = bench.ratios(trial(bare=10.0, ours=12.0, torch=20.0, roundpipe=32.0))
    assert found["torch"] == {"whole": [1.667, 1.667], "cost": [5.0, 5.0]}
    assert found["roundpipe"] == {"whole": [2.667, 2.667], "cost": [11.0, 11.0]}
    assert bench.ratios(trial(bare=10.0, ours=10.0, torch=20.0))["torch"] == {"whole": [2.0] * 2, "cost": [None] * 2}
    assert bench.ratios(trial(bare=10.0, torch=20.0)) == {}  # ours failed


def test_times_are_medians_in_microseconds_and_over_the_floor() -> None:
    seconds = [[clocks.Seconds(3e-6, 1e-6), clocks.Seconds(1e-6, 5e-6), clocks.Seconds(2e-6, 3e-6)]]
    assert bench.times(seconds, 1e-6) == {"device_us": [2.0], "host_us": [3.0], "of_floor": [2.0]}


@pytest.fixture(scope="module")
def smoked() -> list[dict[str, Any]]:
    arms = bench.arms(bench.SMOKE)
    return [{"arm": name, **bench.run(bench.SMOKE, arm, 0, "cpu", ignore)} for name, arm in arms.items()]


def test_a_run_has_every_way_and_the_table_shows_it(smoked: list[dict[str, Any]]) -> None:
    assert [row["arm"] for row in smoked] == [
        f"{size} {dtype}" for dtype in ("float32", "float16") for size in bench.SMOKE.sizes
    ]
    console = Console(width=200)
    with console.capture() as printed:
        console.print(bench.table(smoked))
    text = printed.get()
    for row in smoked:
        assert row["arm"] in text
        assert not row["errors"]
        wanted = {"bare", "torch", "ours", "ours: unscale, then clip", "ours, without Triton"}
        wanted = wanted if "float32" in row["arm"] else set()
        assert row["steps"].keys() - {"roundpipe"} == wanted
        for way in (*row["reads"].values(), *row["steps"].values()):
            assert len(way["device_us"]) == len(way["host_us"]) == len(way["of_floor"]) == bench.SMOKE.trials
        floor = 1e6 * 4 * row["elements"] * row["reads"]["torch: clip_grad_norm_"]["words"] / row["rates"]["copy"] / 1e9
        if "float32" in row["arm"]:
            clip = row["reads"]["torch: clip_grad_norm_"]
            assert clip["of_floor"][0] == pytest.approx(clip["device_us"][0] / floor, rel=0.1)
    for name in smoked[0]["steps"]:
        assert f"step: {name}" in text


def test_a_large_size_is_refused_on_a_cpu_before_its_memory_is_taken() -> None:
    with pytest.raises(runner.UsageError, match="expected cuda, where this is measured; pass --smoke"):
        bench.run(bench.Config(), bench.Arm("gpt2-12x768", "float32"), 0, "cpu", ignore)

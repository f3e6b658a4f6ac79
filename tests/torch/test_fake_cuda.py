"""The order that a device needs, tested without one: the scaler on streams and events of ours.

Work on a stream runs later, in the order of its stream; only events order two streams. Here
torch.cuda's streams and events are replaced by ones that keep vector clocks. Each operation is
stamped with the clock of the current stream. Each access to a tensor must come after the writes
that it depends on, and each write after the reads. Memory that is let go returns to the stream that
allocated it: by then that stream must know that each other reader is done, or the tensor must be
marked by record_stream. What runs is ampsim.torch unchanged, the optimizer's thread included. This
shows the order of operations and says nothing about kernels.
"""

import threading
import weakref
from collections import defaultdict
from concurrent.futures import Future
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampsim import Rule
from ampsim.core.pipeline import trajectory
from ampsim.torch import GradScaler, OptimizerThread, config
from ampsim.torch.pipelined import Pipelined
from ampsim.torch.state.device import DeviceVersion
from tests.examples import examples
from tests.torch.helpers import INF, bits

Clock = dict[int, int]  # stream -> how many of its operations are known to be done


class Stream:
    def __init__(self, world: "World") -> None:
        self.number, self.clock = len(world.streams), defaultdict(int)
        world.streams.append(self)

    def wait_event(self, event: "Event") -> None:
        for stream, count in event.clock.items():
            self.clock[stream] = max(self.clock[stream], count)


class Event:
    def __init__(self, world: "World") -> None:
        self.world, self.clock = world, {}

    def record(self, stream: Stream | None = None) -> None:
        self.clock = dict((stream or self.world.current()).clock)


class Memory:
    """Who touched one tensor's storage, and when."""

    def __init__(self, stream: Stream) -> None:
        self.home = stream
        self.write = (stream.number, stream.clock[stream.number])
        self.reads: dict[int, int] = {}
        self.recorded: set[int] = set()


class World(TorchDispatchMode):
    """All streams of one fake device, and what went wrong on it."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[Stream] = []
        self.local = threading.local()
        self.default = Stream(self)
        self.memory: dict[int, Memory] = {}
        self.storages: list[torch.UntypedStorage] = []
        self.wrong: list[str] = []
        self.lock = threading.RLock()

    def current(self, device: object = None) -> Stream:
        return getattr(self.local, "stream", self.default)

    @contextmanager
    def using(self, stream: Stream | None):
        before, self.local.stream = self.current(), stream or self.current()
        try:
            yield
        finally:
            self.local.stream = before

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with self.lock:
            stream = self.current()
            stream.clock[stream.number] += 1
            written = self.written(func, args, kwargs)
            for tensor in tree_leaves((args, kwargs)):
                if isinstance(tensor, torch.Tensor):
                    self.access(func, tensor, stream, any(tensor is w for w in written))
            out = func(*args, **kwargs)
            for tensor in tree_leaves(out):
                if isinstance(tensor, torch.Tensor):
                    self.of(tensor)
            return out

    @staticmethod
    def written(func, args, kwargs) -> list[torch.Tensor]:
        written = []
        for number, argument in enumerate(func._schema.arguments):
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write:
                written += tree_leaves(given)
        return written

    def of(self, tensor: torch.Tensor) -> Memory:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.memory:
            self.storages.append(storage)  # kept, so that no address is used twice
            self.memory[storage._cdata] = Memory(self.current())
        return self.memory[storage._cdata]

    def watch_release(self, tensor: torch.Tensor) -> None:
        """Once `tensor` is let go, its home stream may allocate its memory again."""
        weakref.finalize(tensor, self.released, self.of(tensor))

    def released(self, memory: Memory) -> None:
        with self.lock:
            for number, count in [*memory.reads.items(), memory.write]:
                known = number == memory.home.number or memory.home.clock[number] >= count
                if not known and number not in memory.recorded:
                    self.wrong.append(f"released while stream {number} may still be using it")

    def access(self, func, tensor: torch.Tensor, stream: Stream, writes: bool) -> None:
        if tensor.numel() == 0:
            return
        memory = self.of(tensor)
        before = dict([memory.write])
        for number, count in memory.reads.items() if writes else ():
            before[number] = max(count, before.get(number, 0))
        for number, count in before.items():
            if number != stream.number and stream.clock[number] < count:
                kind = "writes" if writes else "reads"
                self.wrong.append(f"{func} on stream {stream.number} {kind} what {number} may use")
        now = stream.clock[stream.number]
        if writes:
            memory.write, memory.reads = (stream.number, now), {}
        else:
            memory.reads[stream.number] = now


@contextmanager
def fake_cuda():
    """Put a world in the place of torch's streams, events and allocator."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        world = World()
        replace_cuda(monkeypatch, world)
        yield world


@pytest.fixture
def world():
    with fake_cuda() as world:
        yield world


def replace_cuda(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # Optimizers would ask a real driver.
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    if hasattr(torch, "accelerator"):
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda *a, **k: Stream(world))
    monkeypatch.setattr(torch.cuda, "Event", lambda *a, **k: Event(world))
    monkeypatch.setattr(torch.cuda, "current_stream", world.current)
    monkeypatch.setattr(torch.cuda, "stream", world.using)

    def event(device):
        made = Event(world)
        made.record(world.current())
        return made

    def record_stream(tensor, stream):
        world.of(tensor).recorded.add(stream.number)

    for module in ("state.device", "step.records", "pipelined"):
        monkeypatch.setattr(f"ampsim.torch.{module}.event_on", event)
    monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(config, "version_class", lambda *rule, **options: DeviceVersion)


@contextmanager
def optimizer_thread(world: World):
    """A thread whose operations the world sees: modes are per thread."""
    thread = OptimizerThread()
    thread.launch(world.__enter__)
    try:
        with world:
            yield thread
    finally:
        thread.launch(lambda: world.__exit__(None, None, None))
        thread.close()


def test_unordered_read_is_detected(world) -> None:
    numbers = torch.zeros(3)
    with optimizer_thread(world) as thread:
        done = threading.Event()
        thread.launch(lambda: (numbers.add_(1), done.set()))
        done.wait(60)  # the host knows that the work was given to its stream, and nothing more
        numbers.sum()
    assert any("reads what" in wrong for wrong in world.wrong)


# ------------------------------------------------------------------------------ the scaler's loops


class Iteration(NamedTuple):
    overflows: bool
    elsewhere: bool  # the backward pass runs on a thread with a stream of its own
    unscale: str  # "", "unscale" or "clip"
    from_caller: bool  # unscale and step are called on the caller's thread, not launched
    reads: bool  # the caller looks at what the step did


class Plan(NamedTuple):
    depth: int
    iterations: list[Iteration]
    updates_from_caller: bool


iterations = st.builds(
    Iteration,
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "unscale", "clip"]),
    st.booleans(),
    st.booleans(),
)
several = st.lists(iterations, min_size=1, max_size=6)
plans = st.builds(Plan, st.integers(0, 3), several, st.booleans())


class Here:
    """Stands for a thread: runs what is launched at once."""

    def launch(self, work):
        done = Future()
        done.set_result(work())
        return done


class Loop:
    """A loop by tickets: `thread` owns the optimizer, `worker` runs some backward passes."""

    def __init__(self, depth, thread, worker, released=lambda tensor: None):
        self.thread, self.worker, self.released = thread, worker, released
        launch = None if isinstance(thread, Here) else thread.launch
        self.scaler = GradScaler("cpu", 8.0, growth_interval=2, depth=depth, launch=launch)
        self.master = torch.nn.Parameter(torch.ones(3))
        self.optimizer = torch.optim.AdamW([self.master], lr=0.1, fused=True)
        self.seen = []

    def gradient(self, one, ticket):
        # Not the master: the backward pass waits for no optimizer.
        weight = torch.full((3,), 2.0, requires_grad=True)
        loss = (weight * (INF if one.overflows else 3.0)).sum()
        self.seen.append(self.scaler.scale(loss, ticket).item())
        self.scaler.scale(loss, ticket).backward()
        return weight.grad

    def step(self, one, ticket):
        norm = None
        if one.unscale == "clip":
            norm = self.scaler.unscale_and_clip_(self.optimizer, 1.0, ticket)
        elif one.unscale:
            self.scaler.unscale_(self.optimizer, ticket)
        self.scaler.step(self.optimizer, ticket=ticket)
        return norm

    def iterate(self, one):
        ticket = self.scaler.begin_iteration()
        self.released(ticket.value.scale_on(self.master.device))
        if one.elsewhere:  # what a job returns is freed on its stream: whoever takes it copies it
            grad = self.worker.launch(lambda: self.gradient(one, ticket)).result().clone()
        else:
            grad = self.gradient(one, ticket)
        self.released(grad)
        handed = self.thread.launch(lambda grad=grad: setattr(self.master, "grad", grad))
        del grad
        stepper = Here() if one.from_caller else self.thread
        stepped = stepper.launch(lambda: self.step(one, ticket))
        if one.reads:
            handed.result()
            norm = stepped.result()
            self.seen.append(None if norm is None else bits(norm))
            self.seen.append((self.scaler.last_step.skipped, bits(self.master)))
        return ticket


def train(plan, thread, worker, released=lambda tensor: None):
    """Return the scaled losses and what the caller read, and the parameters."""
    loop = Loop(plan.depth, thread, worker, released)
    for one in plan.iterations:
        ticket = loop.iterate(one)
        if plan.updates_from_caller:
            loop.scaler.update(ticket=ticket)
        else:
            thread.launch(lambda ticket=ticket: loop.scaler.update(ticket=ticket))
    thread.launch(list).result()
    loop.scaler.synchronize()
    return loop.seen, bits(loop.master)


clipped = Iteration(True, True, "clip", True, True)
launched = Iteration(False, False, "unscale", False, False)


@settings(max_examples=examples(ms=5, least=50))
@given(plans)
@example(Plan(0, [clipped, launched, clipped], True))
@example(Plan(2, [launched, clipped, launched, launched], False))
def test_every_access_is_ordered(plan) -> None:
    with fake_cuda() as world, optimizer_thread(world) as thread:
        worker = OptimizerThread()
        worker.launch(world.__enter__).result()
        seen = train(plan, thread, worker, world.watch_release)
        worker.launch(lambda: world.__exit__(None, None, None))
        worker.close()
    assert not world.wrong, world.wrong[:3]
    assert seen == train(plan, Here(), Here())
    flags = [one.overflows for one in plan.iterations]
    scales = trajectory(Rule(8.0, growth_interval=2), plan.depth, flags)[:-1]
    losses = [scale * (INF if flag else 18.0) for scale, flag in zip(scales, flags, strict=True)]
    assert [loss for loss in seen[0] if isinstance(loss, float)] == losses


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_pipeline_weight_accesses_are_ordered(world, depth) -> None:
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    with optimizer_thread(world) as thread:
        pipe = Pipelined(model, depth=depth, thread=thread)
        optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)

        def step() -> None:
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(6):
            pipe.forward_backward((torch.ones(2, 3),), None, lambda out, _: out.square().sum())
            world.watch_release(model.weight.grad)
            pipe.step(step)
        pipe.synchronize()
        weights = model.weight.tolist()[0]
    assert not world.wrong, world.wrong[:3]
    history = [1.0]
    for i in range(6):
        history.append(history[-1] - 0.1 * 12 * history[max(0, i - depth)])
    assert weights == pytest.approx([history[-1]] * 3, rel=1e-5)


@pytest.mark.parametrize("clips", [False, True])
def test_a_drop_in_loop_is_ordered(world, clips) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    with optimizer_thread(world) as thread:
        scaler = GradScaler("cpu", init_scale=8.0, growth_interval=2, launch=thread.launch)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale((weight * 3.0).sum()).backward()
            if clips:
                norm = scaler.unscale_and_clip_(optimizer, 1.0)
                world.watch_release(norm)
                norm.item()
                del norm
            scaler.step(optimizer)
            scaler.update()
    assert not world.wrong, world.wrong[:3]


@pytest.mark.parametrize("wait", ["result", "exception", "synchronize"])
def test_reads_after_job_are_ordered(world, wait) -> None:
    numbers = torch.zeros(3)

    def work() -> None:
        numbers.add_(1)
        if wait == "exception":
            raise ValueError("planted")

    with optimizer_thread(world) as thread:
        if wait == "synchronize":
            thread.launch(work)
            thread.synchronize()
        elif wait == "exception":
            with pytest.raises(ValueError, match="planted"):
                thread.launch(work).result()
        else:
            thread.launch(work).result()
        numbers.sum()
    assert not world.wrong, world.wrong[:3]


def test_last_step_waits_for_flags(world) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    with optimizer_thread(world) as thread:
        scaler = GradScaler("cpu", init_scale=8.0, launch=thread.launch)
        scaler.scale((weight * 3.0).sum()).backward()
        done = threading.Event()
        thread.launch(lambda: (scaler.step(optimizer), done.set()))
        done.wait(60)  # the host knows that the step was given to its stream, and nothing more
        assert not scaler.last_step.skipped
        assert not scaler.last_step.skipped_by(optimizer)
    assert not world.wrong, world.wrong[:3]

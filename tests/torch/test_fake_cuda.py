"""The order that CUDA needs, checked without CUDA: the real scaler under streams, events and an allocator of ours.

Work on a CUDA stream runs later, in the order of its stream; only events order two streams. Here torch.cuda's
streams and events are replaced by ones that keep vector clocks, every aten call is stamped with the clock of
the stream that is current, and each access to a tensor must come after the writes (a write: after the reads
too) that it depends on. A gradient that is let go returns to the stream that allocated it, as in the caching
allocator: by then that stream must know that every other reader is done, or the gradient must be marked with
record_stream. What is run is ampsim.torch unchanged, the optimizer's thread included. This shows the order of
the hand-over; it says nothing about kernels.
"""

import threading
import weakref
from collections import defaultdict
from contextlib import contextmanager, suppress
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampsim import Rule, init
from ampsim.core.pipeline import trajectory
from ampsim.torch import GradScaler, OptimizerThread, config
from ampsim.torch.pipelined import Pipelined
from ampsim.torch.state import device
from ampsim.torch.state.device import DeviceVersion
from ampsim.torch.threads.launcher import Launcher

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
        slots = zip(func._schema.arguments, [*args, *([None] * len(func._schema.arguments))], strict=False)
        named = [(a, kwargs.get(a.name, given)) for a, given in slots]
        return [
            t for a, given in named if a.alias_info is not None and a.alias_info.is_write for t in tree_leaves(given)
        ]

    def of(self, tensor: torch.Tensor) -> Memory:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.memory:
            self.storages.append(storage)  # kept, so that no address is used twice
            self.memory[storage._cdata] = Memory(self.current())
        return self.memory[storage._cdata]

    def watch_release(self, tensor: torch.Tensor) -> None:
        """From the moment `tensor` is let go its memory may be allocated again by its home stream."""
        weakref.finalize(tensor, self.released, self.of(tensor))

    def released(self, memory: Memory) -> None:
        with self.lock:
            uses = {**memory.reads, memory.write[0]: max(memory.write[1], memory.reads.get(memory.write[0], 0))}
            for number, count in uses.items():
                known = number == memory.home.number or memory.home.clock[number] >= count
                if not known and number not in memory.recorded:
                    self.wrong.append(f"released while stream {number} may still be using it: record_stream is missing")

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
                self.wrong.append(f"{func} on stream {stream.number} {kind} what stream {number} may still be using")
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
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # optimizers ask a real driver
    if hasattr(torch, "accelerator"):  # newer optimizers ask it the same; a CPU build of torch has none
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


def train(world: World, depth: int = 1, iterations: int = 6, *, told: bool = True) -> list[float]:
    """A loop with the optimizer on its own thread and stream; gradients are handed over. Returns the scales.

    The scaler is `told` of the thread, or is stepped and updated there by tickets alone.
    """
    master = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([master], lr=0.1, fused=True)
    scales = []
    with optimizer_thread(world) as thread:
        launch = thread.launch if told else None
        scaler = GradScaler("cpu", init_scale=8.0, growth_interval=2, depth=depth, launch=launch)
        for i in range(iterations):
            weight = torch.ones(3, requires_grad=True)  # this iteration's own copy
            ticket = scaler.begin()
            scales.append(ticket.value.read().scale)
            loss = (weight * (float("inf") if i == 2 else 3.0)).sum()
            scaler.scale(loss, ticket).backward()
            world.watch_release(weight.grad)

            def step(grad=weight.grad, ticket=ticket) -> None:
                master.grad = grad
                scaler.step(optimizer, ticket=ticket)
                master.grad = None
                if not told:
                    scaler.update(ticket=ticket)

            weight.grad = None
            thread.launch(step)
            del step
            if told:
                scaler.update(ticket=ticket)
            del ticket
        scaler.synchronize()
        return scales


@pytest.mark.parametrize(("depth", "told"), [(0, True), (1, True), (2, True), (1, False)])
def test_every_access_is_ordered(world, depth, told) -> None:
    scales = train(world, depth, told=told)
    assert not world.wrong, world.wrong[:3]
    assert len(world.streams) == 2  # the caller's and the optimizer's
    flags = [i == 2 for i in range(6)]
    assert scales == trajectory(Rule(8.0, growth_interval=2), depth, flags)[:-1]


def test_a_published_scale_written_in_place_is_seen(world, monkeypatch) -> None:
    def next_in_place(self, rule, outcome):
        self._wait()
        torch._amp_update_scale_(self.scale, self.growth_tracker, outcome.flags[0], 2.0, 0.5, 2)
        return DeviceVersion(self.scale, self.growth_tracker, device.event_on(self.scale.device))

    monkeypatch.setattr(DeviceVersion, "next", next_in_place)
    with suppress(RuntimeError):  # autograd may notice too, if the write comes before its backward pass
        train(world, depth=1)
    assert any("writes" in text for text in world.wrong)


def run_pipelined(world: World, depth: int = 1) -> list[float]:
    """The loop of `Pipelined`, which hands over gradients one way and weights the other. Returns the last weights."""
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    with optimizer_thread(world) as thread:
        pipe = Pipelined(model, depth=depth, thread=thread)
        optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
        for _ in range(6):
            pipe.forward_backward((torch.ones(2, 3),), None, lambda outputs, _: outputs.square().sum())
            world.watch_release(model.weight.grad)

            def step() -> None:
                optimizer.step()
                optimizer.zero_grad()

            pipe.step(step)
        pipe.synchronize()
        return model.weight.tolist()[0]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_weights_and_gradients_of_a_pipeline_are_ordered(world, depth) -> None:
    weights = run_pipelined(world, depth)
    assert not world.wrong, world.wrong[:3]
    history = [1.0]
    for i in range(6):
        history.append(history[-1] - 0.1 * 12 * history[max(0, i - depth)])
    assert weights == pytest.approx([history[-1]] * 3, rel=1e-5)


def drop_in(world: World, what: str = "plain") -> None:
    """The loop of one thread with a scaler that steps on another; `what` the caller does between the calls."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    with optimizer_thread(world) as thread:
        scaler = GradScaler("cpu", init_scale=8.0, growth_interval=2, launch=thread.launch)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale((weight * 3.0).sum()).backward()
            if what == "clip":
                norm = scaler.unscale_and_clip_(optimizer, 1.0)
                world.watch_release(norm)
                norm.item()
                del norm
            if what == "launched":
                thread.launch(scaler.step, optimizer)
            else:
                scaler.step(optimizer)
            scaler.update()
            if what == "launched":
                thread.synchronize()


@pytest.mark.parametrize("what", ["plain", "clip", "launched"])  # test_thread_plans has more
def test_the_caller_comes_behind_what_it_waited_for(world, what) -> None:
    drop_in(world, what)
    assert not world.wrong, world.wrong[:3]


def sets_the_scale(world: World) -> None:
    """A tensor of the caller's stream goes to the optimizer's, by value."""

    def copied(new_scale: torch.Tensor, *_: object, **options: object) -> torch.Tensor:
        copy = new_scale.clone()  # as of a tensor on a device
        world.watch_release(copy)
        return copy

    with optimizer_thread(world) as thread, pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "new_scale_by_value", copied)
        scaler = GradScaler("cpu", init_scale=8.0, launch=thread.launch)
        for new in (2.0, 4.0):
            scaler.scale(torch.ones(()))
            scaler.update(torch.tensor(new))
        scaler.synchronize()


def closes(world: World) -> None:
    numbers, thread = torch.zeros(3), OptimizerThread()
    with world:
        for work in (world.__enter__, lambda: numbers.add_(1), lambda: world.__exit__(None, None, None)):
            thread.launch(work)
        thread.close()
        numbers.sum()


@pytest.mark.parametrize("loop", [sets_the_scale, closes])
def test_what_goes_from_one_stream_to_another_is_ordered(world, loop) -> None:
    loop(world)
    assert not world.wrong, world.wrong[:3]


@pytest.mark.parametrize("wait", ["result", "exception", "synchronize", "step"])
def test_what_a_job_wrote_is_read_after_it(world, wait) -> None:
    numbers = torch.zeros(3)
    with optimizer_thread(world) as thread:
        if wait == "step":
            thread.step(lambda: numbers.add_(1), is_async=False)
        else:
            job = thread.launch(lambda: numbers.add_(1))
            thread.synchronize() if wait == "synchronize" else getattr(job, wait)()
        numbers.sum()
    assert not world.wrong, world.wrong[:3]


@pytest.mark.parametrize("through", ["thread", "scaler"])
def test_what_a_job_wrote_before_it_failed_is_read_after_it(world, through) -> None:
    numbers = torch.zeros(3)

    def fail() -> None:
        numbers.add_(1)
        raise ValueError("planted")

    with optimizer_thread(world) as thread:
        with pytest.raises(ValueError, match="planted"):
            thread.launch(fail).result() if through == "thread" else Launcher(thread.launch).call(fail)
        numbers.sum()
    assert not world.wrong, world.wrong[:3]


def test_a_report_of_another_stream_waits_for_its_flags(world) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    with optimizer_thread(world) as thread:
        scaler, done = GradScaler("cpu", init_scale=8.0, launch=thread.launch), threading.Event()
        scaler.scale((weight * 3.0).sum()).backward()

        def step() -> None:
            try:
                scaler.step(optimizer)
            finally:
                done.set()

        thread.launch(step)
        done.wait()  # the host knows that the step was given to its stream, and nothing else does
        assert not scaler.last_step.skipped
        assert not scaler.last_step.skipped_by(optimizer)
        assert not world.wrong, world.wrong[:3]


# ------------------------------------------------------------------------------------------------- planted mistakes


def nothing(*_: object) -> None:
    """Do what one takes the place of does for the order of streams: leave it out."""


def launched_and_read(world: World) -> None:
    test_what_a_job_wrote_is_read_after_it(world, "result")


def a_scale_read_and_let_go(world: World) -> None:
    with optimizer_thread(world) as thread:
        rule, cpu = Rule(8.0), torch.device("cpu")
        (version,) = thread.launch(lambda: DeviceVersion.start((init(rule),), rule, cpu)).result()
        world.watch_release(version.scale)
        version.scale_on(cpu).mul(2.0)
        del version


# What makes an order: where it is, what takes its place, a loop that shows it, and what is said then.
ORDERS = {
    "a version is waited for": ("state.device.DeviceVersion._wait", nothing, train, "reads what"),
    "a version has an event": ("state.device.event_on", nothing, train, "reads what"),
    "a scale is kept while it is read": (
        "state.device.DeviceVersion._keep", nothing, a_scale_read_and_let_go, "record_stream"
    ),
    "a gradient is kept while it is read": ("state.device.DeviceVersion.keep", nothing, train, "record_stream"),
    "a launch records an event": ("threads.optimizer_thread.record_event", nothing, train, "stream 1 reads"),
    "weights are waited for": ("pipelined.Weights._wait", nothing, run_pipelined, "reads what"),
    "weights have an event": ("pipelined.event_on", nothing, run_pipelined, "reads what"),
    "a pipeline's gradients are kept": ("pipelined.Weights.keep", nothing, run_pipelined, "record_stream"),
    "a call comes behind its job": ("threads.launcher.come_behind", nothing, drop_in, "stream 1 may"),
    "synchronize comes behind all jobs": (
        "threads.optimizer_thread.come_behind", nothing, partial(drop_in, what="launched"), "stream 1 may"
    ),
    "a job records where it ends": (
        "threads.launcher.Job.doing", lambda self, work: work(), launched_and_read, "stream 1 may"
    ),
    "a report waits for its flags": (
        "step.records.event_on", nothing, test_a_report_of_another_stream_waits_for_its_flags, "stream 1 may"
    ),
    "a norm is kept while it is read": (
        "threads.launcher.kept", lambda result: result, partial(drop_in, what="clip"), "record_stream"
    ),
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_that_is_left_out_is_seen(world, monkeypatch, order) -> None:
    place, instead, loop, text = ORDERS[order]
    monkeypatch.setattr(f"ampsim.torch.{place}", instead)
    with suppress(AssertionError):  # some loops look for themselves
        loop(world)
    assert any(text in wrong for wrong in world.wrong), world.wrong


def test_a_scale_is_kept_while_it_is_read(world) -> None:
    a_scale_read_and_let_go(world)
    assert not world.wrong, world.wrong

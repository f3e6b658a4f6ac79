"""A simulated asynchronous accelerator, to test the order of streams without a device.

It takes the place of `torch.Event`, `torch.Stream`, and parts of `torch.accelerator`::

    with simulated(seed=7) as device:
        x = to_device(torch.ones(3))
        ...
    assert not device.races

Each operation goes to the queue of the current stream, and runs later, in an order that the seed
determines. The host waits only where it reads a number or synchronizes. No thread runs the queues:
calls of the host run some of the operations, so a run with one host thread can be repeated.

Two detectors do not depend on that order. Each operation has a vector clock, with one count per
stream. A *race* is an access that is not ordered behind another stream's write, or a write that is
not ordered behind another stream's read. Memory is *freed early* if its last reference goes while
another stream, which was not recorded, may still use it.
"""

import contextlib
import functools
import random
import threading
import weakref
from unittest import mock

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE, CPU = torch.device("privateuseone", 0), torch.device("cpu")
UNWRITTEN = 77  # what a read sees that comes before the write


def _join(clock, other):
    """Raise the counts of a clock, a dict from streams to counts, to those of another one."""
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


class Stream:
    """A queue of operations; takes the place of `torch.Stream`."""

    def __init__(self, device=None, name=""):
        self.queue = []  # pairs of an operation and the mark that it waits for; one of them None
        self.clock = {}
        self.name = name or f"stream {len(_device.streams)}"
        if name != "default stream":
            _device.streams.append(self)

    def __repr__(self):
        return self.name

    def wait_event(self, event):
        with _device.lock:
            if event.mark is not None:
                self.queue.append((None, event.mark))
                _join(self.clock, event.mark.clock)

    def tick(self):
        """Return the next operation's clock: behind this stream and what the host waited for."""
        _join(self.clock, _device.host_clock())
        self.clock[self] = self.clock.get(self, 0) + 1
        return dict(self.clock)

    def synchronize(self):
        event = Event()
        event.record(self)
        _device.host_waits(event.mark)


class Mark:
    """A place in the queue of a stream, with the clock of that place."""

    is_reached = False

    def __init__(self, clock):
        self.clock = clock

    def reach(self):
        self.is_reached = True


class Event:
    """The mark that was recorded last; takes the place of `torch.Event`."""

    def __init__(self, device=None, **_):
        self.mark = None

    def record(self, stream=None):
        with _device.lock:
            stream = stream or current_stream()
            self.mark = Mark(stream.tick())
            stream.queue.append((self.mark.reach, None))


class Memory:
    """A storage on the device, with its last write and the reads since, by clock."""

    def __init__(self, home):
        self.device, self.home = _device, home
        self.written = (home, {})
        self.read = {}
        self.recorded = {home}

    def access(self, operation, stream, clock, *, writes):
        others = [("wrote", *self.written)]
        if writes:
            others += [("read", *item) for item in self.read.items()]
        for verb, other, then in others:
            if then.get(other, 0) > clock.get(other, 0):
                does = "writes" if writes else "reads"
                self.device.races.append(
                    f"{operation} on {stream} {does} what {other} {verb}"
                )
        if writes:
            self.written, self.read = (stream, clock), {}
        else:
            self.read[stream] = clock

    def free(self):
        with self.device.lock:
            now = dict(self.home.clock)
            _join(now, self.device.host_clock())
            for stream, then in [*self.read.items(), self.written]:
                if stream not in self.recorded and then.get(stream, 0) > now.get(
                    stream, 0
                ):
                    self.device.freed_early.append(
                        f"{self.home} frees what {stream} may use"
                    )


class Storage:
    """The reference to a memory that all views of a tensor keep."""

    def __init__(self, stream):
        self.memory = Memory(stream)
        weakref.finalize(self, self.memory.free).atexit = False


class Device:
    """The queues, the order in which they run, and what the detectors saw."""

    def __init__(self, seed):
        self.lock = threading.RLock()
        self.random = random.Random(seed)  # noqa: S311
        self.streams = [Stream(name="default stream")]
        self.races, self.freed_early = [], []
        self.operations = 0
        self.local = threading.local()

    def host_clock(self):
        """Return the clock of what this host thread has waited for."""
        if not hasattr(self.local, "clock"):
            self.local.clock = {}
        return self.local.clock

    def _is_ready(self, stream):
        return bool(stream.queue) and (
            stream.queue[0][1] is None or stream.queue[0][1].is_reached
        )

    def _run_one(self):
        ready = [stream for stream in self.streams if self._is_ready(stream)]
        if ready:
            operation, _ = self.random.choice(ready).queue.pop(0)
            if operation is not None:
                operation()

    def run_some(self):
        for _ in range(self.random.choice((0, 0, 0, 1, 2, 8))):
            self._run_one()

    def host_waits(self, mark):
        with self.lock:
            while not mark.is_reached:
                self._run_one()
            _join(self.host_clock(), mark.clock)


_device = None


def current_stream(device=None):
    """Return the stream of this host thread; threads share the first one, as on CUDA."""
    return getattr(_device.local, "stream", _device.streams[0])


def set_stream(stream):
    _device.local.stream = stream


class SimulatedTensor(Tensor):
    """A tensor on the device. Its operations write `values` when they run."""

    @staticmethod
    def __new__(cls, values, storage):
        made = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )
        made.values, made.storage = values, storage
        return made

    def __repr__(self, **_):
        return f"SimulatedTensor(shape={tuple(self.shape)}, dtype={self.dtype})"

    def record_stream(self, stream):
        self.storage.memory.recorded.add(stream)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with _device.lock:
            return _dispatch(func, args, kwargs or {})


def _tensors_in(tree):
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, SimulatedTensor)]


def _dispatch(func, args, kwargs):
    stream, name = current_stream(), func._schema.name.removeprefix("aten::")
    on_cpu = tree_map(_on_cpu, (args, kwargs))
    copies_to_host = name == "_to_copy" and kwargs.get("device", DEVICE).type == "cpu"
    if name == "_local_scalar_dense" or copies_to_host:
        return _read(func, name, stream, _tensors_in((args, kwargs))[0], on_cpu)
    aliases = [returned.alias_info for returned in func._schema.returns]
    if aliases and aliases[0] is not None and not aliases[0].is_write:
        storage = _tensors_in((args, kwargs))[0].storage
        return tree_map(
            lambda view: _wrap(view, storage), func(*on_cpu[0], **on_cpu[1])
        )
    clock = stream.tick()
    written = _record_accesses(func, name, stream, clock, args, kwargs)
    _device.operations += 1
    if written or not func._schema.returns:
        stream.queue.append((lambda: _run(func, *on_cpu), None))
        result = args[0] if func._schema.returns else None
    else:
        result = _queue_new(func, name, stream, clock, on_cpu)
    _device.run_some()
    return result


def _read(func, name, stream, tensor, on_cpu):
    tensor.storage.memory.access(name, stream, stream.tick(), writes=False)
    stream.synchronize()
    result = func(*on_cpu[0], **on_cpu[1])
    return result.clone() if isinstance(result, Tensor) else result


def _record_accesses(func, name, stream, clock, args, kwargs):
    """Record what an operation reads and writes; return what it writes."""
    declared = func._schema.arguments
    given = [*zip(declared, args, strict=False)]
    given += [(argument, kwargs.get(argument.name)) for argument in declared]
    written = []
    for argument, value in given:
        writes = argument.alias_info is not None and argument.alias_info.is_write
        for tensor in _tensors_in(value):
            if writes:
                written.append(tensor)
            else:
                tensor.storage.memory.access(name, stream, clock, writes=False)
    for tensor in written:
        tensor.storage.memory.access(name, stream, clock, writes=True)
    return written


def _queue_new(func, name, stream, clock, on_cpu):
    """Queue an operation that returns new tensors; return them, not yet written."""
    zeros = tree_map(
        lambda x: torch.zeros_like(x) if isinstance(x, Tensor) else x, on_cpu
    )
    shapes = _run(func, *zeros)
    blank = tree_map(
        lambda x: torch.full_like(x, UNWRITTEN) if isinstance(x, Tensor) else x, shapes
    )
    result = tree_map(lambda x: _wrap(x, Storage(stream)), blank)
    outputs = _tensors_in(result)
    for output in outputs:
        output.storage.memory.access(name, stream, clock, writes=True)
    places = [output.values for output in outputs]

    def operation():
        made = [
            x for x in tree_flatten(_run(func, *on_cpu))[0] if isinstance(x, Tensor)
        ]
        with torch.no_grad():
            for place, values in zip(places, made, strict=True):
                place.copy_(values)

    stream.queue.append((operation, None))
    return result


def _wrap(value, storage):
    return SimulatedTensor(value, storage) if isinstance(value, Tensor) else value


def _on_cpu(value):
    if isinstance(value, SimulatedTensor):
        return value.values
    if isinstance(value, torch.device):
        return CPU
    # The host may write its own tensor again as soon as the call returns.
    return value.clone() if isinstance(value, Tensor) else value


def _run(func, args, kwargs):
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        return func(*args, **kwargs)


def to_device(tensor):
    """Copy a tensor from the host to the device, on the current stream."""
    with _device.lock:
        return SimulatedTensor(tensor.detach().clone(), Storage(current_stream()))


def _empty(size, *, dtype=None, **_):
    dtype = dtype or torch.get_default_dtype()
    return to_device(torch.full(tuple(size), UNWRITTEN, dtype=dtype))


def _empty_strided(size, stride, **options):
    return _empty(size, **options)


@functools.cache
def _register():
    """Register the device; from then on autograd starts threads, so that the process cannot fork."""
    _setup_privateuseone_for_python_backend("simulated")
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    return library  # which must be kept


@contextlib.contextmanager
def simulated(seed):
    """Make the simulated device torch's accelerator; yield the `Device`."""
    global _device
    _register()
    before, _device = _device, Device(seed)
    names = {
        "current_stream": current_stream,
        "set_stream": set_stream,
        "is_available": lambda: True,
        "current_accelerator": lambda *_, **__: DEVICE,
    }
    with contextlib.ExitStack() as stack:
        for name, value in names.items():
            stack.enter_context(mock.patch.object(torch.accelerator, name, value))
        stack.enter_context(mock.patch.object(torch, "Event", Event))
        stack.enter_context(mock.patch.object(torch, "Stream", Stream))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        try:
            yield _device
        finally:
            _device = before

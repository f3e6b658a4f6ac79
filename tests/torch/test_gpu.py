"""What only a CUDA device can show. `make gpu` runs the tests marked gpu; on the CPU the same tests run dry.

On the CPU there are no streams, no graphs and nothing to wait for, so a dry run shows only that the test itself is in
order.
"""

import copy
import math
import os
import threading
import warnings
from contextlib import contextmanager

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from ampsim import Rule
from ampsim.core.pipeline import trajectory
from ampsim.core.policies import Deduplicated, Headroom, Probe
from ampsim.torch import GradScaler, OptimizerThread
from ampsim.torch.gradients import unscale
from ampsim.torch.state.device import DeviceVersion
from tests.examples import examples
from tests.torch.helpers import INF, NAN, bits, no_waits

SIZE = 257
BATCHES = [1.0, INF, 1.0, 1.0, 1.0, 1e34, 0.3, 1.0, INF, INF] * 5  # 50 iterations; 1e34 overflows at large scales

gpu = pytest.mark.gpu
on_both = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
SANITIZED = "TORCH_CUDA_SANITIZER" in os.environ
# torch warns when an optimizer made for capture is stepped outside of one, as every warm-up does
warms_up = pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True:UserWarning")


def parameter(device, seed=0, dtype=torch.float32):
    values = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))
    return torch.nn.Parameter(values.to(device, dtype))


# ---------------------------------------------------------------------------------------------------- graphs


class Eager:
    """On the CPU stands for a graph: a replay is a call."""

    def __init__(self, iteration) -> None:
        self.replay = iteration


def cuda_graph(iteration):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        iteration()
    return graph


@contextmanager
def side_stream(device):
    """Where torch wants the iterations before a capture."""
    if device == "cpu":
        yield
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def train_with_a_graph(device, scaler, capture, *, clip, set_to_none, kinds):
    """Scale, parameters and skips after each of BATCHES, the first three of which are not replayed."""
    params = [parameter(device, seed) for seed in range(kinds)]
    optimizers = [torch.optim.AdamW([p], lr=0.01, fused=True, capturable=True) for p in params]
    x = torch.ones(SIZE, device=device)

    def iteration() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)
        scaler.scale(sum((p.square() * x).sum() for p in params)).backward()
        for optimizer in optimizers:
            if clip:
                scaler.unscale_and_clip_(optimizer, 1.0)
            scaler.step(optimizer)
        scaler.update()

    seen, run = [], iteration
    for i, value in enumerate(BATCHES):
        x[3] = value
        if i == 3:
            run = capture(iteration).replay
            kept = [p.grad for p in params]  # a graph writes these, wherever they lie
        if i < 3:
            with side_stream(device):
                run()
        else:
            run()
        skips = scaler.last_step.skipped if isinstance(scaler, GradScaler) else None
        seen.append((scaler.get_scale(), skips, bits(*params)))
    assert len(kept) == kinds
    return seen


@on_both
@warms_up
@pytest.mark.parametrize(("clip", "set_to_none"), [(False, True), (False, False), (True, True), (True, False)])
def test_replays_of_a_cuda_graph_are_iterations(device, clip, set_to_none, monkeypatch) -> None:
    if clip and set_to_none:  # gradients at new addresses: torch's kernels make the norm in a capture, so here always
        monkeypatch.setattr(unscale, "KERNEL_DEVICES", set())
    rule, capture = {"init_scale": 2.0**16, "growth_interval": 2}, cuda_graph if device == "cuda" else Eager
    for kinds in (1, 2):
        options = {"clip": clip, "set_to_none": set_to_none, "kinds": kinds}
        replayed = train_with_a_graph(device, GradScaler(device, **rule, capturable=True), capture, **options)
        eager = train_with_a_graph(device, GradScaler(device, **rule), Eager, **options)
        scales, skips, _ = zip(*replayed, strict=True)
        assert replayed == eager
        assert any(skips[3:])
        assert len(set(scales[3:])) > 2
        if not clip:
            theirs = train_with_a_graph(device, torch.amp.GradScaler(device, **rule), Eager, **options)
            assert [(scale, params) for scale, _, params in theirs] == [(scale, params) for scale, _, params in eager]


@gpu
def test_the_state_is_not_made_in_a_capture() -> None:
    scaler, x = GradScaler("cuda", capturable=True), torch.ones((), device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.add_(1.0)  # torch warns of empty graphs
        with pytest.raises(RuntimeError, match="run an iteration before the capture"):
            scaler.scale(x)


# --------------------------------------------------------------------------------------------------- streams

FLAGS = [i % 5 == 2 for i in range(40)]


class OneAtATime(TorchDispatchMode):
    """Lets no two threads into torch's sanitizer: it counts in plain dicts."""

    lock = threading.RLock()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with self.lock:
            return func(*args, **(kwargs or {}))


@contextmanager
def sanitized(thread):
    """Show torch's sanitizer the operations of another thread too: it watches the one that imported torch."""
    if not (SANITIZED and thread):
        yield
        return
    from torch.cuda._sanitizer import cuda_sanitizer

    for mode in (copy.copy(cuda_sanitizer.dispatch), OneAtATime()):
        thread.launch(mode.__enter__)
    with OneAtATime():
        yield


def train_on_two_streams(device, depth, *, threaded):
    """Tickets over an optimizer thread with its own stream, or all of it in order on the caller's."""
    thread = OptimizerThread() if threaded else None
    try:
        with sanitized(thread):
            return train_with_tickets(device, depth, thread)
    finally:
        if thread:
            thread.close()


def train_with_tickets(device, depth, thread):
    scaler = GradScaler(device, 8.0, growth_interval=3, depth=depth, launch=thread and thread.launch)
    master = parameter(device)
    optimizer = torch.optim.AdamW([master], lr=0.01, fused=True)
    x, scales = torch.randn(SIZE, generator=torch.Generator().manual_seed(1)).to(device), []
    for flag in FLAGS:
        weight = torch.ones(SIZE, device=device, requires_grad=True)  # not the master: no wait for the optimizer
        ticket = scaler.begin()
        scales.append(ticket.value)
        scaler.scale((weight * x * (INF if flag else 1.0)).sum(), ticket).backward()

        def step(grad=weight.grad, ticket=ticket) -> None:
            master.grad = grad
            scaler.step(optimizer, ticket=ticket)
            master.grad = None

        weight.grad = None
        thread.launch(step) if thread else step()
        del step
        scaler.update(ticket=ticket)
    scaler.synchronize()
    if device == "cuda":
        torch.cuda.synchronize()
    return [version.read().scale for version in scales], bits(master), bool(master.isfinite().all())


@on_both
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_optimizer_on_its_own_stream_changes_nothing(device, depth) -> None:
    scales, parameters, finite = train_on_two_streams(device, depth, threaded=True)
    assert scales == trajectory(Rule(8.0, growth_interval=3), depth, FLAGS)[:-1]
    assert finite
    assert (scales, parameters, finite) == train_on_two_streams(device, depth, threaded=False)


@gpu
@pytest.mark.skipif(not SANITIZED, reason="run by `make gpu-2`")
def test_the_sanitizer_sees_a_version_that_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(DeviceVersion, "_wait", lambda self: None)
    with pytest.raises(Exception, match=r"detected \d+ errors|CUDASanitizerErrors"):  # on either thread
        train_on_two_streams("cuda", 1, threaded=True)


# ------------------------------------------------------------------------------------------- against torch's

OPTIMIZERS = {
    "AdamW": lambda params: torch.optim.AdamW(params, fused=True),
    "Adam": lambda params: torch.optim.Adam(params, amsgrad=True, fused=True),
    "SGD": lambda params: torch.optim.SGD(params, lr=0.01, fused=True),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.5, fused=True),
    "plain SGD": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.5),
    "plain AdamW": lambda params: torch.optim.AdamW(params),
}


def train(device, scaler, kinds, *, unscales, iterations=30):
    """The loop that torch documents, with one optimizer of each kind; the first overflow is in the second iteration."""
    params = [parameter(device, seed) for seed in range(len(kinds))]
    optimizers = [OPTIMIZERS[kind]([p]) for kind, p in zip(kinds, params, strict=True)]
    generator, scales = torch.Generator().manual_seed(1), []
    for i in range(iterations):
        x = torch.randn(SIZE, generator=generator).to(device)
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(sum((p * x).sum() for p in params)).backward()
        if i % 4 == 1:
            params[i % len(params)].grad[3] = INF
        for p, optimizer in zip(params, optimizers, strict=True):
            if unscales:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_([p], 1.0)
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, bits(*params)


SETS = [[kind] for kind in OPTIMIZERS] + [["AdamW", "momentum"], ["plain SGD", "Adam", "plain AdamW"]]


@on_both
@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("kinds", SETS, ids="+".join)
def test_trajectory_and_parameters_are_torchs(device, kinds, unscales) -> None:
    numbers = (1000.0, 3.0, 0.3, 2)
    theirs = train(device, torch.amp.GradScaler(device, *numbers), kinds, unscales=unscales)
    assert train(device, GradScaler(device, *numbers), kinds, unscales=unscales) == theirs


# -------------------------------------------------------------------------------------------------- lockstep

# With momentum a fused SGD whose first step is skipped takes what its memory held: two runs differ.
LOCKSTEP_KINDS = [kind for kind in OPTIMIZERS if kind != "momentum"]
index = st.integers(0, 2)
bad = st.sampled_from([None, None, INF, -INF, NAN])
calls = st.lists(
    st.one_of(
        st.tuples(st.just("backward"), index, st.sampled_from([1.0, -3.0, 1e-3, 7e4, 1e-40]), bad),
        st.tuples(st.sampled_from(["unscale", "step"]), index),
        st.tuples(st.just("update"), st.sampled_from([None, None, 2.0, 1700.3, 2.0**100])),
        st.tuples(st.just("shorten"), st.integers(1, 3)),
        st.tuples(st.just("resume")),
        st.tuples(st.just("iterate"), bad, st.booleans()),
    ),
    max_size=12,
)  # fmt: skip


class Side:
    """One scaler, its optimizers and their parameters."""

    def __init__(self, make, device, kinds, scale) -> None:
        self.make = lambda: make(device, scale, 3.0, 0.3, 2)
        self.scaler, self.device = self.make(), device
        self.params = [parameter(device, seed) for seed in range(len(kinds))]
        self.optimizers = [OPTIMIZERS[kind]([p]) for kind, p in zip(kinds, self.params, strict=True)]
        for p in self.params:
            p.grad = torch.zeros_like(p)

    def backward(self, i, value, bad) -> None:
        param = self.params[i % len(self.params)]
        param.grad = None
        self.scaler.scale((param * value).sum()).backward()
        if bad is not None:
            param.grad[3] = bad

    def unscale(self, i) -> None:
        self.scaler.unscale_(self.optimizers[i % len(self.optimizers)])

    def step(self, i) -> None:
        self.scaler.step(self.optimizers[i % len(self.optimizers)])

    def update(self, new_scale) -> None:
        self.scaler.update(new_scale)

    def shorten(self, interval) -> None:
        self.scaler.set_growth_interval(interval)

    def resume(self) -> None:
        state, self.scaler = self.scaler.state_dict(), self.make()
        self.scaler.load_state_dict(state)

    def iterate(self, bad, unscales) -> None:
        for i in range(len(self.params)):
            self.backward(i, 0.1, bad if i == 0 else None)
            if unscales:
                self.unscale(i)
            self.step(i)
        self.update(None)

    def told(self, name, *args):
        """What a call raised, and all that can be seen after it."""
        try:
            raised = getattr(self, name)(*args)
        except Exception as error:
            raised = type(error), str(error)
        states = [optimizer.state.get(p, {}) for p, optimizer in zip(self.params, self.optimizers, strict=True)]
        kept = [state[key] for state in states for key in sorted(state) if state[key] is not None]
        tensors = bits(*self.params, *(p.grad for p in self.params), *kept)
        return raised, repr(self.scaler.state_dict()), repr(self.scaler.get_scale()), tensors


@on_both
@settings(max_examples=examples(ms=5, least=50))
@given(
    kinds=st.lists(st.sampled_from(LOCKSTEP_KINDS), min_size=1, max_size=3),
    scale=st.sampled_from([2.0**16, 1700.0, 0.1, 2.0**127, 2.0**-128]),
    calls=calls,
)
@example(kinds=["plain SGD"], scale=2.0**-128, calls=[("backward", 0, 1.0, None), ("step", 0), ("update", None)])
@example(kinds=["AdamW"], scale=2.0**16, calls=[("iterate", INF, False), ("iterate", None, True), ("resume",)])
def test_with_exact_torch_it_is_in_lockstep_with_torchs_scaler(device, kinds, scale, calls) -> None:
    theirs = Side(torch.amp.GradScaler, device, kinds, scale)
    ours = Side(lambda *args: GradScaler(*args, exact_torch=True), device, kinds, scale)
    for call in calls:
        assert ours.told(*call) == theirs.told(*call), call


# -------------------------------------------------------------------------------------------------- policies

POLICIES = {
    "deduplicated": Deduplicated(init_scale=2.0**16, growth_interval=2),
    "probe": Probe(init_scale=2.0**16, growth_interval=2),
    "headroom": Headroom(init_scale=2.0**16, interval=2),
}


def train_by_policy(device, policy):
    """Scales, skips and parameters of a loop in which gradients rise past float32 at large scales."""
    param = parameter(device)
    optimizer = OPTIMIZERS["AdamW"]([param])
    scaler, seen = GradScaler(device, policy=policy), []
    for value in BATCHES:
        optimizer.zero_grad()
        scaler.scale((param * value).sum()).backward()
        scaler.unscale_and_clip_(optimizer, 1.0)
        scaler.step(optimizer)
        scaler.update()
        seen.append((scaler.get_scale(), scaler.last_step.skipped))
    return seen, param.detach().cpu()


@on_both
@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_sees_on_the_device_what_it_sees_on_the_host(device, name) -> None:
    seen, param = train_by_policy(device, POLICIES[name])
    expected, close = train_by_policy("cpu", POLICIES[name])
    assert seen == expected
    assert len(set(seen)) > 2
    torch.testing.assert_close(param, close)


# --------------------------------------------------------------------------------------------------- compile


def compiled(device, scaler, kind):
    """Nodes of each graph that a compiled step is made of, scales and parameters."""
    import torch._dynamo

    torch._dynamo.reset()
    weight, graphs, scales = parameter(device), [], []
    optimizer = OPTIMIZERS[kind]([weight])

    def backend(graph, _):
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    def step(x):
        optimizer.zero_grad()
        scaler.scale((weight.square() * x).mean()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    run = torch.compile(step, backend=backend)
    for value in (1.0, 2.0, INF, 1.0):
        run(torch.full((SIZE,), value, device=device))
        scales.append(scaler.get_scale())
    torch._dynamo.reset()
    return graphs, scales, bits(weight)


@on_both
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["AdamW", "plain SGD"])
def test_a_compiled_step_splits_where_it_does_with_torchs_scaler(device, kind) -> None:
    theirs = compiled(device, torch.amp.GradScaler(device, growth_interval=1), kind)
    assert compiled(device, GradScaler(device, growth_interval=1), kind) == theirs


# ----------------------------------------------------------------------------------------------------- waits


def drop_in(scaler, param, optimizer) -> None:
    optimizer.zero_grad()
    scaled = scaler.scale(param.sum())
    scaled.backward()
    scaler.loss_value(scaled)
    scaler.step(optimizer)
    scaler.update()


def by_ticket(scaler, param, optimizer) -> None:
    ticket = scaler.begin()
    optimizer.zero_grad()
    scaled = scaler.scale(param.sum(), ticket)
    scaled.backward()
    scaler.loss_value(scaled, ticket)
    scaler.unscale_and_clip_(optimizer, 1.0, ticket)
    scaler.step(optimizer, ticket=ticket)
    scaler.update(ticket=ticket)


def unscaled_and_clipped_by_torch(scaler, param, optimizer) -> None:
    optimizer.zero_grad()
    scaler.scale(param.sum()).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_([param], 1.0)
    scaler.step(optimizer)
    scaler.update()


def clipped_here(scaler, param, optimizer) -> None:
    optimizer.zero_grad()
    scaler.scale(param.sum()).backward()
    scaler.unscale_and_clip_(optimizer, 1.0)
    scaler.step(optimizer)
    scaler.update(8.0)


WAITS = [
    (drop_in, {}),
    (drop_in, {"exact_torch": True}),
    (drop_in, {"capturable": True}),
    (drop_in, {"depth": 1, "max_scale": 2.0**20}),
    (by_ticket, {}),
    (by_ticket, {"depth": 1}),
    (unscaled_and_clipped_by_torch, {}),
    (clipped_here, {}),
]
names = [f"{loop.__name__}-{options}" for loop, options in WAITS]


def test_the_mode_in_which_waits_raise_is_put_back_and_torchs_warning_of_it_is_no_error(monkeypatch) -> None:
    modes = []

    def set_mode(mode) -> None:
        modes.append(mode)
        warnings.warn("Synchronization debug mode is a prototype feature", UserWarning, stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with pytest.raises(ZeroDivisionError), no_waits("cuda"):
        _ = 1 / 0
    assert modes == ["error", "default"]


@on_both
@pytest.mark.parametrize(("loop", "options"), WAITS, ids=names)
def test_nothing_in_the_hot_path_waits_for_the_device(device, loop, options) -> None:
    param = parameter(device)
    optimizer = torch.optim.AdamW([param], fused=True)
    scaler = GradScaler(device, 8.0, **options)
    loop(scaler, param, optimizer)  # the optimizer's state is made here, once
    with no_waits(device):
        for _ in range(3):
            loop(scaler, param, optimizer)
    assert scaler.get_scale() == 8.0


# --------------------------------------------------------------------------------- torch's deviations on CUDA


def one_step(device, make, gradient, scale, *, dtype=torch.float32, kind="SGD", steps=1):
    """One parameter after steps with one scaled gradient; the scale is loaded, as if the run had come there."""
    param = torch.nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
    optimizer = OPTIMIZERS[kind]([param])
    scaler = make()
    scaler.scale(torch.ones((), device=device))
    scaler.load_state_dict({**scaler.state_dict(), "scale": scale})
    for _ in range(steps):
        scaler.scale(torch.ones((), device=device))
        param.grad = torch.full((1,), gradient, device=device, dtype=dtype)
        scaler.step(optimizer)
        scaler.update()
    return param.item()


def theirs(device):
    return lambda: torch.amp.GradScaler(device, init_scale=4.0)


def ours(device, **options):
    return lambda: GradScaler(device, init_scale=4.0, **options)


KINDS = ["SGD", "AdamW", "plain SGD", "plain AdamW"]


def check_tiny_scales(device, record) -> None:
    """Ours does not go there at all: a scale below 2^-126 is refused. Torch's reciprocal is inf."""
    for exponent in (-128, -149):
        with pytest.raises(ValueError, match="within"):
            one_step(device, ours(device), 0.0, 2.0**exponent)
        for kind in KINDS:
            made = one_step(device, theirs(device), 2.0**exponent, 2.0**exponent, kind=kind)
            record(f"torch, {kind}, scale 2^{exponent}", made)
    for kind in KINDS:
        assert math.isfinite(one_step(device, ours(device), 2.0**-126, 2.0**-126, kind=kind))


def check_scales_below_one(device, record) -> None:
    """A gradient of 3e38 at scale 1/4 is inf once unscaled."""
    for kind in KINDS:
        record(f"torch, {kind}, 3e38 / 0.25", one_step(device, theirs(device), 3e38, 0.25, kind=kind))
        assert one_step(device, ours(device), 3e38, 0.25, kind=kind) == 0.0


def check_float64(device, record) -> None:
    """A float64 gradient of 1e300 is no overflow at any scale."""
    for scale in (4.0, 0.5):
        for kind in ("SGD", "plain SGD"):
            record(
                f"torch, {kind}, float64 1e300 / {scale}",
                one_step(device, theirs(device), 1e300, scale, dtype=torch.float64, kind=kind),
            )
            made = one_step(device, ours(device), 1e300, scale, dtype=torch.float64, kind=kind)
            assert made == pytest.approx(-0.01e300 / scale, rel=1e-12)


def first_step_skipped(device, scaler):
    """The parameter after a skipped first step and a step with zero gradients: 0 unless momentum came from nowhere."""
    param = torch.nn.Parameter(torch.zeros(1 << 20, device=device))
    optimizer = torch.optim.SGD([param], lr=1.0, momentum=0.5, fused=True)
    for value in (INF, 0.0):
        scaler.scale(torch.ones((), device=device))
        param.grad = torch.full_like(param, value)
        torch.full_like(param, 7.0)  # let go at once: what the momentum's memory may hold
        scaler.step(optimizer)
        scaler.update()
    return param.detach().abs().amax().item()


def check_first_momentum(device, record) -> None:
    record("torch, momentum of a skipped first step", first_step_skipped(device, theirs(device)()))
    assert first_step_skipped(device, ours(device)()) == 0.0


@on_both
@pytest.mark.parametrize("check", [check_tiny_scales, check_scales_below_one, check_float64, check_first_momentum])
def test_what_is_claimed_of_torchs_scaler_on_the_cpu(device, check, record_property) -> None:
    """Ours is asserted to be right; what torch's does on this device is recorded, and printed for `pytest -s`."""

    def record(name, value) -> None:
        print(f"{name}: {value!r}")
        record_property(name, value)

    check(device, record)

"""What only a CUDA device can show. `make gpu` runs the tests marked gpu; the CPU runs them dry.

On the CPU there are no streams and no graphs, and nothing to wait for.
"""

import itertools
import math
from contextlib import contextmanager

import pytest
import torch

from ampsim.core.machine import Rule
from ampsim.core.pipeline import trajectory
from ampsim.core.policies import Deduplicated, Headroom, Probe
from ampsim.torch import AsyncGradScaler, GradScaler
from tests.torch.helpers import INF, NAN, bits, no_waits, run_script

SIZE = 257
# 1e34 overflows at large scales only.
BATCHES = [1.0, INF, 1.0, 1.0, 1.0, 1e34, 0.3, 1.0, INF, INF] * 5
OPTIMIZERS = {
    "AdamW": lambda params: torch.optim.AdamW(params, fused=True),
    "SGD": lambda params: torch.optim.SGD(params, lr=0.01, fused=True),
    "momentum": lambda params: torch.optim.SGD(
        params, lr=0.01, momentum=0.5, fused=True
    ),
    "plain SGD": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.5),
    "plain AdamW": lambda params: torch.optim.AdamW(params),
}

gpu = pytest.mark.gpu
on_both = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
# torch warns when an optimizer made for capture steps outside of one, as each warm-up does.
warms_up = pytest.mark.filterwarnings(
    "ignore:This instance was constructed:UserWarning"
)


def parameter(device, seed=0):
    values = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))
    return torch.nn.Parameter(values.to(device))


# ------------------------------------------------------------------------------------------ graphs


class Eager:
    """On the CPU stands for a graph: a replay is a call."""

    def __init__(self, iteration):
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


def train_with_a_graph(device, scaler, capture, clip):
    """Return scale, skip and parameters after each of BATCHES; from the fourth on by replays."""
    param = parameter(device)
    optimizer = torch.optim.AdamW([param], lr=0.01, fused=True, capturable=True)
    x = torch.ones(SIZE, device=device)

    def iteration():
        optimizer.zero_grad(set_to_none=False)
        scaler.scale((param.square() * x).sum()).backward()
        if clip:
            scaler.unscale_and_clip_(optimizer, 1.0)
        scaler.step(optimizer)
        scaler.update()

    seen, graph = [], None
    for i, value in enumerate(BATCHES):
        x[3] = value
        if i < 3:
            with side_stream(device):
                iteration()
        else:
            graph = graph or capture(iteration)
            graph.replay()
        seen.append((scaler.get_scale(), scaler.last_step.skipped, bits(param)))
    return seen


@on_both
@warms_up
@pytest.mark.parametrize("clip", [False, True])
def test_cuda_graph_replays_equal_iterations(device, clip):
    capture = cuda_graph if device == "cuda" else Eager
    replayed = train_with_a_graph(
        device, GradScaler(device, growth_interval=2), capture, clip
    )
    eager = train_with_a_graph(
        device, GradScaler(device, growth_interval=2), Eager, clip
    )
    assert replayed == eager
    assert any(skipped for _, skipped, _ in replayed[3:])
    assert len({scale for scale, _, _ in replayed[3:]}) > 2


# ----------------------------------------------------------------------------------------- streams


def train_with_tickets(device, depth, thread):
    """Step on the thread and its own stream, or in order on the caller's."""
    scaler = AsyncGradScaler(
        device, 8.0, growth_interval=3, depth=depth, executor=thread
    )
    master = parameter(device)
    optimizer = torch.optim.AdamW([master], lr=0.01, fused=True)
    x, scales = parameter(device, seed=1).detach(), []
    for i in range(40):
        weight = torch.ones(SIZE, device=device, requires_grad=True)
        ticket = scaler.begin_iteration()
        scales.append(scaler.scale(torch.ones((), device=device), ticket))
        scaler.scale(
            (weight * x * (INF if i % 5 == 2 else 1.0)).sum(), ticket
        ).backward()

        def step(grad=weight.grad, ticket=ticket):
            master.grad = grad
            scaler.step(optimizer, ticket=ticket)
            master.grad = None

        weight.grad = None
        if thread:
            thread.launch(step)
        else:
            step()
        del step
        scaler.update(ticket=ticket)
    scaler.synchronize()
    return [scale.item() for scale in scales], bits(master)


@on_both
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_optimizer_stream_gives_same_results(device, depth, thread):
    scales, parameters = train_with_tickets(device, depth, thread)
    flags = [i % 5 == 2 for i in range(40)]
    assert scales == trajectory(Rule(8.0, growth_interval=3), depth, flags)[:-1]
    assert (scales, parameters) == train_with_tickets(device, depth, thread=None)


# ----------------------------------------------------------------------------------- against torch


def train(device, make, kind, unscales):
    """The loop that torch documents; each fourth iteration overflows."""
    param, scaler = parameter(device), make(device, 1000.0, 3.0, 0.3, 2)
    optimizer, scales = OPTIMIZERS[kind]([param]), []
    for i in range(30):
        optimizer.zero_grad()
        x = parameter(device, seed=i).detach()
        scaler.scale((param * x).sum()).backward()
        if i % 4 == 1:
            param.grad[3] = INF
        if unscales:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([param], 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, bits(param)


@on_both
@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_scales_and_parameters_match_torch(device, kind, unscales):
    ours = train(device, GradScaler, kind, unscales)
    assert ours == train(device, torch.amp.GradScaler, kind, unscales)


def one_step(device, kind, gradient, scale, dtype=torch.float32):
    """Return one parameter after a step with one scaled gradient."""
    param = torch.nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
    optimizer, scaler = OPTIMIZERS[kind]([param]), GradScaler(device, init_scale=scale)
    scaler.scale(torch.ones((), device=device))
    param.grad = torch.full((1,), gradient, device=device, dtype=dtype)
    scaler.step(optimizer)
    return param.item()


@on_both
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_stay_finite(device, kind):
    assert math.isfinite(one_step(device, kind, 2.0**-126, 2.0**-126))
    assert one_step(device, kind, 3e38, 0.25) == 0.0  # inf once unscaled


@on_both
@pytest.mark.parametrize("scale", [4.0, 0.5])
@pytest.mark.parametrize("kind", ["SGD", "plain SGD"])
def test_float64_is_not_rounded(device, kind, scale):
    # torch's kernel looks at each gradient as a float32
    made = one_step(device, kind, 1e300, scale, torch.float64)
    assert made == pytest.approx(-0.01e300 / scale, rel=1e-12)


@on_both
@pytest.mark.parametrize(
    "gradient", [1.0, 49152.0]
)  # the norm is no float16 number, and is beyond the largest
def test_norm_exceeds_float16_range(device, gradient):
    param = torch.nn.Parameter(torch.zeros(3, device=device, dtype=torch.float16))
    optimizer, scaler = (
        OPTIMIZERS["SGD"]([param]),
        GradScaler(device, init_scale=2.0**16),
    )
    scaler.scale(torch.ones((), device=device))
    param.grad = torch.full_like(param, gradient)
    norm = scaler.unscale_and_clip_(optimizer, 1.0)
    assert norm.item() == pytest.approx(gradient * 3**0.5 / 2**16, rel=1e-6)
    scaler.step(optimizer)
    assert not scaler.last_step.skipped


@on_both
def test_skipped_first_step_leaves_no_momentum(device):
    param = torch.nn.Parameter(torch.zeros(1 << 20, device=device))
    optimizer = torch.optim.SGD([param], lr=1.0, momentum=0.5, fused=True)
    scaler = GradScaler(device)
    for value in (INF, 0.0):
        scaler.scale(torch.ones((), device=device))
        param.grad = torch.full_like(param, value)
        torch.full_like(
            param, 7.0
        )  # let go at once: what the momentum's memory may hold
        scaler.step(optimizer)
        scaler.update()
    assert not param.any()


@gpu
def test_device_values_are_not_read():
    param = torch.nn.Parameter(torch.ones(3, device="cuda"))
    scaler = GradScaler("cuda", 8.0, max_scale=64.0)
    for new, becomes in ((NAN, 8.0), (INF, 8.0), (1e30, 64.0), (3.0, 3.0)):
        new = torch.tensor(new, device="cuda")
        scaler.scale(param.sum())
        with no_waits("cuda"):
            scaler.update(new)
        assert scaler.get_scale() == becomes
        scaler.load_state_dict({**scaler.state_dict(), "scale": 8.0})


# ---------------------------------------------------------------------------------------- policies

POLICIES = [
    Deduplicated(init_scale=2.0**16, growth_interval=2),
    Probe(init_scale=2.0**16, growth_interval=2),
    Headroom(init_scale=2.0**16, interval=2),
]


def train_by_policy(device, policy):
    param = parameter(device)
    optimizer = OPTIMIZERS["AdamW"]([param])
    scaler, seen = GradScaler(device, policy=policy), []
    for value in BATCHES:
        optimizer.zero_grad()
        scaler.scale((param * value).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append((scaler.get_scale(), scaler.last_step.skipped))
    return seen


@gpu
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_policy_results_match_cpu(policy):
    assert train_by_policy("cuda", policy) == train_by_policy("cpu", policy)


# ------------------------------------------------------------------------------------------- waits


@on_both
@pytest.mark.parametrize("clip", ["", "torch", "ours"])
@pytest.mark.parametrize("options", [{}, {"min_scale": 1.0}, {"max_scale": 2.0**20}])
def test_iteration_does_not_synchronize_device(device, options, clip):
    param = parameter(device)
    optimizer = torch.optim.AdamW([param], fused=True)
    scaler = GradScaler(device, 8.0, **options)

    def iterate():
        optimizer.zero_grad()
        scaled = scaler.scale(param.sum())
        scaled.backward()
        scaler.loss_value(scaled)
        if clip == "torch":
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([param], 1.0)
        elif clip == "ours":
            scaler.unscale_and_clip_(optimizer, 1.0)
        scaler.step(optimizer)
        scaler.update()

    iterate()  # the optimizer's state is made here, once
    with no_waits(device):
        for _ in range(3):
            iterate()
    assert scaler.get_scale() == 8.0


# --------------------------------------------------------------------------------------- RoundPipe

# Each run is deterministic: two microbatches on one device, the optimizer's work in one queue. The
# first scale overflows float16, and with an interval of 3 it does so again and again.
ROUNDPIPE = """
import os, warnings
warnings.resetwarnings()
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
import torch, roundpipe
import ampsim.torch.roundpipe as ours

def train(make):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    config = roundpipe.RoundPipeRunConfig(num_microbatch=2)
    model = roundpipe.RoundPipe(layers.half(), optim_dtype=torch.float32, name="net",
                                model_run_config=config)
    with roundpipe.OptimizerCtx():
        masters = list(model.parameters())
    optimizer = torch.optim.AdamW(masters, lr=0.01)
    scaler = make(init_scale=2.0**20, growth_interval=3)

    def loss_fn(outputs, labels):
        return scaler.scale(torch.nn.functional.mse_loss(outputs.float(), labels)) / 2

    def step_fn():
        scaler.step(optimizer)
        optimizer.zero_grad()

    losses, scales = [], []
    for _ in range(40):
        inputs, labels = torch.randn(8, 16).half(), torch.randn(8, 4)
        scales.append(scaler.get_scale())
        loss = model.forward_backward(input_args=(inputs,), label=labels, loss_fn=loss_fn)
        losses.append(loss.item().hex())
        model.step(step_fn)
        scaler.update()
    model.synchronize()
    return losses, [p.tolist() for p in masters], scales

theirs, mine = [train(make) for make in (roundpipe.GradScaler, ours.GradScaler)]
assert theirs == mine
print(*mine[-1])
"""


@gpu
@pytest.mark.framework(
    "roundpipe", "beartype", "cpuinfo", "tqdm"
)  # pip install roundpipe==0.1.1
def test_roundpipe_training_is_the_same():
    # In a process of its own: RoundPipe's optimizer thread ends the process on any error.
    scales = [
        float(scale) for scale in run_script(ROUNDPIPE).stdout.splitlines()[-1].split()
    ]
    pairs = [*itertools.pairwise(scales)]
    assert sum(after < before for before, after in pairs) > 3
    assert sum(after > before for before, after in pairs) > 3

"""The loops of three public documents, with only the import changed.

The documents: RoundPipe's GradScaler page, a GradScaler introduction, a Weights & Biases tutorial.
What is not about the scaler is adapted to a machine without CUDA, and marked: ``.cuda()`` is left
out, ``autocast`` is the CPU's, and the scaler's device is "cpu" where the document's default is
"cuda". Each loop runs once with torch's scaler too, and ends with the same bits.
"""

import contextlib
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import ampsim.torch
from ampsim.torch.optimizer_thread import OptimizerThread
from ampsim.torch.roundpipe import GradScaler as RoundPipeGradScaler

STEPS = 12


@pytest.fixture(autouse=True)
def optimizer_stream(monkeypatch):
    """Adapted: RoundPipe's optimizer stream, which needs a GPU to be imported, is our thread."""
    thread = OptimizerThread(device="cpu")
    stream = SimpleNamespace(launch_optim_kernel=thread.launch)
    monkeypatch.setitem(sys.modules, "roundpipe.optim_stream", stream)
    yield
    thread.close()


def data():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(STEPS, 8, 4, generator=generator)
    return [(x, x.sum(1, keepdim=True)) for x in inputs]


def my_model(dtype=torch.float32):
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)
    ).to(dtype)


loss_fn = torch.nn.functional.mse_loss


def finished(model, optimizer, scaler):
    scale = scaler.state_dict() if hasattr(scaler, "state_dict") else None
    return (
        [p.tolist() for p in model.parameters()],
        [*map(str, optimizer.state.values())],
        scale,
    )


# ------------------------------------------------------ the introduction: torch.cuda.amp.GradScaler


def introduction_with_clipping(GradScaler):  # noqa: N803
    model = my_model()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = GradScaler(
        init_scale=2.**16,     # Starting scale
        growth_factor=2.0,     # Multiply when no inf
        backoff_factor=0.5,    # Divide when inf
        growth_interval=2000,  # Steps before growing scale
        enabled=True,
    )  # fmt: skip
    for data_, target in data():
        optimizer.zero_grad()
        loss = loss_fn(model(data_), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # Need to unscale before clipping
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
    return finished(model, optimizer, scaler)


# ----------------------------------------------- the tutorial: scaler = torch.cuda.amp.GradScaler()


def tutorial(GradScaler):  # noqa: N803
    scaler = GradScaler()
    model = my_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _epoch in range(2):
        for inputs, labels in data():
            optimizer.zero_grad()
            # Forward Pass
            outputs = model(inputs)
            # Compute Loss and Perform Back-propagation
            loss = loss_fn(outputs, labels)
            # Scale Gradients
            scaler.scale(loss).backward()
            # Update Optimizer
            scaler.step(optimizer)
            scaler.update()
    return finished(model, optimizer, scaler)


def on_cpu(make):
    return lambda **options: make(
        "cpu", **options
    )  # adapted: the default device is "cuda"


@pytest.mark.parametrize("loop", [introduction_with_clipping, tutorial])
def test_documented_torch_loop_runs_unchanged(loop):
    assert loop(on_cpu(ampsim.torch.GradScaler)) == loop(on_cpu(torch.amp.GradScaler))


# ------------------------------------------------------ RoundPipe: from roundpipe import GradScaler


class RoundPipe:
    """Adapted: a small pipeline with RoundPipe's interface, whose weights lag by one step."""

    def __init__(self, model, optim_dtype):
        self.model, self.jobs = model, []
        self.masters = [
            torch.nn.Parameter(param.detach().to(optim_dtype))
            for param in model.parameters()
        ]

    def parameters(self):
        return self.masters

    @torch.no_grad()
    def load(self, job):
        for param, weights in zip(self.model.parameters(), job.result(), strict=True):
            param.copy_(weights)

    def forward_backward(self, input_args, label, loss_fn):
        if len(self.jobs) > 1:
            self.load(self.jobs[-2])
        loss = loss_fn(self.model(*input_args), label)
        loss.backward()
        return loss.detach()

    def step(self, step_fn):
        grads = [param.grad.float() for param in self.model.parameters()]
        self.model.zero_grad()

        def run():
            for master, grad in zip(self.masters, grads, strict=True):
                master.grad = grad
            step_fn()
            return [master.detach().clone() for master in self.masters]

        launch = sys.modules["roundpipe.optim_stream"].launch_optim_kernel
        self.jobs.append(launch(run))

    def synchronize(self):
        self.load(self.jobs[-1])


@contextlib.contextmanager
def OptimizerCtx():  # noqa: N802
    """Adapted: RoundPipe's switch between the model's own parameters and the optimizer's copies."""
    yield


def roundpipe_loop(GradScaler, dataloader, manual_unscaling=False, **constants):  # noqa: N803
    num_microbatch, true = 1, []

    def criterion(outputs, labels):
        loss = loss_fn(outputs, labels)
        true.append(loss.item())
        return loss

    Adam = torch.optim.Adam  # noqa: N806
    reported, scales = [], []
    model = RoundPipe(my_model().to(torch.float16), optim_dtype=torch.float32)
    with OptimizerCtx():
        optimizer = Adam(model.parameters(), lr=1e-3)
    scaler = GradScaler(**constants)

    for data_, labels in dataloader:
        # 1. forward_backward: call scaler.scale() inside loss_fn
        loss = model.forward_backward(
            input_args=(data_.to(torch.float16),),
            label=labels,
            loss_fn=lambda outputs, labels: scaler.scale(
                criterion(outputs.float(), labels)
            ) / num_microbatch,
        )  # fmt: skip
        scales.append(scaler.get_scale())

        def step_fn():
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(
                optimizer.param_groups[0]["params"], max_norm=1.0
            )
            scaler.step(optimizer)
            optimizer.zero_grad()

        # 2. step: call scaler.step() inside step_fn
        model.step(step_fn if manual_unscaling else lambda: (
            scaler.step(optimizer),
            optimizer.zero_grad(),
        ))  # fmt: skip
        # 3. update: adjust the scale factor
        scaler.update()
        # Get the true loss value (divide by scale factor)
        real_loss = loss.item() / scaler.get_scale()
        reported.append((real_loss, scaler.loss_value(loss).item()))
    model.synchronize()
    assert all(weight.isfinite().all() for weight in model.model.parameters())
    return true, reported, scales


@pytest.mark.parametrize("manual_unscaling", [False, True])
@pytest.mark.parametrize("init_scale", [2.0**16, 2.0**10])
def test_documented_roundpipe_loop_runs_unchanged(manual_unscaling, init_scale):
    true, reported, scales = roundpipe_loop(
        RoundPipeGradScaler,
        data() * 2,
        manual_unscaling=manual_unscaling,
        init_scale=init_scale,
    )
    assert sum(true[STEPS:]) < sum(true[:STEPS])  # the same batches again
    assert [value for _, value in reported] == true
    if len(set(scales)) == 1:  # then the documented way is right too
        assert [printed for printed, _ in reported] == true


def test_loss_value_fixes_documented_loss():
    # "real_loss = loss.item() / scaler.get_scale()" after update() divides by the next iteration's
    # scale
    true, reported, scales = roundpipe_loop(
        RoundPipeGradScaler, data(), growth_interval=3
    )  # fp16: overflows by itself
    assert [value for _, value in reported] == true
    changes = [i for i, (a, b) in enumerate(pairwise(scales)) if a != b]
    assert {b / a for a, b in pairwise(scales)} == {0.5, 1.0, 2.0}
    assert [
        i for i, (printed, value) in enumerate(reported[:-1]) if printed != value
    ] == changes

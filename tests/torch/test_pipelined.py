"""The asynchronous loops on real threads against the pure model, and a pipeline that trains."""

import dataclasses
import pickle
import sys
import threading
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim.core import pipeline
from ampsim.core.machine import Rule
from ampsim.torch import ClosedError, GradScaler, OptimizerThread, Pipelined, roundpipe
from tests.torch.helpers import INF, an_optimizer

RULE = Rule(init_scale=1024.0, growth_interval=2, min_scale=2.0**-126, growth_test=">=")


class Iteration(NamedTuple):
    overflows: bool = False
    new_scale: float | None = None
    is_async: bool = True
    growth: float | None = None
    interval: int | None = None
    unscales: bool = False


iterations = st.builds(
    Iteration,
    st.booleans(),
    st.sampled_from([None] * 5 + [3.0, 2.0**20, 0.7]),
    st.sampled_from([True] * 4 + [False]),
    st.sampled_from([None] * 5 + [4.0, 1.5]),
    st.sampled_from([None] * 5 + [1, 3]),
    st.booleans(),
)
CLEAN = Iteration()
MOVED = pytest.approx([-1.0, -2.0], rel=2**-22)  # 1.5^6 has no exact product with its reciprocal


def expected(depth, plan, rule=RULE):
    """The scale of each ticket when the model does what the plan says."""
    pipe = pipeline.start(rule, depth)
    for ticket, it in enumerate(plan):
        while len(pipe.carried) <= ticket:
            pipe = pipeline.begin_iteration(pipe)
        pipe = dataclasses.replace(pipe, rule=changed(pipe.rule, it))
        options = {"new_scale": it.new_scale, "synchronous": not it.is_async}
        pipe = pipeline.finish(pipe, ticket, it.overflows, **options)
    return [pipe.scale(ticket) for ticket in range(len(plan))], pipe.versions[-1].scale


def changed(rule, it):
    growth, interval = it.growth or rule.growth_factor, it.interval or rule.growth_interval
    return rule.replace(growth_factor=growth, growth_interval=interval)


def set_constants(scaler, it):
    if it.growth:
        scaler.set_growth_factor(it.growth)
    if it.interval:
        scaler.set_growth_interval(it.interval)


@pytest.fixture(scope="module")
def thread():
    thread = OptimizerThread()
    yield thread
    thread.close()


@settings(max_examples=100)
@given(depth=st.integers(0, 3), plan=st.lists(iterations, max_size=12), exact_torch=st.booleans())
@example(depth=0, plan=[CLEAN._replace(growth=1.5, interval=1), *[CLEAN] * 7], exact_torch=False)
def test_drop_in_loop_matches_model(depth, plan, exact_torch, thread):
    options = {"depth": depth, "launch": thread.launch, "exact_torch": exact_torch}
    scaler = GradScaler("cpu", RULE.init_scale, growth_interval=RULE.growth_interval, **options)
    params = [torch.nn.Parameter(torch.zeros(2)) for _ in plan]
    seen, on_thread = [], []

    def step_fn(i):
        it, optimizer = plan[i], torch.optim.SGD([params[i]], lr=1.0)
        on_thread.append(scaler.get_scale())
        if it.overflows:
            params[i].grad[-1] = INF
        if it.unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)

    for i, it in enumerate(plan):
        loss = scaler.scale((params[i] * torch.tensor([1.0, 2.0])).sum())
        seen.append(scaler.get_scale())
        loss.backward()
        thread.launch(step_fn, i)
        set_constants(scaler, it)
        scaler.update(it.new_scale, is_async=it.is_async)
        assert scaler.loss_value(loss.detach()) == 0.0
    scales, newest = expected(depth, plan, RULE.replace(growth_test="==" if exact_torch else ">="))
    assert scaler.get_scale(up_to_date=True) == newest
    thread.synchronize()
    assert seen == on_thread == scales
    for param, it in zip(params, plan, strict=True):
        assert param.tolist() == ([0.0, 0.0] if it.overflows else MOVED)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_get_scale_is_next_loss_scale(depth):
    found_inf = [False, False, True, False, False, False, False, True, True, False]
    scaler = GradScaler("cpu", RULE.init_scale, growth_interval=RULE.growth_interval, depth=depth)
    param = torch.nn.Parameter(torch.zeros(2))
    optimizer, told = torch.optim.SGD([param], lr=1.0), [scaler.get_scale()]
    for overflows in found_inf:
        assert scaler.scale(torch.tensor(1.0)) == told[-1] == scaler.get_scale()
        param.grad = torch.tensor([1.0, INF if overflows else 1.0])
        scaler.step(optimizer)
        scaler.update()
        told.append(scaler.get_scale())
    assert told == pipeline.trajectory(RULE, depth, found_inf)


def test_caller_steps_run_on_thread(thread):
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1, depth=1, launch=thread.launch)
    param, optimizer = an_optimizer(0.0, lr=1.0)
    here = []
    optimizer.register_step_pre_hook(lambda *_: here.append(thread.here()))
    for _ in range(3):
        param.grad = None
        scaler.scale((param * 3).sum()).backward()
        scaler.unscale_(optimizer)
        assert param.grad == 3.0
        scaler.step(optimizer)
        scaler.update()
    assert here == [True] * 3
    assert param == -9.0


def test_update_on_thread_requires_ticket(thread):
    scaler = GradScaler("cpu", init_scale=4.0, depth=1, launch=thread.launch)
    ticket = scaler.begin_iteration()
    thread.launch(scaler.update, 8.0, False, ticket=ticket).result()  # it does not wait for itself
    assert scaler.get_scale() == 8.0
    implicit = GradScaler("cpu", depth=1, launch=thread.launch)
    for _ in range(2):  # before a scale and after
        assert "ticket=" in str(thread.launch(implicit.update).exception())
        implicit.scale(torch.tensor(1.0))


def test_saving_waits_for_the_update(thread):
    release = threading.Event()
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1, depth=1, launch=thread.launch)
    param, optimizer = an_optimizer(0.0)
    for i in range(3):
        param.grad = torch.autograd.grad(scaler.scale(param.sum()), param)[0]
        thread.launch(release.wait)
        thread.launch(scaler.step, optimizer)
        scaler.update()
        if i == 0:
            release.set()
    copied = pickle.loads(pickle.dumps(scaler))  # noqa: S301
    assert copied.state_dict() == scaler.state_dict()
    assert scaler.state_dict()["pending"] == [32.0]


def test_scaler_with_closed_thread_saves():
    thread = OptimizerThread()
    scaler = GradScaler("cpu", init_scale=4.0, depth=1, launch=thread.launch)
    scaler.scale(torch.tensor(1.0))
    scaler.update(8.0)
    thread.close()  # which has done what it was given
    assert scaler.state_dict()["pending"] == [8.0]


# ------------------------------------------------------------------------------------------------ Pipelined


def model_and_data(dtype):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(
        dtype
    )
    inputs = torch.randn(32, 4)
    return model, inputs.to(dtype), inputs.sum(1, keepdim=True).tanh().to(dtype)


def sequential(depth, iterations, dtype):
    """The same training by hand: iteration i has the weights after max(0, i - depth) steps."""
    model, inputs, labels = model_and_data(dtype)
    masters = [torch.nn.Parameter(p.detach().float().clone()) for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17, growth_interval=4)
    scaler.scale(torch.tensor(1.0))
    versions = [[m.detach().to(dtype, copy=True) for m in masters]]
    scales, losses = [scaler.get_scale()], []
    for i in range(iterations):
        scale = torch.tensor(scales[max(0, i - depth)])
        with torch.no_grad():
            for p, weight in zip(model.parameters(), versions[max(0, i - depth)], strict=True):
                p.copy_(weight)
        loss = torch.nn.functional.mse_loss(model(inputs).float(), labels.float())
        losses.append(loss.item())
        grads = torch.autograd.grad(loss * scale, list(model.parameters()))
        scaler._scale.copy_(scale)  # torch has one scale; hand it the right one for the division
        for m, g in zip(masters, grads, strict=True):
            m.grad = g.float()
        scaler.step(optimizer)
        scaler._scale.fill_(scales[-1])
        scaler.update()
        versions.append([m.detach().to(dtype, copy=True) for m in masters])
        scales.append(scaler.get_scale())
    return versions[-1], losses, scales


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_weights_lag_by_depth_steps(depth, dtype, thread):
    model, inputs, labels = model_and_data(dtype)
    pipelined = Pipelined(model, depth=depth, thread=thread)
    optimizer = torch.optim.AdamW(pipelined.parameters(), lr=0.02)
    options = {"depth": depth, "launch": thread.launch}
    scaler = GradScaler("cpu", init_scale=2.0**17, growth_interval=4, **options)
    losses, skips = [], []

    def step_fn():
        scaler.step(optimizer)
        skips.append(scaler.last_step.skipped)
        optimizer.zero_grad()

    def loss_fn(out, y):
        return scaler.scale(torch.nn.functional.mse_loss(out.float(), y.float()))

    for _ in range(30):
        scaled = pipelined.forward_backward((inputs,), labels, loss_fn)
        losses.append(scaler.loss_value(scaled).item())
        pipelined.step(step_fn)
        scaler.update()
    pipelined.synchronize()
    weights, expected_losses, scales = sequential(depth, 30, dtype)
    assert losses == expected_losses
    assert all(map(torch.equal, model.parameters(), weights))
    assert scaler.get_scale(up_to_date=True) == scales[-1]
    assert losses[-1] < losses[0] / 2
    if dtype is torch.float16:
        assert any(skips)


def test_default_pipeline_steps_one_iteration_behind(monkeypatch):
    # Another test may have imported RoundPipe, whose own stream would be taken.
    monkeypatch.delitem(sys.modules, "roundpipe.optim_stream", raising=False)
    model = torch.nn.Linear(1, 1, bias=False).half()
    torch.nn.init.ones_(model.weight)
    pipelined, scaler = Pipelined(model, torch.float64), roundpipe.GradScaler(8.0)
    optimizer, losses, here = torch.optim.SGD(pipelined.parameters(), lr=0.25), [], []
    optimizer.register_step_pre_hook(lambda *_: here.append(roundpipe.shared_thread().here()))
    for _ in range(3):
        one, loss_fn = torch.ones(1, 1).half(), lambda out, _: scaler.scale(out.sum())
        scaled = pipelined.forward_backward((one,), loss_fn=loss_fn)
        losses.append(scaler.loss_value(scaled).item())
        pipelined.step(lambda: [scaler.step(optimizer), optimizer.zero_grad()])
        scaler.update()
    pipelined.synchronize()
    assert (losses, model.weight.item(), here) == ([1.0, 1.0, 0.75], 0.25, [True] * 3)
    assert [master.dtype for master in pipelined.parameters()] == [torch.float64]
    assert pipelined.thread is roundpipe.shared_thread()


def test_microbatches_add_up(thread):
    model, inputs, labels = model_and_data(torch.float32)
    pipelined = Pipelined(model, thread=thread)
    optimizer = torch.optim.SGD(pipelined.parameters(), lr=0.1)
    before = [p.detach().clone() for p in pipelined.parameters()]
    for part in (slice(0, 16), slice(16, 32)):
        loss = pipelined.forward_backward(
            (inputs[part],), labels[part], lambda out, y: ((out - y) ** 2).mean() / 2
        )
        assert not loss.requires_grad  # its graph is let go
    pipelined.step(optimizer.step, is_async=False)
    model, inputs, labels = model_and_data(torch.float32)
    ((model(inputs) - labels) ** 2).mean().backward()
    for old, new, p in zip(before, pipelined.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(new, old - 0.1 * p.grad)


def test_gradients_accumulate_without_zero_grad(thread):
    model = torch.nn.Linear(1, 1)
    model.bias.requires_grad_(False)  # it has no master
    pipelined = Pipelined(model, thread=thread)
    (master,) = pipelined.parameters()
    for _ in range(2):
        pipelined.forward_backward((torch.ones(1, 1),))
        pipelined.step(list, is_async=False)
    assert master.grad.item() == 2.0


@pytest.mark.parametrize("own", [True, False])
def test_failure_reaches_weight_waiters(own):
    thread = OptimizerThread()
    model, inputs, labels = model_and_data(torch.float32)
    pipelined = Pipelined(model, depth=0, thread=thread)
    release = threading.Event()

    def fails():
        raise OSError("disk full")

    def loss_fn(out, y):
        return ((out - y) ** 2).mean()

    thread.launch(release.wait)
    pipelined.forward_backward((inputs,), labels, loss_fn)
    if not own:
        thread.launch(fails)  # somebody else's work on the same thread
    pipelined.step(fails)
    release.set()
    with pytest.raises(ClosedError, match="disk full"):
        pipelined.forward_backward((inputs,), labels, loss_fn)
    with pytest.raises(RuntimeError, match="disk full"):
        pipelined.synchronize()
    thread.close()


def test_awaited_failure_raises_in_both_calls(thread):
    pipelined = Pipelined(torch.nn.Linear(1, 1), depth=0, thread=thread)
    with pytest.raises(RuntimeError, match="forward_backward"):
        pipelined.step(list)
    pipelined.forward_backward((torch.ones(1, 1),))
    with pytest.raises(ZeroDivisionError):
        pipelined.step(lambda: 1 // 0, is_async=False)
    with pytest.raises(ClosedError, match="division"):
        pipelined.forward_backward((torch.ones(1, 1),))

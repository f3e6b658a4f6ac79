"""The asynchronous loops: plans on real threads against the pure model, and a pipeline that trains."""

import dataclasses
import pickle
import threading

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim.core import pipeline
from ampsim.core.machine import Rule
from ampsim.torch import ClosedError, GradScaler, OptimizerThread
from ampsim.torch.pipelined import Pipelined, Weights
from tests.torch.helpers import INF, an_optimizer

RULE = Rule(init_scale=1024.0, growth_interval=2, min_scale=2.0**-126, growth_test=">=")

plan = st.lists(  # one tuple an iteration
    st.fixed_dictionaries(
        {
            "overflows": st.booleans(),
            "new_scale": st.sampled_from([None] * 5 + [3.0, 2.0**20, 0.7]),
            "is_async": st.sampled_from([True] * 4 + [False]),
            "growth": st.sampled_from([None] * 5 + [4.0, 1.5]),
            "interval": st.sampled_from([None] * 5 + [1, 3]),
            "unscales": st.booleans(),
        }
    ),
    max_size=12,
)


CLEAN = {"overflows": False, "new_scale": None, "is_async": True, "growth": None, "interval": None, "unscales": False}
MOVED = pytest.approx([-1.0, -2.0], rel=2**-22)  # 1.5^6 has no exact product with its reciprocal


def expected(depth, plan, rule=RULE):
    """The scale of each ticket when the model does what the plan says."""
    pipe = pipeline.start(rule, depth)
    for ticket, it in enumerate(plan):
        while len(pipe.carried) <= ticket:
            pipe = pipeline.begin(pipe)
        pipe = dataclasses.replace(pipe, rule=changed(pipe.rule, it))
        pipe = pipeline.finish(pipe, ticket, it["overflows"], new_scale=it["new_scale"], synchronous=not it["is_async"])
    return [pipe.scale(ticket) for ticket in range(len(plan))], pipe.versions[-1].scale


def changed(rule, it):
    return rule.replace(
        growth_factor=it["growth"] or rule.growth_factor, growth_interval=it["interval"] or rule.growth_interval
    )


def set_constants(scaler, it):
    if it["growth"]:
        scaler.set_growth_factor(it["growth"])
    if it["interval"]:
        scaler.set_growth_interval(it["interval"])


@pytest.fixture(scope="module")
def thread():
    thread = OptimizerThread()
    yield thread
    thread.close()


@settings(max_examples=150)
@given(depth=st.integers(0, 3), plan=plan, exact_torch=st.booleans())
@example(depth=0, plan=[{**CLEAN, "growth": 1.5, "interval": 1}, *[CLEAN] * 7], exact_torch=False)
def test_the_drop_in_loop_with_the_optimizer_on_its_thread(depth, plan, exact_torch, thread):
    options = {"depth": depth, "launch": thread.launch, "exact_torch": exact_torch}
    scaler = GradScaler("cpu", RULE.init_scale, growth_interval=RULE.growth_interval, **options)
    params = [torch.nn.Parameter(torch.zeros(2)) for _ in plan]
    seen, on_thread = [], []

    def step_fn(i):
        it, optimizer = plan[i], torch.optim.SGD([params[i]], lr=1.0)
        on_thread.append(scaler.get_scale())
        if it["overflows"]:
            params[i].grad[-1] = INF
        if it["unscales"]:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)

    for i, it in enumerate(plan):
        loss = scaler.scale((params[i] * torch.tensor([1.0, 2.0])).sum())
        seen.append(scaler.get_scale())
        loss.backward()
        thread.launch(step_fn, i)
        set_constants(scaler, it)
        scaler.update(it["new_scale"], is_async=it["is_async"])
        assert scaler.loss_value(loss.detach()) == 0.0
    scales, newest = expected(depth, plan, RULE.replace(growth_test="==" if exact_torch else ">="))
    assert scaler.get_scale(up_to_date=True) == newest
    thread.synchronize()
    assert seen == on_thread == scales
    for param, it in zip(params, plan, strict=True):
        assert param.tolist() == ([0.0, 0.0] if it["overflows"] else MOVED)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_get_scale_is_what_the_next_loss_is_multiplied_by(depth):
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


def test_what_a_saved_scaler_shows_before_its_first_use_is_what_the_saved_one_showed():
    (param, optimizer), scaler = an_optimizer(), GradScaler("cpu", 4.0, growth_interval=2, depth=1)
    for _ in range(2):
        scaler.scale(param.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        param.grad = None
    for each in (scaler, pickle.loads(pickle.dumps(scaler))):  # noqa: S301
        assert (each.get_scale(), each.get_scale(up_to_date=True), each._get_growth_tracker()) == (4.0, 8.0, 0)


def test_a_loop_that_steps_from_its_own_thread_is_served_by_the_other(thread):
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1, depth=1, launch=thread.launch)
    param = torch.nn.Parameter(torch.zeros(()))
    on = []
    optimizer = torch.optim.SGD([param], lr=1.0)
    optimizer.register_step_pre_hook(lambda *_: on.append(thread.here()))
    for _ in range(3):
        param.grad = None
        scaler.scale(param * 3).backward()
        scaler.unscale_(optimizer)
        assert param.grad == 3.0
        assert scaler.unscale_and_clip_(torch.optim.SGD([param], lr=1.0), 10.0) > 0  # another optimizer: its own stage
        param.grad.fill_(3.0)
        assert scaler.step(optimizer) is None
        scaler.update()
    assert on == [True] * 3
    assert param == -9.0


def test_an_update_on_the_optimizers_thread_runs_there_and_then(thread):
    scaler = GradScaler("cpu", init_scale=4.0, depth=1, launch=thread.launch)
    ticket = scaler.begin()
    thread.launch(scaler.update, 8.0, False, ticket=ticket).result()  # waiting for itself it would never end
    assert scaler.get_scale() == 8.0
    implicit = GradScaler("cpu", depth=1, launch=thread.launch)
    for _ in range(2):  # before a scale and after
        error = thread.launch(implicit.update).exception()
        assert "expected it on the thread that calls scale(); call it there, or pass ticket=" in str(error)
        implicit.scale(torch.tensor(1.0))


def test_a_loop_may_save_and_pickle_right_after_an_update(thread):
    import pickle

    release = threading.Event()
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1, depth=1, launch=thread.launch)
    param = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([param], lr=1.0)
    for i in range(3):
        param.grad = torch.autograd.grad(scaler.scale(param * 1), param)[0]
        thread.launch(release.wait)
        thread.launch(scaler.step, optimizer)
        scaler.update()
        if i == 0:
            release.set()
    copied = pickle.loads(pickle.dumps(scaler))  # noqa: S301
    assert copied.state_dict() == scaler.state_dict()
    assert scaler.state_dict()["pending"] == [32.0]
    closed = OptimizerThread()
    other = GradScaler("cpu", depth=1, launch=closed.launch)
    other.load_state_dict(scaler.state_dict())
    closed.close()
    assert other.state_dict() == scaler.state_dict()  # a closed thread has done what it was given


# ------------------------------------------------------------------------------------------------ Pipelined


def model_and_data(dtype):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(dtype)
    inputs = torch.randn(32, 4)
    return model, inputs.to(dtype), inputs.sum(1, keepdim=True).tanh().to(dtype)


def sequential(depth, iterations, dtype):
    """The same training by hand: the weights of iteration i are those after max(0, i - depth) steps."""
    model, inputs, labels = model_and_data(dtype)
    masters = [torch.nn.Parameter(p.detach().float().clone()) for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17, growth_interval=4)
    scaler.scale(torch.tensor(1.0))
    versions, scales, losses = [[m.detach().to(dtype, copy=True) for m in masters]], [scaler.get_scale()], []
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
def test_pipelined_computes_with_the_weights_after_i_minus_depth_steps(depth, dtype, thread):
    model, inputs, labels = model_and_data(dtype)
    pipelined = Pipelined(model, depth=depth, thread=thread)
    optimizer = torch.optim.AdamW(pipelined.parameters(), lr=0.02)
    scaler = GradScaler("cpu", init_scale=2.0**17, growth_interval=4, depth=depth, launch=thread.launch)
    losses, skips = [], []

    def step_fn():
        scaler.step(optimizer)
        skips.append(scaler.last_step.skipped)
        optimizer.zero_grad()

    for _ in range(30):
        scaled = pipelined.forward_backward(
            (inputs,), labels, lambda out, y: scaler.scale(torch.nn.functional.mse_loss(out.float(), y.float()))
        )
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


def test_pipelined_adds_up_microbatches(thread):
    model, inputs, labels = model_and_data(torch.float32)
    pipelined = Pipelined(model, thread=thread)
    optimizer = torch.optim.SGD(pipelined.parameters(), lr=0.1)
    before = [p.detach().clone() for p in pipelined.parameters()]
    for part in (slice(0, 16), slice(16, 32)):
        loss = pipelined.forward_backward((inputs[part],), labels[part], lambda out, y: ((out - y) ** 2).mean() / 2)
        assert not loss.requires_grad  # its graph is let go
    pipelined.step(optimizer.step, is_async=False)
    model, inputs, labels = model_and_data(torch.float32)
    ((model(inputs) - labels) ** 2).mean().backward()
    for old, new, p in zip(before, pipelined.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(new, old - 0.1 * p.grad)


def test_pipelined_adds_to_gradients_that_a_step_has_kept(thread):
    model = torch.nn.Linear(1, 1)
    model.bias.requires_grad_(False)  # it has no master
    pipelined = Pipelined(model, thread=thread)
    (master,) = pipelined.parameters()
    for _ in range(2):
        pipelined.forward_backward((torch.ones(1, 1),))
        pipelined.step(list, is_async=False)
    assert master.grad.item() == 2.0


@pytest.mark.parametrize("of_its_own", [True, False])
def test_pipelined_delivers_what_went_wrong_instead_of_waiting(of_its_own):
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
    if not of_its_own:
        thread.launch(fails)  # somebody else's work on the same thread
    pipelined.step(fails)
    release.set()
    with pytest.raises(ClosedError, match="disk full"):
        pipelined._register.begin(timeout=60)  # or what follows would wait for ever
    with pytest.raises(ClosedError, match="disk full"):
        pipelined.forward_backward((inputs,), labels, loss_fn)
    with pytest.raises(RuntimeError, match="disk full"):
        pipelined.synchronize()
    with pytest.raises(RuntimeError, match="without a forward_backward"):
        Pipelined(model, thread=thread).step(list)
    thread.close()


@pytest.mark.parametrize("how", ["fails", "cancelled"])
def test_pipelined_waits_for_no_weights_of_a_step_that_was_not_made(how, thread):
    pipelined, release = Pipelined(torch.nn.Linear(1, 1), depth=0, thread=thread), threading.Event()
    pipelined.forward_backward((torch.ones(1, 1),))
    if how == "fails":
        with pytest.raises(ZeroDivisionError):
            pipelined.step(lambda: 1 // 0, is_async=False)
    else:
        thread.launch(release.wait)
        pipelined.step(list)
        thread._queue[-1].job.cancel()
        release.set()
    with pytest.raises(ClosedError, match=r"division|the step was cancelled"):
        pipelined._register.begin(timeout=60)


def test_weights_that_another_stream_made_are_kept_until_this_one_has_copied_them(monkeypatch):
    """As the allocator of a device must be told; on the CPU the two calls are noted instead."""
    done = []
    stream = type("Stream", (), {"wait_event": lambda self, event: done.append(event)})()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, on: done.append((tensor.item(), on)))
    param = torch.zeros(())
    Weights((torch.tensor(3.0),), ("made",)).copy_to([param])
    assert done == ["made", (3.0, stream)]
    assert param.item() == 3.0

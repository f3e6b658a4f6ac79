"""Invariants of `AsyncGradScaler`, with real tensors and, where it matters, a real optimizer
thread.
"""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampsim.core import pipeline
from ampsim.core.machine import Rule
from ampsim.torch.async_scaler import AsyncGradScaler
from ampsim.torch.async_state import ClosedError, Stage
from ampsim.torch.gradients import unscale
from ampsim.torch.optimizer_thread import OptimizerThread
from tests.torch.helpers import INF, NAN, an_optimizer, bits

DEPTHS = [0, 1, 2, 3]


@pytest.fixture
def thread():
    thread = OptimizerThread(device="cpu")
    yield thread
    thread.close()


def iterate(scaler, param, optimizer, overflows=False, **how):
    """Run one iteration of a loop without tickets; return the scale of its loss."""
    param.grad = None
    loss = scaler.scale(param.sum() + 1.0)
    used = scaler.get_scale()
    loss.backward()
    if overflows:
        param.grad[0] = INF
    scaler.step(optimizer)
    scaler.update(**how)
    return used


def raises(call, error=RuntimeError, match=None):
    with pytest.raises(error, match=match) as caught:
        call()
    return caught.value


# ------------------------------------------------------------------------ scales and gradients


@pytest.mark.parametrize("depth", DEPTHS)
def test_exact_unscale(depth):
    scaler = AsyncGradScaler("cpu", 2.0**14, 2.0, 0.125, 1, depth=depth)
    waiting, scales = [], set()
    for i in range(24):
        ticket, weights = (
            scaler.begin_iteration(),
            torch.randn(257) * 2.0 ** (i % 5 - 12),
        )
        param, optimizer = an_optimizer(*[0.0] * 257)
        scaler.scale((param * weights).sum(), ticket=ticket).backward()
        scales.add(ticket.value.scale)
        waiting.append((ticket, param, optimizer, weights))
        if len(waiting) > depth:
            ticket, param, optimizer, weights = waiting.pop(0)
            if ticket.index % 5 == 3:
                param.grad[0] = NAN
            scaler.unscale_(optimizer, ticket=ticket)
            assert torch.equal(param.grad[1:], weights[1:])
            scaler.step(optimizer, ticket=ticket)
            scaler.update(ticket=ticket)
    assert len(scales) > 5


OUTCOMES = st.tuples(st.sampled_from([False, False, True, 4.0]), st.booleans())


@given(
    depth=st.sampled_from(DEPTHS),
    plan=st.lists(OUTCOMES, max_size=12),
    remote=st.booleans(),
)
def test_schedule_independence(depth, plan, remote):
    model = pipeline.start(Rule(1024.0, growth_interval=2), depth)
    thread = OptimizerThread(device="cpu") if remote else None
    scaler = AsyncGradScaler(
        "cpu", 1024.0, growth_interval=2, depth=depth, executor=thread
    )
    param, optimizer = an_optimizer()
    for index, (outcome, is_async) in enumerate(plan):
        model = pipeline.begin_iteration(model)
        new_scale = outcome if outcome == 4.0 else None
        how = {"new_scale": new_scale, "is_async": is_async}
        used = iterate(scaler, param, optimizer, overflows=outcome is True, **how)
        assert used == model.scale(index)
        model = pipeline.finish(
            model, index, outcome is True, new_scale=new_scale, synchronous=not is_async
        )
    assert scaler.get_scale(up_to_date=True) == model.versions[-1].scale
    if thread:
        thread.close()


FACTORS = st.sampled_from([(2.0, 0.5), (3.0, 0.3), (1.5, 0.7)])


@given(
    plan=st.lists(st.booleans(), max_size=20),
    interval=st.integers(1, 3),
    factors=FACTORS,
)
def test_depth_0_matches_torch(plan, interval, factors):
    assert run_in_lockstep(
        torch.amp.GradScaler, plan, interval, factors
    ) == run_in_lockstep(AsyncGradScaler, plan, interval, factors)


def run_in_lockstep(make, plan, interval, factors):
    """Return what can be seen of a loop: parameters, state dicts, and the errors of repeated
    calls.
    """
    scaler, log = make("cpu", 1700.0, *factors, interval), []
    param, optimizer = an_optimizer(1.0, -0.5, kind=torch.optim.AdamW)
    for number, overflows in enumerate(plan):
        param.grad = None
        scaler.scale((param * param).sum()).backward()
        if overflows:
            param.grad[0] = INF
        if number % 2:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([param], 0.5)
        scaler.step(optimizer)
        log.append(str(raises(lambda: scaler.unscale_(optimizer))))
        log.append(str(raises(lambda: scaler.step(optimizer))))
        scaler.update()
        log.append(str(raises(scaler.update, AssertionError)))
        log += [param.tolist(), scaler.state_dict(), scaler.get_scale()]
    return log


def test_found_inf_stays_with_its_ticket():
    scaler = AsyncGradScaler("cpu", 16.0, growth_interval=1, depth=2)
    tickets, newest = [scaler.begin_iteration() for _ in range(3)], []
    for ticket, last in zip(reversed(tickets), (1.0, INF, 1.0), strict=True):
        param, optimizer = an_optimizer(1.0, 1.0)
        param.grad = torch.tensor([1.0, last])
        scaler.step(optimizer, ticket=ticket)
        assert (param[0].item() == 1.0) == (last == INF)
    for ticket in tickets:
        scaler.update(ticket=ticket)
        newest.append(scaler.get_scale())
    assert newest == [32.0, 16.0, 32.0]


SCALES = st.sampled_from(
    [2.0**e for e in (-126, -100, -20, -1, 0, 16, 126)] + [0.75, 1700.0, 3e38]
)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])


@given(
    scale=SCALES,
    dtype=DTYPES,
    how=st.sampled_from(["step", "unscale_", "clip"]),
    last=st.sampled_from([1.0, INF, -INF, NAN]),
)
def test_no_step_on_nonfinite_gradients(scale, dtype, how, last):
    param = torch.nn.Parameter(torch.zeros(2, dtype=dtype))
    optimizer = torch.optim.SGD([param], lr=2.0**-10, momentum=0.5)
    scaler = AsyncGradScaler("cpu", scale, allow_fp16=True)
    scaler.scale(torch.tensor(1.0))
    param.grad = torch.tensor([torch.finfo(dtype).max, last], dtype=torch.float64).to(
        dtype
    )
    if how == "unscale_":
        scaler.unscale_(optimizer)
    elif how == "clip":
        scaler.unscale_and_clip_(optimizer, 1.0)
    scaler.step(optimizer)
    assert param.isfinite().all()
    if last != 1.0:
        assert not param.any()
        assert not optimizer.state


def test_skipped_step_changes_no_bit():
    param, optimizer = an_optimizer(-0.0, NAN, kind=torch.optim.AdamW)
    scaler = AsyncGradScaler("cpu")
    for overflows in (False, True):
        before = bits(param), copy.deepcopy(optimizer.state_dict())
        iterate(scaler, param, optimizer, overflows)
    assert bits(param) == before[0]
    assert str(optimizer.state_dict()) == str(before[1])


def test_gradient_of_shared_parameter_divides_once():
    param, first = an_optimizer(1.0, lr=0.1)
    second = torch.optim.SGD([param], lr=0.1)
    scaler = AsyncGradScaler("cpu", 1024.0)
    scaler.scale(param.sum()).backward()
    scaler.unscale_(first)
    scaler.unscale_(second)
    assert param.grad.tolist() == [1.0]
    scaler.step(first)
    scaler.step(second)
    assert param.tolist() == pytest.approx([0.8])


def test_overflow_of_shared_parameter_skips_both():
    param, first = an_optimizer(1.0)
    second = torch.optim.SGD([param], lr=0.1)
    scaler = AsyncGradScaler("cpu")
    scaler.scale(param.sum() * INF).backward()
    scaler.step(first)
    scaler.step(second)
    assert param.tolist() == [1.0]


def test_interrupted_division_is_not_repeated(monkeypatch):
    scaler, (param, optimizer) = AsyncGradScaler("cpu", 8.0), an_optimizer(1.0)
    divide = unscale.multiply_and_check_

    def divide_and_interrupt(*args, **options):
        divide(*args, **options)
        raise KeyboardInterrupt

    scaler.scale(param.sum()).backward()
    monkeypatch.setattr(unscale, "multiply_and_check_", divide_and_interrupt)
    raises(lambda: scaler.step(optimizer), KeyboardInterrupt)
    monkeypatch.undo()
    for call in (
        scaler.step,
        scaler.unscale_,
        lambda one: scaler.unscale_and_clip_(one, 1.0),
    ):
        raises(lambda call=call: call(optimizer), match="expected new gradients")
    iterate(scaler, param, optimizer)
    assert param.tolist() == [0.5]


def test_check_at_step_sees_late_nan():
    param, optimizer = an_optimizer(1.0, 1.0)
    for checks, expected in ((True, [1.0, 1.0]), (False, [NAN, 0.5])):
        scaler = AsyncGradScaler("cpu", check_at_step=checks)
        param.grad = None
        scaler.scale(param.sum()).backward()
        scaler.unscale_(optimizer)
        param.grad[0] = NAN
        scaler.step(optimizer)
        scaler.update()
        assert param.tolist() == pytest.approx(expected, nan_ok=True)
        assert scaler.get_scale() == (2.0**15 if checks else 2.0**16)


# -------------------------------------------------------------------------------------- tickets


@pytest.mark.parametrize("depth", DEPTHS)
def test_version_lag_is_monotone(depth):
    scaler, versions, live = AsyncGradScaler("cpu", depth=depth), [], []
    for is_async in [True, True, False, True, True, True, False, False, True, True]:
        while len(live) <= depth:
            live.append(scaler.begin_iteration(timeout=0))
            versions.append(live[-1].version)
        scaler.update(2.0, is_async, ticket=live.pop(0))
    assert versions == sorted(versions)


@pytest.mark.parametrize("depth", DEPTHS)
def test_at_most_depth_plus_one_tickets(depth):
    scaler = AsyncGradScaler("cpu", depth=depth)
    for _ in range(depth + 1):
        first = scaler.begin_iteration(timeout=0)
    raises(
        lambda: scaler.begin_iteration(timeout=0),
        TimeoutError,
        f"at most {depth + 1} outst",
    )
    scaler.close()
    raises(lambda: scaler.update(2.0, ticket=first), ClosedError)


def test_updates_once_and_in_order():
    scaler = AsyncGradScaler("cpu", depth=2)
    first, second, third = (scaler.begin_iteration() for _ in range(3))
    for early in (second, third):
        raises(
            lambda ticket=early: scaler.update(2.0, ticket=ticket),
            match="update ticket 0 fir",
        )
    scaler.update(2.0, ticket=first)
    raises(lambda: scaler.update(2.0, ticket=first), match="update with ticket 0")
    scaler.update(4.0, ticket=second)
    assert scaler.get_scale() == 4.0


def test_update_keeps_scale_of_earlier_backward():
    # What autograd saved in the forward pass is not written by an update.
    scaler = AsyncGradScaler("cpu", 4.0, growth_interval=1, depth=1)
    param, optimizer = an_optimizer(1.0)
    first, second = scaler.begin_iteration(), scaler.begin_iteration()
    loss = scaler.scale(param.sum(), ticket=second)
    param.grad = torch.ones(1)
    scaler.step(optimizer, ticket=first)
    scaler.update(ticket=first)
    param.grad = None
    loss.backward()
    assert param.grad.tolist() == [4.0]
    assert scaler.get_scale() == 8.0


def test_new_scale_by_value(thread):
    scaler = AsyncGradScaler("cpu", 64.0, depth=3, executor=thread)
    asked = torch.tensor(32.0)
    scaler.scale(torch.tensor(1.0))
    scaler.update(asked)
    asked.fill_(5.0)
    assert scaler.get_scale(up_to_date=True) == 32.0


def test_setters_apply_in_order(thread):
    scaler = AsyncGradScaler("cpu", 1.0, growth_interval=1, depth=3, executor=thread)
    param, optimizer = an_optimizer()
    for growth in (2.0, 3.0):
        scaler.set_growth_factor(growth)
        iterate(scaler, param, optimizer)
    scaler.set_growth_factor(7.0)
    assert scaler.get_scale(up_to_date=True) == 6.0
    assert scaler.get_growth_factor(up_to_date=True) == 7.0


def test_gradients_of_two_tickets_raise():
    scaler = AsyncGradScaler("cpu", depth=1)
    param, optimizer = an_optimizer(1.0)
    first, second = scaler.begin_iteration(), scaler.begin_iteration()
    scaler.scale(param.sum(), ticket=first).backward()
    raises(
        scaler.scale(param.sum(), ticket=second).backward,
        match="two tickets were added",
    )
    param.grad = None
    scaler.scale(param.sum(), ticket=second).backward()
    raises(
        lambda: scaler.step(optimizer, ticket=first),
        match="gradients of another ticket",
    )
    scaler.step(optimizer, ticket=second)  # right
    # So are accumulation within a ticket, gradients that autograd returns, and zeroed ones.
    scaler.scale(param.sum(), ticket=second).backward()
    optimizer.zero_grad(set_to_none=False)
    scaler.scale(param.sum(), ticket=first).backward()
    param.grad = None
    for _ in range(2):
        loss = scaler.scale(param.sum(), ticket=first)
        torch.autograd.grad(loss, param, retain_graph=True)
        loss.backward()
    scaler.step(optimizer, ticket=first)


def test_rewritten_gradient_has_no_ticket():
    scaler = AsyncGradScaler("cpu", 8.0, depth=1)
    param, optimizer = an_optimizer(1.0)
    first, second = scaler.begin_iteration(), scaler.begin_iteration()
    scaler.scale(param.sum(), ticket=first).backward()
    param.grad.copy_(torch.tensor([16.0]))
    scaler.step(optimizer, ticket=second)
    assert param.tolist() == [0.0]


def test_update_between_steps_raises():
    scaler = AsyncGradScaler("cpu", 8.0, growth_interval=1)
    (one, first), (two, second) = an_optimizer(1.0), an_optimizer(1.0)
    scaler.scale(one.sum() + two.sum()).backward()
    scaler.step(first)
    scaler.update()
    raises(
        lambda: scaler.step(second),
        match="expected 8.0, by which their loss was multiplied",
    )
    assert two.grad.tolist() == [8.0]
    scaler.update(8.0)
    scaler.step(second)  # the same scale again
    assert two.tolist() == [0.5]


def test_tagged_gradients_can_be_saved(tmp_path):
    scaler = AsyncGradScaler("cpu", depth=1)
    param, optimizer = an_optimizer(1.0)
    scaler.scale(param.sum()).backward()
    scaler.unscale_(optimizer)
    torch.save(param.grad, tmp_path / "grad.pt")
    assert torch.load(tmp_path / "grad.pt", weights_only=True).tolist() == [1.0]
    assert copy.deepcopy(param.grad).tolist() == [1.0]


def test_misuse_changes_nothing():
    scaler, other = (
        AsyncGradScaler("cpu", 4.0, depth=1),
        AsyncGradScaler("cpu", depth=1),
    )
    param, optimizer = an_optimizer(1.0, 1.0)
    halves = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    halves.grad = torch.ones_like(halves)
    first, foreign = scaler.begin_iteration(), other.begin_iteration()
    scaler.scale(param.sum(), ticket=first).backward()
    scaler.unscale_(optimizer, ticket=first)
    second = scaler.begin_iteration()
    calls = [
        lambda: scaler.unscale_(optimizer, ticket=first),
        lambda: scaler.unscale_and_clip_(optimizer, 1.0, ticket=first),
        lambda: scaler.unscale_and_clip_(optimizer, -1.0, ticket=first),
        lambda: scaler.unscale_(torch.optim.SGD([halves]), ticket=first),
        lambda: scaler.step(optimizer, ticket=foreign),
        lambda: scaler.step(optimizer, closure=print, ticket=first),
        lambda: scaler.step(optimizer, print, ticket=first),
        lambda: scaler.step(optimizer, nonsense=1, ticket=first),
        lambda: scaler.scale(3.0, ticket=first),
        lambda: scaler.scale("loss", ticket=first),
        lambda: scaler.scale(torch.tensor(1.0)),
        scaler.update,
        lambda: scaler.update(ticket=second),
        lambda: scaler.update(ticket=foreign),
        lambda: scaler.update(-1.0, ticket=first),
        lambda: scaler.update(NAN, ticket=first),
        lambda: scaler.update("x", ticket=first),
        lambda: scaler.update(torch.ones(2), ticket=first),
        lambda: scaler.begin_iteration(timeout=0),
        scaler.state_dict,
        lambda: scaler.load_state_dict({}),
        lambda: scaler.load_state_dict({"scale": 8.0}),
        lambda: scaler.set_growth_factor(0.5),
        lambda: pickle.dumps(scaler),
    ]
    errors = (
        RuntimeError,
        ValueError,
        TypeError,
        AssertionError,
        TimeoutError,
        KeyError,
    )
    before, gradient = stages(scaler), param.grad.tolist()
    for call in calls:
        raises(call, errors)
        assert stages(scaler) == before
        assert param.grad.tolist() == gradient
    scaler.step(optimizer, ticket=first)
    scaler.update(ticket=first)


def stages(scaler):
    """Return all that later calls depend on: the state, and the records of optimizers past
    READY.
    """
    state = scaler._shared.value
    records = [record for one in state.iterations for record in one.records]
    kept = [
        (r.optimizer, r.stage, len(r.flags))
        for r in records
        if r.stage is not Stage.READY
    ]
    fields = {
        name: value for name, value in vars(state).items() if name != "iterations"
    }
    return fields, [one.ticket for one in state.iterations], kept


def test_no_id_keys():
    # New optimizers at the addresses of old ones are not taken for them.
    scaler = AsyncGradScaler("cpu")
    scaler.scale(torch.tensor(1.0))
    for _ in range(100):
        param, optimizer = an_optimizer()
        param.grad = torch.ones(2)
        scaler.unscale_(optimizer)
        del param, optimizer
    scaler.update()


# ------------------------------------------------------------------------------- saving, bounds


def resume_run(depth, saves):
    """Train 30 iterations in a pipeline that is drained after each 5; return the final state."""
    make = lambda *constants: AsyncGradScaler("cpu", *constants, depth=depth)  # noqa: E731
    scaler = make(1000.0, 3.0, 0.3, 2)
    param, optimizer = an_optimizer(1.0, -0.7, lr=0.1)
    for _ in range(6):
        waiting = []
        for i in range(5):
            ticket = scaler.begin_iteration()
            loss = scaler.scale((param * param).sum() * 0.25, ticket=ticket)
            (grad,) = torch.autograd.grad(loss, param)
            overflows = ticket.value.scale > 1e4 or i == 3
            waiting.append((ticket, grad * INF if overflows else grad))
            while len(waiting) > depth or (waiting and i == 4):
                ticket, param.grad = waiting.pop(0)
                scaler.step(optimizer, ticket=ticket)
                scaler.update(ticket=ticket)
        if saves:
            saved = pickle.loads(pickle.dumps(scaler.state_dict()))  # noqa: S301
            scaler = make()
            scaler.load_state_dict(saved)
    return param.tolist(), scaler.state_dict()


@pytest.mark.parametrize("depth", DEPTHS)
def test_resume_is_bitwise(depth):
    assert resume_run(depth, saves=False) == resume_run(depth, saves=True)


@pytest.mark.parametrize("depth", DEPTHS)
def test_failed_run_can_be_resumed(depth):
    # The thread fails before the update of iteration 5. A new scaler repeats that iteration.
    plan = [index in (2, 6) for index in range(10)]
    rule = Rule(8.0, growth_interval=2)
    scales = pipeline.trajectory(rule, depth, plan)[:-1]
    param, optimizer = an_optimizer()
    failing, spare = OptimizerThread(device="cpu"), OptimizerThread(device="cpu")
    scaler = AsyncGradScaler(
        "cpu", 8.0, growth_interval=2, depth=depth, executor=failing
    )
    used = [iterate(scaler, param, optimizer, overflows) for overflows in plan[:5]]
    scaler.scale(param.sum())
    failing.launch(open, "no such file")
    raises(lambda: [scaler.update(8.0), scaler.synchronize()])
    resumed = AsyncGradScaler("cpu", depth=depth, executor=spare)
    resumed.load_state_dict(scaler.state_dict())
    used += [iterate(resumed, param, optimizer, overflows) for overflows in plan[5:]]
    assert used == scales
    spare.close()
    raises(failing.close, match="FileNotFound")


@pytest.mark.parametrize(("low", "high"), [(2.0**-126, None), (2.0, 64.0), (1.1, 3e38)])
def test_scale_stays_within_bounds(low, high):
    scaler = AsyncGradScaler("cpu", 16.0, 1e9, 1e-9, 1, min_scale=low, max_scale=high)
    param, optimizer = an_optimizer()
    least = torch.tensor(low).item()
    largest = torch.tensor(high or torch.finfo(torch.float32).max).item()
    for overflows in [True] * 20 + [False] * 40 + [True] * 20:
        iterate(scaler, param, optimizer, overflows)
        assert least <= scaler.get_scale() <= largest
        scaler.load_state_dict(scaler.state_dict())
    raises(lambda: scaler.update(low / 2), ValueError, "expected a number within")


# ------------------------------------------------------------------------- executors and errors


class Log:
    """An observer that logs what it is told."""

    def __init__(self):
        self.events = []

    def gradients(self, ticket, optimizer, scale):
        grad = optimizer.param_groups[0]["params"][0].grad
        self.events.append(("gradients", ticket.index, grad[0].item() / scale.item()))

    def closing(self, ticket):
        self.events.append(("closing", ticket.index))

    def closed(self, ticket, steps):
        self.events.append(
            ("closed", ticket.index, [flags[0].item() for _, flags in steps])
        )


def test_observer_sees_gradients_and_flags():
    scaler, log, (param, optimizer) = AsyncGradScaler("cpu"), Log(), an_optimizer(1.0)
    stop = scaler.observe(log)
    iterate(scaler, param, optimizer)
    scaler.load_state_dict(scaler.state_dict())
    param.grad = None
    scaler.scale(param.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    stop()
    scaler.update()
    assert log.events == [
        ("gradients", 0, 1.0),
        ("closing", 0),
        ("closed", 0, [0.0]),
        ("gradients", 0, 1.0),
    ]


def test_last_step_is_of_newest_iteration():
    scaler = AsyncGradScaler("cpu")
    (good, first), (bad, second) = an_optimizer(1.0), an_optimizer(1.0)
    assert not scaler.last_step.skipped
    scaler.scale(good.sum() + bad.sum() * INF).backward()
    scaler.step(first)
    scaler.step(second)
    for _ in range(2):  # before and after the update
        assert scaler.last_step.skipped
        assert not scaler.last_step.skipped_by(first)
        assert scaler.last_step.skipped_by(second)
        if not scaler._shared.value.applied:
            scaler.update()
    iterate(scaler, good, first)
    assert list(scaler.last_step) == [first]


def test_executor_runs_drop_in_loop():
    with ThreadPoolExecutor(1) as executor:
        scaler = AsyncGradScaler(
            "cpu", 8.0, growth_interval=1, depth=1, executor=executor
        )
        world = an_optimizer()
        assert [iterate(scaler, *world) for _ in range(4)] == [8.0, 8.0, 16.0, 32.0]
        scaler.synchronize()


def test_exceptions_reach_caller(thread):
    scaler, (param, optimizer) = AsyncGradScaler("cpu", executor=thread), an_optimizer()
    scaler.scale(param.sum()).backward()
    raises(lambda: scaler.step(optimizer, nonsense=1), TypeError, "nonsense")
    raises(
        lambda: AsyncGradScaler("cpu", executor=thread).update(),
        AssertionError,
        "_scale is",
    )
    scaler.step(optimizer)
    scaler.update(is_async=False)
    scaler.scale(torch.tensor(1.0))
    raises(lambda: scaler.update(is_async=False), AssertionError, "No inf checks")
    scaler.update()  # the same error, which nobody waits for
    closed = raises(scaler.synchronize, ClosedError, "No inf checks")
    assert isinstance(closed.__cause__.__cause__, AssertionError)
    assert scaler.state_dict()["scale"] == 2.0**16


def test_failed_thread_closes_its_scalers():
    thread = OptimizerThread(device="cpu")
    scaler = AsyncGradScaler("cpu", executor=thread)
    scaler.scale(torch.tensor(1.0))
    thread.launch(open, "no such file")
    scaler_error = raises(
        lambda: [scaler.update(8.0), scaler.begin_iteration()], ClosedError
    )
    causes = []
    while scaler_error is not None:
        causes.append(type(scaler_error))
        scaler_error = scaler_error.__cause__
    assert causes[-1] is FileNotFoundError
    raises(thread.synchronize, match="FileNotFound")
    raises(thread.close, match="FileNotFound")


def test_shut_down_executor_is_an_error():
    executor = ThreadPoolExecutor(1)
    scaler, (param, optimizer) = (
        AsyncGradScaler("cpu", executor=executor),
        an_optimizer(),
    )
    scaler.scale(param.sum()).backward()
    executor.shutdown()
    raises(lambda: scaler.step(optimizer), match="cannot schedule")
    raises(lambda: scaler.update(2.0), match="cannot schedule")
    assert scaler._shared.value.requests == ()


def test_dropped_update_closes_the_scaler():
    executor, release = ThreadPoolExecutor(1), threading.Event()
    scaler = AsyncGradScaler("cpu", executor=executor)
    scaler.scale(torch.tensor(1.0))
    executor.submit(release.wait)
    scaler.update(2.0)
    executor.shutdown(wait=False, cancel_futures=True)
    raises(scaler.begin_iteration, ClosedError, "the executor dropped a job")
    raises(scaler.synchronize, ClosedError, "the executor dropped a job")
    assert scaler.state_dict()["scale"] == 2.0**16
    release.set()


def test_closed_thread_is_no_failure():
    thread = OptimizerThread(device="cpu")
    scaler = AsyncGradScaler("cpu", executor=thread)
    scaler.scale(torch.tensor(1.0))
    scaler.update(2.0)
    thread.close()
    scaler.synchronize()
    raises(scaler.begin_iteration, ClosedError, "its optimizer thread was closed")
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"depth": -1}, "depth=-1: expected at least 0"),
        ({"depth": True}, "depth=True"),
        ({"min_scale": 2.0**-127}, "expected at least 2.0"),
        ({"init_scale": 2.0**20, "max_scale": 2.0**10}, "init_scale"),
        ({"growth_factor": 1.0}, "growth factor must be"),
        ({"backoff_factor": 1.0}, "backoff factor must be"),
        ({"growth_interval": 0}, "growth_interval"),
        ({"executor": ThreadPoolExecutor(2)}, "2 workers: expected one"),
    ],
)
def test_invalid_arguments_raise(options, match):
    raises(
        lambda: AsyncGradScaler("cpu", **options),
        (ValueError, TypeError, AssertionError),
        match,
    )


def test_disabled_scaler_passes_through(thread):
    scaler, (param, optimizer) = (
        AsyncGradScaler("cpu", enabled=False),
        an_optimizer(1.0),
    )
    ticket = scaler.begin_iteration()
    loss = scaler.scale(param.sum(), ticket=ticket)
    loss.backward()
    assert scaler.loss_value(loss).item() == 1.0
    scaler.unscale_(optimizer, ticket=ticket)
    assert scaler.unscale_and_clip_(optimizer, 0.5).item() == 1.0
    scaler.step(optimizer, ticket=ticket)
    scaler.update(ticket=ticket)
    scaler.synchronize()
    assert param.item() == pytest.approx(0.75)
    assert (scaler.get_scale(), scaler.state_dict()) == (1.0, {})

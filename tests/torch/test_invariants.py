"""The 24 invariants of the asynchronous scaler, each as one deterministic test with its number and name."""

import copy
import gc
import pickle
import threading
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ampsim.core import dialects
from ampsim.core.replay.fold import replay
from ampsim.testing import scheduler
from ampsim.torch import ClosedError, GradScaler, OptimizerThread
from ampsim.torch import roundpipe as for_roundpipe
from tests.torch.helpers import INF, NAN, an_optimizer, bits, run_script


def held(optimizer):
    """Every bit of an optimizer's parameters and state."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state = [item for p in params for item in sorted(optimizer.state.get(p, {}).items())]
    return bits(*params), [
        (name, bits(value) if isinstance(value, torch.Tensor) else value) for name, value in state
    ]


def iteration(scaler, param, optimizer, overflows=False, **update):
    """One drop-in iteration with d loss / d param = 1; the scale that it used."""
    param.grad = None
    loss = scaler.scale(param.sum())
    used = scaler.get_scale()
    loss.backward()
    if overflows:
        param.grad[0] = INF
    scaler.step(optimizer)
    scaler.update(**update)
    return used


# ------------------------------------------------------------------------------------------------ 1 to 7


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_01_exact_unscale(depth):
    # A scale that is a new power of two in each iteration: only the ticket's own gives the gradient back.
    scaler = GradScaler(
        "cpu", init_scale=2.0**14, growth_interval=1, backoff_factor=0.125, depth=depth
    )
    generator = torch.Generator().manual_seed(0)
    tickets, waiting = [], []
    for i in range(24):
        ticket = scaler.begin_iteration()
        weights = torch.randn(257, generator=generator) * 2.0 ** (i % 5 - 12)
        param, optimizer = an_optimizer(*[0.0] * 257)
        scaler.scale((param * weights).sum(), ticket=ticket).backward()
        tickets.append(ticket.value.read().scale)
        waiting.append((ticket, param, optimizer, weights))
        if len(waiting) > depth:  # the optimizer is as far behind as it may
            ticket, param, optimizer, weights = waiting.pop(0)
            if ticket.index % 5 == 3:
                param.grad[0] = NAN
            scaler.unscale_(optimizer, ticket=ticket)
            assert torch.equal(param.grad[1:], weights[1:])
            scaler.step(optimizer, ticket=ticket)
            scaler.update(ticket=ticket)
    assert len(set(tickets)) > 5


@pytest.mark.parametrize("depth", [0, 1])
def test_02_schedule_independence(depth):
    def program(c):
        scaler = controlled(c, GradScaler)("cpu", init_scale=8.0, depth=depth)
        tickets, seen = c.sync.Queue(), []

        def optimizer():
            for new_scale in (4.0, 16.0):
                scaler.update(new_scale, ticket=tickets.get())

        c.spawn("optimizer", optimizer)
        for _ in range(2):
            ticket = scaler.begin_iteration()
            seen.append(scaler.scale(torch.ones(()), ticket).item())
            tickets.put(ticket)
        return seen

    def check(run):
        assert run.value == [8.0, 8.0 if depth else 4.0]

    assert scheduler.explore(program, preemptions=2, check=check).exhausted


def test_03_depth_0_equals_torch():
    plan = [False, True, False, False, False, True, True, False, False, False, False]
    outcomes = []
    for make in (torch.amp.GradScaler, GradScaler):
        scaler, log = make("cpu", 1700.0, 3.0, 0.3, 2), []
        param, optimizer = an_optimizer(kind=torch.optim.AdamW)
        for overflows in plan:
            log.append(iteration(scaler, param, optimizer, overflows))
            log += [
                held(optimizer),
                bits(param.grad),
                scaler.state_dict(),
                scaler._get_growth_tracker(),
            ]
        for refused in (
            "unscale_ unscale_",
            "step unscale_",
            "step step",
            "update",
            "unscale_ closure",
        ):
            for call in refused.split():
                try:
                    if call == "update":
                        scaler.update()
                    elif call == "closure":
                        scaler.step(optimizer, closure=lambda: None)
                    else:
                        getattr(scaler, call)(optimizer)
                except Exception as error:
                    log.append((type(error), str(error)))
            scaler.update(4.0)
        outcomes.append(log)
    assert outcomes[0] == outcomes[1]


def test_04_depth_1_equals_roundpipe():
    # the dialect equals what RoundPipe itself did, to the last bit; test_roundpipe runs RoundPipe
    rule = dialects.get(
        "roundpipe.GradScaler[async]",
        init_scale=1000.0,
        growth_factor=3.0,
        backoff_factor=0.4,
        growth_interval=3,
    )
    found_inf = [
        False,
        True,
        True,
        False,
        False,
        False,
        False,
        False,
        False,
        True,
        False,
        False,
    ] * 3
    scaler = for_roundpipe.GradScaler(1000.0, 3.0, 0.4, 3)
    param, optimizer = an_optimizer()
    scales = [iteration(scaler, param, optimizer, overflows) for overflows in found_inf]
    assert scales[1:] == replay(rule, found_inf).tolist()[:-1]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_05_version_lag_monotone(depth):
    scaler = GradScaler("cpu", init_scale=2.0**0, depth=depth)
    tickets, scales = [], []
    for applied, is_async in enumerate([True, True, False, True, True, False, False, True, True]):
        while True:  # as far ahead as it may
            try:
                tickets.append(scaler.begin_iteration(timeout=0))
            except TimeoutError:
                break
            scales.append(scaler.scale(torch.ones(()), tickets[-1]).item())
        scaler.update(2.0 ** (applied + 1), is_async, ticket=tickets[applied])
    # version v has scale 2^v
    assert scales == sorted(scales)
    for index, scale in enumerate(scales):
        assert 2.0 ** (index - depth) <= scale <= 2.0**index


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_06_outstanding_tickets_are_bounded(depth):
    scaler = GradScaler("cpu", depth=depth)
    tickets = [scaler.begin_iteration() for _ in range(depth + 1)]
    with pytest.raises(
        TimeoutError, match=f"tickets {', '.join(map(str, range(depth + 1)))} wait for update"
    ):
        scaler.begin_iteration(timeout=0)
    scaler.update(2.0, ticket=tickets[0])
    assert scaler.begin_iteration(timeout=0).index == depth + 1


def test_07_updates_once_and_in_order():
    scaler = GradScaler("cpu", depth=2)
    first, second, third = (scaler.begin_iteration() for _ in range(3))
    for wrong in (second, third):
        with pytest.raises(RuntimeError, match="update ticket 0 first"):
            scaler.update(2.0, ticket=wrong)
    scaler.update(2.0, ticket=first)
    with pytest.raises(RuntimeError, match="ticket 0"):
        scaler.update(2.0, ticket=first)
    scaler.update(4.0, ticket=second)
    scaler.update(8.0, ticket=third)
    assert scaler.get_scale() == 8.0


def test_07_updates_in_order_on_thread(thread):
    release = threading.Event()
    scaler = GradScaler("cpu", depth=2, launch=thread.launch)
    first, second, _ = (scaler.begin_iteration() for _ in range(3))
    thread.launch(release.wait)  # what is sent stays on its way
    with pytest.raises(RuntimeError, match="ticket 1 is not next"):
        scaler.update(2.0, ticket=second)
    scaler.update(2.0, ticket=first)
    with pytest.raises(RuntimeError, match="ticket 0 was already updated"):
        scaler.update(2.0, ticket=first)
    scaler.update(4.0, ticket=second)
    release.set()
    scaler.synchronize()
    assert scaler.get_scale() == 4.0


# ------------------------------------------------------------------------------------------------ 8 to 14


@pytest.mark.parametrize("exact_torch", [False, True])  # the state on the host, and as tensors
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_08_published_scale_is_never_written(depth, exact_torch):
    scaler = GradScaler("cpu", growth_interval=2, depth=depth, exact_torch=exact_torch)
    param, optimizer = an_optimizer(1.0, 2.0, kind=torch.optim.AdamW, fused=True)
    used = []
    for i in range(20):
        ticket = scaler.begin_iteration()
        scale = ticket.value.scale_on(torch.device("cpu"))
        used.append((scale, scale.item()))
        scaler.scale(param.sum(), ticket=ticket).backward()
        if i % 7 == 3:
            param.grad[0] = INF
        scaler.step(optimizer, ticket=ticket)
        scaler.update(float(3**i) if i % 5 == 2 else None, ticket=ticket)
        if i == 10:
            scaler.load_state_dict(scaler.state_dict())
    assert [scale._version for scale, _ in used] == [0] * 20
    assert [scale.item() for scale, _ in used] == [value for _, value in used]


@pytest.mark.parametrize("exact_torch", [False, True])
def test_09_no_autograd_version_error(exact_torch):
    scaler = GradScaler("cpu", init_scale=4.0, depth=1, exact_torch=exact_torch)
    param, optimizer = an_optimizer()
    first, second = scaler.begin_iteration(), scaler.begin_iteration()
    loss = scaler.scale(param.sum(), ticket=second)  # saves the scale for backward
    param.grad = torch.ones(2)
    scaler.step(optimizer, ticket=first)
    scaler.update(ticket=first)
    param.grad = None
    loss.backward()  # torch: "modified by an inplace operation"
    assert param.grad.tolist() == [4.0, 4.0]


def test_10_found_inf_belongs_to_ticket():
    scaler = GradScaler("cpu", init_scale=16.0, growth_interval=1, depth=2)
    tickets = [scaler.begin_iteration() for _ in range(3)]
    for ticket, bad in zip(reversed(tickets), (1.0, INF, 1.0), strict=True):  # steps in any order
        param, optimizer = an_optimizer()
        param.grad = torch.tensor([1.0, bad])
        scaler.step(optimizer, ticket=ticket)
        assert scaler.last_step.skipped == (bad == INF)
    newest = []
    for ticket in tickets:
        scaler.update(ticket=ticket)
        newest.append(scaler.get_scale())
    assert newest == [32.0, 16.0, 32.0]


SCALES = [2.0**e for e in (-149, -140, -128, -127, -126, -100, -20, -1, 0, 16, 100, 126, 127)]
SCALES += [1700.0, 0.75, 0.1, 3e38]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@given(
    scale=st.sampled_from(SCALES),
    dtype=st.sampled_from(DTYPES),
    how=st.sampled_from(["step", "unscale_", "clip", "clip to much"]),
    fused=st.booleans(),
    share=st.lists(
        st.sampled_from([0.0, -1.0, 1.0, 0.5, 2.0**-30]) | st.floats(-1, 1), min_size=2, max_size=3
    ),
    bad=st.sampled_from([None, None, None, INF, -INF, NAN]),
)
@example(
    scale=0.5, dtype=torch.float16, how="clip to much", fused=False, share=[1.0, 0.0], bad=None
)
@example(scale=0.75, dtype=torch.float16, how="unscale_", fused=False, share=[1.0, 1.0], bad=None)
@example(scale=2.0**-126, dtype=torch.float32, how="step", fused=True, share=[1.0, 1.0], bad=None)
@example(scale=2.0**-126, dtype=DTYPES[0], how="step", fused=True, share=[2.0**-70, 0.0], bad=None)
@example(scale=2.0**-126, dtype=DTYPES[0], how="clip", fused=True, share=[2.0**-70, 0.0], bad=None)
@example(scale=2.0, dtype=torch.bfloat16, how="clip", fused=False, share=[1.0, 1.0], bad=None)
def test_11_no_non_finite_step(scale, dtype, how, fused, share, bad):
    """Gradients up to the largest their format holds, at any scale: parameters stay finite."""
    largest = torch.finfo(dtype).max
    param, optimizer = an_optimizer(*[0.0] * len(share), dtype=dtype, lr=2.0**-10, fused=fused)
    if scale < 2.0**-126:
        with pytest.raises(
            ValueError, match="expected within"
        ):  # a scale without a reciprocal is refused outright
            GradScaler("cpu", init_scale=scale)
        return
    scaler = GradScaler("cpu", init_scale=scale, allow_fp16=True)
    scaler.scale(torch.tensor(1.0))
    param.grad = torch.tensor([largest * x for x in share], dtype=torch.float64).to(dtype)
    if bad is not None:
        param.grad[-1] = bad
    peak = (param.grad.double().abs() / scale).max().item() / largest  # unscaled, in its format
    if how == "unscale_":
        scaler.unscale_(optimizer)
    elif how != "step":
        scaler.unscale_and_clip_(optimizer, 1.0 if how == "clip" else 1e38)
    scaler.step(optimizer)
    scaler.update()
    assert param.isfinite().all()
    fits = dtype is torch.float16 and how == "clip"  # once clipped, whatever it was
    if not (0.99 < peak < 1.01 or fits):
        assert scaler.last_step.skipped == (not peak < 1)
    if scaler.last_step.skipped:
        assert not param.any()
    assert scaler.get_scale() >= 2.0**-126


@pytest.mark.parametrize("bad", [torch.float32, torch.float64])
def test_11_no_non_finite_mixed_step(bad):
    params = [
        torch.nn.Parameter(torch.zeros(2, dtype=dtype)) for dtype in (torch.float32, torch.float64)
    ]
    optimizer = torch.optim.SGD(params, lr=1.0, fused=True)
    scaler = GradScaler("cpu", init_scale=0.5)
    scaler.scale(torch.tensor(1.0))
    for param in params:
        param.grad = torch.full_like(param, torch.finfo(bad).max if param.dtype is bad else 1.0)
    scaler.step(optimizer)
    assert not any(param.any() for param in params)


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
        (torch.optim.AdamW, {}),
        (torch.optim.AdamW, {"fused": True, "amsgrad": True}),
        (torch.optim.Adam, {"fused": True}),
    ],
)
def test_12_skipped_step_changes_nothing(kind, options, unscales):
    param, optimizer = an_optimizer(1.0, -2.0, 0.3, kind=kind, **options)
    scaler = GradScaler("cpu")
    for bad in (INF, None, None, INF, -INF, NAN):
        param.grad = None
        scaler.scale((param * param).sum()).backward()
        if bad is not None:
            param.grad[1] = bad
        before = held(optimizer)
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        assert (held(optimizer) == before) == (bad is not None)
        assert scaler.last_step.skipped_by(optimizer) == (bad is not None)
        scaler.update()


@pytest.mark.parametrize("exact_torch", [False, True])
def test_13_new_scale_captured_by_value(thread, exact_torch):
    release = threading.Event()
    scaler = GradScaler("cpu", depth=1, launch=thread.launch, exact_torch=exact_torch)
    scaler.scale(torch.tensor(1.0))
    asked = torch.tensor(32.0)
    thread.launch(release.wait)
    scaler.update(asked)
    asked.fill_(5.0)  # RoundPipe installs this one
    release.set()
    assert scaler.get_scale(up_to_date=True) == 32.0


def test_14_setters_fifo_with_updates(thread):
    release = threading.Event()
    scaler = GradScaler("cpu", init_scale=64.0, growth_interval=1, depth=3, launch=thread.launch)
    param, optimizer = an_optimizer()
    thread.launch(release.wait)
    for growth, overflows in ((2.0, False), (3.0, False), (5.0, False), (5.0, True)):
        scaler.scale(torch.tensor(1.0))
        thread.launch(setattr, param, "grad", torch.tensor([INF if overflows else 1.0, 1.0]))
        thread.launch(scaler.step, optimizer)
        scaler.set_growth_factor(growth)
        scaler.set_backoff_factor(0.25)
        scaler.update()
    scaler.set_growth_factor(7.0)  # after the last update: without effect on any of them
    assert scaler.get_growth_factor() == 2.0
    release.set()
    assert scaler.get_growth_factor(up_to_date=True) == 7.0
    assert scaler.get_scale(up_to_date=True) == 64.0 * 2 * 3 * 5 * 0.25


# ----------------------------------------------------------------------------------------------- 15 to 19


@pytest.mark.parametrize(
    "options", [{}, {"kind": torch.optim.AdamW, "fused": True}], ids=["plain", "fused"]
)
def test_15_mixed_tickets_in_grad_raise(options):
    scaler = GradScaler("cpu", depth=1)
    param, optimizer = an_optimizer(**options)
    first, second = scaler.begin_iteration(), scaler.begin_iteration()
    scaler.scale(param.sum(), ticket=first).backward()
    scaler.scale(param.sum() / 2, ticket=first).backward()  # microbatches of one ticket are fine
    with pytest.raises(RuntimeError, match="gradients of tickets 0 and 1 were added into one"):
        scaler.scale(param.sum(), ticket=second).backward()
    param.grad = None
    scaler.scale(param.sum(), ticket=second).backward()
    for use in (scaler.unscale_, scaler.step, partial(scaler.unscale_and_clip_, max_norm=1.0)):
        with pytest.raises(
            RuntimeError, match="gradients of ticket 1 would be unscaled by ticket 0"
        ):
            use(optimizer, ticket=first)


def test_15_mixed_tickets_in_backward_raise():
    scaler = GradScaler("cpu", depth=1)
    param, _ = an_optimizer()
    first, second = scaler.begin_iteration(), scaler.begin_iteration()
    both = scaler.scale(param.sum(), ticket=first) + scaler.scale(param.sum(), ticket=second)
    with pytest.raises(RuntimeError, match="gradients of tickets"):
        both.backward()


def test_15_rewritten_gradients_have_no_ticket():
    scaler = GradScaler("cpu", init_scale=4.0, depth=1)
    param, optimizer = an_optimizer(0.0, 0.0)
    first, second = scaler.begin_iteration(), scaler.begin_iteration()
    scaler.scale(param.sum(), ticket=first).backward()
    param.grad.fill_(4.0)  # the second's, by other means than a backward pass
    scaler.step(optimizer, ticket=second)
    assert param.tolist() == [-0.5, -0.5]


def test_15_replaced_parameter_is_tracked():
    scaler = GradScaler("cpu", depth=1)
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = torch.optim.SGD(params[:2])
    for second in params[1:]:
        optimizer.param_groups[0]["params"][1] = second
        ticket = scaler.begin_iteration()
        scaler.scale(params[0].sum(), ticket=ticket).backward()
        scaler.step(optimizer, ticket=ticket)
        scaler.update(ticket=ticket)
    scaler.scale(params[2].sum(), ticket=scaler.begin_iteration()).backward()
    with pytest.raises(RuntimeError, match="gradients of tickets 2 and 3 were added into one"):
        scaler.scale(params[2].sum(), ticket=scaler.begin_iteration()).backward()


def test_15_concurrent_master_gradients_are_accepted():
    # masters get their gradients from another thread while a later ticket's backward pass ends
    scaler = GradScaler("cpu", depth=1)
    model, _ = an_optimizer()
    master, optimizer = an_optimizer()
    for _ in range(3):
        first, second = scaler.begin_iteration(), scaler.begin_iteration()
        scaler.scale(model.sum(), ticket=first).backward()
        grad, model.grad = model.grad, None
        master.grad = grad.double().float()  # another tensor, without a tag
        scaler.scale(model.sum(), ticket=second).backward()
        scaler.step(optimizer, ticket=first)
        scaler.update(ticket=first)
        master.grad, model.grad = model.grad, None
        scaler.step(optimizer, ticket=second)
        scaler.update(ticket=second)
        master.grad = None


def test_15_stepped_gradients_have_no_ticket():
    scaler, (param, optimizer) = GradScaler("cpu", depth=1), an_optimizer(0.0, lr=1.0)
    for ticket in (scaler.begin_iteration(), scaler.begin_iteration()):
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(param.sum(), ticket=ticket).backward()
        scaler.step(optimizer, ticket=ticket)
    assert param.item() == -2.0


def test_15_copied_gradient_has_no_ticket():
    scaler = GradScaler("cpu", init_scale=4.0, depth=1)
    param, optimizer = an_optimizer(1.0)
    scaler.scale(param.sum(), scaler.begin_iteration()).backward()
    param.grad = copy.deepcopy(param.grad)
    scaler.step(optimizer, ticket=scaler.begin_iteration())
    assert param.item() == 0.5


def test_15_deleted_scaler_removes_hooks():
    param, _ = an_optimizer()
    for _ in range(3):
        scaler = GradScaler("cpu", depth=1)
        scaler.scale(param.sum()).backward()
        assert len(param._post_accumulate_grad_hooks) == 1
        del scaler
        gc.collect()
    assert not param._post_accumulate_grad_hooks


def visible(scaler, param, optimizer):
    """What a caller can see of a scaler in the middle of an iteration."""
    numbers = scaler.get_scale(), scaler._get_growth_tracker(), scaler.get_growth_interval()
    factors = scaler.get_growth_factor(), scaler.get_backoff_factor()
    handed = {"grad_scale", "found_inf"} & vars(optimizer).keys()
    return numbers, factors, list(scaler.last_step), bits(param, param.grad), handed


TORCH_KEYS = ["scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"]


def state(*values):
    return dict(zip(TORCH_KEYS, values, strict=True))


def test_16_misuse_changes_nothing():
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1, depth=1)
    foreign = GradScaler("cpu", depth=1).begin_iteration()
    param, optimizer = an_optimizer(0.0, 0.0)
    without = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    first = scaler.begin_iteration()
    scaler.scale(param.sum(), ticket=first).backward()
    scaler.unscale_(optimizer, ticket=first)
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.step(without, ticket=first)
    second = scaler.begin_iteration()
    refused = [
        lambda: scaler.unscale_(optimizer, ticket=first),
        lambda: scaler.unscale_(optimizer, ticket=foreign),
        lambda: scaler.step(optimizer, ticket=foreign),
        lambda: scaler.step(optimizer, closure=print, ticket=first),
        lambda: scaler.step(optimizer, print, ticket=first),
        lambda: scaler.step(optimizer, nonsense=1, ticket=first),
        lambda: scaler.step(without, ticket=first),
        lambda: scaler.scale(torch.tensor(1.0)),
        lambda: scaler.scale(torch.tensor(1.0), ticket=foreign),
        lambda: scaler.scale(3.0, ticket=first),
        lambda: scaler.update(),
        lambda: scaler.update(ticket=second),
        lambda: scaler.update(ticket=foreign),
        lambda: scaler.update("8", ticket=first),
        lambda: scaler.update(True, ticket=first),
        lambda: scaler.update(-1.0, ticket=first),
        lambda: scaler.update(NAN, ticket=first),
        lambda: scaler.update(torch.ones(2), ticket=first),
        lambda: scaler.update(torch.ones((), requires_grad=True), ticket=first),
        lambda: scaler.update(torch.ones((), device="meta"), ticket=first),
        lambda: scaler.begin_iteration(timeout=0),
        lambda: scaler.state_dict(),
        lambda: scaler.load_state_dict({}),
        lambda: scaler.load_state_dict({"scale": 8.0}),
        lambda: scaler.load_state_dict(state(NAN, 2.0, 0.5, 2000, 0)),
        lambda: scaler.load_state_dict(state(8.0, 0.5, 0.5, 2000, 0)),
        lambda: scaler.load_state_dict(state(8.0, 2.0, 0.5, 2000, "x")),
        lambda: scaler.load_state_dict(state(8.0, 2.0, 0.5, 2000, 1.5)),
        lambda: scaler.load_state_dict(state(8.0, 2.0, 0.5, 2000, True)),
        lambda: scaler.load_state_dict(state(8.0, 2.0, 0.5, 2000, -1)),
        lambda: scaler.set_growth_factor(0.5),
        lambda: scaler.set_backoff_factor(2.0),
        lambda: scaler.set_growth_interval(0),
        lambda: scaler.set_growth_interval(2.5),
        lambda: pickle.dumps(scaler),
    ]
    before = visible(scaler, param, optimizer)
    for number, call in enumerate(refused):
        with pytest.raises(
            (RuntimeError, ValueError, TypeError, AssertionError, TimeoutError, KeyError)
        ):
            call()
        assert visible(scaler, param, optimizer) == before, f"call {number} changed something"
    scaler.step(optimizer, ticket=first)  # and the iterations go on as if nothing had been
    scaler.update(ticket=first)
    assert param.tolist() == [-0.5, -0.5]
    assert scaler.scale(torch.ones(()), ticket=second).item() == 4.0
    scaler.update(16.0, ticket=second)
    assert scaler.state_dict() == {**state(8.0, 2.0, 0.5, 1, 0), "pending": [16.0]}


def test_16_misuse_between_iterations():
    scaler = GradScaler("cpu", depth=1)
    iteration(scaler, *an_optimizer())
    before = scaler.state_dict()
    for call in (scaler.update, lambda: scaler.update("8"), lambda: scaler.update(NAN)):
        with pytest.raises((AssertionError, TypeError, ValueError)):
            call()
        assert scaler.state_dict() == before  # which is refused if a ticket was begun


def test_17_exceptions_delivered(thread):
    scaler = GradScaler("cpu", depth=0, launch=thread.launch)
    param, optimizer = an_optimizer()
    with pytest.raises(
        TypeError, match="nonsense"
    ):  # an awaited call's exception: to its caller, as it is
        _scaled(scaler, param).step(optimizer, nonsense=1)
    release = threading.Event()
    thread.launch(release.wait)
    thread.launch(Path("no such file").read_text)
    scaler.update()  # behind the step that will fail: never run
    release.set()
    with pytest.raises(ClosedError) as caught:
        scaler.begin_iteration(timeout=60)  # waits for a version that nobody makes
    causes = [caught.value, caught.value.__cause__, caught.value.__cause__.__cause__]
    assert [type(cause) for cause in causes] == [ClosedError, RuntimeError, FileNotFoundError]
    with pytest.raises(
        RuntimeError, match="work on the optimizer thread failed: FileNotFound"
    ) as caught:
        thread.synchronize()
    assert type(caught.value.__cause__) is FileNotFoundError
    thread.synchronize()  # told once


def _scaled(scaler, param):
    param.grad = None
    scaler.scale(param.sum()).backward()
    return scaler


def test_17_background_update_exceptions_are_delivered(thread):
    scaler = GradScaler("cpu", depth=0, launch=thread.launch)
    scaler.scale(torch.tensor(1.0))
    scaler.update()  # nothing was stepped: fails on the optimizer's thread
    with pytest.raises(ClosedError, match="No inf checks were recorded prior to update") as caught:
        scaler.scale(torch.tensor(1.0))
    assert type(caught.value.__cause__) is AssertionError


def test_17_awaited_update_exceptions_reach_caller(thread):
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1, depth=1, launch=thread.launch)
    param, optimizer = an_optimizer()
    _scaled(scaler, param)
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.update(is_async=False)
    scaler.step(optimizer)  # the iteration is as it was
    scaler.update(is_async=False)
    assert scaler.get_scale() == 8.0


def closed_at_any_time(depth):
    """A client, an executor, and one that waits; `close` ends all, whatever happened."""

    def program(c):
        scaler = controlled(c, GradScaler)("cpu", depth=depth)
        scaler.update(2.0, ticket=scaler.begin_iteration())
        tickets = c.sync.Queue()

        def client():
            for _ in range(2):
                tickets.put(scaler.begin_iteration())

        def executor():
            for _ in range(2):
                scaler.update(2.0, ticket=tickets.get())

        def waiter():
            with suppress(ClosedError):
                for _ in range(depth + 2):
                    scaler.begin_iteration()

        for task in (client, executor, waiter):
            c.spawn(task.__name__, task)
        c.point("close comes at any time")
        scaler.close()
        for _ in range(2):
            tickets.put(None)  # who waits for a ticket of a client that is gone

    return program


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("fault", ["crash", "interrupt"])
def test_18_no_deadlock_after_faults(depth, fault):
    program = closed_at_any_time(depth)
    points = range(0, len(scheduler.attempt(program).trace), 4)
    for schedule in [{}] + [{at: 1 + at % 2} for at in points]:
        for step in range(len(scheduler.attempt(program, schedule).trace)):
            for task in ("client", "executor", "waiter"):
                faults = {"crash_at": {step: task}, "crash_frees_locks": True}
                if fault == "interrupt":
                    faults = {"interrupt_at": {step: task}}
                done = scheduler.attempt(program, schedule, **faults)
                assert done.stuck is None, str(done)


def test_18_interrupted_iteration_can_be_restarted():
    # at every point of a drop-in iteration at depth 0: after the interrupt the loop just goes on
    def program(c):
        scaler = controlled(c, GradScaler)("cpu", init_scale=8.0, growth_interval=1)
        param, optimizer = an_optimizer()

        def loop():
            done = 0
            while done < 2:
                try:
                    iteration(scaler, param, optimizer)
                    done += 1
                except KeyboardInterrupt:
                    with suppress(AssertionError):  # before the first scale
                        scaler.update(scaler.get_scale())  # ends the iteration at any stage

        c.spawn("loop", loop).join()

    steps = len(scheduler.run(program).trace)
    assert steps > 10
    for step in range(steps):
        done = scheduler.attempt(program, interrupt_at={step: "loop"})
        assert done.failure is None, str(done)


def controlled(c, cls):
    """The class, on the scheduler's locks."""
    return type(cls.__name__, (cls,), {"_sync": c.sync})


def test_19_executor_never_waits_for_client():
    # a client that stands still, at any point, stops no update of a ticket that was handed over
    def program(c):
        thread = OptimizerThread(sync=c.sync)
        scaler = controlled(c, GradScaler)("cpu", depth=1, launch=thread.launch)

        def client():
            for _ in range(3):
                scaler.scale(torch.tensor(1.0))
                scaler.update(2.0)

        c.spawn("client", client)
        c.point("the client runs")
        thread.synchronize()
        scaler.synchronize()
        thread.close()

    steps = len(scheduler.attempt(program).trace)
    for step in range(steps):
        faults = {"crash_at": {step: "client"}, "crash_frees_locks": True}
        for schedule in ({}, {max(0, step - 1): 1}, {step + 1: 1}):
            done = scheduler.attempt(program, schedule, **faults)
            assert done.failure is None, str(done)


# ----------------------------------------------------------------------------------------------- 20 to 24


def test_20_bounded_clean_exit():
    # A job that never ends is let go; a failure is printed; other work is finished. A daemon thread
    # inside backward at the end would abort the process.
    done = run_script("""
import threading, torch
from ampsim.torch import GradScaler, OptimizerThread, roundpipe
busy = OptimizerThread("busy")
remote = GradScaler("cpu", depth=1, launch=busy.launch)
remote.scale(torch.tensor(1.0))
busy.launch(threading.Event().wait)
busy.close(timeout=0.1)
busy.close(timeout=3600)  # neither this nor the interpreter's exit waits again
OptimizerThread("background").launch(open, "no such file")
param = torch.nn.Parameter(torch.ones(200_000))
optimizer = torch.optim.SGD([param], lr=0.1)
scaler = roundpipe.GradScaler()
def step_fn():
    (param * 2).sum().backward()
    scaler.step(optimizer)
    print("stepped")
for _ in range(2):
    scaler.scale(torch.tensor(1.0))
    roundpipe.shared_thread().launch(step_fn)
    scaler.update()
""")
    assert done.stdout == "stepped\nstepped\n"
    busy, failed = done.stderr.splitlines()
    assert "busy thread" in busy
    assert "background thread" in failed
    assert "FileNotFoundError" in failed


def test_20_close_is_idempotent_unblocks_waiters():
    scaler, optimizer = GradScaler("cpu"), torch.optim.SGD([torch.nn.Parameter(torch.ones(2))])
    ticket = scaler.begin_iteration()
    woken = []

    def waiter():
        try:
            scaler.begin_iteration()
        except ClosedError as error:
            woken.append(error)

    waiting = threading.Thread(target=waiter)
    waiting.start()
    scaler.close()
    scaler.close()
    waiting.join(timeout=60)
    assert len(woken) == 1
    for call in (
        scaler.scale,
        scaler.unscale_,
        scaler.step,
        lambda _, ticket: scaler.update(ticket=ticket),
    ):
        with pytest.raises(ClosedError):
            call(torch.tensor(1.0) if call == scaler.scale else optimizer, ticket=ticket)
    with pytest.raises(ClosedError):
        scaler.begin_iteration()
    assert scaler.get_scale() == 2.0**16
    unused = GradScaler("cpu")
    unused.close()
    with pytest.raises(ClosedError):
        unused.scale(torch.tensor(1.0))


FORK = """
import os, warnings, threading, torch
from ampsim.torch import ClosedError, GradScaler, OptimizerThread
warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)
thread = OptimizerThread()
remote = GradScaler("cpu", depth=1, launch=thread.launch)
unused = GradScaler("cpu", depth=1, launch=thread.launch)
local = GradScaler("cpu", init_scale=4.0, growth_interval=1)
param = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([param], lr=0.1)
remote.scale(torch.tensor(1.0))
local.scale(torch.tensor(1.0))
hold = threading.Event()
running = thread.launch(hold.wait)
waiting = thread.launch(list)
locks = [remote._lock, remote._iterations._lock, remote._iterations._asking, remote._iterations.register._lock,
         local._lock, local._iterations._lock, local._iterations.register._lock, thread._lock]
for lock in locks:  # as if other threads were inside at the time
    lock.acquire()
pid = os.fork()
if pid == 0:
    try:
        refused = []
        for call in (lambda: remote.scale(torch.tensor(1.0)), lambda: remote.step(optimizer), remote.begin_iteration,
                     lambda: remote.update(), remote.close, lambda: thread.launch(print), thread.synchronize,
                     thread.close, running.result, waiting.result, remote.get_scale,
                     lambda: unused.scale(torch.tensor(1.0)), lambda: unused.step(optimizer)):
            try:
                call()
            except ClosedError:
                refused.append("refused")
            else:
                refused.append("done")
        param.grad = torch.ones(2)
        local.step(optimizer)
        local.update()
        print(*refused, local.get_scale(), flush=True)
        OptimizerThread().launch(print, "a new thread works", flush=True).result()
    finally:
        os._exit(0)
for lock in locks:
    lock.release()
_, status = os.waitpid(pid, 0)
hold.set()
thread.close()
print("parent", status, remote.get_scale())
"""


def test_21_fork_never_hangs():
    done = run_script(FORK)
    assert done.stderr == ""
    refusals = "refused refused refused refused done refused done done refused refused done done refused 8.0"
    assert done.stdout.splitlines() == [refusals, "a new thread works", "parent 0 65536.0"]


def train(scaler, param, optimizer, iterations, depth):
    """Iterations whose overflows depend on parameters and scale; the optimizer lags as far as it may."""
    waiting = []
    for i in iterations:
        ticket = scaler.begin_iteration()
        loss = (param * param * (i + 1)).sum() * 0.25
        (grad,) = torch.autograd.grad(scaler.scale(loss, ticket=ticket), param)
        if ticket.value.read().scale > 1e4 or i % 11 == 7:
            grad = grad * INF
        waiting.append((ticket, grad))
        while len(waiting) > depth or (waiting and i == iterations[-1]):
            ticket, param.grad = waiting.pop(0)
            scaler.step(optimizer, ticket=ticket)
            scaler.update(ticket=ticket)


@pytest.mark.parametrize("exact_torch", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_22_resume_is_bitwise(depth, exact_torch):
    def fresh():
        scaler = GradScaler("cpu", 1000.0, 3.0, 0.3, 2, depth=depth, exact_torch=exact_torch)
        return scaler, *an_optimizer(1.0, -0.7, 0.3, kind=torch.optim.AdamW, lr=0.01)

    plan = [list(range(start, start + 5)) for start in range(0, 30, 5)]
    unbroken = fresh()
    for part in plan:
        train(*unbroken, part, depth)
    scaler, param, optimizer = fresh()
    for part in plan:
        train(scaler, param, optimizer, part, depth)
        saved = pickle.dumps((scaler.state_dict(), param.detach(), optimizer.state_dict()))
        scaler, param, optimizer = fresh()  # killed; another process begins
        scaler_state, weights, optimizer_state = pickle.loads(saved)  # noqa: S301
        scaler.load_state_dict(scaler_state)
        param.data.copy_(weights)
        optimizer.load_state_dict(optimizer_state)
    assert held(optimizer) == held(unbroken[2])
    assert scaler.state_dict() == unbroken[0].state_dict()
    assert len(scaler.state_dict().get("pending", [])) == depth


def test_22_reload_with_thread_continues_scales(thread):
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1, depth=1, launch=thread.launch)
    world, used = an_optimizer(), []
    for _ in range(3):
        used += [iteration(scaler, *world) for _ in range(2)]
        scaler.load_state_dict(scaler.state_dict())
    assert used == [4.0, 4.0, 8.0, 16.0, 32.0, 64.0]


def test_22_load_allows_loop_without_tickets():
    scaler, (param, optimizer) = GradScaler("cpu", init_scale=4.0), an_optimizer()
    ticket = scaler.begin_iteration()
    scaler.scale(param.sum(), ticket=ticket).backward()
    with pytest.raises(RuntimeError, match="scale without a ticket in a loop that passes tickets"):
        scaler.scale(param.sum())
    scaler.load_state_dict(scaler.state_dict())
    param.grad = None
    assert iteration(scaler, param, optimizer) == 4.0


def test_22_resume_into_other_depth():
    deep = GradScaler("cpu", depth=3)
    tickets = [deep.begin_iteration() for _ in range(4)]
    for i, ticket in enumerate(tickets):
        deep.update(2.0**i, ticket=ticket)
    saved = deep.state_dict()
    assert (saved["scale"], saved["pending"]) == (2.0**0, [2.0, 4.0, 8.0])
    for depth, carried in ((0, [8.0]), (1, [4.0, 8.0]), (3, [1.0, 2.0, 4.0, 8.0])):
        scaler = GradScaler("cpu", depth=depth)
        scaler.load_state_dict(saved)
        seen = []
        for _ in carried:
            ticket = scaler.begin_iteration(timeout=0)
            seen.append(ticket.value.read().scale)
            scaler.update(1024.0, ticket=ticket)
        assert seen == carried


@pytest.mark.parametrize("on_min_scale", ["warn", "clamp"])
@pytest.mark.parametrize(("low", "high"), [(None, None), (2.0, 64.0), (0.3, 0.7), (1.1, 3e38)])
def test_23_scale_within_bounds_reciprocal_finite(low, high, on_min_scale):
    first = 0.5 if high == 0.7 else 16.0
    scaler = GradScaler(
        "cpu", first, 1e9, 1e-9, 1, min_scale=low, max_scale=high, on_min_scale=on_min_scale
    )
    param, optimizer = an_optimizer()
    bottom, top = (
        torch.tensor(x).item() for x in (low or 2.0**-126, high or torch.finfo(torch.float32).max)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for overflows in [True] * 20 + [False] * 40 + [True] * 20:
            iteration(scaler, param, optimizer, overflows)
            assert bottom <= scaler.get_scale() <= top
            assert torch.tensor(1.0 / scaler.get_scale(), dtype=torch.float32).isfinite()
            scaler.load_state_dict(
                scaler.state_dict()
            )  # what it holds it takes back, at the bounds too
    for outside in (bottom / 2, 0.0, -1.0, INF, NAN, 1e39):
        with pytest.raises(ValueError, match="expected a number within"):
            scaler.update(outside)
        with pytest.raises(ValueError, match="expected a number within"):
            scaler.update(torch.tensor(outside, dtype=torch.float64))


def test_24_no_id_keys():
    # torch takes a new optimizer for the old one whose id it got, and refuses to unscale it
    scaler = GradScaler("cpu")
    scaler.scale(torch.tensor(1.0))
    for _ in range(200):
        param, optimizer = an_optimizer()
        param.grad = torch.ones(2)
        scaler.unscale_(optimizer)
        del param, optimizer
        gc.collect(0)
    scaler.update()

"""Whose gradients a step takes, and what observers and the loss are told of it."""

import pytest
import torch

from ampsim.torch import GradScaler
from tests.torch.helpers import an_optimizer

ONE = torch.ones(())


class Observer:
    """It notes what it is told."""

    def __init__(self):
        self.told = []

    def gradients(self, ticket, optimizer, scale):
        self.told += [scale.item(), optimizer.param_groups[0]["params"][0].grad.tolist()]

    def closing(self, ticket):
        self.told.append("closing")

    def closed(self, ticket, found_inf):
        self.told.append([optimizer for optimizer, _ in found_inf])


@pytest.mark.parametrize("fused", [False, True])
def test_observer_is_notified_of_actual_steps(fused):
    scaler, (param, optimizer) = GradScaler("cpu", init_scale=4.0), an_optimizer(fused=fused)
    observer = Observer()
    stop = scaler.observe(observer)
    for _ in range(2):
        scaler.scale(param.sum()).backward()
        with pytest.raises(AttributeError):
            scaler.step(object())  # no optimizer
        scaler.step(optimizer)
        scaler.update()
        stop()
    assert observer.told == [4.0, [4.0, 4.0], "closing", [optimizer]]
    with pytest.raises(ValueError, match="capturable"):  # a replay would tell nothing
        GradScaler("cpu", capturable=True).observe(observer)


class Divides(GradScaler):
    """A subclass whose `unscale_` is called by `step`."""

    def unscale_(self, optimizer, ticket=None):
        super().unscale_(optimizer, ticket)


def test_overridden_unscale_uses_ticket():
    scaler, (param, optimizer) = Divides("cpu", init_scale=4.0, depth=1), an_optimizer(0.0, lr=1.0)
    scaler.begin_iteration()
    second = scaler.begin_iteration()
    scaler.scale(param.sum(), ticket=second).backward()
    scaler.step(optimizer, ticket=second)
    assert param.item() == -1.0


def test_loss_value_uses_ticket_scale():
    scaler = GradScaler("cpu", init_scale=4.0, depth=1)
    first, second = scaler.begin_iteration(), scaler.begin_iteration()
    scaler.update(2.0, ticket=first)
    scaler.update(8.0, ticket=second)
    last = scaler.begin_iteration()
    assert scaler.scale(ONE, ticket=last) == 2.0
    assert scaler.loss_value(ONE, ticket=first) == 0.25
    assert scaler.loss_value(ONE) == 0.5
    param, optimizer = an_optimizer()
    observer, param.grad = Observer(), torch.ones(2)
    scaler.observe(observer)
    scaler.step(optimizer, ticket=last)
    assert observer.told == [2.0, [1.0, 1.0]]


def test_mixed_ticket_gradients_raise():
    scaler, (a, b) = (
        GradScaler("cpu", depth=1),
        [torch.nn.Parameter(torch.ones(1)) for _ in range(2)],
    )
    optimizer = torch.optim.SGD([a, b])
    first, second = scaler.begin_iteration(), scaler.begin_iteration()
    scaler.scale(b.sum(), ticket=first).backward()
    with pytest.raises(RuntimeError, match="gradients of ticket 0 would be unscaled by ticket 1"):
        scaler.step(optimizer, ticket=second)


def test_nested_backward_keeps_gradient_tickets():
    scaler, (a, b) = (
        GradScaler("cpu", depth=1),
        [torch.nn.Parameter(torch.ones(1)) for _ in range(2)],
    )
    first, second = scaler.begin_iteration(), scaler.begin_iteration()
    scaler.scale(a.sum() + b.sum(), ticket=first)  # whose parameters are watched
    inner = a * 2
    inner.register_hook(
        torch.enable_grad()(lambda _: scaler.scale(b.sum(), ticket=second).backward())
    )
    scaler.scale(inner.sum(), ticket=first).backward()
    with pytest.raises(RuntimeError, match="gradients of ticket 0 would be unscaled by ticket 1"):
        scaler.step(torch.optim.SGD([a]), ticket=second)
    scaler.step(torch.optim.SGD([b]), ticket=second)


def test_invalid_growth_interval_raises_immediately(thread):
    scaler = GradScaler("cpu", launch=thread.launch)
    with pytest.raises(ValueError, match="growth_interval=0: expected at least 1"):
        scaler.set_growth_interval(0)
    thread.synchronize()
    assert scaler.get_growth_interval(up_to_date=True) == 2000


class Raises(torch.optim.SGD):
    """An optimizer whose step fails."""

    def step(self, closure=None):
        raise OSError("planted")


def test_gradients_of_failed_step_stay_tracked():
    param, optimizer = an_optimizer(kind=Raises)
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1)
    scaler.scale(param.sum()).backward()
    with pytest.raises(OSError, match="planted"):
        scaler.step(optimizer)
    scaler.update()
    with pytest.raises(RuntimeError, match=r"would be divided by the scale 8\.0: expected 1\.0"):
        scaler.step(optimizer)


def test_disabled_scaler_clips_all_groups():
    params = [torch.nn.Parameter(torch.zeros(())) for _ in range(2)]
    params[0].grad, params[1].grad = torch.tensor(3.0), torch.tensor(4.0)
    optimizer = torch.optim.SGD([{"params": [param]} for param in params])
    assert GradScaler("cpu", enabled=False).unscale_and_clip_(optimizer, 1.0) == 5.0


def test_earlier_step_report_is_unchanged():
    scaler = GradScaler("cpu")
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    reports = []
    for weight, gradient in zip(weights, (1.0, torch.inf), strict=True):
        scaler.scale(torch.ones(()))
        weight.grad = torch.tensor([gradient])
        scaler.step(torch.optim.SGD([weight]))
        reports.append(scaler.last_step)
    first, last = reports
    assert not first.skipped
    assert last.skipped


def test_skipped_fused_step_adds_no_state():
    scaler = GradScaler("cpu", init_scale=2.0)
    old, new = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = torch.optim.SGD([old], lr=1.0, momentum=0.9, fused=True)

    def step(gradient: float) -> None:
        scaler.scale(torch.ones(()))
        for parameter in [each for group in optimizer.param_groups for each in group["params"]]:
            parameter.grad = torch.full((2,), gradient * scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()

    step(1.0)
    optimizer.add_param_group({"params": [new]})
    step(torch.inf)
    assert new not in optimizer.state
    step(1.0)
    assert new.tolist() == [0.0, 0.0]  # its first momentum is its gradient

"""The order of streams of `AsyncGradScaler`, on a simulated accelerator with a race detector."""

import pytest
import torch

from ampsim.torch import optimizer_thread, streams
from ampsim.torch.async_scaler import AsyncGradScaler
from ampsim.torch.optimizer_thread import OptimizerThread
from tests.torch import simulated_accelerator as simulated_device
from tests.torch.helpers import INF

WEIGHTS = [1.0, 2.0, 3.0]
ITERATIONS = 5


def train(scaler, thread):
    """Run a loop in RoundPipe's form; return the weights, the last scale, and the true losses."""
    model = torch.nn.Parameter(simulated_device.to_device(torch.tensor(WEIGHTS)))
    master = torch.nn.Parameter(simulated_device.to_device(torch.tensor(WEIGHTS)))
    optimizer, jobs, losses = torch.optim.SGD([master], lr=0.125), [], []

    def step_fn(ticket, grad, overflows):
        master.grad = grad
        if overflows:
            master.grad = grad * INF
            grad.record_stream(torch.accelerator.current_stream())
        scaler.step(optimizer, ticket=ticket)
        scaler.update(ticket=ticket)

    for i in range(ITERATIONS):
        ticket = scaler.begin_iteration()
        loss = scaler.scale((model * (i + 1.0)).sum(), ticket=ticket)
        loss.backward()
        losses.append(scaler.loss_value(loss, ticket))
        grad, model.grad = model.grad, None
        jobs.append(thread.launch(step_fn, ticket, grad, i == 2))
        del grad, loss
    for job in jobs:
        job.result()
    scale = scaler.get_scale(up_to_date=True)
    return master.detach().cpu().tolist(), scale, [loss.item() for loss in losses]


def run(seed, depth):
    """Train on a simulated device; return the result and the device."""
    with simulated_device.simulated(seed) as device:
        thread = OptimizerThread(device=simulated_device.DEVICE)
        scaler = AsyncGradScaler("simulated", 1024.0, growth_interval=2, depth=depth)
        result = train(scaler, thread)
        thread.close()
        del scaler, thread
        return result, device


@pytest.mark.own_process
@pytest.mark.parametrize("schedules", [40, pytest.param(1000, marks=pytest.mark.deep)])
def test_no_race_in_generated_schedules(schedules):
    # The schedule of the device and of the host's threads changes no result.
    results, findings, operations = {}, [], 0
    for seed in range(schedules):
        depth = seed % 4
        result, device = run(seed, depth)
        assert results.setdefault(depth, result) == result
        findings += device.races + device.freed_early
        operations += device.operations
    assert not findings
    assert operations > 50 * schedules


def finds(seeds=10):
    """Return the number of seeds for which a detector fires."""
    devices = [run(seed, depth=2)[1] for seed in range(seeds)]
    return sum(bool(device.races or device.freed_early) for device in devices)


SEEDED_BUGS = {
    "no event is recorded": ("record_event", lambda device: None),
    "no stream waits": ("wait_for", lambda event, device: None),
}


@pytest.mark.own_process
def test_seeded_ordering_bugs_are_found():
    for name, wrong in SEEDED_BUGS.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streams, name, wrong)
            patch.setattr(optimizer_thread, name, wrong, raising=False)
            assert finds() == 10, name
    with pytest.MonkeyPatch.context() as patch:
        tensor = simulated_device.SimulatedTensor
        patch.setattr(tensor, "record_stream", lambda self, stream: None)
        assert finds() > 0  # where a reference goes while the other stream is behind


@pytest.mark.own_process
def test_updates_do_not_wait_for_device():
    with simulated_device.simulated(0) as device:
        scaler = AsyncGradScaler("simulated", depth=1)
        scaler.scale(simulated_device.to_device(torch.ones(())))
        waits, device.host_waits = [], lambda mark: waits.append(mark)
        scaler.update(8.0)
        assert not waits


@pytest.mark.parametrize("options", [{"depth": 1}, {"executor": lambda job: None}])
def test_device_without_order_raises(options, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda: torch.device("cuda")
    )
    with pytest.raises(ValueError, match="torch orders no work on other devices"):
        AsyncGradScaler("meta", **options)
    AsyncGradScaler("meta")
    AsyncGradScaler("cuda", **options)


def test_missing_accelerator_disables_scaler(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="no cuda is available"):
        assert not AsyncGradScaler("cuda", depth=1).is_enabled()

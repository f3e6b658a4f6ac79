"""What a step gives a CUDA device to do beside torch's own kernel, counted on the CPU with our kernels left out."""

import functools
import gc
import weakref
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampsim.core.machine import Rule
from ampsim.torch import GradScaler, config
from ampsim.torch.gradients import adam, kernels, kernels_adam, unscale
from ampsim.torch.state.device import DeviceVersion
from ampsim.torch.step import fused_step

VIEWS = (
    "view",
    "detach",
    "alias",
    "empty",
    "unbind",
    "select",
    "slice",
    "lift_fresh",
    "_local_scalar",
    "_record_function",
)


class Check:
    """In the place of the kernel: notes its arguments, and finds gradients that are finite."""

    def __init__(self) -> None:
        self.calls = []

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *args, **options) -> None:
        self.calls.append(args)
        found = args[7]
        found.zero_()
        found[2 * kernels.SLOT] = found[4 * kernels.SLOT] = 4.0


class Launches(TorchDispatchMode):
    """Counts what would be a launch or a copy on a device."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).removeprefix("aten.")
        self.counts[name] += not any(view in name for view in VIEWS)
        return function(*args, **(kwargs or {}))


@pytest.fixture
def check(monkeypatch) -> Check:
    """Take the CPU for a device with our kernels, of which the check is left out, as is torch's fused kernel."""
    stub = Check()
    monkeypatch.setattr(kernels, "_check", stub)
    monkeypatch.setattr(kernels, "tl", SimpleNamespace(float32=None))
    monkeypatch.setattr(kernels, "available", lambda _: True)
    monkeypatch.setattr(unscale, "KERNEL_DEVICES", {"cpu"})
    monkeypatch.setattr(unscale, "EXACT_CHECK", set())
    monkeypatch.setattr(unscale, "on_host", lambda *_: False)
    monkeypatch.setattr(config, "version_class", lambda *_: DeviceVersion)
    monkeypatch.setattr("ampsim.torch.step.optimizer_step.OptimizerStep._fold_on_host", lambda *_: None)
    monkeypatch.setattr(torch, "_fused_adamw_", lambda *_, **__: None)
    return stub


def a_run(clip: bool, steps: int, mode: TorchDispatchMode) -> GradScaler:
    params = [torch.nn.Parameter(torch.ones(size)) for size in (3, 5)]
    optimizer, scaler = torch.optim.AdamW(params, fused=True), GradScaler("cpu", init_scale=4.0)
    for param in params:
        param.grad = torch.ones_like(param)
    loss = torch.ones(())
    for number in range(steps):
        with mode if number == steps - 1 else torch.enable_grad():
            scaler.scale(loss)
            if clip:
                scaler.unscale_and_clip_(optimizer, 1.0)
            scaler.step(optimizer)
            scaler.update()
    return scaler


@pytest.mark.parametrize("clip", [False, True])
def test_a_step_by_torchs_fused_kernel_makes_one_read_and_few_small_launches(check, clip) -> None:
    """The loss times the scale, a zero that counts the programs that have ended, and torch's count of steps."""
    with Launches() as stubs:
        check.launch(*[None] * 7, torch.empty(20))
    launches = Launches()
    a_run(clip, 3, launches)
    small = {name: n for name, n in (launches.counts - stubs.counts).items() if n}
    assert len(check.calls) == 1 + 3
    assert sum(small.values()) <= 3, small


def test_no_address_is_new_to_triton_at_a_later_step(check) -> None:
    """Triton compiles a kernel anew for an address that is no multiple of 16 where it was one."""
    scaler = a_run(True, 3, Launches())
    aligned = [[arg.data_ptr() % 16 for arg in call if isinstance(arg, torch.Tensor)] for call in check.calls]
    assert aligned == [[0] * len(aligned[0])] * 3
    assert scaler.get_scale() == 4.0
    kinds = [[type(arg) for arg in call] for call in check.calls]
    assert kinds == [kinds[0]] * 3


def test_what_is_found_is_aligned_for_the_kernel_that_reads_it(check) -> None:
    checked = kernels.check([torch.ones(3)], torch.ones(()), 1.0, (torch.ones(()), torch.zeros(()), Rule()))
    found = (checked.norm, checked.found_inf, checked.divisor, checked.largest, *checked.following)
    assert [each.data_ptr() % 16 for each in found] == [0] * 6


class Adam(Check):
    """In the place of the kernel that steps: notes its arguments."""

    def launch(self, *args, **options) -> None:
        self.calls.append(args)


@pytest.fixture
def stepped(check, monkeypatch) -> Adam:
    """Take the CPU for a device with our step too, of which the kernel is left out."""
    stub = Adam()
    monkeypatch.setattr(kernels_adam, "adam", stub)
    monkeypatch.setattr(adam, "tl", SimpleNamespace(float32=None))
    monkeypatch.setattr(adam, "available", lambda _: True)
    monkeypatch.setattr(fused_step, "KERNEL_DEVICES", {"cpu"})
    return stub


def behind(replace, step):
    """Return a client's step that looks like the one that it calls."""

    @functools.wraps(step)
    def wrapped(*args):
        replace()
        return step(*args)

    return wrapped


def by_class(optimizer, replace, patch) -> None:
    patch.setattr(torch.optim.AdamW, "step", behind(replace, torch.optim.AdamW.step))


def by_class_below_a_schedule(optimizer, replace, patch) -> None:
    by_class(optimizer, replace, patch)
    torch.optim.lr_scheduler.ConstantLR(optimizer)


CLIENTS = {
    "nobody": lambda optimizer, replace, patch: None,
    "a schedule": lambda optimizer, replace, patch: torch.optim.lr_scheduler.ConstantLR(optimizer),
    "a hook": lambda optimizer, replace, patch: optimizer.register_step_pre_hook(lambda *_: replace()),
    "a step": lambda optimizer, replace, patch: patch.setattr(optimizer, "step", behind(replace, optimizer.step)),
    "a class's step": by_class,
    "a class's step below a schedule": by_class_below_a_schedule,
}


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_the_gradients_that_a_step_takes_are_those_that_are_there_then(stepped, client, clips, monkeypatch) -> None:
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(8)]
    groups = [{"params": params[:4]}, {"params": params[4:]}]
    optimizer, scaler = torch.optim.AdamW(groups, fused=True), GradScaler("cpu", fused_step=True)
    missing: list[int] = []

    def replace() -> None:
        for number, param in enumerate(params):
            param.grad = None if number in missing else torch.ones_like(param)

    client(optimizer, replace, monkeypatch)
    for without in ([], [], [], [5], [1, 6], []):
        missing[:] = without
        stepped.calls.clear()
        replace()
        scaler.scale(torch.ones(()))
        if clips:
            scaler.unscale_and_clip_(optimizer, 1.0)
            replace()
        scaler.step(optimizer)
        scaler.update()
        taken = [address for call in stepped.calls for address in call[1][:, 1].tolist()]
        assert taken == [param.grad.data_ptr() for param in params if param.grad is not None]


def test_nothing_keeps_an_optimizer_whose_step_was_set_on_it(stepped) -> None:
    param = torch.nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.AdamW([param], fused=True), GradScaler("cpu", fused_step=True)
    optimizer.step = optimizer.step  # a method that is bound to it
    for _ in range(2):
        param.grad = torch.ones(2)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()
    gone = weakref.ref(optimizer)
    del optimizer, scaler
    gc.collect()
    assert gone() is None

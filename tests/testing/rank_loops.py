"""Loops of several ranks: right ones, and wrong ones as in public threads."""

from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from ampsim.testing import Loop
from ampsim.torch import GradScaler
from experiments.bugs.trainer import ADAM, SGD
from tests.testing.loops import Trainer, accumulate, cut, loss_of, parts

RIGHT, WRONG = {}, {}


def looping(optimizer=SGD, registry=RIGHT):
    """Register a loop by its step, given the trainer, the group and a batch."""

    def register(step):
        def make(scaler, group=None):
            t = Trainer(scaler, optimizer)
            t.schedule()
            return Loop(partial(step, t, group), t.state, split=cut)

        registry[step.__name__] = make
        return step

    return register


def backward(t, batch):
    """Leave scaled gradients of the mean over micro-batches."""
    t.optimizer.zero_grad()
    accumulate(t, batch)


def mean(t, group):
    """Give all ranks the mean of their gradients, as DDP does."""
    for param in t.params() if group else ():
        dist.all_reduce(param.grad, group=group)
        param.grad /= group.size()


def flags(t):
    """Return what this rank found in its gradients."""
    t.scaler.unscale_(t.optimizer)
    return [
        *t.scaler._per_optimizer_states[id(t.optimizer)][
            "found_inf_per_device"
        ].values()
    ]


def finish(t):
    if t.update():
        t.state["scheduler"].step()


@looping(ADAM)
def averaged(t, group, batch):
    backward(t, batch)
    mean(t, group)
    finish(t)


@looping(ADAM)
def sharded(t, group, batch):
    """Each rank keeps its own gradients, and the scaler is told what the others found."""
    backward(t, batch)
    for flag in flags(t) if group else ():
        dist.all_reduce(flag, dist.ReduceOp.MAX, group)
    finish(t)


def finish_unless(t, group, found):
    """Back off by hand where any rank found an overflow, else finish."""
    if group:
        dist.all_reduce(found, dist.ReduceOp.MAX, group)
    if found:
        t.scaler.update(t.scaler.get_scale() / 2)
    else:
        finish(t)


@looping(ADAM)
def skipped_by_hand(t, group, batch):
    backward(t, batch)
    finish_unless(t, group, torch.stack(flags(t)).amax())


def ours(scaler: GradScaler, group=None):
    t = Trainer(scaler, ADAM)

    def step(batch):
        backward(t, batch)
        t.update()

    return Loop(step, t.state, split=cut)


def accumulating(scaler, group=None):
    """Steps after every second batch, and averages then."""
    t, batches = Trainer(scaler), 0

    def step(batch):
        nonlocal batches
        if batches % 2 == 0:
            t.optimizer.zero_grad()
        accumulate(t, batch, 2)
        batches += 1
        if batches % 2 == 0:
            mean(t, group)
            t.update()

    return Loop(step, t.state, split=cut)


def ddp(scaler, group=None, context=lambda model: nullcontext()):
    """Takes torch's own wrapper, on the default group, and keeps an average."""
    t = Trainer(scaler, ADAM)
    model = DistributedDataParallel(t.model) if group else t.model
    average = AveragedModel(t.model)

    def step(batch):
        t.optimizer.zero_grad()
        for part in parts(batch):
            with context(model) if group else nullcontext():
                scaler.scale(loss_of(model, part) / len(parts(batch))).backward()
        scale = scaler.get_scale()
        t.update()
        if scaler.get_scale() >= scale:  # the optimizer has stepped
            average.update_parameters(t.model)

    return Loop(step, {**t.state, "average": average}, split=cut)


RIGHT |= {"ours": ours, "accumulating": accumulating, "ddp": ddp}
WRONG["ddp_that_never_synchronizes"] = partial(
    ddp, context=DistributedDataParallel.no_sync
)


@looping(registry=WRONG)
def fairscale_179_skips_locally(t, group, batch):
    backward(t, batch)
    finish(t)


@looping(registry=WRONG)
def colossalai_5003_only_the_first_rank_is_asked(t, group, batch):
    backward(t, batch)
    for flag in flags(t) if group else ():
        dist.broadcast(flag, 0, group)
    finish(t)


@looping(ADAM, WRONG)
def pytorch_136009_scales_differ(t, group, batch):
    """The step knows of all ranks, the scale only of its own."""
    backward(t, batch)
    found = torch.stack(flags(t)).amax()
    if group:
        dist.all_reduce(found, dist.ReduceOp.MAX, group)
    if not found:
        t.scaler.step(t.optimizer)
        t.state["scheduler"].step()
    t.scaler.update()


@looping(registry=WRONG)
def schedules_by_its_own_gradients(t, group, batch):
    backward(t, batch)
    finite = all(param.grad.isfinite().all() for param in t.params())
    mean(t, group)
    t.update()
    if finite:
        t.state["scheduler"].step()


@looping(registry=WRONG)
def neuron_sp_154_comes_to_the_collective_if_it_steps(t, group, batch):
    backward(t, batch)
    if group and all(param.grad.isfinite().all() for param in t.params()):
        mean(t, group)
    finish(t)


@looping(registry=WRONG)
def summed_and_not_divided(t, group, batch):
    backward(t, batch)
    for param in t.params() if group else ():
        dist.all_reduce(param.grad, group=group)
    finish(t)


@looping(registry=WRONG)
def looks_for_infs_alone(t, group, batch):
    """A NaN is no inf: it is not told to the others."""
    backward(t, batch)
    finish_unless(
        t,
        group,
        torch.tensor(float(any(param.grad.isinf().any() for param in t.params()))),
    )

"""Loops that are right; the wrong ones are those of `experiments.bugs`."""

import copy
from functools import partial

import torch
from torch import nn

from ampsim.testing import Loop
from experiments.bugs.trainer import ADAM, FUSED, SGD, Trainer
from experiments.frameworks.tiny import batches, cut, loss_of, parts

__all__ = [
    "ADAM",
    "FUSED",
    "RIGHT",
    "SGD",
    "Trainer",
    "batches",
    "cut",
    "loss_of",
    "parts",
]


RIGHT = {}


def looping(step, optimizer=SGD, setup=lambda t: None, **loop):
    """A maker of loops that take this step, given a `Trainer` and a batch; `setup` names what else
    training carries.
    """

    def make(scaler):
        t = Trainer(scaler, optimizer)
        setup(t)
        return Loop(partial(step, t), t.state, **{"logged": lambda: t.logs, **loop})

    make.__name__ = getattr(step, "__name__", "loop")
    return make


def right(*args, **loop):
    """Register a loop by its step, as `looping` takes it."""

    def register(step):
        RIGHT[step.__name__] = looping(step, *args, **loop)
        return RIGHT[step.__name__]

    return register


def accumulate(t, batch, steps=1):
    """Add the scaled gradients of a batch, whole or in parts, to those of as many steps."""
    for part in parts(batch):
        t.scaler.scale(loss_of(t.model, part) / len(parts(batch)) / steps).backward()


@right()
def sgd(t, batch):
    t.backward(batch)
    t.update()


@right(FUSED)
def fused(t, batch):
    t.logs["loss"] = t.backward(batch)
    t.update()


@right()
def has_a_scaler_that_is_off(t, batch):
    """As where one part trains in bfloat16."""
    t.optimizer.zero_grad()
    off = torch.amp.GradScaler("cpu", enabled=False)
    t.scaler.scale(off.scale(loss_of(t.model, batch))).backward()
    t.update()


@right()
def writes_into_its_batch(t, batch):
    batch[0].mul_(0.5)
    t.backward(batch)
    t.update()


def averages(t):
    t.average(), t.schedule(), t.carry("steps", torch.zeros(()))


@right(ADAM, averages)
def averaged_and_scheduled(t, batch):
    t.backward(batch)
    if t.update():
        t.state["scheduler"].step()
        t.state["ema"].update_parameters(t.model)
        t.state["steps"].add_(1)


@right(setup=lambda t: vars(t).update(seen=0), split=cut)
def accumulating(t, batch):
    """Steps after every second batch, and takes micro-batches, too."""
    if t.seen % 2 == 0:
        t.optimizer.zero_grad()
    accumulate(t, batch, 2)
    t.seen += 1
    if t.seen % 2 == 0:
        t.update()


@right(ADAM, split=cut)
def splitting(t, batch):
    t.optimizer.zero_grad()
    accumulate(t, batch)
    t.update()


def two(t):
    t.optimizer = t.carry("optimizer", torch.optim.SGD(t.model[0].parameters(), lr=0.1))
    t.carry("two", torch.optim.Adam(t.model[2].parameters(), lr=0.01))


@right(setup=two)
def two_optimizers(t, batch):
    t.model.zero_grad()
    t.backward(batch)
    t.scaler.step(t.state["two"])
    t.update()


@right(ADAM)
def clipping(t, batch):
    t.logs["loss"] = t.backward(batch)
    t.scaler.unscale_(t.optimizer)
    t.logs["norm"] = nn.utils.clip_grad_norm_(t.params(), 0.1)
    t.update()


@right(ADAM)
def three_complete_passes(t, batch):
    """A pass on the whole model, one on a part of it, and one on the whole again, each with a step
    of its own.
    """
    for net in (t.model, t.model[:1], t.model):
        t.optimizer.zero_grad()
        t.scaler.scale(net(batch[0]).square().mean()).backward()
        t.update()


def plain(model, optimizer, **loop):
    """A loop of forward, backward, step and update, by functions that make a model and an
    optimizer.
    """

    def make(scaler):
        torch.manual_seed(0)
        net = model()
        adapt = optimizer(net.parameters())

        def step(batch):
            adapt.zero_grad()
            for part in parts(batch):
                scaler.scale(loss_of(net, part) / len(parts(batch))).backward()
            scaler.step(adapt)
            scaler.update()

        return Loop(step, {"model": net, "optimizer": adapt}, **loop)

    return make


class Attending(nn.Module):
    """An attention, whose keys have a bias that no loss depends on: its gradients are rounding."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(3, 16), nn.Linear(16, 1)
        self.attend = nn.TransformerEncoderLayer(
            16, 2, 32, dropout=0.0, batch_first=True
        )

    def forward(self, data):
        tokens = self.embed(data).unsqueeze(1) * torch.arange(1, 5).view(1, 4, 1)
        return self.head(self.attend(tokens).mean(1))


class Embedding(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 4, sparse=True), nn.Linear(4, 1)

    def forward(self, data):
        return self.head(self.embed((data.abs() * 5).long().clamp(max=19)).mean(1))


RIGHT["attending"] = plain(Attending, partial(ADAM, lr=1e-3), split=cut)
RIGHT["dropped"] = plain(
    lambda: nn.Sequential(
        nn.Dropout(0.3), nn.Linear(3, 16), nn.Dropout(0.5), nn.Linear(16, 1)
    ),
    ADAM,
    split=cut,
)
RIGHT["normed"] = plain(
    lambda: nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)),
    partial(SGD, lr=1.0),
    split=cut,
)
RIGHT["normed_and_dropped"] = plain(  # whose statistics a skipped forward pass may move
    lambda: nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)
    ),
    partial(SGD, lr=0.1),
)
RIGHT["embedding"] = plain(Embedding, partial(torch.optim.SGD, lr=0.1))


def adversarial(scaler):
    """Updates twice per batch, and leaves gradients where the next step clears them: those of one
    bias add up to 0.
    """
    torch.manual_seed(0)
    one, other = nn.Linear(3, 3), nn.Linear(3, 1)
    first, second = (
        torch.optim.Adam(one.parameters()),
        torch.optim.Adam(other.parameters()),
    )

    def step(batch):
        real, _ = batch
        second.zero_grad()
        scaler.scale(other(one(real).detach()).mean() - other(real).mean()).backward()
        scaler.step(second)
        scaler.update()
        first.zero_grad()
        scaler.scale(-other(one(real)).mean()).backward()
        scaler.step(first)
        scaler.update()

    return Loop(step, {"one": one, "other": other, "first": first, "second": second})


RIGHT["adversarial"] = adversarial


def draws(t):
    t.draw = torch.Generator().manual_seed(3)
    t.carry("data", t.draw.get_state)


@right(setup=draws)
def drawing(t, batch):
    """Has a generator of its own, which goes on in a skipped step as the data does."""
    data, target = batch
    t.backward((data + torch.randn(data.shape, generator=t.draw), target))
    t.update()


class Box:
    """Numbers and tensors that are saved."""

    def __init__(self, **held):
        self.__dict__.update(held)

    def state_dict(self):
        return dict(self.__dict__)

    def load_state_dict(self, state):
        self.__dict__.update(state)


def boxed(**held):
    return lambda t: vars(t).update(box=t.carry("box", Box(**held)))


@right(setup=boxed(seen=0, skipped=0, scales=[]))
def counts_batches_and_skips(t, batch):
    """Logs the scale, too, in what it saves and in what it logs."""
    t.backward(batch)
    stepped = t.update()
    box = t.box
    box.seen, box.skipped, box.scales = (
        box.seen + 1,
        box.skipped + (not stepped),
        [*box.scales, t.scaler.get_scale()],
    )
    t.logs["loss_scale"] = t.scaler.get_scale()


@right(setup=boxed(hidden=torch.zeros(8, 3)))
def hands_a_hidden_state_on(t, batch):
    data, target = batch
    hidden = torch.tanh(data + t.box.hidden)
    t.backward((hidden, target))
    t.update()
    t.box.hidden = hidden.detach()


def with_a_second_scaler(t):
    t.its = t.carry("its", torch.amp.GradScaler("cpu", 2.0**8))
    t.critic = t.carry("critic", copy.deepcopy(t.model))
    t.second = t.carry("second", torch.optim.SGD(t.critic.parameters(), lr=0.1))


@right(setup=with_a_second_scaler, save=None)
def scales_a_second_loss_by_a_second_scaler(t, batch):
    t.backward(batch)
    t.update()
    t.second.zero_grad()
    t.its.scale(loss_of(t.critic, batch)).backward()
    t.its.step(t.second)
    t.its.update()


def add_two_up(t, batch, place):
    """Step after every second batch, which `place.seen` counts."""
    place.seen += 1
    t.scaler.scale(loss_of(t.model, batch)).backward()
    if place.seen % 2 == 0:
        t.update()
        t.optimizer.zero_grad()


class Window:
    """The place in a step of two batches, and the gradients so far."""

    def __init__(self, params):
        self.params, self.seen = params, 0

    def state_dict(self):
        return {
            "seen": self.seen,
            "so_far": [None if p.grad is None else p.grad.clone() for p in self.params],
        }

    def load_state_dict(self, state):
        self.seen = state["seen"]
        for param, grad in zip(self.params, state["so_far"], strict=True):
            param.grad = None if grad is None else grad.clone()


@right(
    setup=lambda t: vars(t).update(window=t.carry("window", Window(t.params()))),
    save=None,
)
def saves_the_gradients_so_far(t, batch):
    add_two_up(t, batch, t.window)


def noise(t):
    t.noise = torch.Generator().manual_seed(5)
    t.carry("noise", t.noise.get_state)


@right(setup=noise, save=None)
def adds_noise_of_a_generator(t, batch):
    """Draws after the gradients have come, skipped or not."""
    t.backward(batch)
    t.scaler.unscale_(t.optimizer)
    for param in t.params():
        param.grad.add_(torch.randn(param.shape, generator=t.noise), alpha=0.01)
    t.update()


@right()
def takes_gradients_by_function(t, batch):
    """No hook of a parameter sees them."""
    params = t.params()
    for param, grad in zip(
        params,
        torch.autograd.grad(t.scaler.scale(loss_of(t.model, batch)), params),
        strict=True,
    ):
        param.grad = grad
    t.update()


class Wrapper(torch.optim.Optimizer):
    """An optimizer that hands all on to another and never calls the constructor of its class, as
    accelerate's.
    """

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state)


@right(setup=lambda t: t.carry("optimizer", Wrapper(t.optimizer)))
def wrapped(t, batch):
    t.backward(batch)
    t.update()

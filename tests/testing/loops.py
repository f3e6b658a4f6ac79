"""Loops that are right; the wrong ones are those of `experiments.bugs`."""

from functools import partial

import torch
from torch import nn

from ampsim.testing import Loop
from ampsim.testing.loop.adapters.tiny import batches, cut, loss_of, parts
from experiments.bugs.trainer import ADAM, FUSED, SGD, Trainer

__all__ = ["ADAM", "FUSED", "RIGHT", "SGD", "Trainer", "batches", "cut", "loss_of", "parts"]


RIGHT = {}


def right(make):
    RIGHT[make.__name__] = make
    return make


@right
def sgd(scaler):
    trainer = Trainer(scaler)

    def step(batch):
        trainer.backward(batch)
        trainer.update()

    return Loop(step, trainer.state)


@right
def fused(scaler):
    trainer = Trainer(scaler, FUSED)

    def step(batch):
        trainer.logs["loss"] = trainer.backward(batch)
        trainer.update()

    return Loop(step, trainer.state, logged=lambda: trainer.logs)


@right
def averaged_and_scheduled(scaler):
    trainer = Trainer(scaler, ADAM)
    ema, scheduler = trainer.average(), trainer.schedule()
    steps = trainer.carry("steps", torch.zeros(()))

    def step(batch):
        trainer.backward(batch)
        if trainer.update():
            scheduler.step()
            ema.update_parameters(trainer.model)
            steps.add_(1)

    return Loop(step, trainer.state)


@right
def accumulating(scaler):
    """Steps after every second batch, and takes micro-batches, too."""
    trainer = Trainer(scaler)
    seen = 0

    def step(batch):
        nonlocal seen
        if seen % 2 == 0:
            trainer.optimizer.zero_grad()
        for part in parts(batch):
            scaler.scale(loss_of(trainer.model, part) / len(parts(batch)) / 2).backward()
        seen += 1
        if seen % 2 == 0:
            trainer.update()

    return Loop(step, trainer.state, split=cut)


@right
def splitting(scaler):
    trainer = Trainer(scaler, ADAM)

    def step(batch):
        trainer.optimizer.zero_grad()
        for part in parts(batch):
            scaler.scale(loss_of(trainer.model, part) / len(parts(batch))).backward()
        trainer.update()

    return Loop(step, trainer.state, split=cut)


@right
def two_optimizers(scaler):
    trainer = Trainer(scaler)
    first, last = trainer.model[0], trainer.model[2]
    one = torch.optim.SGD(first.parameters(), lr=0.1)
    two = torch.optim.Adam(last.parameters(), lr=0.01)

    def step(batch):
        trainer.model.zero_grad()
        scaler.scale(loss_of(trainer.model, batch)).backward()
        scaler.step(one)
        scaler.step(two)
        scaler.update()

    return Loop(step, {"model": trainer.model, "one": one, "two": two})


@right
def clipping(scaler):
    trainer = Trainer(scaler, ADAM)

    def step(batch):
        loss = trainer.backward(batch)
        scaler.unscale_(trainer.optimizer)
        norm = nn.utils.clip_grad_norm_(trainer.params(), 0.1)
        trainer.update()
        trainer.logs.update(loss=loss, norm=norm)

    return Loop(step, trainer.state, logged=lambda: trainer.logs)


@right
def normed_and_dropped(scaler):
    """Has batch-norm, whose statistics a skipped forward pass may move, and dropout."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batch)).backward()
        scaler.step(optimizer)
        scaler.update()

    return Loop(step, {"model": model, "optimizer": optimizer})


def plain(model, optimizer, **loop):
    """A loop of forward, backward, step and update, by functions that make a model and an optimizer."""

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
        self.attend = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

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
    lambda: nn.Sequential(nn.Dropout(0.3), nn.Linear(3, 16), nn.Dropout(0.5), nn.Linear(16, 1)), ADAM, split=cut
)
RIGHT["normed"] = plain(
    lambda: nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)), partial(SGD, lr=1.0), split=cut
)
RIGHT["embedding"] = plain(Embedding, partial(torch.optim.SGD, lr=0.1))


@right
def adversarial(scaler):
    """Updates twice per batch, and leaves gradients where the next step clears them: those of one bias add up to 0."""
    torch.manual_seed(0)
    one, other = nn.Linear(3, 3), nn.Linear(3, 1)
    first, second = torch.optim.Adam(one.parameters()), torch.optim.Adam(other.parameters())

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


@right
def drawing(scaler):
    """Has a generator of its own, which goes on in a skipped step as the data does."""
    trainer, draw = Trainer(scaler), torch.Generator().manual_seed(3)

    def step(batch):
        data, target = batch
        trainer.backward((data + torch.randn(data.shape, generator=draw), target))
        trainer.update()

    return Loop(step, {**trainer.state, "data": draw.get_state})


class Wrapper(torch.optim.Optimizer):
    """An optimizer that hands all on to another and never calls the constructor of its class, as accelerate's."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state)


@right
def wrapped(scaler):
    trainer = Trainer(scaler)
    trainer.state["optimizer"] = Wrapper(trainer.optimizer)

    def step(batch):
        trainer.backward(batch)
        trainer.update()

    return Loop(step, trainer.state)

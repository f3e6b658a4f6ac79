"""Loops that are right: what each has beside a model, an optimizer and a scaler."""

import torch
from torch import nn

from ampsim.testing import Loop


def batches(count=4, rows=8):
    draw = torch.Generator().manual_seed(7)
    return [(torch.randn(rows, 3, generator=draw), torch.randn(rows, 1, generator=draw)) for _ in range(count)]


def new_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def loss_of(model, batch):
    data, target = batch
    return (model(data) - target).square().mean()


def sgd(scaler):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batch)).backward()
        scaler.step(optimizer)
        scaler.update()

    return Loop(step, {"model": model, "optimizer": optimizer})


def clipping(scaler):
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    logs = {}

    def step(batch):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        logs.update(loss=loss, norm=norm)

    return Loop(step, {"model": model, "optimizer": optimizer}, logged=lambda: logs)


RIGHT = {"sgd": sgd, "clipping": clipping}

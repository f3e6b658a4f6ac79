"""A model, an optimizer and a scaler, with what every loop does with them: what the wrong loops are
made of.
"""

from functools import partial

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from experiments.frameworks.tiny import loss_of, model

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAM = partial(torch.optim.AdamW, lr=0.01)
FUSED = partial(torch.optim.AdamW, lr=0.01, fused=True)


class Trainer:
    """A fresh and seeded model with its optimizer."""

    def __init__(self, scaler, optimizer=SGD):
        self.scaler, self.model = scaler, model()
        self.optimizer = optimizer(self.model.parameters())
        self.logs = {}
        self.state = {"model": self.model, "optimizer": self.optimizer}

    def carry(self, name, value):
        """Name what training carries, too; return it."""
        self.state[name] = value
        return value

    def backward(self, batch):
        """Clear the gradients, and leave scaled ones; return the loss."""
        self.optimizer.zero_grad()
        loss = loss_of(self.model, batch)
        self.scaler.scale(loss).backward()
        return loss

    def update(self):
        """Step and update; return whether the optimizer stepped."""
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= scale

    def params(self):
        return list(self.model.parameters())

    def average(self):
        return self.carry(
            "ema", AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        )

    def schedule(self):
        return self.carry(
            "scheduler", torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)
        )

    def save(self):
        return {
            name: value.state_dict()
            for name, value in [*self.state.items(), ("scaler", self.scaler)]
        }

    def load(self, checkpoint):
        for name, value in [*self.state.items(), ("scaler", self.scaler)]:
            value.load_state_dict(checkpoint[name])

"""Training loops that are wrong, each as it was in a public thread, with the law that must catch it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from ampsim.testing import Loop
from tests.testing.loops import loss_of, new_model


@dataclass(frozen=True)
class Bug:
    """A loop with one bug, the thread that it is from, and the law that must catch it."""

    make: Callable[..., Loop]
    law: str
    link: str


BUGS: dict[str, Bug] = {}


def bug(law, thread):
    """Register a maker under its name; `thread` is ``owner/repository#number``."""
    repository, number = thread.split("#")

    def register(make):
        BUGS[make.__name__] = Bug(make, law, f"https://github.com/{repository}/issues/{number}")
        return make

    return register


@bug("scale_is_invisible", "redai-studio/Relax#44")
def relax_44_unscaled_twice(scaler):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batch)).backward()
        for param in model.parameters():
            param.grad /= scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()

    return Loop(step, {"model": model, "optimizer": optimizer})


@bug("scale_is_invisible", "milesial/Pytorch-UNet#468")
def unet_468_clipped_before_unscaling(scaler):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batch)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return Loop(step, {"model": model, "optimizer": optimizer})

"""Hugging Face accelerate, as its guide has it: ``accumulate``, clipping, a prepared schedule."""

from functools import partial
from itertools import chain
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import AutocastKwargs

from ampsim.testing import Loop
from experiments.frameworks import tiny

batches = tiny.batches()


def use(accelerator: Accelerator, scaler: torch.amp.GradScaler) -> None:
    """Let an accelerator on the CPU, which takes no fp16, go its way of fp16 with this scaler, but
    in float32.
    """
    accelerator.state._mixed_precision, accelerator.native_amp = "fp16", True  # noqa: SLF001
    accelerator.scaler, accelerator.autocast_handler = (
        scaler,
        AutocastKwargs(enabled=False),
    )


def make(
    scaler: torch.amp.GradScaler, *, fused: bool = False, two: bool = False
) -> Loop:
    """Make the loop of the guide to gradient accumulation; with two optimizers, one per layer."""
    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001
    accelerator = Accelerator(cpu=True)
    use(accelerator, scaler)
    net = tiny.model()
    pairs = [
        tiny.adam(layer, fused=fused) for layer in ((net[0], net[2]) if two else (net,))
    ]
    model, *prepared = accelerator.prepare(net, *chain(*pairs))
    logs: dict[str, Any] = {}

    def step(batch: Any) -> None:
        accelerator.gradient_accumulation_steps = len(tiny.parts(batch))
        for part in tiny.parts(batch):
            with accelerator.accumulate(model):
                logs["loss"] = tiny.loss_of(model, part)
                accelerator.backward(logs["loss"])
                if accelerator.sync_gradients:
                    logs["norm"] = accelerator.clip_grad_norm_(model.parameters(), 0.1)
                for optimizer, schedule in zip(
                    prepared[::2], prepared[1::2], strict=True
                ):
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()

    names = ("optimizer", "schedule", "second_optimizer", "second_schedule")
    state = {"model": model, **dict(zip(names, prepared, strict=False))}
    return Loop(
        step,
        state,
        lambda: logs,
        tiny.cut,
        lambda: tiny.saved(accelerator.save_state),
        lambda files: tiny.loaded(files, accelerator.load_state),
    )


make_fused, make_two = partial(make, fused=True), partial(make, two=True)

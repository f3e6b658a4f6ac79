"""The Trainer of Hugging Face transformers. Each batch is a training run, so that ``train`` itself
is judged.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from ampsim.testing import Loop
from experiments.frameworks import accelerate, tiny

batches = [{"data": data, "labels": labels} for data, labels in tiny.batches()]
LOGGED = ("loss", "grad_norm", "learning_rate")


def loop(scaler: torch.amp.GradScaler, trainer: Trainer) -> Loop:
    """Return the loop of ``trainer.train()``, for a Trainer of one step which was given
    ``optimizers=``.
    """
    accelerate.use(trainer.accelerator, scaler)
    fed: list[Any] = [None]
    trainer.get_train_dataloader = lambda: tiny.loader(fed)
    before = 0  # the steps of earlier runs

    def step(batch: Any) -> None:
        nonlocal before
        before += trainer.state.global_step
        fed[:] = tiny.parts(batch)
        trainer.args.gradient_accumulation_steps = len(fed)
        trainer.train()

    def write(folder: Path) -> None:
        trainer.args.output_dir = str(folder)
        trainer._save_checkpoint(trainer.model, None)  # noqa: SLF001

    def load(checkpoint: tuple[int, dict[str, bytes]]) -> None:
        nonlocal before
        before, files = checkpoint  # it loads, and trains no more
        tiny.loaded(
            files,
            lambda folder: trainer.train(
                resume_from_checkpoint=str(next(folder.iterdir()))
            ),
        )

    def logged() -> dict[str, float]:
        return {
            name: each[name]
            for each in trainer.state.log_history
            for name in LOGGED
            if name in each
        }

    state = {
        "model": trainer.model,
        "optimizer": trainer.optimizer,
        "schedule": trainer.lr_scheduler,
        "global_step": lambda: before + trainer.state.global_step,
    }
    return Loop(step, state, logged, cut, lambda: (before, tiny.saved(write)), load)


def cut(batch: dict[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """Return a batch as a list of micro-batches."""
    return [
        dict(zip(batch, part, strict=True))
        for part in zip(*(t.chunk(count) for t in batch.values()), strict=True)
    ]


class Model(nn.Module):
    """The tiny model, which returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tiny.model()

    def forward(self, data: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": tiny.loss_of(self.net, (data, labels))}


def make(scaler: torch.amp.GradScaler, *, fused: bool = False) -> Loop:
    """Make the loop of a Trainer with its default clipping."""
    arguments = TrainingArguments(
        tempfile.gettempdir(), use_cpu=True, max_steps=1, logging_steps=1, save_strategy="no", report_to=[],
        disable_tqdm=True,
    )  # fmt: skip
    model = Model()
    trainer = Trainer(
        model, arguments, train_dataset=[], optimizers=tiny.adam(model, fused=fused)
    )
    trainer.remove_callback(PrinterCallback)
    return loop(scaler, trainer)


make_fused = partial(make, fused=True)

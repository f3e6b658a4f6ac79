"""Lightning, with automatic and manual optimization. Each batch is an epoch, so that ``fit`` itself
is judged.
"""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor

from ampsim.testing import Loop
from experiments.frameworks import tiny

batches = tiny.batches()
QUIET = dict.fromkeys(
    ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"),
    False,
)


class Float32(MixedPrecision):
    """The plugin of ``16-mixed``, whose forward pass stays in float32."""

    def autocast_context_manager(self) -> torch.autocast:
        return torch.autocast("cpu", enabled=False)


def loop(scaler: torch.amp.GradScaler, module: LightningModule, **options: Any) -> Loop:
    """Return the loop of ``Trainer(**options).fit(module)``."""
    made = module.configure_optimizers()
    module.configure_optimizers = lambda: made
    trainer = Trainer(
        accelerator="cpu",
        plugins=[Float32("16-mixed", "cpu", scaler)],
        **QUIET,
        **options,
    )

    def step(batch: Any) -> None:
        if module.automatic_optimization:
            trainer.accumulate_grad_batches = len(tiny.parts(batch))
        trainer.fit_loop.max_epochs = trainer.current_epoch + 1
        trainer.fit(module, tiny.loader(tiny.parts(batch)))

    def save() -> tuple[int, dict[str, bytes]]:
        return trainer.current_epoch, tiny.saved(
            lambda folder: trainer.save_checkpoint(folder / "last.ckpt")
        )

    def load(checkpoint: tuple[int, dict[str, bytes]]) -> None:
        trainer.fit_loop.max_epochs, files = (
            checkpoint  # it loads, and then has no epoch left to train
        )
        none = tiny.loader([])
        tiny.loaded(
            files,
            lambda folder: trainer.fit(
                module, none, ckpt_path=folder / "last.ckpt", weights_only=False
            ),
        )

    state = {
        "module": module,
        "optimizer": made["optimizer"],
        "schedule": made["lr_scheduler"]["scheduler"],
        "global_step": lambda: trainer.global_step,
        "data": lambda: trainer.current_epoch,
    }
    return Loop(step, state, lambda: trainer.callback_metrics, tiny.cut, save, load)


class Automatic(LightningModule):
    """The tiny model with a schedule per step, and its loss in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny.model()

    def training_step(self, batch: tiny.Batch) -> Tensor:
        loss: Tensor = tiny.loss_of(self.model, batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer, schedule = tiny.adam(self)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Manual(Automatic):
    """The same by hand, clipped as the page on manual optimization does it."""

    automatic_optimization = False

    def training_step(self, batch: tiny.Batch, index: int) -> None:  # type: ignore[override]
        count, scaler = (
            self.trainer.num_training_batches,
            self.trainer.precision_plugin.scaler,
        )
        self.manual_backward(super().training_step(batch) / count)
        if index + 1 < count:
            return
        self.clip_gradients(self.optimizers(), 0.1)
        scale = scaler.get_scale()
        self.optimizers().step()
        self.optimizers().zero_grad()
        if scaler.get_scale() >= scale:  # the optimizer has stepped
            self.lr_schedulers().step()


def make(scaler: torch.amp.GradScaler) -> Loop:
    """Make the loop of automatic optimization, with clipping."""
    return loop(scaler, Automatic(), gradient_clip_val=0.1)


def make_manual(scaler: torch.amp.GradScaler) -> Loop:
    """Make the loop of manual optimization."""
    return loop(scaler, Manual())

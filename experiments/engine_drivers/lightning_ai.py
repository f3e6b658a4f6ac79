"""Lightning: Fabric, and the Trainer."""

from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision as FabricPrecision
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor

from experiments.engine_drivers.job import (
    Batch,
    Job,
    Result,
    loss_of,
    ranks,
    result,
    scaler_for,
    sgd,
    tiny,
)


def fabric(job: Job) -> Result:
    precision = FabricPrecision("16-mixed", "cpu", scaler=scaler_for(job))
    fabric = Fabric(
        accelerator="cpu", devices=ranks(), strategy=strategy(), plugins=[precision]
    )
    fabric.launch()
    inner = tiny()
    model, optimizer = fabric.setup(inner, sgd(inner.parameters()))
    path = job.folder / "checkpoint"
    # Model and optimizer, as Fabric's guide to checkpoints has it.
    if job.start:
        fabric.load(path, {"model": model, "optimizer": optimizer})
    for batch in job.batches[job.start : job.stop]:
        optimizer.zero_grad()
        fabric.backward(loss_of(model, batch))
        if job.clip:
            fabric.clip_gradients(model, optimizer, max_norm=job.clip)
        optimizer.step()
    fabric.save(path, {"model": model, "optimizer": optimizer})
    return result(model.parameters(), optimizer.optimizer, precision.scaler.get_scale())


def strategy() -> str:
    return "ddp" if ranks() > 1 else "auto"


class Module(LightningModule):  # type: ignore[misc]
    """The tiny network."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny()
        self.optimizer = sgd(self.model.parameters())

    def training_step(self, batch: Batch) -> Tensor:
        return loss_of(self.model, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer


def trainer(job: Job) -> Result:
    precision = MixedPrecision("16-mixed", "cpu", scaler=scaler_for(job))
    trainer = Trainer(
        accelerator="cpu",
        devices=ranks(),
        strategy=strategy(),
        plugins=[precision],
        max_epochs=2 if job.start else 1,
        gradient_clip_val=job.clip or None,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=job.folder,
    )
    module, path = Module(), job.folder / "checkpoint.ckpt"
    part: Any = list(job.batches[job.start : job.stop])
    loader = torch.utils.data.DataLoader(part, batch_size=None)
    trainer.fit(
        module, loader, ckpt_path=path if job.start else None, weights_only=False
    )
    trainer.save_checkpoint(path)
    return result(
        module.model.parameters(), module.optimizer, precision.scaler.get_scale()
    )

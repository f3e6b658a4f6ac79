"""accelerate, and the Trainer of transformers."""

from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from experiments.engine_drivers.job import (
    Job,
    Result,
    loss_of,
    result,
    scaler_for,
    sgd,
    tiny,
)


def use_fp16(accelerator: Accelerator, job: Job) -> None:
    """Switch an Accelerator on the CPU to fp16, which its constructor accepts on CUDA only."""
    accelerator.state._mixed_precision = "fp16"  # noqa: SLF001
    accelerator.native_amp = True
    accelerator.scaler = scaler_for(job)


def accelerate(job: Job) -> Result:
    accelerator = Accelerator(cpu=True)
    use_fp16(accelerator, job)
    inner = tiny()
    model, optimizer = accelerator.prepare(inner, sgd(inner.parameters()))
    if job.start:
        accelerator.load_state(str(job.folder))
    for batch in job.batches[job.start : job.stop]:
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = loss_of(model, batch)
        accelerator.backward(loss)
        if job.clip:
            accelerator.clip_grad_norm_(model.parameters(), job.clip)
        optimizer.step()
    accelerator.save_state(str(job.folder))
    return result(
        model.parameters(), optimizer.optimizer, accelerator.scaler.get_scale()
    )


class LossModel(nn.Module):
    """The tiny network with its loss in the output, as the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.tiny = tiny()

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": loss_of(self.tiny, (inputs, labels))}


class CpuScaling:
    """What a Trainer inherits here: fp16 on the CPU, and the batches of this rank in order."""

    job: Job

    def get_train_dataloader(self) -> DataLoader[Any]:
        pairs = [
            pair for batch in self.job.batches for pair in zip(*batch, strict=True)
        ]
        examples = [{"inputs": inputs, "labels": targets} for inputs, targets in pairs]
        return DataLoader(examples, len(self.job.batches[0][0]))  # type: ignore[arg-type]

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        use_fp16(self.accelerator, self.job)  # type: ignore[attr-defined]


def options(job: Job) -> dict[str, Any]:
    """Return the arguments of TrainingArguments."""
    return {
        "output_dir": str(job.folder),
        "use_cpu": True,
        "max_steps": job.stop,
        "save_strategy": "steps",
        "save_steps": job.stop,
        "max_grad_norm": job.clip,
        "report_to": [],
        "remove_unused_columns": False,
        "disable_tqdm": True,
        "logging_strategy": "no",
    }


def trained(job: Job, make: Callable[..., Any], model: Any, **arguments: Any) -> Result:
    """Train with a Trainer, and return the weights of the tiny network."""
    optimizer = sgd(model.tiny.parameters())
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = make(model=model, optimizers=(optimizer, constant), **arguments)
    trainer.train(resume_from_checkpoint=bool(job.start))
    return result(
        model.tiny.parameters(), optimizer, trainer.accelerator.scaler.get_scale()
    )


def transformers(job: Job) -> Result:
    class CpuTrainer(CpuScaling, Trainer):  # type: ignore[misc]
        pass

    CpuTrainer.job = job
    arguments = TrainingArguments(**options(job))
    return trained(job, CpuTrainer, LossModel(), args=arguments, train_dataset=[None])

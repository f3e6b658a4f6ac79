"""One function per engine: train a tiny model on a list of batches, and return what it ended with.

An engine that accepts fp16 only on CUDA gets a CPU GradScaler and CPU autocast. `Engine.replaced` states
what was replaced; the rest is the engine's own code.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Job:
    """What to train on: `batches[start:stop]`, from the checkpoint in `folder` unless start is 0."""

    batches: tuple[Batch, ...]
    scale: float
    clip: float  # maximum norm; 0 turns clipping off
    folder: Path
    start: int = 0
    stop: int = 0


@dataclass(frozen=True)
class Result:
    """What a run ended with."""

    parameters: list[Tensor]
    momenta: list[Tensor]
    scale: float


def tiny() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a network with fixed weights, and an optimizer whose step shows any factor in a gradient.

    The weights are exact in fp16, so engines with fp16 parameters start from the same values.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).half().float()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    loss: Tensor = (model(inputs).float() - targets).square().mean()
    return loss


def scaler_for(job: Job) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=job.scale)


def half() -> torch.autocast:
    return torch.autocast("cpu", torch.float16)


def result(model: nn.Module, optimizer: Any, scale: float) -> Result:
    parameters = [value.detach().float().clone() for value in model.parameters()]
    states = [state.get("momentum_buffer") for state in optimizer.state.values()]
    momenta = [value.detach().float().clone() for value in states if value is not None]
    return Result(parameters, momenta, scale)


def plain(job: Job) -> Result:
    """Train in float32 without a scaler: the reference."""
    model, optimizer = tiny()
    for batch in job.batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        if job.clip:
            nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        optimizer.step()
    return result(model, optimizer, 1.0)


def torch_loop(job: Job) -> Result:
    model, optimizer = tiny()
    scaler = scaler_for(job)
    parts: list[Any] = [model, optimizer, scaler]
    path = job.folder / "checkpoint.pt"
    if job.start:
        for part, state in zip(parts, torch.load(path), strict=True):
            part.load_state_dict(state)
    for batch in job.batches[job.start : job.stop]:
        optimizer.zero_grad()
        with half():
            loss = loss_of(model, batch)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if job.clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        scaler.step(optimizer)
        scaler.update()
    torch.save([part.state_dict() for part in parts], path)
    return result(model, optimizer, scaler.get_scale())


def on_cpu(accelerator: Any, job: Job) -> None:
    """Switch an Accelerator on the CPU to fp16, which its constructor accepts on CUDA only."""
    accelerator.state._mixed_precision = "fp16"  # noqa: SLF001
    accelerator.native_amp = True
    accelerator.scaler = scaler_for(job)


def accelerate(job: Job) -> Result:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    on_cpu(accelerator, job)
    model, optimizer = accelerator.prepare(*tiny())
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
    return result(model, optimizer.optimizer, accelerator.scaler.get_scale())


class LossModel(nn.Module):
    """The tiny network with its loss in the output, as the Trainer wants it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": loss_of(self.model, (inputs, labels))}


def transformers(job: Job) -> Result:
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any) -> torch.utils.data.Sampler[int]:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            on_cpu(self.accelerator, job)

    model, optimizer = tiny()
    examples = [
        {"inputs": x, "labels": y}
        for inputs, targets in job.batches
        for x, y in zip(inputs, targets, strict=True)
    ]
    options = TrainingArguments(
        str(job.folder), use_cpu=True, max_steps=job.stop, save_strategy="steps", save_steps=job.stop,
        per_device_train_batch_size=len(job.batches[0][0]), max_grad_norm=job.clip, report_to=[],
        remove_unused_columns=False, disable_tqdm=True, save_only_model=False, logging_strategy="no",
    )  # fmt: skip
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = InOrder(
        LossModel(model), options, train_dataset=examples, optimizers=(optimizer, constant)
    )
    saved = str(job.folder / f"checkpoint-{job.start}") if job.start else None
    trainer.train(resume_from_checkpoint=saved)
    return result(model, optimizer, trainer.accelerator.scaler.get_scale())


def fabric(job: Job) -> Result:
    from lightning.fabric import Fabric
    from lightning.fabric.plugins.precision import MixedPrecision

    precision = MixedPrecision("16-mixed", "cpu", scaler=scaler_for(job))
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[precision])
    fabric.launch()
    inner, plain_optimizer = tiny()
    model, optimizer = fabric.setup(inner, plain_optimizer)
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
    return result(inner, plain_optimizer, precision.scaler.get_scale())


def lightning(job: Job) -> Result:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.plugins.precision import MixedPrecision

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.optimizer = tiny()

        def training_step(self, batch: Batch) -> Tensor:
            return loss_of(self.model, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.optimizer

    precision = MixedPrecision("16-mixed", "cpu", scaler=scaler_for(job))
    trainer = Trainer(
        accelerator="cpu", devices=1, plugins=[precision], max_epochs=2 if job.start else 1, logger=False,
        gradient_clip_val=job.clip or None, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=job.folder,
    )  # fmt: skip
    module, path = Module(), job.folder / "checkpoint.ckpt"
    part: Any = list(job.batches[job.start : job.stop])
    loader = torch.utils.data.DataLoader(part, batch_size=None)
    trainer.fit(module, loader, ckpt_path=path if job.start else None, weights_only=False)
    trainer.save_checkpoint(path)
    return result(module.model, module.optimizer, precision.scaler.get_scale())


def mmengine(job: Job) -> Result:
    from mmengine.optim.optimizer import amp_optimizer_wrapper as amp

    amp.is_cuda_available = lambda: True
    amp.GradScaler = lambda **options: torch.amp.GradScaler("cpu", **options)
    model, optimizer = tiny()
    clip = {"max_norm": job.clip} if job.clip else None
    wrapper = amp.AmpOptimWrapper({"init_scale": job.scale}, optimizer=optimizer, clip_grad=clip)
    path = job.folder / "checkpoint.pt"
    if job.start:
        saved = torch.load(path)
        model.load_state_dict(saved[0])
        wrapper.load_state_dict(saved[1])
    for batch in job.batches[job.start : job.stop]:
        with half():
            loss = loss_of(model, batch)
        wrapper.update_params(loss)
    torch.save([model.state_dict(), wrapper.state_dict()], path)
    return result(model, optimizer, wrapper.loss_scaler.get_scale())


class CudaNames(TorchFunctionMode):
    """Place tensors for "cuda" on the CPU, and name the types of CPU tensors as CUDA's."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if options.get("device") == "cuda":
            options["device"] = "cpu"
        if func is Tensor.cuda:
            return args[0]
        value = func(*args, **options)
        if func is Tensor.type and isinstance(value, str):
            return value.replace("torch.", "torch.cuda.")
        return value


def slime(job: Job) -> Result:
    """Train with slime's order of calls where it checks for NaN itself: prepare_grads, then step."""
    # slime/backends/megatron_utils/model.py at 624b824a, train_one_step
    return megatron(job, prepare_first=True)


def megatron(job: Job, prepare_first: bool = False) -> Result:
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.optimizer.grad_scaler import DynamicGradScaler
    from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params

    alone()
    model, _ = tiny()
    model.half()
    group = {"params": list(model.parameters()), "wd_mult": 1.0, "lr_mult": 1.0}
    group |= {"is_expert_parallel": False, "is_decoupled_lr": False}
    optimizer = torch.optim.SGD([group], lr=0.1, momentum=0.9)
    config = OptimizerConfig(fp16=True, clip_grad=job.clip)
    path = job.folder / "checkpoint.pt"
    with CudaNames(), mock.patch("torch.cuda.current_device", return_value=0):
        scaler = DynamicGradScaler(job.scale, 1.0, 2.0, 0.5, growth_interval=2000, hysteresis=1)
        wrapper = Float16OptimizerWithFloat16Params(optimizer, config, scaler, lambda *_: None)
        wrapper.grad_stats_parallel_group = torch.distributed.group.WORLD
        wrapper.model_parallel_group = wrapper.tp_group = torch.distributed.group.WORLD
        if job.start:
            saved = torch.load(path)
            model.load_state_dict(saved[0])
            wrapper.load_state_dict(saved[1])
        for inputs, targets in job.batches[job.start : job.stop]:
            wrapper.zero_grad()
            wrapper.scale_loss(loss_of(model, (inputs.half(), targets))).backward()
            value: Any
            for value in model.parameters():
                value.main_grad = value.grad.float()  # Megatron's DDP accumulates in float32
            if not (prepare_first and wrapper.prepare_grads()):
                wrapper.step()
        torch.save([model.state_dict(), wrapper.state_dict()], path)
        scale = float(wrapper.get_loss_scale())
    main = nn.ParameterList(value for group in wrapper.fp32_from_float16_groups for value in group)
    return result(main, optimizer, scale)


def deepspeed(job: Job) -> Result:
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    alone()
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo, without a compiler
    accelerator = type(get_accelerator())
    accelerator.is_fp16_supported = lambda self: True
    accelerator.supported_dtypes = lambda self: [torch.float32, torch.float16, torch.bfloat16]
    model, _ = tiny()
    model.half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    power = int(job.scale).bit_length() - 1
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "fp16": {"enabled": True, "initial_scale_power": power, "hysteresis": 1},
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": job.clip,
    }
    engine, *_ = deepspeed.initialize(
        dist_init_required=False, model=model, optimizer=optimizer, config=config
    )
    if job.start:
        engine.load_checkpoint(str(job.folder))
    for inputs, targets in job.batches[job.start : job.stop]:
        engine.backward(loss_of(engine, (inputs.half(), targets)))
        engine.step()
    engine.save_checkpoint(str(job.folder))
    padded = engine.optimizer.single_partition_of_fp32_groups[0]
    main = nn.ParameterList([padded[: sum(value.numel() for value in model.parameters())]])
    return result(main, optimizer, float(engine.optimizer.loss_scale))


def alone() -> None:
    """Start a gloo group of this process alone, once."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


@dataclass(frozen=True)
class Engine:
    """An engine of the table."""

    train: Callable[[Job], Result]
    package: str
    replaced: str


ENGINES = {
    "torch": Engine(torch_loop, "torch", "nothing"),
    "accelerate": Engine(accelerate, "accelerate", "fp16 and a CPU GradScaler set after construction"),
    "transformers": Engine(transformers, "transformers", "as accelerate"),
    "fabric": Engine(fabric, "lightning", "a CPU GradScaler is passed"),
    "lightning": Engine(lightning, "lightning", "a CPU GradScaler is passed"),
    "mmengine": Engine(mmengine, "mmengine", "the CUDA check; a CPU GradScaler; CPU autocast"),
    "megatron": Engine(megatron, "megatron-core", 'device="cuda" means the CPU; names of CUDA types'),
    "slime": Engine(slime, "megatron-core", "as megatron; slime's order of calls is copied"),
    "deepspeed": Engine(deepspeed, "deepspeed", "the fp16 support check of the CPU accelerator"),
}  # fmt: skip

"""Loops of ten client libraries, each with torch's scaler and with ours: every parameter and every
scale the same bits.

A library's own code calls the scaler. What is changed beside the scaler are its checks that there
is a CUDA device. Each is skipped where its library is missing: accelerate and lightning run
wherever they are installed, the others by `make deep`, which installs them. Scaled losses overflow
at first, and after growing.
"""

import copy
import importlib.util
import itertools
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from ampsim.torch import GradScaler

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries, about each other
LOOPS = []
HOW = "pip install -c constraints.txt --group clients; timm and fastai as pyproject.toml says there"
BATCHES = 24


def client(*modules, deep=True, **variants):
    """Register a loop, once per variant, of a library's modules."""

    def register(loop):
        for name, options in (variants or {"": {}}).items():
            marks = [
                pytest.mark.framework(*modules, how=HOW),
                *[pytest.mark.deep] * deep,
            ]
            LOOPS.append(
                pytest.param(
                    loop, options, marks=marks, id=f"{loop.__name__} {name}".strip()
                )
            )
        return loop

    return register


def scaler_of(make, **options):
    return make("cpu", **{"init_scale": 2.0**126, "growth_interval": 2, **options})


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    )


def batches():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCHES, 16, 4, generator=generator)
    return torch.utils.data.TensorDataset(
        x.flatten(0, 1), 9 * x.flatten(0, 1).sum(1, keepdim=True)
    )


def loader():
    return torch.utils.data.DataLoader(batches(), batch_size=16)


class Log(list):
    """Scales, skips and rates of a run, with its parameters at the end."""

    def ended(self, net):
        return [*self, *(param.detach().clone() for param in net.parameters())]


@client(
    "accelerate", deep=False, plain={}, fused={"fused": True}, accumulating={"steps": 3}
)
def accelerate(make, monkeypatch, tmp_path, fused=None, steps=1):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    def prepared(scaler):
        AcceleratorState._reset_state(True)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
        (
            accelerator.state._mixed_precision,
            accelerator.scaler,
            accelerator.native_amp,
        ) = (
            "fp16",
            scaler,
            True,
        )
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        return accelerator, *accelerator.prepare(net, optimizer, loader(), schedule)

    log = Log()
    accelerator, net, optimizer, data, schedule = prepared(
        scaler_of(make, init_scale=2.0**22)
    )
    for epoch in range(2):
        if epoch:  # a resumed run
            accelerator.save_state(tmp_path)
            accelerator, net, optimizer, data, schedule = prepared(scaler_of(make))
            accelerator.load_state(tmp_path)
        for x, y in data:
            with accelerator.accumulate(net):
                accelerator.backward(functional.mse_loss(net(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            log += [
                accelerator.scaler.get_scale(),
                optimizer.step_was_skipped,
                schedule.get_last_lr(),
            ]
    return log.ended(net)


@client(
    "lightning",
    deep=False,
    plain={},
    clip={"gradient_clip_val": 0.5},
    accumulating={"accumulate_grad_batches": 2},
    manual={"manual": 1},
    two_optimizers={"manual": 2},
)
def lightning(make, monkeypatch, tmp_path, manual=0, **options):
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.plugins import MixedPrecision

    log = Log()

    class Net(LightningModule):
        def __init__(self):
            super().__init__()
            self.nets, self.automatic_optimization = (
                torch.nn.ModuleList([model(), model()][: manual or 1]),
                not manual,
            )

        def configure_optimizers(self):
            return [torch.optim.Adam(net.parameters(), lr=0.01) for net in self.nets]

        def training_step(self, batch, index):
            losses = (functional.mse_loss(net(batch[0]), batch[1]) for net in self.nets)
            if not manual:
                return next(losses)
            optimizers = self.optimizers()
            for loss, optimizer in zip(
                losses, optimizers if manual == 2 else [optimizers], strict=True
            ):
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()

        def on_train_batch_end(self, *_):
            log.append(self.trainer.precision_plugin.scaler.get_scale())

    for epochs in (1, 2):
        net, plugin = (
            Net(),
            MixedPrecision(
                "16-mixed", "cpu", scaler=scaler_of(make, init_scale=2.0**22)
            ),
        )
        quiet = dict.fromkeys(
            (
                "logger",
                "enable_progress_bar",
                "enable_model_summary",
                "enable_checkpointing",
            ),
            False,
        )
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            plugins=[plugin],
            default_root_dir=tmp_path,
            **quiet,
            **options,
        )
        trainer.fit(
            net,
            loader(),
            ckpt_path=tmp_path / "half" if epochs == 2 else None,
            weights_only=False,
        )
        trainer.save_checkpoint(tmp_path / "half")
    return log.ended(net)


@client("lightning", deep=False, clip={}, fused={"fused": True})
def fabric(make, monkeypatch, tmp_path, fused=None):
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    log, scaler = Log(), scaler_of(make, init_scale=2.0**22)
    fabric = Fabric(
        accelerator="cpu", plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)]
    )
    bare = model()
    net, optimizer = fabric.setup(
        bare, torch.optim.Adam(bare.parameters(), lr=0.01, fused=fused)
    )
    for x, y in loader():
        optimizer.zero_grad()
        fabric.backward(functional.mse_loss(net(x), y))
        if not fused:
            fabric.clip_gradients(
                net, optimizer, max_norm=0.5, error_if_nonfinite=False
            )
        optimizer.step()
        log.append(scaler.get_scale())
    return log.ended(bare)


@client(
    "transformers",
    "accelerate",
    plain={"optim": "adamw_torch"},
    fused={"optim": "adamw_torch_fused"},
)
def transformers(make, monkeypatch, tmp_path, optim):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    log = Log()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model()

        def forward(self, x, labels):
            return {"loss": functional.mse_loss(self.net(x), labels)}

    class On(Trainer):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            accelerator = self.accelerator
            accelerator.state._mixed_precision, accelerator.native_amp = "fp16", True
            accelerator.scaler = scaler_of(make, init_scale=2.0**22)

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            log.extend(
                [
                    trainer.accelerator.scaler.get_scale(),
                    trainer.lr_scheduler.get_last_lr(),
                ]
            )

    items = [{"x": x, "labels": y} for x, y in batches()]
    for resume in (False, True):
        arguments = TrainingArguments(
            str(tmp_path), use_cpu=True, max_steps=BATCHES, per_device_train_batch_size=16, optim=optim, save_steps=5,
            report_to=[], disable_tqdm=True, logging_strategy="no", learning_rate=0.01, remove_unused_columns=False,
        )  # fmt: skip
        trainer = On(Net(), arguments, train_dataset=items, callbacks=[Watch()])
        trainer.train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-5") if resume else None
        )
        log += trainer.model.parameters()
    return log


@client("ignite", plain={}, accumulating={"gradient_accumulation_steps": 2})
def ignite(make, monkeypatch, tmp_path, **options):
    from ignite.engine import Events, create_supervised_trainer

    log, scaler, net = Log(), scaler_of(make), model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    trainer = create_supervised_trainer(
        net,
        optimizer,
        functional.mse_loss,
        "cpu",
        amp_mode="amp",
        scaler=scaler,
        **options,
    )
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda: log.append(scaler.get_scale())
    )
    trainer.run(loader(), max_epochs=2)
    return log.ended(net)


@client("mmengine", dynamic={}, static={"loss_scale": 512.0}, dict={"loss_scale": {"init_scale": 2.0**125}},
        accumulating={"accumulative_counts": 3})  # fmt: skip
def mmengine(make, monkeypatch, tmp_path, loss_scale="dynamic", **options):
    from mmengine.optim.optimizer import amp_optimizer_wrapper as wrapping

    monkeypatch.setattr(wrapping, "is_cuda_available", lambda: True)
    monkeypatch.setattr(
        wrapping, "GradScaler", lambda **constants: scaler_of(make, **constants)
    )
    log, net = Log(), model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    wrapper = wrapping.AmpOptimWrapper(
        loss_scale=loss_scale,
        optimizer=optimizer,
        clip_grad={"max_norm": 1.0},
        **options,
    )
    wrapper.initialize_count_status(net, 0, 2 * BATCHES)
    for x, y in itertools.chain(loader(), loader()):
        wrapper.update_params(functional.mse_loss(net(x), y))
        log.append(wrapper.loss_scaler.get_scale())
        wrapper.load_state_dict(copy.deepcopy(wrapper.state_dict()))
    return log.ended(net)


@client("fastai", plain={}, clip={"clip": True}, accumulating={"accumulate": True})
def fastai(make, monkeypatch, tmp_path, clip=False, accumulate=False):
    from fastai.basics import DataLoader, DataLoaders, Learner
    from fastai.callback import fp16
    from fastai.callback.training import GradientAccumulation, GradientClip

    monkeypatch.setattr(
        fp16, "GradScaler", lambda _, enabled, **constants: scaler_of(make, **constants)
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    log, net = Log(), model()
    data = DataLoaders(
        DataLoader(batches(), bs=16), DataLoader(batches(), bs=16), device="cpu"
    )
    mixed = fp16.MixedPrecision()
    callbacks = [
        mixed,
        *[GradientClip(0.5)] * clip,
        *[GradientAccumulation(32)] * accumulate,
    ]
    learner = Learner(
        data, net, loss_func=torch.nn.MSELoss(), cbs=callbacks, path=tmp_path
    )
    after = mixed.after_step
    mixed.after_step = lambda: (after(), log.append(learner.scaler.get_scale()))
    with learner.no_bar(), learner.no_logging():
        learner.fit(2)
    return log.ended(net)


@client("skorch", "accelerate")
def skorch(make, monkeypatch, tmp_path):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from skorch import NeuralNetRegressor
    from skorch.hf import AccelerateMixin

    log = Log()

    class Net(AccelerateMixin, NeuralNetRegressor):
        def on_batch_end(self, *args, **kwargs):
            super().on_batch_end(*args, **kwargs)
            log.append(accelerator.scaler.get_scale())

    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    accelerator.state._mixed_precision, accelerator.native_amp = "fp16", True
    accelerator.scaler = scaler_of(make, init_scale=2.0**22)
    torch.manual_seed(0)
    net = Net(model(), accelerator=accelerator, optimizer=torch.optim.Adam, max_epochs=2, batch_size=16, verbose=0,
              train_split=None)  # fmt: skip
    x, y = (part.numpy() for part in batches().tensors)
    net.fit(x, y)
    return log.ended(net.module_)


@client("monai", "ignite")
def monai(make, monkeypatch, tmp_path):
    from ignite.engine import Events
    from monai.engines import SupervisedTrainer

    log, net = Log(), model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    data = [{"image": x, "label": y} for x, y in loader()]
    trainer = SupervisedTrainer(
        "cpu", 2, data, net, optimizer, torch.nn.MSELoss(), amp=True
    )
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", lambda: scaler_of(make))
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda: log.append(trainer.scaler.get_scale())
    )
    trainer.run()
    return log.ended(net)


@client("monai", "ignite")
def monai_adversarial(make, monkeypatch, tmp_path):
    from ignite.engine import Events
    from monai.engines import AdversarialTrainer

    log, generator, critic = Log(), torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    for net in (generator, critic):
        torch.nn.init.constant_(net.weight, 0.5)
        torch.nn.init.constant_(net.bias, 0.1)
    data = [{"image": x, "label": x} for x, _ in loader()]
    generating, judging = (
        torch.optim.Adam(net.parameters(), lr=0.01) for net in (generator, critic)
    )
    trainer = AdversarialTrainer(
        "cpu", 2, data, generator, generating, lambda fake: 9 * fake.square().mean(), torch.nn.MSELoss(),
        critic, judging, lambda real, fake: 9 * (real - fake).square().mean(), amp=True,
    )  # fmt: skip
    scalers = trainer.state.g_scaler, trainer.state.d_scaler = (
        scaler_of(make),
        scaler_of(make),
    )
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda: log.extend(s.get_scale() for s in scalers)
    )
    trainer.run()
    return log.ended(torch.nn.ModuleList([generator, critic]))


@client(
    "torchtnt",
    "pkg_resources",
    clip={"clip_grad_norm": 0.5},
    accumulating={"gradient_accumulation_steps": 2},
)
def torchtnt(make, monkeypatch, tmp_path, **options):
    from torchtnt.framework import auto_unit, train

    scaler, log, net = scaler_of(make, init_scale=2.0**22), Log(), model()
    monkeypatch.setattr(
        auto_unit, "get_grad_scaler_from_precision", lambda *_, **__: scaler
    )

    class Unit(auto_unit.AutoUnit):
        def compute_loss(self, state, batch):
            out = self.module(batch[0])
            return functional.mse_loss(out, batch[1]), out

        def configure_optimizers_and_lr_scheduler(self, module):
            return torch.optim.Adam(module.parameters(), lr=0.01), None

        def on_train_step_end(self, *args, **kwargs):
            super().on_train_step_end(*args, **kwargs)
            log.append(scaler.get_scale())

    unit = Unit(module=net, device=torch.device("cpu"), precision="fp16", **options)
    train(unit, loader(), max_epochs=2)
    return log.ended(net)


@client(
    "timm",
    norm={"mode": "norm"},
    value={"mode": "value"},
    agc={"mode": "agc"},
    late={"every": 2},
)
def timm(make, monkeypatch, tmp_path, mode="norm", every=1):
    root = Path(importlib.util.find_spec("timm").origin).parent
    for name, path in (
        ("timm", root),
        ("timm.utils", root / "utils"),
    ):  # its __init__ wants torchvision, and this does not
        package = types.ModuleType(name)
        package.__path__ = [str(path)]
        monkeypatch.setitem(sys.modules, name, package)
    NativeScaler = importlib.import_module("timm.utils.cuda").NativeScaler  # noqa: N806

    log, net, native = Log(), model(), NativeScaler("cpu")
    native._scaler = scaler_of(make)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for i, (x, y) in enumerate(itertools.chain(loader(), loader())):
        loss = functional.mse_loss(net(x), y)
        native(
            loss,
            optimizer,
            0.5,
            mode,
            net.parameters(),
            need_update=(i + 1) % every == 0,
        )
        if (i + 1) % every == 0:
            optimizer.zero_grad()
        log.append(native.state_dict()["scale"])
    return log.ended(net)


@client(
    "torch",
    plain={},
    fused={"fused": True},
    averaged={"averaged": True},
    compiled={"compiled": True},
)
def bare(make, monkeypatch, tmp_path, fused=None, averaged=False, compiled=False):
    log, net, scaler = Log(), model(), scaler_of(make, init_scale=2.0**22)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused)
    average = torch.optim.swa_utils.AveragedModel(net)

    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = functional.mse_loss(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    step = torch.compile(step, backend="eager") if compiled else step
    for x, y in itertools.chain(loader(), loader()):
        step(x, y)
        average.update_parameters(net)
        log.append(scaler.get_scale())
    return log.ended(average if averaged else net)


@pytest.mark.parametrize(("loop", "options"), LOOPS)
def test_client_library_results_are_bit_identical(loop, options, monkeypatch, tmp_path):
    logs = []
    for i, make in enumerate((torch.amp.GradScaler, GradScaler)):
        (tmp_path / str(i)).mkdir()
        with monkeypatch.context() as patch:
            logs.append(loop(make, patch, tmp_path / str(i), **options))
    scales = [entry for entry in logs[0] if isinstance(entry, float)]
    changes = {
        after > before
        for before, after in itertools.pairwise(scales)
        if after != before
    }
    assert changes == {False, True} or "loss_scale" in options, (
        "a run without overflow and growth shows nothing"
    )
    assert len(logs[0]) == len(logs[1])
    for i, (theirs, ours) in enumerate(zip(*logs, strict=True)):
        same = (
            torch.equal(theirs, ours)
            if isinstance(theirs, torch.Tensor)
            else theirs == ours
        )
        assert same, (
            f"entry {i} of {len(logs[0])}: {theirs} with torch's scaler, {ours} with ours"
        )

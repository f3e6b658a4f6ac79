# ruff: noqa: E501 - tables of words
"""The words by which lint knows what a name is: each that is taken for one, and each that is not."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ampsim.lint
from ampsim.lint.command import files_of
from ampsim.lint.engine import RULES, lint
from ampsim.lint.names import kind_by_class, kind_by_name
from tests.golden import agree

GOLDEN = Path(__file__).parent / "golden"
CLASSES = [
    "GradScaler",
    "NativeScaler",
    "LossScaler",
    "AmpScaler",
    "DynamicLossScaler",
    "StandardScaler",
    "AveragedModel",
    "ModelEma",
    "ModelEmaV2",
    "ExponentialMovingAverage",
    "EMA",
    "EMAHook",
    "LitEMA",
    "EMAModel",
    "EmaModel",
    "EmaHelper",
    "Emacs",
    "lr_scheduler.StepLR",
    "StepLR",
    "LambdaLR",
    "OneCycleLR",
    "CosineLRScheduler",
    "get_linear_schedule_with_warmup",
    "get_cosine_schedule",
    "get_schedule_fn",
    "CosineAnnealingWarmRestarts",
    "ReduceLROnPlateau",
    "SGD",
    "Adam",
    "AdamW",
    "Adamax",
    "RMSprop",
    "LBFGS",
    "Lion",
    "Lamb",
    "LAMB",
    "Adafactor",
    "RAdam",
    "NAdam",
    "Adagrad",
    "AdamWrapped",
    "FusedOptimizer",
    "Optimizer",
    "optim.Muon",
    "torch.optim.ASGD",
    "torch.optim.lr_scheduler.PolynomialLR",
    "optim.swa_utils",
    "Linear",
    "Dataset",
    "Meter",
]
NAMES = [
    "scaler",
    "grad_scaler",
    "self.scaler",
    "rescaler",
    "amp_scaler",
    "loss_scaler",
    "sched",
    "self.scheduler",
    "lr_sche",
    "lr_policy",
    "lr",
    "ema",
    "self.ema",
    "ema_2",
    "model_ema",
    "swa",
    "swa_model",
    "emaNet",
    "swaModel",
    "averaged_model",
    "EMA",
    "schema",
    "ema_loss",
    "ema_acc",
    "ema_time",
    "ema_meter",
    "ema_metric",
    "ema_norm",
    "ema_grad_",
    "optim",
    "optimizer",
    "self.optimizers",
    "opt",
    "opt_g",
    "opts",
    "opt2",
    "g_opt",
    "d_opts",
    "optG",
    "option",
    "options",
    "adopt",
    "accelerator",
    "self.fabric",
    "state['ema']",
    "args.opt",
    "cfg",
    "clip_grad",
    "clip_grad_norm_",
    "clip_grads",
    "clip_grad_value_",
    "clip_grad_with_norm",
    "average",
    "update_parameters",
    "update_average",
    "lerp_",
    "model",
    "net",
    "network",
    "module",
    "generator",
    "parameters",
    "the_model",
    "adjust_learning_rate",
    "set_lr",
    "update_lr",
    "step_update",
    "step_batch",
    "iteration",
    "step",
    "progress",
    "updates",
    "it",
    "i",
    "n_i",
    "idx",
    "index",
    "iter",
    "found_inf",
    "total_norm",
    "grad_norm",
    "gnorm",
    "norm",
    "g_norm",
    "accum",
    "accumulation",
    "sync_gradients",
    "update_grad",
    "micro",
    "require_backward_grad_sync",
    "no_sync",
    "skip",
    "skipped",
    "overflow",
    "finite",
    "is_finite",
    "found",
    "verdict",
    "update",
    "step_start",
    "steps_begin",
    "updates_after",
    "cfg",
    "config",
    "conf",
    "args",
    "opts",
    "hparams",
    "hps",
    "hp",
    "params",
    "flags",
    "options",
    "settings",
    "rank",
    "master",
    "main_process",
    "is_main",
    "mode",
    "interval",
    "type",
    "name",
    "policy",
    "save",
    "save_checkpoint",
    "_save_ckpt",
    "save_state",
    "save_models",
    "epoch_saving",
    "vector_norm",
    "get_total_norm",
    "clamp",
    "clamp_",
    "clip_",
    "square",
    "histogram",
    "histc",
    "abs",
    "peft",
    "lora",
    "adapter",
    "requires_grad",
    "cast_training",
    "float32",
    "fp32",
    "scale_loss",
    "DynamicScale",
    "dynamic_scale",
    "DynamicLossScale",
    "trainer",
    "strategy",
    "plugin",
    "engine",
    "precision",
    "self",
    "counter",
    "ni",
    "nan",
    "isnan",
    "loss",
    "losses",
    "err",
    "cost",
    "loss_scale",
    "loss_weight",
    "loss_coef",
    "loss_fn",
    "loss_func",
    "loss_meter",
    "loss_log",
    "loss_dict",
    "global_step",
    "epoch",
    "indx",
    "named_parameters",
    "buffers",
    "training",
    "state_dict",
    "param_groups",
    "state",
    "defaults",
    "zero_grad",
    "get_lr",
    "get_last_lr",
    "last_epoch",
    "amp",
    "fp16",
    "bf16",
    "use_amp",
    "is_train",
    "half",
    "get_scale",
    "no_grad",
    "debug",
    "resume",
    "eval",
    "test",
    "world_size",
    "distributed",
    "enabled",
    "is_enabled",
]
TEXTS = [
    "accelerator.backward(loss)", "fabric.backward(loss)", "self.backward(loss)", "import accelerate", "from accelerate import A", "with accelerator.accumulate(m):", "Fabric(1)",
    'Accelerator(mixed_precision="fp16")', "Fabric(precision=16)", "# ampsim: ignore", "#ampsim:ignore[AMP101]", "torch.half", "dtype=torch.float16", ".half()", "model.half()", ".to(torch.half)", "    dtype = torch.float16",
    "net.to(device, dtype=torch.float16)", "GradScaler(enabled=True)", "GradScaler(enabled=amp)", "enabled=False", "params - grads", "apply_updates(u)", "apply_gradients(g)", "optax.update(", "x.float()", "accum >= 1", "n == 0", "n > 2",
    "opt_level='O1'", "opt_level='O2', loss_scale=128.0", "loss_scale='dynamic'", "loss_scale=1", "torch.cuda.synchronize", "torch.distributed.x", "torch.nn.functional.relu", "torch.utils.data", "torch.autograd.grad", "torch.jit.x", "torch.save", "torch.load", "torch.ones",
    "scaler.get_scale() < before", "scaler.get_scale() >= old_scale", "not skipped", "optimizer_was_run", "step_was_skipped", "is_overflow", "found_inf.item()", "scale_after < scale_before", "grads_finite", "stepped", "if overflow",
    "%matplotlib inline", "!pip install timm", "    % (name,)", "AutoModel.from_pretrained(x, torch_dtype=torch.float16)", "model = Net().half()", "self.model.half()", "x.half()", "image.half()",
]  # fmt: skip


def known() -> Iterator[tuple[str, object]]:
    """Yield the patterns and the sets of words of all files, each by where it stands."""
    for each in sorted(pkgutil.walk_packages(ampsim.lint.__path__, "ampsim.lint."), key=lambda each: each.name):
        module = importlib.import_module(each.name)
        for name, value in vars(module).items():
            stack = [(f"{each.name.removeprefix('ampsim.lint.')}.{name}", value)]
            while stack:
                place, held = stack.pop()
                if isinstance(held, re.Pattern) or (
                    isinstance(held, set | frozenset) and all(isinstance(one, str) for one in held)
                ):
                    yield place, held
                elif isinstance(held, tuple):
                    stack += [(f"{place} {number}", one) for number, one in enumerate(held)]
                elif isinstance(held, dict):
                    stack += [(f"{place} {key}", one) for key, one in held.items()]


def test_what_each_pattern_takes_and_each_set_holds() -> None:
    found, seen = {}, set[int]()
    for place, held in known():
        if id(held) not in seen:
            seen.add(id(held))
            words = (
                sorted(held)
                if not isinstance(held, re.Pattern)
                else [each for each in [*CLASSES, *NAMES, *TEXTS] if held.search(each)]
            )
            found[place] = " | ".join(words)
    agree(GOLDEN / "words.txt", found)


def test_what_kind_a_class_and_a_name_are() -> None:
    classes = [f"{each} {kind}" for each in CLASSES if (kind := kind_by_class(each))]
    names = [f"{each} {kind}" for each in NAMES if (kind := kind_by_name(each))]
    agree(GOLDEN / "kinds.txt", {"classes": "\n".join(classes), "names": "\n".join(names)})


@pytest.mark.parametrize(
    "made",
    [
        "get_linear_schedule_with_warmup(optimizer, 10, 100)",
        "CosineAnnealingLR(optimizer, 9)",
        "OneCycleLR(optimizer, 0.1)",
    ],
)
def test_a_schedule_is_known_by_what_makes_it_whatever_its_name_is(made: str) -> None:
    wrong = RULES["AMP101"].wrong
    text = f"warm = {made}\n{wrong.replace('scheduler.step()', 'warm.step()')}"
    assert [each.code for each in lint(text)] == ["AMP101"]


@pytest.mark.parametrize(
    ("between", "codes"),
    [("print(a)", ["AMP129"]), ("optimizer.zero_grad()", ["AMP129"]), ("log(a)", []), ("scaler.update()", [])],
)
def test_two_reads_of_a_scale_with_nothing_between_that_steps_tell_no_skip(between: str, codes: list[str]) -> None:
    text = f"""scaler = torch.amp.GradScaler()
for batch in loader:
    scaler.scale(model(batch)).backward()
    scaler.step(optimizer)
    scaler.update()
    a = scaler.get_scale()
    {between}
    skip = a > scaler.get_scale()
    if not skip:
        scheduler.step()
"""
    assert [each.code for each in lint(text, codes=["AMP129"])] == codes


@pytest.mark.parametrize(
    "line",
    ["with torch.cuda.amp.autocast(): pass", "s = torch.cuda.amp.GradScaler()", "from torch.cuda.amp import autocast", "from torch.cuda.amp import GradScaler", "from torch.cuda import amp", "from torch.cuda.amp.grad_scaler import GradScaler"],
)  # fmt: skip
def test_each_use_of_what_is_deprecated_is_found(line: str) -> None:
    text = f"scaler = torch.amp.GradScaler()\n{line}"
    assert [each.code for each in lint(text, codes=["AMP116"])] == ["AMP116"]


def test_folders_of_tools_are_left_out(tmp_path: Path) -> None:
    names = [
        "venv",
        ".venv",
        "node_modules",
        "__pycache__",
        "site-packages",
        "build",
        "dist",
        "env",
        "src",
        "builds",
        ".git",
    ]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").touch()
    assert [path.parent.name for path in files_of(tmp_path)] == ["builds", "env", "src"]

"""When does a transformer in fp16 need loss scaling, and does it matter how the scale moves?

A byte-level GPT on text from Python's documentation. Its residual stream is float32 under autocast, as in practice;
the branches, and each weight's gradient, are fp16. Arms:

- `fp32`, `bf16`, and fp16 `unscaled`, with a fixed scale, and with our dynamic scaler at three growth intervals G;
- `init 2^k`: dynamic, G=50, from a start far too low and far too high;
- `sum`: the loss is the sum over the batch's tokens instead of their mean, dynamic, G=50;
- `global`: the batch is one micro-batch of a global batch of 2^22 tokens and its loss is divided by the number
  of tokens in *that*, as under gradient accumulation; in float32, unscaled, and dynamic, G=50.

In every fp16 arm a step with a non-finite gradient is skipped. Adam's eps is 1e-15 in all arms: Adam does not see
a factor on all gradients until they reach eps, and with the usual 1e-8 the arms of the global batch would
differ in eps, not in underflow.

Takes about four minutes on two CPU cores (native fp16, one thread a process), and so the model is small: 2 layers,
0.1 million parameters. Device: cpu, or cuda with `--device cuda`, where it is GPT-2 small with 124 million; bytes are
the first 256 entries of its vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ampsim.core.records import Record
from ampsim.torch import GradScaler
from experiments import _fp16, _run, _text
from experiments.models.gpt import BYTES, GPT, GPT2_SMALL, Size

GLOBAL_TOKENS = 2**22  # of a global batch
EVALUATED = 8192  # tokens in a final loss
TYPES = {"fp32": torch.float32, "global fp32": torch.float32, "bf16": torch.bfloat16}  # else fp16


@dataclass(frozen=True)
class Config(_run.Config):
    steps: int = 250  # optimizer steps a unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    on_cpu: tuple[int, int, int, int, int] = (BYTES, 32, 2, 4, 64)  # vocabulary, context, layers, heads, width
    on_cuda: tuple[int, int, int, int, int] = GPT2_SMALL
    batch: int = 8  # windows of `context` bytes a step
    lr_cpu: float = 1e-3  # of Adam
    lr_cuda: float = 3e-4
    eps: float = 1e-15  # of Adam
    static_log2: int = 16  # the fixed loss scale is 2^k
    growth_intervals: tuple[int, ...] = (50, 200, 2000)  # dynamic arms
    inits_log2: tuple[int, ...] = (8, 32)  # dynamic arms that start at 2^k
    count_every: int = 10  # steps between two counts of zeros


SMOKE = Config(steps=3, seeds=(0,), on_cpu=(BYTES, 16, 1, 2, 32), batch=4, growth_intervals=(2,), count_every=2)


def arms(config: Config) -> list[str]:
    """As they stand in the data."""
    dynamic = [f"dynamic G={n}" for n in config.growth_intervals]
    inits = [f"init 2^{k}" for k in config.inits_log2]
    normalised = ["sum", "global fp32", "global unscaled", "global dynamic"]
    return ["fp32", "bf16", "unscaled", f"static 2^{config.static_log2}", *dynamic, *inits, *normalised]


def inputs() -> dict[str, str]:
    return {"topics": _text.sha256()}


def fixed_scale(arm: str) -> float | None:
    """The loss scale of an arm that never changes it; None in the dynamic arms."""
    if arm.startswith("static 2^"):
        return 2.0 ** int(arm.removeprefix("static 2^"))
    return 1.0 if arm in TYPES or arm.endswith("unscaled") else None


def make_scaler(arm: str, device: str) -> GradScaler:
    name, _, value = arm.partition("=")
    interval = int(value) if name == "dynamic G" else 50
    start = 2.0 ** int(arm.removeprefix("init 2^")) if arm.startswith("init") else fixed_scale(arm) or 2.0**16
    return GradScaler(device, init_scale=start, growth_interval=interval, enabled=arm not in TYPES)


def loss_factor(arm: str, tokens: int) -> float:
    """From the mean over a batch of `tokens` to the loss that is differentiated."""
    if arm.startswith("global"):
        return tokens / GLOBAL_TOKENS
    return float(tokens) if arm == "sum" else 1.0


def run(config: Config, unit: _run.Unit, device: str, tick: Callable[[int], None]) -> Record:
    """Train one arm with one seed; the columns are explained in `data/README.md`."""
    batches = _fp16.prepare(unit.seed)
    text = _text.load(device)
    on_cpu = device == "cpu"
    size = Size(*(config.on_cpu if on_cpu else config.on_cuda))
    model = GPT(size).to(device)
    lr = config.lr_cpu if on_cpu else config.lr_cuda
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, eps=config.eps, fused=True)
    scaler, fixed = make_scaler(unit.arm, device), fixed_scale(unit.arm)
    dtype, factor = TYPES.get(unit.arm, torch.float16), loss_factor(unit.arm, config.batch * size.context)
    log = Log(config.count_every)

    for step in range(config.steps):
        x, y = _text.draw(text.train, config.batch, size.context, batches)
        with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
            loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        scaler.scale(loss * factor).backward()
        log.step(step, loss.item(), scaler.get_scale(), _fp16.flat_gradient(model))  # still scaled
        scaler.step(optimizer)
        scaler.update(fixed)  # a fixed scale is put back whatever happened: skip, but never back off or grow
        tick(step + 1)

    train, test = (evaluate(model, part, size) for part in text)
    return {**log.record(), "train_loss": train, "test_loss": test}


@dataclass
class Log:
    """The per-step columns of one unit."""

    count_every: int
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    found_inf: list[int] = field(default_factory=list)
    counted_steps: list[int] = field(default_factory=list)
    zero: list[float] = field(default_factory=list)

    def step(self, step: int, loss: float, scale: float, gradient: Tensor) -> None:
        """`loss` is the mean, `scale` the one in force, `gradient` what the backward pass produced with it."""
        self.losses.append(loss)
        self.scales.append(scale)
        if not _fp16.all_finite(gradient):
            self.found_inf.append(step)
        if step % self.count_every == 0:
            (zero,), _, _ = _fp16.count_classes(gradient, [gradient.numel()])
            self.counted_steps.append(step)
            self.zero.append(zero / gradient.numel())

    def record(self) -> Record:
        return {
            "loss": _fp16.six_digits(self.losses),
            "scale_changes": _fp16.changes(self.scales),
            "found_inf": self.found_inf,
            "counted_steps": self.counted_steps,
            "zero": _fp16.six_digits(self.zero),
        }


@torch.no_grad()
def evaluate(model: GPT, tokens: Tensor, size: Size) -> float:
    """Nats a byte, in float32 for every arm, so that arms differ in their training only."""
    x, y = _text.spaced(tokens, EVALUATED // size.context, size.context)
    return float(f"{cross_entropy(model(x).flatten(0, 1), y.flatten()).item():.6g}")


if __name__ == "__main__":
    raise SystemExit(_run.main("gpt_fp16"))

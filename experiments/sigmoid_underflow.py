"""Can a deep sigmoid network be trained in fp16 without loss scaling, and which loss scale is right?

Sigmoids shrink the backward signal until the first layers' gradients lie below fp16's smallest number.
Nothing is rescaled to make that happen: it is the textbook network on scikit-learn's digits with the
textbook optimizer. Arms: float32; fp16 unscaled; fp16 with a fixed scale; fp16 with torch's dynamic scaler
at two growth intervals G. In every fp16 arm a step with a non-finite gradient is skipped.

Adam's eps is 1e-15 in all arms. With the usual 1e-8 the unscaled gradients of the first layers, some 2^-27,
would be lost in eps and the arms would differ in eps, not in underflow.

Takes about 90 s on two CPU cores (native fp16, one thread a process). Device: cpu, or cuda with `--device
cuda`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ampsim.records import Record
from experiments import runner
from experiments.models.sigmoid_mlp import SigmoidMLP
from experiments.training import digits_data, fp16, loop


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 2000  # optimizer steps a unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    batch: int = 128  # images a step
    width: int = 32  # units a hidden layer
    depth: int = 8  # linear layers
    lr: float = 1e-2  # of Adam
    eps: float = 1e-15  # of Adam
    static_log2: tuple[int, ...] = (0, 4, 8, 12, 16, 20)  # fixed loss scales 2^k; 2^0 is unscaled
    growth_intervals: tuple[int, ...] = (50, 2000)  # dynamic arms
    count_every: int = 5  # steps between two counts of what fp16 did; skipped steps are counted always


SMOKE = Config(steps=8, seeds=(0,), static_log2=(0, 20), growth_intervals=(2,), count_every=2)


def arms(config: Config) -> dict[str, loop.Arm]:
    fixed = {"unscaled" if k == 0 else f"static 2^{k}": loop.static(k) for k in config.static_log2}
    return {"fp32": loop.FP32, **fixed, **{f"dynamic G={n}": loop.dynamic(n) for n in config.growth_intervals}}


def inputs() -> dict[str, str]:
    return {"digits": digits_data.sha256()}


def run(config: Config, arm: loop.Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Train one arm with one seed; the columns are explained in `data/README.md`."""
    batches = fp16.prepare(seed)
    data = digits_data.load(device)
    model = SigmoidMLP(digits_data.PIXELS, config.width, config.depth, digits_data.CLASSES).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, eps=config.eps, fused=True)
    scaler, fixed = arm.scaler(device), arm.fixed
    log = Log([sum(p.numel() for p in layer.parameters()) for layer in model.layers], config.count_every)

    for step in range(config.steps):
        rows = torch.randint(digits_data.TRAIN, (config.batch,), generator=batches).to(device)
        with fp16.autocast(device, fp16=arm != loop.FP32):
            loss = cross_entropy(model(data.train_x[rows]), data.train_y[rows])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        log.step(step, loss.item(), scaler.get_scale(), fp16.flat_gradient(model))  # still scaled
        scaler.step(optimizer)
        scaler.update(fixed)  # a fixed scale is put back whatever happened: skip, but never back off or grow
        tick(step + 1)

    return {**log.record(), **evaluate(model, data)}


@dataclass
class Log:
    """The per-step columns of one unit."""

    elements: list[int]  # gradient elements of each layer
    count_every: int
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    found_inf: list[int] = field(default_factory=list)
    counted_steps: list[int] = field(default_factory=list)
    counts: list[list[list[int]]] = field(default_factory=list)

    def step(self, step: int, loss: float, scale: float, gradient: Tensor) -> None:
        """`loss` is the true one, `scale` the one in force, `gradient` what the backward pass produced with it."""
        self.losses.append(loss)
        self.scales.append(scale)
        if overflowed := not fp16.all_finite(gradient):
            self.found_inf.append(step)
        if overflowed or step % self.count_every == 0:
            self.counted_steps.append(step)
            self.counts.append(fp16.count_classes(gradient, self.elements))

    def record(self) -> Record:
        zero, subnormal, overflow = fp16.table(self.counts)
        return {
            "loss": fp16.six_digits(self.losses),
            "scale_changes": fp16.changes(self.scales),
            "found_inf": self.found_inf,
            "elements": self.elements,
            "counted_steps": self.counted_steps,
            "zero": zero,
            "subnormal": subnormal,
            "overflow": overflow,
        }


@torch.no_grad()
def evaluate(model: SigmoidMLP, data: digits_data.Digits) -> dict[str, float]:
    """In float32 for every arm, so that arms differ in their training only."""
    train_loss = cross_entropy(model(data.train_x), data.train_y).item()
    hits = (model(data.test_x).argmax(dim=1) == data.test_y).float().mean().item()
    return {"train_loss": float(f"{train_loss:.6g}"), "test_accuracy": float(f"{hits:.6g}")}


if __name__ == "__main__":
    raise SystemExit(runner.main("sigmoid_underflow"))

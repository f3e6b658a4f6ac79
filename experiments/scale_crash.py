"""When does a dynamic loss scale halve for ever, and what does the network look like then?

A residual network without normalisation, trained with Adam at five learning rates. If the learning rate is
too high the residual stream grows until it, or the logits, pass 65504 and the *forward* pass overflows.
Then every gradient is non-finite whatever the scale, every step is skipped, so the weights stay as they
are, so the forward pass overflows again: the scale halves each step until it is zero, with every parameter
finite.

Float32 runs the same learning rates as a control. It is no calm one: at the higher rates its stream passes
65504 by many orders of magnitude as well. But float32 can hold that, so it keeps stepping.

Takes about 35 s on two CPU cores (native fp16, one thread a process). Device: cpu, or cuda with
`--device cuda`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from ampsim.records import Record
from experiments import runner
from experiments.models.residual_mlp import ResidualMLP
from experiments.training import digits_data, fp16, loop


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 240  # optimizer steps a unit; scale 0 is 166 skips away, so a crash near step 60 gets there
    batch: int = 64  # images a step
    width: int = 64  # of the residual stream
    blocks: int = 12  # residual blocks
    lrs: tuple[float, ...] = (0.02, 0.03, 0.035, 0.04, 0.05)  # of Adam, an arm each
    growth_interval: int = 50  # clean steps before the scale doubles


SMOKE = Config(steps=8, seeds=(0,), blocks=2, lrs=(0.05,), growth_interval=2)


@dataclass(frozen=True, kw_only=True)
class CrashArm(loop.Arm):
    """A precision with a learning rate."""

    lr: float  # of Adam


def arms(config: Config) -> dict[str, CrashArm]:
    fp16 = {f"fp16 lr={lr}": CrashArm("float16", 2.0**16, config.growth_interval, lr=lr) for lr in config.lrs}
    return fp16 | {f"fp32 lr={lr}": CrashArm("float32", lr=lr) for lr in config.lrs}


def inputs() -> dict[str, str]:
    return {"digits": digits_data.sha256()}


def run(config: Config, arm: CrashArm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Train one arm with one seed; the columns are explained in `data/README.md`."""
    batches = fp16.prepare(seed)
    data = digits_data.load(device)
    model = ResidualMLP(digits_data.PIXELS, config.width, config.blocks, digits_data.CLASSES).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=arm.lr, fused=True)
    scaler = arm.scaler(device)
    log = []

    for step in range(config.steps):
        rows = torch.randint(digits_data.TRAIN, (config.batch,), generator=batches).to(device)
        with fp16.autocast(device, fp16=arm.dtype == "float16"):
            logits, stream = model(data.train_x[rows])
            loss = cross_entropy(logits, data.train_y[rows])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        forward = fp16.all_finite(logits) and fp16.all_finite(stream)
        backward = fp16.all_finite(fp16.flat_gradient(model))
        scale, before = scaler.get_scale(), fp16.flat_parameters(model)
        scaler.step(optimizer)
        scaler.update()
        move = (fp16.flat_parameters(model) - before).norm().item()
        log.append((loss.item(), scale, backward, forward, stream.detach().abs().max().item(), move))
        tick(step + 1)

    return {**record(log), "parameters_finite": fp16.all_finite(fp16.flat_parameters(model))}


def record(log: list[tuple[float, float, bool, bool, float, float]]) -> Record:
    """The per-step columns of one unit, from its rows."""
    losses, scales, backward, forward, streams, moves = fp16.table(log)
    found_inf = [step for step, finite in enumerate(backward) if not finite]
    forward_overflow = [step for step, finite in enumerate(forward) if not finite]
    return {
        "loss": fp16.six_digits(losses),
        "scale_changes": fp16.changes(scales),
        "found_inf": found_inf,
        "forward_overflow": forward_overflow,
        "stream_max": fp16.six_digits(streams),
        "move": fp16.six_digits(moves),
        "crash_step": crash_step(forward_overflow, found_inf, len(log)),
    }


def crash_step(forward_overflow: list[int], found_inf: list[int], steps: int) -> int | None:
    """The step from which on the forward pass overflowed and every step was skipped, to the end; or None."""
    start = steps
    while start - 1 in found_inf and start - 1 in forward_overflow:
        start -= 1
    return start if start < steps else None


if __name__ == "__main__":
    raise SystemExit(runner.main("scale_crash"))

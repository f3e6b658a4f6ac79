"""When does a dynamic loss scale halve indefinitely, and what state is the network in then?

A residual network without normalization trains with Adam at five learning rates. If the learning
rate is too high, the residual stream grows until the stream or the logits exceed 65504 and the
*forward* pass overflows. Every gradient is then non-finite at any scale, so every step is skipped
and the weights do not change. The forward pass overflows again, and the scale halves each step
until it is zero, while every parameter stays finite.

Float32 runs at the same learning rates are the control. At the higher rates, their stream also
exceeds 65504 by many orders of magnitude. float32 can represent these values, so the runs keep
stepping.

Device: cpu, or cuda with `--device cuda`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ampsim.core.json_lines import Record
from experiments import runner
from experiments.training import crash, fp16, loop, series, tasks

RECOMPUTED = ("fp16 lr=0.02", "fp16 lr=0.05", "fp32 lr=0.05")


@dataclass(frozen=True)
class Config(runner.Config):
    # optimizer steps per unit; scale 0 is 166 skips away, so a crash near step 60 gets there
    steps: int = 240
    batch: int = 64  # images per step
    width: int = 64  # of the residual stream
    blocks: int = 12  # residual blocks
    lrs: tuple[float, ...] = (0.02, 0.03, 0.035, 0.04, 0.05)  # of Adam, an arm each
    growth_interval: int = 50  # finite steps before the scale doubles


SMOKE = Config(steps=8, seeds=(0,), blocks=2, lrs=(0.05,), growth_interval=2)


def arms(config: Config) -> dict[str, crash.CrashArm]:
    fp16 = {
        f"fp16 lr={lr}": crash.CrashArm(
            "float16", 2.0**16, config.growth_interval, lr=lr
        )
        for lr in config.lrs
    }
    return fp16 | {
        f"fp32 lr={lr}": crash.CrashArm("float32", lr=lr) for lr in config.lrs
    }


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


def run(
    config: Config,
    arm: crash.CrashArm,
    seed: int,
    device: str,
    tick: Callable[[int], None],
) -> Record:
    """Train one arm with one seed; the columns are explained in `data/README.md`."""
    task = tasks.residual(
        fp16.prepare(seed),
        device,
        config.batch,
        blocks=config.blocks,
        width=config.width,
    )
    optimizer = torch.optim.Adam(task.model.parameters(), lr=arm.lr, fused=True)
    last = watch_last_layer(task.model)
    log, streams, overflowed, moves, before = (
        loop.Log(),
        [],
        [],
        [],
        fp16.flat_parameters(task.model),
    )
    for step in arm.train(task, optimizer, config.steps):
        stream, logits = last
        log.add(step)
        streams.append(stream.abs().max().item())
        overflowed.append(not (fp16.all_finite(logits) and fp16.all_finite(stream)))
        weights = fp16.flat_parameters(
            task.model
        )  # as the step before this one left them
        moves.append((weights - before).norm().item())
        before = weights
        tick(step.number + 1)
    weights = fp16.flat_parameters(task.model)
    moves = [*moves[1:], (weights - before).norm().item()]
    forward_overflow = series.flagged(overflowed)
    return {
        **log.record(),
        "forward_overflow": forward_overflow,
        "stream_max": series.six_digits(streams),
        "crash_step": crash.crash_step(forward_overflow, log.found_inf, config.steps),
        "move": series.six_digits(moves),
        "parameters_finite": fp16.all_finite(weights),
    }


def watch_last_layer(model: nn.Module) -> list[Tensor]:
    """Return a list that holds the last residual stream and the logits of the latest forward pass."""
    latest: list[Tensor] = []

    def hook(_layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        latest[:] = inputs[0].detach(), output.detach()

    model.get_submodule("leave").register_forward_hook(hook)
    return latest


if __name__ == "__main__":
    raise SystemExit(runner.main("scale_crash"))

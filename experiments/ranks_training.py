"""How does training on two ranks with overflowing gradients proceed, with torch's scaler and
ampsim's?

Two ranks with gloo train a small GPT in fp16, each with its part of the parameters, using torch's
scaler or ampsim's with a `group`, in four configurations:

- `unscale_, fused`: the parameters are sharded by hand, and `unscale_` is called before a fused
  step, as for gradient clipping; torch's scaler is `ShardedGradScaler`, also in the next two;
- `fused`: the same without `unscale_`;
- `unscale_, not fused`: the optimizer has no kernel that reads the flag;
- `FSDP2`: as the first, under `fully_shard`, for which torch uses `torch.amp.GradScaler`.

One element of the gradient becomes inf on rank 0 only, later on rank 1 only, and later on both. All
other overflows are caused by the scale. The optimizer is SGD: AdamW's fused step raises after the
`unscale_` of torch's sharded scaler (https://github.com/pytorch/pytorch/issues/140514). Under FSDP2
the optimizer is AdamW, because fused SGD does not support DTensor.

Device: cpu. It has not been run with nccl yet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from ampsim.core.json_lines import Record
from experiments import runner
from experiments.models.gpt import BYTES, Size
from experiments.training import on_ranks, tasks

DEVICES = ("cpu",)
SIZE = Size(BYTES, context=16, layers=1, heads=2, width=32)
Step = Annotated[int, runner.BEFORE_THE_END]


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 80  # per run; a unit has eight runs
    seeds: tuple[int, ...] = (0, 1)  # of weights and batches
    size: Size = SIZE
    batch: int = 4  # windows of `context` bytes per rank and step
    init_log2: int = 14
    growth_interval: int = 6
    on_rank_0: Step = 10  # where an element is inf on rank 0 alone
    on_rank_1: Step = 20
    on_both: Step = 30


SMOKE = Config(steps=4, seeds=(0,), on_rank_0=1, on_rank_1=2, on_both=3)


def arms(config: Config) -> Mapping[str, runner.Single]:
    return {"two ranks": runner.Single()}


def inputs() -> dict[str, str]:
    return tasks.inputs("gpt")


def run(
    config: Config,
    arm: runner.Single,
    seed: int,
    device: str,
    tick: Callable[[int], None],
) -> Record:
    """Start both ranks, and return what each of them saw."""
    planted = (
        (config.on_rank_0, 0),
        (config.on_rank_1, 1),
        (config.on_both, 0),
        (config.on_both, 1),
    )
    job = on_ranks.Job(
        seed,
        config.steps,
        config.size,
        config.batch,
        2.0**config.init_log2,
        config.growth_interval,
        planted,
    )
    seen = on_ranks.start(on_ranks.train_all, (job,))
    tick(config.steps)
    runs = [
        {"way": way, "scaler": scaler}
        for way in on_ranks.WAYS
        for scaler in on_ranks.SCALERS
    ]
    return {
        "runs": [
            {**run, "ranks": ranks} for run, *ranks in zip(runs, *seen, strict=True)
        ]
    }


if __name__ == "__main__":
    raise SystemExit(runner.main("ranks_training"))

"""What does a loss scale that is k steps late cost: skipped steps or unused bits?

In a pipeline of depth k, an iteration takes its scale before the outcome of the k iterations ahead of it
is known. Three policies: *cumulative*, torch's rule behind a queue (RoundPipe's with k = 1), which backs
off once for each of the k + 1 overflows that one growth causes; *deduplicated*, which lowers the scale at
most to half of the scale that overflowed; *probe*, which sends one step at the doubled scale and waits
for its outcome.

A network trains in fp16 with SGD in a pipeline with k + 1 iterations in flight, so gradients are also k
steps late. Under a constant threshold, T5 (`ampsim.core.theory.stale`) has the cost in closed form; in
training, the threshold moves.

Device: cpu.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ampsim import Rule, init, update
from ampsim.core.json_lines import Record
from ampsim.core.policies import Deduplicated, Probe
from experiments import runner
from experiments.training import digits_data, fp16, series, tasks

TOP = 65504.0  # of fp16
MAKERS: dict[str, Any] = {
    "cumulative": Rule,
    "deduplicated": Deduplicated,
    "probe": Probe,
}
DEVICES = ("cpu",)


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1000  # backward passes a unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of weights and batches
    depths: Annotated[tuple[int, ...], runner.FROM_0] = (0, 1, 2, 4)  # k
    interval: int = 20  # G
    warm_up: Annotated[int, runner.BEFORE_THE_END] = (
        100  # steps left out of what is measured in training
    )
    batch: int = 32  # images per step
    width: int = 64
    lr: float = 0.05


SMOKE = Config(steps=30, seeds=(0,), depths=(0, 2), interval=4, warm_up=5)


@dataclass(frozen=True)
class Arm:
    """A policy that is trained with."""

    policy: str  # one of MAKERS
    k: int  # steps that the scale is late


def arms(config: Config) -> Mapping[str, Arm]:
    """Return `probe k=2` and so on."""
    return {f"{policy} k={k}": Arm(policy, k) for k in config.depths for policy in MAKERS}


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


class Pipeline:
    """A network whose optimizer runs k steps behind; each iteration's gradients wait with its scale."""

    def __init__(self, name: str, k: int, config: Config) -> None:
        self.model = nn.Sequential(
            nn.Linear(digits_data.PIXELS, config.width),
            nn.ReLU(),
            nn.Linear(config.width, digits_data.CLASSES),
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config.lr)
        self.rule = MAKERS[name](growth_interval=config.interval, delay=k)
        self.state = init(self.rule)
        self.waiting: deque[tuple[float, list[Tensor]]] = deque()
        self.log: list[tuple[float, float, bool]] = []  # scale, headroom in bits, overflow

    def forward(self, x: Tensor, y: Tensor) -> float:
        """Begin one iteration, up to its gradients; returns the true loss."""
        scale = self.state.newest
        with fp16.autocast("cpu", fp16=True):
            loss = cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        (loss * torch.tensor(scale)).backward()  # type: ignore[no-untyped-call]
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.waiting.append((scale, grads))
        return float(loss.item())

    def optimize(self) -> None:
        """Finish the oldest iteration."""
        scale, grads = self.waiting.popleft()
        largest = max(grad.abs().max().item() for grad in grads)
        bad = not all(map(fp16.all_finite, grads))
        self.log.append((scale, math.log2(TOP / largest) if not bad else 0.0, bad))
        inverse = torch.tensor(scale).double().reciprocal().float()
        for p, grad in zip(self.model.parameters(), grads, strict=True):
            p.grad = grad * inverse
        if not bad:
            self.optimizer.step()
        self.state = update(self.rule, self.state, bad)


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Train in a pipeline of depth k; the columns are explained in `data/README.md`."""
    batches, data, losses = fp16.prepare(seed), digits_data.load("cpu"), []
    pipe = Pipeline(arm.policy, arm.k, config)
    for step in range(config.steps):
        rows = torch.randint(digits_data.TRAIN, (config.batch,), generator=batches)
        losses.append(pipe.forward(data.train_x[rows], data.train_y[rows]))
        if len(pipe.waiting) > arm.k:
            pipe.optimize()
        tick(step + 1)
    while pipe.waiting:
        pipe.optimize()
    log = pipe.log[config.warm_up :]
    clean = [headroom for _, headroom, bad in log if not bad]
    runs = "".join(" x"[bad] for _, _, bad in log).split()
    return {
        "skip_rate": sum(bad for _, _, bad in log) / len(log),
        "headroom": math.fsum(clean) / max(1, len(clean)),
        "bursts": sorted(map(len, runs), reverse=True)[:5],
        "mean_log2_scale": math.fsum(math.log2(scale) for scale, _, _ in log) / len(log),
        "final_loss": series.six_digits([sum(losses[-100:]) / len(losses[-100:])])[0],
        "scale_changes": series.changes([scale for scale, _, _ in pipe.log]),
        "found_inf": [step for step, (_, _, bad) in enumerate(pipe.log) if bad],
    }


if __name__ == "__main__":
    raise SystemExit(runner.main("staleness"))

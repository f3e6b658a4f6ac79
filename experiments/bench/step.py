"""What does a step cost with our scaler, and with torch's?

Fused AdamW over many small and over few large tensors, with the gradient clip and without. Every
arm follows a backward pass, whose time is measured and subtracted, and steps the same optimizer, so
that no arm has better addresses. The floor reads the gradients once, and the optimizer's kernel
divides them.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ampsim.torch import GradScaler
from ampsim.torch.gradients import unscale
from experiments.bench.report import SHARE, SPEEDUP, Row, require_same, run
from experiments.bench.rounds import in_turn

GOALS = {
    "400x1000": 1.4,
    "50x400000": 1.3,
}  # tensors x elements: the whole step, with the clip
MAX_NORM = 1.0


class Seconds(NamedTuple):
    """The CPU time of one piece of work."""

    process: float
    thread: float


class Trial:
    """One optimizer, and the ways to step it."""

    def __init__(self, size: str) -> None:
        tensors, elements = map(int, size.split("x"))
        self.params = [nn.Parameter(torch.randn(elements)) for _ in range(tensors)]
        self.optimizer = torch.optim.AdamW(self.params, lr=1e-4, fused=True)
        self.torch, self.ours = torch.amp.GradScaler("cpu"), GradScaler("cpu")
        self.pattern = torch.randn(elements)
        self.norms: dict[str, float] = {}
        self.arms: dict[str, Callable[[], object]] = {
            "backward": lambda: None,
            "bare": self.optimizer.step,
            "floor": self.floor,
            "torch clip": self.torch_clip,
            "ours clip": self.ours_clip,
            "torch": lambda: self.step(self.torch),
            "ours": lambda: self.step(self.ours),
        }

    def once(self, arm: str) -> Seconds:
        """Time a backward pass and one arm; the gradient is 1e-3 of the pattern."""
        self.optimizer.zero_grad(set_to_none=False)
        loss = (
            1e-3 * torch.stack([torch.dot(p, self.pattern) for p in self.params]).sum()
        )
        scaled, _ = (scaler.scale(loss) for scaler in (self.torch, self.ours))
        process, thread = time.process_time(), time.thread_time()
        scaled.backward()  # type: ignore[no-untyped-call]
        self.arms[arm]()
        return Seconds(time.process_time() - process, time.thread_time() - thread)

    def step(self, scaler: torch.amp.GradScaler) -> None:
        scaler.step(self.optimizer)
        scaler.update()

    def torch_clip(self) -> None:
        self.torch.unscale_(self.optimizer)
        self.norms["torch"] = float(nn.utils.clip_grad_norm_(self.params, MAX_NORM))
        self.step(self.torch)

    def ours_clip(self) -> None:
        self.norms["ours"] = float(
            self.ours.unscale_and_clip_(self.optimizer, MAX_NORM)
        )
        self.step(self.ours)

    def floor(self) -> None:
        """Read the gradients once, as ours does, and have the kernel divide them."""
        optimizer: Any = self.optimizer
        scale = torch.ones(())
        grads = [p.grad for p in self.params if p.grad is not None]
        unscale.norm_and_check({(scale.device, scale.dtype): grads}, scale)
        optimizer.grad_scale, optimizer.found_inf = scale, None
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf


def measure(
    sizes: Sequence[str] = tuple(GOALS), rounds: int = 16, trials: int = 5
) -> list[Row]:
    """Time every size."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = []
    for size in sizes:
        found += rows(size, [time_arms(size, rounds) for _ in range(trials)])
    return found


def time_arms(size: str, rounds: int) -> dict[str, list[Seconds]]:
    """Time every arm of new parameters once per round."""
    trial = Trial(size)
    times = in_turn([*trial.arms], trial.once, rounds)
    off = trial.norms["torch"] / trial.norms["ours"] - 1
    require_same(f"norms of {size}", abs(off) < 1e-3)  # torch sums in float32
    return times


def rows(size: str, trials: Sequence[dict[str, list[Seconds]]]) -> list[Row]:
    """Return what is compared at one size."""

    def above(arm: str, clock: str) -> list[float]:
        """Return microseconds above the backward pass, the median of each trial."""
        pairs = ((times[arm], times["backward"]) for times in trials)
        return [
            1e6 * (middle(whole, clock) - middle(part, clock)) for whole, part in pairs
        ]

    def compare(work: str, ours: str, theirs: str, clock: str = "process") -> Row:
        against = theirs.removesuffix(" clip")
        return Row(
            f"{size}, {work}", against, "us", above(ours, clock), above(theirs, clock)
        )

    clip = compare("clip", "ours clip", "torch clip")
    plain = compare("no clip, the calling thread", "ours", "torch", "thread")
    return [
        clip._replace(figure=SPEEDUP, goal=GOALS.get(size)),
        compare("clip", "ours clip", "floor"),
        plain._replace(figure=SHARE, goal=1.05),
    ]


def middle(times: Sequence[Seconds], clock: str) -> float:
    return statistics.median(float(getattr(seconds, clock)) for seconds in times)


if __name__ == "__main__":
    run("step", measure)

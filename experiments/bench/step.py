"""What does a step cost with our scaler, and with torch's?

Fused AdamW over many small and over few large tensors, with the gradient clip and without. Every
arm follows a backward pass, whose time is measured and subtracted, and steps the same optimizer, so
that no arm has better addresses. The floor reads the gradients once, and the optimizer's kernel
divides them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from ampsim.torch import GradScaler
from experiments.bench.report import (
    Arms,
    Row,
    measure_arms,
    microseconds,
    require_same,
    run,
)

# Tensors x elements -> how many times as fast the clipped step should be as torch's.
GOALS = {"400x1000": 1.4, "50x400000": 1.3}
MAX_NORM = 1.0


@contextmanager
def trial(size: str) -> Iterator[Arms]:
    """Make one optimizer, and yield the ways to step it."""
    tensors, elements = map(int, size.split("x"))
    params = [nn.Parameter(torch.randn(elements)) for _ in range(tensors)]
    optimizer: Any = torch.optim.AdamW(params, lr=1e-4, fused=True)
    theirs, ours = torch.amp.GradScaler("cpu"), GradScaler("cpu")
    pattern = torch.randn(elements)
    norms: dict[str, float] = {}

    def step(scaler: torch.amp.GradScaler) -> None:
        scaler.step(optimizer)
        scaler.update()

    def torch_clip() -> None:
        theirs.unscale_(optimizer)
        norms["torch"] = float(nn.utils.clip_grad_norm_(params, MAX_NORM))
        step(theirs)

    def ours_clip() -> None:
        norms["ours"] = float(ours.unscale_and_clip_(optimizer, MAX_NORM))
        step(ours)

    def floor() -> None:
        nn.utils.get_total_norm([p.grad for p in params if p.grad is not None])
        optimizer.grad_scale, optimizer.found_inf = torch.ones(()), None
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf

    def once(work: Callable[[], None]) -> float:
        """Time a backward pass and one way; the gradient is 1e-3 of the pattern."""
        optimizer.zero_grad(set_to_none=False)
        loss = 1e-3 * torch.stack([torch.dot(p, pattern) for p in params]).sum()
        scaled, _ = (scaler.scale(loss) for scaler in (theirs, ours))

        def backward_and_work() -> None:
            scaled.backward()  # type: ignore[no-untyped-call]
            work()

        return microseconds(backward_and_work)

    ways: dict[str, Callable[[], None]] = {
        "backward": lambda: None,
        "floor": floor,
        "torch, clip": torch_clip,
        "ours, clip": ours_clip,
        "torch, no clip": lambda: step(theirs),
        "ours, no clip": lambda: step(ours),
    }
    yield {name: partial(once, work) for name, work in ways.items()}
    same = abs(norms["torch"] / norms["ours"] - 1) < 1e-3  # torch sums in float32
    require_same(f"norms of {size}", same)


def measure(
    sizes: Sequence[str] = tuple(GOALS), rounds: int = 16, trials: int = 5
) -> list[Row]:
    """Time every size."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for size in sizes:
        times = measure_arms(lambda: trial(size), rounds, trials, above="backward")  # noqa: B023
        for theirs, way, goal in (
            ("torch, clip", "clip", GOALS.get(size)),
            ("floor", "clip", None),
            ("torch, no clip", "no clip", 0.95),
        ):
            against = theirs.partition(",")[0]
            ours = times[f"ours, {way}"]
            rows.append(Row(f"{size}, {way}", against, "us", ours, times[theirs], goal))
    return rows


if __name__ == "__main__":
    run("step", measure)

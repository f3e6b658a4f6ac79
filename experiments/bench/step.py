"""What does a step cost with our scaler, and with torch's?

Fused AdamW over many small and over few large tensors, with the gradient clip and without, above
the backward pass. The floor reads the gradients once, and the optimizer's kernel divides them.
`experiments.overhead` has the arms.
"""

import statistics
from collections.abc import Sequence

import torch

from experiments import overhead
from experiments.bench.report import SHARE, SPEEDUP, Row, require_same, run
from experiments.timing.clocks import Seconds
from experiments.timing.rounds import in_turn

ARMS = ("backward", "bare", "floor", "torch clip", "ours clip", "torch", "ours")
GOALS = {"400x1000": 1.4, "50x400000": 1.3}  # tensors x elements: the whole step, with the clip
PROCESS, THREAD = 0, 1  # the clocks of `Seconds`
Times = dict[str, list[Seconds]]


def measure(sizes: Sequence[str] = tuple(GOALS), rounds: int = 16, trials: int = 5) -> list[Row]:
    """Time every size."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = []
    for size in sizes:
        found += rows(size, [time(size, rounds) for _ in range(trials)])
    return found


def time(size: str, rounds: int) -> Times:
    """Time every arm of new parameters once per round."""
    trial = overhead.Trial(size, "cpu")
    times = in_turn(ARMS, lambda arm: trial.once(arm, "cpu"), rounds, lambda _: None)
    off = trial.norms["torch"] / trial.norms["ours"] - 1
    require_same(f"norms of {size}", abs(off) < 1e-3)  # torch sums in float32
    return times


def rows(size: str, trials: Sequence[Times]) -> list[Row]:
    """Return what is compared at one size."""

    def above(arm: str, clock: int) -> list[float]:
        """Return microseconds above the backward pass, the median of each trial."""
        pairs = ((times[arm], times["backward"]) for times in trials)
        return [1e6 * (middle(whole, clock) - middle(part, clock)) for whole, part in pairs]

    def compare(work: str, arms: tuple[str, str], clock: int = PROCESS) -> Row:
        ours, theirs = (above(arm, clock) for arm in arms)
        against = "floor" if arms[1] == "floor" else "torch"
        return Row(f"{size}, {work}", against, "us", ours, theirs)

    clip = compare("clip", ("ours clip", "torch clip"))
    plain = compare("no clip, the calling thread", ("ours", "torch"), THREAD)
    return [
        clip._replace(figure=SPEEDUP, goal=GOALS.get(size)),
        compare("clip", ("ours clip", "floor")),
        plain._replace(figure=SHARE, goal=1.05),
    ]


def middle(times: Sequence[Seconds], clock: int) -> float:
    return statistics.median(seconds[clock] for seconds in times)


if __name__ == "__main__":
    run("step", measure)

"""`python -m experiments new STEM`: a small experiment and its figure, to be changed into one's own."""

import keyword
from pathlib import Path

from experiments.runner import experiment
from experiments.runner.experiment import UsageError

EXPERIMENT = '''"""What does {stem} ask?

Say here why, and what the arms are. As it was made it counts torch's skips under random ceilings. Device: cpu.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ampsim import Rule, replay_ceilings
from ampsim.records import Record
from experiments import runner

DEVICES = ("cpu",)


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1000  # per unit
    seeds: tuple[int, ...] = (0, 1, 2)  # of the ceilings
    intervals: tuple[int, ...] = (10, 50)  # G, an arm each


@dataclass(frozen=True)
class Arm:
    """A growth interval."""

    interval: int  # in clean steps


SMOKE = Config(steps=20, seeds=(0,), intervals=(5,))


def arms(config: Config) -> dict[str, Arm]:
    return {{f"G={{n}}": Arm(n) for n in config.intervals}}


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Run one arm with one seed."""
    ceilings = 2.0 ** np.random.default_rng(seed).normal(16, 1, config.steps)
    done = replay_ceilings(Rule(growth_interval=arm.interval), ceilings)
    tick(config.steps)
    return {{"skips": len(done.skipped)}}


if __name__ == "__main__":
    raise SystemExit(runner.main("{stem}"))
'''

FIGURE = '''"""What {stem} found: the skips of each growth interval, a dot per seed."""

from matplotlib.figure import Figure

from figures import _style
from figures.results import Result

DATA = ("{stem}",)


def plot(run: Result) -> Figure:
    figure = _style.new_figure(_style.ONE_COLUMN, 2.0)
    axes = figure.subplots()
    for place, arm in enumerate(run.arms.values()):
        skips = arm.column("skips")
        axes.plot([place] * len(skips), skips, "o", color=_style.BLUE, label=arm.name)
    axes.set_xticks(range(len(run.arms)), list(run.arms))
    axes.set(xlabel="growth interval", ylabel="skipped steps", title=_style.seeds(run))
    return figure
'''


def write(stem: str) -> list[Path]:
    """Write an experiment and its figure, and return their paths.

    Raises:
        UsageError: no name for them, or one that is taken.
    """
    folder = experiment.FOLDER
    if not (stem.isidentifier() and stem.isascii() and stem.islower() and stem[0] != "_") or keyword.iskeyword(stem):
        raise UsageError(f"{stem!r}: expected a name in small letters, digits and _, as growth_interval")
    paths = [folder / f"{stem}.py", folder.parent / "figures" / f"{stem}.py"]
    for path in [*paths, folder / stem]:
        if stem in ("all", "new") or path.exists():
            raise UsageError(f"{stem!r} is taken: expected a new name; choose another")
    for path, text in zip(paths, (EXPERIMENT, FIGURE), strict=True):
        path.write_text(text.format(stem=stem), encoding="utf-8")
    return paths

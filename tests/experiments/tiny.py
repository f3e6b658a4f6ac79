"""A tree of experiments in a temporary folder, each of which takes no time: what the runner is
tested with.
"""

from pathlib import Path

SOURCE = '''"""How is experiment {stem} run?

Takes no time. Device: cpu.
"""

from dataclasses import dataclass

from experiments import runner

DEVICES = ("cpu",)
{constants}


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 3
    seeds: tuple[int, ...] = (0, 1)
    factor: float = 0.1


@dataclass(frozen=True)
class Arm:
    power: int


SMOKE = Config(steps=1)


def arms(config):
    return {{f"power {{power}}": Arm(power) for power in (1, 2)}}


def inputs():
    return {{"digits": "0" * 64}}


def run(config, arm, seed, device, tick):
    for step in range(config.steps):
        tick(step + 1)
    return {{"loss": [config.factor**arm.power + seed] * config.steps}}


def table(rows):
    return f"mean of {{len(rows)}} records"
'''


def write(folder: Path, stem: str, constants: str = "") -> None:
    """Write one experiment."""
    (folder / f"{stem}.py").write_text(SOURCE.format(stem=stem, constants=constants))

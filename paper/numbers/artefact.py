"""How long the experiments took."""

from figures.results import CPU
from paper import sources
from paper.values import Formula


def minutes() -> float:
    """Return the CPU time of all experiments."""
    origins = sources.origins(path.stem for path in CPU.glob("*.jsonl"))
    return float(sum(origin.get("unit_seconds", 0) for origin in origins.values())) / 60


NUMBERS = {"artefact.minutes": Formula(minutes, ".0f")}

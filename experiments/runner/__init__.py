"""Runs an experiment: command line, units, worker processes, journal, provenance.

It knows no experiment by name, and nothing of networks, scalers or clocks. An experiment needs what
stands here: its `Config` extends ours, it raises `UsageError` for settings that it cannot run, and
calls `main` as a script.
"""

from collections.abc import Sequence

from experiments.runner.experiment import DATA, Config, Single, Unit, UsageError
from experiments.runner.settings import (
    BEFORE_THE_END,
    COUNT,
    FROM_0,
    one_of,
)

__all__ = [
    "BEFORE_THE_END", "COUNT", "DATA", "FROM_0", "Config", "Single", "Unit", "UsageError", "main",
    "one_of",
]  # fmt: skip


def main(stem: str, argv: Sequence[str] | None = None) -> int:
    """Run one experiment from a command line, with its table at the end.

    Args:
        stem: Name of the experiment.
        argv: Options; by default those of this process.

    Returns:
        The exit status.
    """
    from experiments.runner import (
        cli,
    )  # needs rich and tyro, which a worker process does not

    return cli.main(stem, argv)

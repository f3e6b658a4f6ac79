"""The report of a script."""

from collections.abc import Iterable

from ampsim.testing.check import Result
from ampsim.testing.report import Report
from ampsim.testing.script_checks.observation import Observation

ENDINGS = {
    "end": "its own end",
    "enough": "the number of steps",
    "time limit": "the time limit",
    "interrupted": "Ctrl-C",
    "error": "its own error",
}


class ScriptReport(Report):
    """The results of one script.

    Attributes:
        run: What was observed.
    """

    def __init__(self, results: Iterable[Result], run: Observation) -> None:
        super().__init__(results)
        self.run = run

    def summary(self) -> list[str]:
        """Return what was replaced, what was run, and the number of each outcome."""
        run = self.run
        replaced = [f"replaced: {text}" for text in run.replaced]
        line = (
            f"{run.steps} optimizer steps, {len(run.outcomes)} repeated iterations in "
            f"{run.seconds:.1f} s of CPU time; ended by: {ENDINGS[run.ended]}"
        )
        return [*replaced, *filter(None, [run.raised, line]), *super().summary()]

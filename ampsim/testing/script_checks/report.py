"""The report of a script: findings first, without a table."""

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

    def texts(self) -> list[str]:
        """Return the texts of findings, and of what was expected to fail and did not."""
        return [result.text for result in self.results if result.outcome in ("failed", "xpassed")]

    def lines(self) -> list[str]:
        """Return what was skipped, what was run, and the number of each outcome."""
        reasons: dict[str, list[str]] = {}
        for result in self.results:
            if result.outcome == "skipped":
                reasons.setdefault(result.text, []).append(result.check.name)
        skipped = [f"skipped: {', '.join(names)}: {text}" for text, names in reasons.items()]
        run = self.run
        counts = {
            "backward passes": len(run.of_kind("backward")),
            "optimizer steps": run.steps,
            "scalers": len(run.scalers),
            "repeated iterations": len(run.outcomes),
        }
        numbers = ", ".join(f"{count} {name}" for name, count in counts.items())
        replaced = [f"replaced: {text}" for text in run.replaced]
        line = f"{numbers} in {run.seconds:.1f} s of CPU time; ended by: {ENDINGS[run.ended]}"
        return [*skipped, *replaced, *filter(None, [run.raised, line]), *self.summary()]

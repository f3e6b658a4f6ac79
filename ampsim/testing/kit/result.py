"""What a check of a scaler, or a law of a loop, has come to; no framework is needed to say it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Outcome = Literal["passed", "failed", "expected", "surprise", "declared"]


class Judged(Protocol):
    """A check of a scaler or a law of a loop, as a report shows it."""

    @property
    def name(self) -> str: ...
    @property
    def level(self) -> int: ...
    @property
    def group(self) -> str: ...
    @property
    def law(self) -> str: ...
    @property
    def issue(self) -> str: ...


@dataclass(frozen=True)
class Result:
    """The outcome of one check of one scaler, or of one law of one loop.

    Attributes:
        check: the one that was run.
        subject: the scaler's or the loop's name.
        outcome: expected: failed as expected; surprise: passed but was expected to fail; declared: not asked.
        text: the failure's message, the reason for an expectation, or why it was not asked.
        is_overdue: whether it was ended by an alarm; that is never expected.
    """

    check: Judged
    subject: str
    outcome: Outcome
    text: str = ""
    is_overdue: bool = False

    @property
    def is_finding(self) -> bool:
        """Whether someone should look: a failure, or an expected failure that passes."""
        return self.outcome in ("failed", "surprise")


def described(check: Judged, seen: str, story: Sequence[tuple[str, str]] = ()) -> str:
    """Write what was seen under a check's name, then its law, the story in lines of (label, text), the issue."""
    lines = [("law", check.law), *story, ("issue", check.issue)]
    return "\n".join([f"{check.name}: {seen}", *(f"  {label:8} {text}" for label, text in lines if text)])


class BrokenError(AssertionError):
    """A law does not hold; the text says what was seen instead."""

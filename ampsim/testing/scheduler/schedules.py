"""Who goes on next: schedules as data, and as a hypothesis strategy.

A schedule answers, at each step where several tasks can go on, with an index into them; 0 is "do not
preempt". Counted in preemptions most concurrency bugs are shallow: two are nearly always enough
(Musuvathi and Qadeer, PLDI 2007).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from ampsim.core.extras import needing
from ampsim.testing.scheduler.task_runner import Chooser as Chooser

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


class Schedule(Protocol):
    """Anything that can begin a run. One that is begun twice decides twice the same."""

    def begin(self) -> Chooser:
        """Return a chooser for one run: it is called with the step and the names of those who can go on."""
        ...


def chooser(schedule: Mapping[int, int] | Schedule) -> Chooser:
    """Return what a run asks at each decision. A mapping holds the steps at which the choice is not 0."""
    if not isinstance(schedule, Mapping):
        return schedule.begin()
    wrong = {step: choice for step, choice in schedule.items() if choice < 0 or step < 0}
    if wrong:
        raise ValueError(f"schedule holds {wrong}: expected steps and choices of at least 0")
    get = schedule.get
    return lambda step, _: get(step, 0)


def schedules(
    *, steps: int = 64, switches: int = 6, choices: int = 3
) -> "SearchStrategy[dict[int, int]]":
    """Draw sparse schedules: at most `switches` of the first `steps` steps choose 1 to `choices`.

    What is left out keeps running, so that a failure shrinks to the preemptions that matter, mostly one, and
    those move to the earliest step. (Two that end up where one would do at a later step are the exception:
    ``explore(program, preemptions=1)`` tells.) Take `steps` from ``len(run(program).trace)``, with room to grow.
    """
    with needing():
        from hypothesis import strategies as st
    codes = st.lists(
        st.integers(0, steps * choices - 1), max_size=switches
    )  # shrink better than dictionaries
    return codes.map(lambda drawn: {code // choices: 1 + code % choices for code in sorted(drawn)})

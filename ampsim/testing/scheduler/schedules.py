"""Who goes on next: schedules as data, and as a hypothesis strategy.

A schedule answers, at each step where several tasks can go on, with an index into them; 0 is "do
not preempt". Counted in preemptions most concurrency bugs are shallow: two are nearly always enough
(Musuvathi and Qadeer, PLDI 2007).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ampsim.core.extras import needing
from ampsim.testing.scheduler.task_runner import Chooser as Chooser

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def chooser(schedule: Mapping[int, int] | Chooser) -> Chooser:
    """Return what a run calls at each decision. A mapping has the steps at which the choice is not
    0.
    """
    if not isinstance(schedule, Mapping):
        return schedule
    negative = {
        step: choice for step, choice in schedule.items() if choice < 0 or step < 0
    }
    if negative:
        raise ValueError(
            f"schedule holds {negative}: expected steps and choices of at least 0"
        )
    return lambda step, _: schedule.get(step, 0)


def schedules(
    *, steps: int = 64, switches: int = 6, choices: int = 3
) -> "SearchStrategy[dict[int, int]]":
    """Draw sparse schedules: at most `switches` of the first `steps` steps choose 1 to `choices`.

    What is left out keeps running, so that a failure shrinks to the preemptions that matter, mostly
    one, and those move to the earliest step. (Two that end up where one would do at a later step
    are the exception: ``explore(program, preemptions=1)`` tells.) Take `steps` from
    ``len(run(program).trace)``, with room to grow.
    """
    with needing():
        from hypothesis import strategies as st
    codes = st.lists(
        st.integers(0, steps * choices - 1), max_size=switches
    )  # shrink better than dictionaries
    return codes.map(
        lambda drawn: {code // choices: 1 + code % choices for code in sorted(drawn)}
    )

"""Resuming is invisible."""

import copy
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.checks.excused import DATA
from ampsim.testing.loop.loop import LoopError, blame_user_code
from ampsim.testing.loop.run import Run
from ampsim.testing.loop.runs import Batch, Make, advance, begin, iterations
from ampsim.testing.loop.state import LOGGED, State, differences

SCALE, GROWTH_INTERVAL = (
    2.0**8,
    3,
)  # so that a scaler which is not saved shows in its tracker or its scale
SAVING = "saving goes through the optimizer's step or the scaler's update, or leaves something else in the model"
LOADING = (
    "what was saved does not fit what make builds: build in make, or in load, what the loop adds while it trains, as "
    "parameter groups"
)
WINDOW = (
    "its place among the batches of one step is in the checkpoint, and the gradients added up so far are not: save "
    "between steps alone, so that Loop's save= refuses elsewhere, or save the gradients as well"
)
UNNAMED = (
    "all that state names was loaded, and training goes on otherwise: it carries something more, which a checkpoint of "
    "state loses; name it in state, or give Loop save= and load="
)


@check(issue="https://github.com/huggingface/accelerate/issues/4289")
def resume_is_exact(make: Make, batches: Sequence[Batch]) -> Broken | None:
    """Save, make all anew, load and go on leaves what going on leaves, the scaler included; saving changes nothing.

    Exact because the same program computes from the same state; each batch has its own seed. Asked after two batches,
    as what comes back by itself in some is not back in others. What the kit saves is what state names: a loop that
    carries more does not resume. Where several batches are one step, and what is loaded in their middle goes on from
    there, the gradients so far are part of it; a loop that begins the step anew, or that tells its place by the data's
    alone (state named data), is saved between steps.
    """
    groups = iterations(make, batches)
    if len(groups) < 2:
        raise NotApplicableError("fewer than 2 batches after which the scaler is updated")
    middle = len(groups) // 2
    if verdict := _resumed(make, *halves(groups, middle)):
        return verdict
    early = _resumed(make, *halves(groups[: middle + 2], middle - 1)) if middle > 1 else None
    return early or _within(make, groups)


def _within(make: Make, groups: list[Sequence[Batch]]) -> Broken | None:
    """Say that a step of several batches, saved before the last of them and loaded, is taken with a part of them."""
    place = next((index for index, group in enumerate(groups) if len(group) > 1), None)
    if place is None:
        return None
    *before, last = chain(*groups[: place + 1])
    run, other = (begin(make, SCALE, GROWTH_INTERVAL) for _ in range(2))
    if any(name.partition(".")[0] == DATA for name in run.states[0]):
        return None
    with suppress(LoopError), blame_user_code("save or load"):  # who refuses there is right
        other.load(copy.deepcopy(advance(run, before).save()))
        other.see(first=True)
        for each in (run, other) if not differences(_carried(run, -1), _carried(other, -1)) else ():
            advance(each, [last])
        found = differences(run.states[-1] | run.scalers[-1], other.states[-1] | other.scalers[-1])
        if found and other.verdicts and other.verdicts[-1]:
            where = f"after batch {last.place}, having loaded what was saved after batch {before[-1].place}"
            return Broken(where, len(before), found, cause=WINDOW)
    return None


def _resumed(make: Make, before: list[Batch], after: list[Batch]) -> Broken | None:
    run = advance(begin(make, SCALE, GROWTH_INTERVAL), before)
    with blame_user_code("save"):
        checkpoint = copy.deepcopy(run.save())
    run.see()
    if found := differences(*(_carried(run, index) for index in (-2, -1))):
        return Broken(
            f"after saving, after batch {before[-1].place}", len(before) - 1, found, cause=SAVING
        )
    other = begin(make, SCALE, GROWTH_INTERVAL)
    place = f"after loading what was saved after batch {before[-1].place}"
    try:
        with blame_user_code("load"):
            other.load(checkpoint)
    except LoopError as error:
        return Broken(place, len(before) - 1, cause=LOADING, seen=str(error))
    other.see(first=True)
    if found := differences(_carried(run, -1), _carried(other, -1)):
        if lost := [each.name for each in found if _is_left_out(run, each.name)]:
            raise NotApplicableError(
                f"{lost[0]} can be read but not loaded: give Loop save= and load="
            )
        return Broken(place, len(before) - 1, found)
    for step, batch in enumerate(after):
        for each in (run, other):
            advance(each, [batch])
        if found := differences(
            run.states[-1] | run.scalers[-1], other.states[-1] | other.scalers[-1]
        ):
            where = f"after batch {batch.place}, having loaded what was saved after batch {before[-1].place}"
            unnamed = "" if run.loop.load else UNNAMED
            return Broken(where, len(before) + step, found, cause=unnamed)
    return None


def halves(groups: list[Sequence[Batch]], cut: int) -> tuple[list[Batch], list[Batch]]:
    """Return the batches before saving, after so many updates, and those after it."""
    return [*chain(*groups[:cut])], [*chain(*groups[cut:])]


def _carried(run: Run, index: int) -> State:
    kept = {
        name: array
        for name, array in run.states[index].items()
        if not name.startswith(f"{LOGGED}.")
    }
    return kept | run.scalers[index]


def _is_left_out(run: Run, name: str) -> bool:
    """Return whether the kit has no way to load what this array was read from."""
    if run.loop.load:
        return False
    left_out = (key for key, value in run.loop.state.items() if not run.loads(value))
    return any(name == key or name.startswith(f"{key}.") for key in left_out)

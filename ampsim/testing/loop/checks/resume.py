"""The check resume_is_exact."""

import copy
from collections.abc import Sequence
from itertools import chain

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.backend import Run
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.loop import LoopError, blame_user_code
from ampsim.testing.loop.play import Batch, Make, advance, begin, iterations
from ampsim.testing.loop.state import LOGGED, State, differences

# A scaler that is not saved shows in its tracker or its scale.
SCALE = 2.0**8
GROWTH_INTERVAL = 3
SAVING = (
    "save() calls the optimizer's step or the scaler's update, or changes the model"
)
LOADING = (
    "the checkpoint does not match the objects that make builds: in make or load, also build the objects that the loop "
    "adds during training, such as parameter groups"
)
LOST = (
    "it is not saved, not loaded, or changed afterwards; for the scaler, put scaler.state_dict() into the checkpoint, "
    "and call scaler.load_state_dict() last"
)
UNNAMED = (
    "everything that state names was loaded, but training continues differently: the loop has other state, which is "
    "not in the checkpoint. Name it in state, or save and load it in Loop(save=..., load=...)"
)


@check(issue="https://github.com/huggingface/accelerate/issues/4289")
def resume_is_exact(make: Make, batches: Sequence[Batch]) -> Broken | None:
    """A run that is saved, rebuilt, and loaded continues exactly like the uninterrupted run; saving
    changes nothing.

    The scaler is included. The result is exact because the same program computes from the same
    state, and each batch has its own seed. The run is saved at two positions, because some state
    recovers by itself at one of them. Without save=, the checkpoint is the state that state names,
    so a loop with other state does not resume. If several batches form one step, the run is saved
    between steps.
    """
    groups = iterations(make, batches)
    if len(groups) < 2:
        raise NotApplicableError(
            "pass more batches: the scaler must be updated after at least 2 of them"
        )
    middle = len(groups) // 2
    for place in (middle, middle - 1):
        before = chain(*groups[:place])
        after = chain(*groups[place : middle + 2])
        if place and (broken := _resumed(make, [*before], [*after])):
            return broken
    return None


def _resumed(make: Make, before: list[Batch], after: list[Batch]) -> Broken | None:
    run = advance(begin(make, SCALE, GROWTH_INTERVAL), before)
    saved = _carried(run)
    with blame_user_code("save"):
        checkpoint = copy.deepcopy(run.save())
    run.see()
    if found := differences(saved, _carried(run)):
        return Broken(f"after save() at batch {before[-1].place}", SAVING, found)
    other = begin(make, SCALE, GROWTH_INTERVAL)
    place = f"after loading a checkpoint of batch {before[-1].place}"
    try:
        with blame_user_code("load"):
            other.load(checkpoint)
    except LoopError as error:
        return Broken(place, LOADING, seen=str(error))
    other.see(first=True)
    if found := differences(_carried(run), _carried(other)):
        state = {} if run.loop.load else run.loop.state
        left_out = {key for key, value in state.items() if not run.loads(value)}
        if lost := [
            each.name for each in found if each.name.partition(".")[0] in left_out
        ]:
            raise NotApplicableError(
                f"pass Loop(save=..., load=...): {lost[0]} can be read but not loaded"
            )
        return Broken(place, LOST, found)
    for batch in after:
        for each in (run, other):
            advance(each, [batch])
        found = differences(
            run.states[-1] | run.scalers[-1], other.states[-1] | other.scalers[-1]
        )
        if found:
            where = f"after batch {batch.place}, resumed from a checkpoint of batch {before[-1].place}"
            return Broken(where, UNNAMED, found)
    return None


def _carried(run: Run) -> State:
    """Return the state of the loop and of the scaler, without what is logged."""
    names = [name for name in run.states[-1] if not name.startswith(f"{LOGGED}.")]
    return {name: run.states[-1][name] for name in names} | run.scalers[-1]

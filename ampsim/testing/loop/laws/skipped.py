"""A skipped step never happened."""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from ampsim.testing.loop.law import HIDDEN, KEPT, STEPPED, Broken, NotAsked, Verdict, law
from ampsim.testing.loop.run import Run
from ampsim.testing.loop.runs import Batch, Make, advance, begin, iterations
from ampsim.testing.loop.state import LOGGED, Difference, State, differences

SCALE = 2.0**8
DATA = "data"
LEFT_OUT = (
    *(".running_mean", ".running_var", ".num_batches_tracked"),  # of a forward pass, which did happen
    *(".moving_mean", ".moving_variance"),  # the same in Keras
    *(".notfinite_count", ".total_notfinite", ".last_finite"),  # of optax, which counts skips
    *(".num_not_finite", ".should_skip", ".finite"),
)


@law(issue="https://github.com/Lightning-AI/pytorch-lightning/issues/18828")
def skipped_step_never_happened(make: Make, batches: Sequence[Batch]) -> Verdict:
    """Batches a, b, c with an inf in all of b's gradients leave what a, c leave, but for the data; and the scale falls.

    Exact because it compares two states of one program, and each batch has its own seed, wherever it stands. The
    optimizer has stepped before, as some make their state in their first step, skipped or not.
    """
    groups = iterations(make, batches)
    if len(groups) < 2:
        return _moves_alone(make, batches) or NotAsked("fewer than 2 batches after which the scaler is updated")
    before, skipped, after = parts(groups)
    run = advance(begin(make, SCALE), before)
    with run.planting() as passes:
        advance(run, skipped)
    if not passes:
        return NotAsked("no backward pass reached a parameter: name the model, or the optimizer, in state")
    if found := _carried(run.states[len(before)], run.states[-1], logged=False):
        where = f"after the skipped batch {skipped[-1].place}"
        spread = _spread(each for each in found if each.name in run.parameters())
        return Broken(where, _last(batches, skipped), found, pattern=STEPPED if spread else "")
    if run.scale >= SCALE:
        seen = f"the scale is {run.scale:g}, expected less than {SCALE:g}"
        return Broken(f"after the skipped batch {skipped[-1].place}", _last(batches, skipped), pattern=KEPT, seen=seen)
    if any(each.name.startswith(DATA) for each in differences(run.states[len(before)], run.states[-1])):
        return None  # the next batch is another one than without this one
    advance(run, after)
    return _compare(make, batches, run, before, after)


def _moves_alone(make: Make, batches: Sequence[Batch]) -> Broken | None:
    """Say that parameters move although the scaler is never updated."""
    run = begin(make, SCALE)
    before = run.parameters()
    moved = differences(dict(before), dict(advance(run, batches).parameters()))
    if not moved or any(run.verdicts):
        return None
    seen = f"the scaler was never updated, and {moved[0].name} moves"
    return Broken(f"in {len(batches)} batches", len(batches) - 1, pattern=KEPT, seen=seen)


def _compare(make: Make, batches: Sequence[Batch], run: Run, before: list[Batch], after: list[Batch]) -> Verdict:
    """Hold the end of a run against those without the skipped batch, with the scale of then and of before."""
    found: list[Difference] = []
    for backed_off in (False, True):
        other = advance(begin(make, SCALE), before)
        if backed_off:
            other.set_scale(SCALE / 2)
        advance(other, after)
        found = _carried(other.states[-1], run.states[-1], logged=bool(after))
        if not found:
            return None
    return Broken(f"after batch {after[-1].place}", _last(batches, after), found, pattern=HIDDEN)


def parts(groups: list[Sequence[Batch]]) -> tuple[list[Batch], ...]:
    """Return the batches before the group in the middle, which is skipped, of that group, and of the one after it."""
    middle = len(groups) // 2
    return [*chain(*groups[:middle])], [*groups[middle]], [*chain(*groups[middle + 1 :][:1])]


def _carried(left: State, right: State, *, logged: bool) -> list[Difference]:
    """Return what differs of what a skipped step must leave alone."""
    return [
        each
        for each in differences(left, right)
        if not each.name.endswith(LEFT_OUT)
        and not each.name.startswith(DATA)
        and (logged or not each.name.startswith(f"{LOGGED}."))
    ]


def _spread(found: Iterable[Difference]) -> bool:
    return any(
        each.right is not None and each.right.dtype.kind == "f" and not np.isfinite(each.right).all() for each in found
    )


def _last(batches: Sequence[Batch], part: Sequence[Batch]) -> int:
    return [batch.place for batch in batches].index(part[-1].place)

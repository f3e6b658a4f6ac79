"""A skipped step never happened."""

from collections.abc import Iterable, Sequence

import numpy as np

from ampsim.testing.loop.law import HIDDEN, STEPPED, Broken, NotAsked, Verdict, law
from ampsim.testing.loop.run import Run
from ampsim.testing.loop.runs import Batch, Make, advance, begin, iterations
from ampsim.testing.loop.state import LOGGED, Difference, State, differences

SCALE = 2.0**8
DATA = "data"
STATISTICS = (".running_mean", ".running_var", ".num_batches_tracked")  # of a forward pass, which did happen


@law(issue="https://github.com/Lightning-AI/pytorch-lightning/issues/18828")
def skipped_step_never_happened(make: Make, batches: Sequence[Batch]) -> Verdict:
    """Batches a, b, c with an inf in all of b's gradients leave what a, c leave, but for the scaler and the data.

    Exact because it compares two states of one program, and each batch has its own seed, wherever it stands. The
    optimizer has stepped before, as some make their state in their first step, skipped or not.
    """
    groups = iterations(make, batches)
    if len(groups) < 2:
        return NotAsked("fewer than 2 batches after which the scaler is updated")
    middle = len(groups) // 2
    before, skipped, after = ([b for group in part for b in group] for part in parts(groups, middle))
    run = advance(begin(make, SCALE), before)
    with run.planting() as passes:
        advance(run, skipped)
    if not passes:
        return NotAsked("no backward pass reached a parameter: name the model, or the optimizer, in state")
    if found := _carried(run.states[len(before)], run.states[-1], logged=False):
        where = f"after the skipped batch {skipped[-1].place}"
        spread = _spread(each for each in found if each.name in run.parameters())
        return Broken(where, _last(batches, skipped), found, pattern=STEPPED if spread else "")
    if any(each.name.startswith(DATA) for each in differences(run.states[len(before)], run.states[-1])):
        return None  # the next batch is another one than without this one
    advance(run, after)
    return _compare(make, batches, run, before, after)


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


def parts(groups: list[Sequence[Batch]], middle: int) -> tuple[list[Sequence[Batch]], ...]:
    """Return what comes before the skipped group, that group, and the one after it."""
    return groups[:middle], [groups[middle]], groups[middle + 1 :][:1]


def _carried(left: State, right: State, *, logged: bool) -> list[Difference]:
    """Return what differs of what a skipped step must leave alone."""
    return [
        each
        for each in differences(left, right)
        if not each.name.endswith(STATISTICS)
        and not each.name.startswith(DATA)
        and (logged or not each.name.startswith(f"{LOGGED}."))
    ]


def _spread(found: Iterable[Difference]) -> bool:
    return any(
        each.right is not None and each.right.dtype.kind == "f" and not np.isfinite(each.right).all() for each in found
    )


def _last(batches: Sequence[Batch], part: Sequence[Batch]) -> int:
    return [batch.place for batch in batches].index(part[-1].place)

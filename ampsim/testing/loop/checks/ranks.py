"""The check ranks_equal_one_process."""

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.loop import LoopError
from ampsim.testing.loop.rows import halved
from ampsim.testing.loop.run import NOTHING, Fault, Planted, Run
from ampsim.testing.loop.runs import Batch, Make, advance, begin, iterations, run_class
from ampsim.testing.loop.state import Array, Difference, beyond, differences, distance, same

RANKS = 2
SCALE, GROWTH_INTERVAL = 2.0**8, 3
INF = Fault()
CLOSE = 0.1  # of a change: what an optimizer makes of the rounding of a sum
ALIKE = 2.0**-10  # of gradients: how near a mean of parts comes to that of the whole
Iterations = Sequence[Sequence[Batch]]
PLANS: tuple[Collection[int], ...] = (
    (),
    *((rank,) for rank in range(RANKS)),
    range(RANKS),
)  # who has an inf
APART = "the ranks average only some gradients, or clip gradients before they average them"
MEAN = (
    "all ranks step with the same gradients, but not with the mean: the gradients are summed and not divided by the "
    "number of ranks, divided twice, or clipped by each rank before they are averaged"
)
WAITS = (
    "a rank skips a collective because of its own overflow: "
    "let all ranks agree on the skip before any rank skips a collective"
)
COUNTED = (
    "it depends on the rank's own gradients, or on the rank: let all ranks agree on the skip, and check after "
    "scaler.update() whether the scale fell"
)
VERDICT = (
    "each rank decides alone whether to skip: average the gradients before the scaler checks them. If each rank keeps "
    "its own gradients, use a scaler that synchronizes, such as ampsim.torch.GradScaler(group=group)"
)


@check(issue="https://github.com/pytorch/pytorch/issues/136009")
def ranks_equal_one_process(make: Make, batches: Sequence[Batch]) -> Broken | None:
    """Ranks that share each batch skip, scale, and train like one process, with an inf on any rank or on none.

    Skips, scales, and step counts must match exactly. A skip is a step without a change of parameters. A step count
    is a number that grows by 1 in each iteration of the one process. Parameters that are equal on all ranks may differ
    from those of one process by a tenth of the change. They are compared only if the loss is a mean: if the gradients
    of the whole batch are the mean of those of its parts. Other state of a rank may be a shard and is not compared.
    Without split=, a batch is split by rows.
    """
    if not _takes_group(make):
        raise NotApplicableError("pass make(scaler, group=None) to test ranks")
    try:
        groups = iterations(make, batches)
        if len(groups) < 2:
            raise NotApplicableError(
                "pass more batches: the scaler must be updated after at least 2 of them"
            )
        for bad in PLANS:
            if verdict := _play(make, groups, bad):
                return verdict
    except LoopError as error:
        raise NotApplicableError(str(error)) from error
    return None


def _takes_group(make: Make) -> bool:
    try:
        return "group" in inspect.signature(make).parameters
    except (TypeError, ValueError):
        return False


def _play(make: Make, groups: Iterations, bad: Collection[int]) -> Broken | None:
    """Compare ranks, some with an inf in one iteration, with one process on whole batches with the same inf."""
    whole = begin(make, SCALE, GROWTH_INTERVAL)
    _train(whole, groups, bool(bad), lambda data: data)
    ranks: dict[int, Run] = {}
    errors: list[str] = []

    def live(group: Any) -> None:
        try:
            ranks[group.rank()] = run = begin(make, SCALE, GROWTH_INTERVAL, group=group)
            fault = _fault(run, bad)
            _train(run, groups, group.rank() in bad, partial(_part, run, group.rank()), fault)
        except LoopError as error:
            errors.append(f"on rank {group.rank()} {error}")

    waits = run_class(make).together(RANKS, live)
    if errors:
        raise NotApplicableError(errors[0])
    planted = f", with {_fault(whole, bad)} on rank {' and '.join(map(str, bad))}" if bad else ""
    if waits:
        count = sum(map(len, groups))
        return Broken(f"in {count} batches{planted}", count - 1, cause=WAITS, seen=waits)
    if not bad and any(any(found) for run in (whole, *ranks.values()) for found in run.verdicts):
        raise NotApplicableError(f"a batch overflows at scale {SCALE:g}: pass batches that do not")
    if not bad and (
        broken := _trains(make, groups, whole, [run for _, run in sorted(ranks.items())])
    ):
        return broken
    for rank, run in sorted(ranks.items()):
        if broken := _compare(whole, run, f"on rank {rank} of {RANKS}", groups, planted):
            return broken
    return None


def _train(
    run: Run, groups: Iterations, bad: bool, data: Callable[[Any], Any], fault: Fault = INF
) -> None:
    """Train on all batches, with a fault in the middle iteration if `bad`."""
    for number, group in enumerate(groups):
        is_bad = bad and number == len(groups) // 2
        with run.planting(fault) if is_bad else nullcontext(Planted({"": 1})) as planted:
            advance(run, group, data)
        if not planted.passes:
            raise LoopError(
                "no backward pass reached a parameter: name the model or the optimizer in state"
            )


def _fault(run: Run, bad: Collection[int]) -> Fault:
    """Return the fault: on a single rank, a -inf or a NaN in one element of its first or last parameter."""
    owned = run.owners()
    names = [name for name in run.parameters() if name in owned]
    if len(bad) != 1 or not names:
        return INF
    return Fault(math.nan, names[-1]) if 0 in bad else Fault(-math.inf, names[0])


def _part(run: Run, rank: int, data: Any) -> Any:
    """Return what a rank trains on."""
    if run.loop.split is None:
        parts = halved(data, RANKS)
        if parts is None:
            raise LoopError(
                f"the rows of a batch cannot be split among {RANKS} ranks: pass Loop(split=...)"
            )
    else:
        parts = [*run.loop.split(data, RANKS)]
    if len(parts) != RANKS:
        raise LoopError(f"split(batch, {RANKS}) returned {len(parts)} parts: expected one per rank")
    return parts[rank]


def _trains(make: Make, groups: Iterations, whole: Run, ranks: Sequence[Run]) -> Broken | None:
    """Return the first iteration in which parameters equal on all ranks differ from those of one process."""
    if not _is_mean(make, groups[0]):
        return None
    names, end = whole.parameters().keys(), 0
    for group in groups:
        start, end = end, end + len(group)
        first, *others = (run.states[end] for run in ranks)
        alike = [
            name
            for name in names
            if all(same(first.get(name), other.get(name)) for other in others)
        ]
        if not alike:
            return None
        before, left = (
            {name: states[name] for name in names}
            for states in (whole.states[start], whole.states[end])
        )
        right = {name: first.get(name, left[name]) for name in names}
        right = {
            name: array if array.shape == left[name].shape else left[name]
            for name, array in right.items()
        }
        if far := beyond(CLOSE, before, left, right):
            apart = [each for each in far if each.name not in alike]
            where = f"on each of {RANKS} ranks after batch {group[-1].place}"
            return Broken(where, end - 1, apart or far, cause=APART if apart else MEAN)
    return None


def _is_mean(make: Make, group: Sequence[Batch]) -> bool:
    """Return whether the gradients of whole batches are the mean of those of their parts, on one rank."""

    def leave(rank: int | None) -> Mapping[str, Array]:
        run = begin(make, SCALE, GROWTH_INTERVAL)
        with run.planting(NOTHING) as planted:
            advance(run, group, lambda data: data if rank is None else _part(run, rank, data))
        return planted.last

    whole, parts = leave(None), [leave(rank) for rank in range(RANKS)]
    kind = [
        Difference(name, array, np.mean([part[name] for part in parts], 0), np.zeros_like(array))
        for name, array in whole.items()
        if all(name in part for part in parts)
    ]
    return bool(kind) and distance(kind) < ALIKE


def _compare(whole: Run, run: Run, who: str, groups: Iterations, planted: str) -> Broken | None:
    """Return the first iteration in which a rank differs from one process on the whole batch."""
    ends = [0, *accumulate(map(len, groups))]
    middle = len(groups) // 2
    counts = _counts(
        whole,
        [span for number, span in enumerate(pairwise(ends)) if not (planted and number == middle)],
    )
    for number, (start, end) in enumerate(pairwise(ends)):
        is_bad = bool(planted) and number == middle
        where = f"{who} after batch {groups[number][-1].place}{planted}"
        expected, seen = (
            {each.name for each in differences(r.states[start], r.states[end])}
            for r in (whole, run)
        )
        if is_bad and (moved := [name for name in run.parameters() if name in seen - expected]):
            return Broken(
                where,
                end - 1,
                cause=VERDICT,
                seen=f"{moved[0]} changes in a step that all ranks must skip",
            )
        if found := differences(whole.scalers[end], run.scalers[end]):
            return Broken(where, end - 1, found, cause=VERDICT)
        for name in counts:
            if name in run.states[end] and (name in seen) != (name in expected):
                said = (
                    "counts a step that all ranks skip"
                    if name in seen
                    else "does not count a step that all ranks take"
                )
                return Broken(where, end - 1, cause=COUNTED, seen=f"{name} {said}")
    return None


def _counts(run: Run, spans: Sequence[tuple[int, int]]) -> list[str]:
    """Return what grows by 1 over each of these spans: what counts steps."""
    return [
        name
        for name, array in run.states[-1].items()
        if array.size == 1
        and array.dtype.kind in "iuf"
        and all(
            _value(run.states[end].get(name)) - _value(run.states[start].get(name)) == 1
            for start, end in spans
        )
    ]


def _value(array: Array | None) -> float:
    return 0.0 if array is None else float(np.ravel(array)[0])

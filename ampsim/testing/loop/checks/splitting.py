"""The check micro_batches_equal_one_batch."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.backend import Fault, Run
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.play import Batch, Make, advance, begin
from ampsim.testing.loop.state import beyond, differences

SCALE = 2.0**8
PARTS = 2
CLOSE = 0.1  # of a change: what an optimizer makes of the rounding of a sum
OTHER_SEED = 1_000_000  # is added to the place of a batch, of which its seed is made
VERDICT = (
    "the scaler checks one micro-batch alone, or before all gradients are accumulated: "
    "unscale and update once, after the last micro-batch"
)
DIVIDED = (
    "the loss of a micro-batch is not divided exactly once by the number of micro-batches, gradients are cleared "
    "between micro-batches, or a count or an average is updated in each one"
)
STATISTICS = r"(running|moving)_(mean|var)|batch_stats"  # of batch-norm, by name


@check(issue="https://github.com/karpathy/nanoGPT/issues/605")
def micro_batches_equal_one_batch(
    make: Make, batches: Sequence[Batch]
) -> Broken | None:
    """Micro-batches skip, scale, and train like the whole batch, with an inf in any micro-batch or
    in none.

    Skips and scales must match exactly. Changes of state may differ by a tenth, as an optimizer can
    make much of the rounding of a sum. With dropout or batch-norm, a batch in parts may have
    another result, so only skips and scales are tested.
    """
    if begin(make, SCALE).loop.split is None:
        raise NotApplicableError("pass Loop(split=...) to test micro-batching")
    whole = begin(make, SCALE)
    split = begin(make, SCALE)
    doubt = ""
    for step, batch in enumerate(batches):
        advance(whole, [batch])
        _advance_in_parts(split, batch)
        if broken := _compare(whole, split, step, batch):
            why = (
                _excuse(make, batches[: step + 1], whole)
                if broken.cause == DIVIDED
                else ""
            )
            if not why:
                return broken
            doubt = (
                f"tested only skips and scales, because {why}: {broken.differences[0]}"
            )
            break
    for bad in range(PARTS):
        if broken := _with_inf(make, batches[-1], bad):
            return broken
    if doubt:
        raise NotApplicableError(doubt)
    return None


def _advance_in_parts(run: Run, batch: Batch) -> Run:
    split: Any = run.loop.split
    return advance(run, [batch], lambda data: split(data, PARTS))


def _excuse(make: Make, batches: Sequence[Batch], whole: Run) -> str:
    """Return why a batch in parts may have another result than the whole batch; "" for no known
    reason.
    """
    changed = [each.name for each in differences(*whole.states[-2:])]
    if statistics := [name for name in changed if re.search(STATISTICS, name)]:
        return f"{statistics[0]} depends on the whole batch"
    seeded = [replace(batch, place=batch.place + OTHER_SEED) for batch in batches]
    otherwise = advance(begin(make, SCALE), seeded)
    is_random = differences(whole.states[-1], otherwise.states[-1])
    return "training draws random numbers" if is_random else ""


def _compare(whole: Run, split: Run, step: int, batch: Batch) -> Broken | None:
    where = f"after batch {batch.place} in {PARTS} micro-batches"
    if found := differences(whole.scalers[-1], split.scalers[-1]):
        return Broken(where, VERDICT, found)
    if not (differences(*whole.states[-2:]) or differences(*split.states[-2:])):
        return (
            None  # an accumulated batch that changes nothing: the difference is older
        )
    found = beyond(CLOSE, whole.states[step], whole.states[-1], split.states[-1])
    return Broken(where, DIVIDED, found) if found else None


def _with_inf(make: Make, batch: Batch, bad: int) -> Broken | None:
    """Check that an inf in the gradients of one micro-batch causes a skip and a backoff."""
    clean = begin(make, SCALE)
    run = begin(make, SCALE)
    if not _advance_in_parts(clean, batch).verdicts[0]:
        return None  # the scaler is updated after several batches
    with run.seeding(Fault(only=bad)) as seeded:
        _advance_in_parts(run, batch)
    expected = run.backed_off(SCALE)
    is_right = run.scale == expected and run.reacts(SCALE)
    if max(seeded.passes.values(), default=0) <= bad or is_right:
        return None
    where = f"after batch {batch.place} with an inf in micro-batch {bad} of {PARTS}"
    seen = f"the scale is {run.scale:g}, expected {expected:g} and an overflow"
    return Broken(where, VERDICT, seen=seen)

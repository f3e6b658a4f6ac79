"""The check skipped_step_changes_nothing."""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Literal

import numpy as np

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.checks.excused import DATA, Excuses, moved, unlike
from ampsim.testing.loop.loop import LoopError
from ampsim.testing.loop.run import NOTHING, Fault, Planted, Run
from ampsim.testing.loop.runs import Batch, Make, advance, begin, iterations
from ampsim.testing.loop.state import LOGGED, Difference, State, differences, same

SCALE = 2.0**8
FAR = 2.0**16  # a scale that can fall many times before it reaches a min_scale of 1
MOST = 15  # skips in a row
EARLY = 2  # iterations before the one in which all kinds of faults are seeded
PARAMETERS = 4  # in which a fault is seeded, at most
STEPPED = (
    "the optimizer stepped on the inf: optimizer.step() is called directly, or inf and NaN are removed from the "
    "gradients before the scaler checks them. Step every optimizer with scaler.step(optimizer)"
)
KEPT = "the scaler is not updated: update is not called, does not get the inf, or, in JAX, its result is discarded"
POISONED = (
    "it includes a non-finite loss and never recovers: exclude non-finite values before you average"
)
MIXED = (
    "it is neither unchanged nor the result of a finite step: an inf or NaN is removed from the gradients, or only "
    "some gradients or backward passes are checked. Let scaler.step(optimizer) check all gradients after the last pass"
)
HIDDEN = (
    "something outside state changed in the skipped step: gradients that were not cleared, or a counter, an average, "
    "or a random number generator that state does not name"
)


@check(issue="https://github.com/Lightning-AI/pytorch-lightning/issues/18828")
def skipped_step_changes_nothing(make: Make, batches: Sequence[Batch]) -> Broken | None:
    """A step with an inf or NaN in its gradients changes no state except the data position, and the scale falls.

    The result of batches a, b, c with an overflow in b equals the result of a, c. The check seeds an inf in all
    gradients. Then it seeds an inf, a -inf, and a NaN in one element of the first, the last, and a sampled gradient, in
    a single backward pass of several, and in the scaled loss. The result is exact because each batch has its own seed.
    State that a forward pass changes may change: see `Excuses`. The check does not test by how much the scale falls.
    For two optimizers with an update after each, gradients divided twice or by another scale are a failure of
    `gradients_do_not_depend_on_loss_scale`.
    """
    groups = iterations(make, batches)
    if len(groups) < 2:
        if broken := _moves_alone(make, batches):
            return broken
        raise NotApplicableError(
            "pass more batches: a finite step must update the scaler after at least 2 of them"
        )
    skip = Skip(make, groups, len(groups) // 2)
    if not skip.reached:
        raise NotApplicableError(
            "no backward pass reached a parameter: name the model or the optimizer in state"
        )
    if broken := skip.at_all():
        return broken
    early = skip if len(groups) // 2 <= EARLY else Skip(make, groups, EARLY)
    return early.in_part() or early.in_output() or in_a_row(make, groups)


def _moves_alone(make: Make, batches: Sequence[Batch]) -> Broken | None:
    """Return a failure if parameters change although the scaler is never updated, not even after an overflow."""
    run = begin(make, SCALE)
    before = run.parameters()
    now = differences(dict(before), dict(advance(run, batches).parameters()))
    if not now or any(run.verdicts):
        return None
    bad = begin(make, SCALE)
    with bad.planting(Fault()), suppress(LoopError):
        advance(bad, batches)
    if bad.scale < SCALE:
        return None
    seen = f"the scaler was never updated, but {now[0].name} changes"
    return Broken(f"in {len(batches)} batches", len(batches) - 1, cause=KEPT, seen=seen)


class Skip:
    """The skipped iteration: its result without a fault, and the effect of faults in it."""

    def __init__(self, make: Make, groups: Sequence[Sequence[Batch]], place: int) -> None:
        self.make = make
        self.before, self.group = [*chain(*groups[:place])], [*groups[place]]
        self.after, self.rest = [*chain(*groups[place + 1 :][:1])], [*chain(*groups[place + 1 :])]
        run = self._begin()
        with run.planting(NOTHING) as self.clean:
            advance(run, self.group)
        self.start, self.owners = run.states[len(self.before)], run.owners()
        self.trained = {*run.parameters()}
        self.excuses = Excuses(self.start, run.states[-1], self.clean.early, run, self._otherwise)

    @property
    def reached(self) -> bool:
        """Whether a fault can be seeded: in a gradient, or in the scaled loss if no hook sees a gradient."""
        return bool(self.clean.passes) or self._played(Fault(place="loss"))[0].scale < SCALE

    def _begin(self) -> Run:
        return advance(begin(self.make, SCALE), self.before)

    def _otherwise(self) -> State:
        """Return what the iteration leaves on the data of the batches after it, or before."""
        others = [*self.after, *self.before, *self.group]
        run, swapped = (
            self._begin(),
            (Batch(b.place, o.data) for b, o in zip(self.group, others, strict=False)),
        )
        return advance(run, swapped).states[-1]

    def _played(self, fault: Fault) -> tuple[Run, Planted]:
        run = self._begin()
        with run.planting(fault) as planted:
            advance(run, self.group)
        return run, planted

    def where(self, fault: Fault) -> str:
        """Return after what something was seen, in words."""
        return f"after the skipped batch {self.group[-1].place}, with {fault}"

    def _broken(
        self, fault: Fault, found: Sequence[Difference], cause: str = "", seen: str = ""
    ) -> Broken:
        where, step = self.where(fault), self.group[-1].place
        return Broken(where, step, found, cause=cause, seen=seen, fault=fault)

    def at_all(self) -> Broken | None:
        """Seed an inf in all gradients."""
        fault = Fault() if self.clean.passes else Fault(place="loss")
        run, _ = self._played(fault)
        end = run.states[-1]
        found, excused = self.excuses.remaining(end, (SCALE, run.scale))
        if found := unlike(found, self.trained):
            steps = any(each.name in self.owners and ".state." in each.name for each in found)
            return self._broken(
                fault, found, STEPPED if _spread(found, self.trained) else MIXED if steps else ""
            )
        if run.scale >= SCALE:
            return self._broken(
                fault, (), KEPT, f"the scale is {run.scale:g}, expected less than {SCALE:g}"
            )
        inputs = {name for name, is_input in excused.items() if is_input}
        inputs |= {each.name for each in differences(self.start, end) if each.name.startswith(DATA)}
        taken = {name.partition(".")[0] for name in inputs}
        if not all(key in run.loop.state and run.loads(run.loop.state[key]) for key in taken):
            return None  # the next batch is another one than without this one
        return self._hidden(run, taken, {*excused})

    def _hidden(self, run: Run, taken: set[str], excused: set[str]) -> Broken | None:
        """Compare the end of a run with runs without the skipped batch, at the old and the new scale."""
        held, after = run.held(taken), self.rest if excused - taken else self.after
        found: list[Difference] = []
        scale = run.scale
        advance(run, after)
        for backed_off in (False, True):
            other = self._begin()
            other.hold(held)
            if backed_off:
                other.set_scale(scale)
            advance(other, after)
            pairs = differences(other.states[-1], run.states[-1])
            found = [
                each
                for each in pairs
                if each.name not in excused
                and not each.name.startswith(DATA)
                and (after or not each.name.startswith(f"{LOGGED}."))
                and not self.excuses.is_copied(
                    each, (*run.scales, *other.scales, run.scale, other.scale)
                )
            ]
            if not (found := unlike(found, self.trained)):
                return None
        fault = Fault(place="" if self.clean.passes else "loss")
        place = after[-1].place
        return Broken(f"after batch {place}", place, found, cause=HIDDEN, fault=fault)

    # ------------------------------------------------------------------------------------------- all kinds of faults

    def faults(self) -> Iterator[Fault]:
        """Yield the faults to seed besides an inf in all gradients."""
        names = [name for name in self.clean.passes if name]
        values = (math.nan, -math.inf, math.inf, -math.inf)
        for name, value in zip(self._drawn(names), values, strict=False):
            yield Fault(value, name)
        if not names:  # all gradients are reached by the loss, or none by a hook
            place: Literal["", "loss"] = "" if self.clean.passes else "loss"
            yield from (Fault(math.nan, place=place), Fault(-math.inf, place=place))
        last = names[-1] if names else ""
        passes = self.clean.passes.get(last, 0)
        yield from (
            Fault(value, last, only)
            for only, value in ((0, math.inf), (passes - 1, math.nan))
            if passes > 1
        )
        yield Fault(place="loss")
        if self.clean.passes:
            yield Fault()

    def _drawn(self, names: Sequence[str]) -> list[str]:
        """Return the first, the last, and a sampled parameter, and the first of each optimizer."""
        if not names:
            return []
        firsts = {self.owners.get(name, ""): name for name in reversed(names)}
        drawn = random.Random(len(names)).choice(names)  # noqa: S311 - the same at each call
        return [*dict.fromkeys((names[-1], names[0], *sorted(firsts.values()), drawn))][:PARAMETERS]

    def in_part(self) -> Broken | None:
        """Seed one fault after another, each in a run of its own."""
        for fault in self.faults():
            run, _ = self._played(fault)
            found, _ = self.excuses.remaining(run.states[-1], (SCALE, run.scale))
            found = unlike(found, self.trained)
            if _has_finite_update(run):
                found = [each for each in found if _spread([each])]
            if broken := self._alone(fault, found, run.scale):
                return broken
        return None

    def in_output(self) -> Broken | None:
        """Seed an inf in the model's last output, and so in the unscaled loss, for steps on it and averages of it."""
        if not self.clean.outputs:
            return None
        fault = Fault(place="output", only=self.clean.outputs - 1)
        try:
            run, _ = self._played(fault)
        except LoopError:  # raising here is correct
            return None
        found = [
            each
            for each in moved(self.start, run.states[-1])
            if each.left is not None
            and _spread([each])
            and not _spread([replace(each, right=each.left)])
        ]
        named = {*run.buffers()}
        found = [each for each in found if each.name not in named]
        return (
            self._broken(fault, found, STEPPED if _spread(found, self.trained) else POISONED)
            if found
            else None
        )

    def _alone(self, fault: Fault, found: list[Difference], scale: float) -> Broken | None:
        """Return a failure if the state after one fault is neither unchanged nor that of a finite step."""
        clean = self.excuses.clean
        if (
            found
            and all(same(each.right, clean.get(each.name)) for each in found)
            and self._whole(found, clean)
        ):
            return None  # the fault was in a gradient that is cleared, or that no optimizer has
        if (
            fault.place == "loss" and len({*self.owners.values()}) > 1
        ):  # losses of another scaler are as they were
            found = [
                each
                for each in found
                if each.name not in self.owners or not same(each.right, clean[each.name])
            ]
        owner = self.owners.get(fault.name, "")
        if (
            found and len({*self.owners.values()}) > 1 and owner
        ):  # others may step, as long as they stay finite
            found = [
                each for each in found if self.owners.get(each.name) == owner or _spread([each])
            ]
            if not found:
                return None
        if found:
            return self._broken(fault, found, STEPPED if _spread(found, self.trained) else MIXED)
        if scale >= SCALE and not self._is_left_alone(fault):
            return self._broken(
                fault, (), KEPT, f"the scale is {scale:g}, expected less than {SCALE:g}"
            )
        return None

    def _whole(self, found: Sequence[Difference], clean: State) -> bool:
        """Return whether everything that a finite step changes has changed."""
        names = {each.name for each in found}
        return all(
            each.name in names for each in moved(self.start, clean) if each.name in self.trained
        )

    def _is_left_alone(self, fault: Fault) -> bool:
        """Return whether the fault is in a parameter that no optimizer has, or that a finite step does not change."""
        return bool(fault.name) and (
            fault.name not in self.owners
            or not any(each.name in self.trained for each in moved(self.start, self.excuses.clean))
        )


def in_a_row(make: Make, groups: Sequence[Sequence[Batch]]) -> Broken | None:
    """Seed an inf in all gradients of every iteration but the first, until the loop raises."""
    run, step = advance(begin(make, SCALE), groups[0]), len(groups[0]) - 1
    run.set_scale(FAR)
    start, trained = run.states[-1], {*run.parameters()}
    for number, group in enumerate(groups[1:MOST], 1):
        scale, step = run.scale, step + len(group)
        try:
            with run.planting() as planted:
                advance(run, group)
        except LoopError:  # some loops raise after many skips
            return None
        if not planted.passes or not (planted.passes.keys() & run.owners().keys()):
            return None
        where = f"after batch {group[-1].place}, skip {number} in a row, with {Fault()}"
        told = partial(Broken, where, step, fault=Fault())
        if found := unlike(
            (each for each in moved(start, run.states[-1]) if each.name in trained), trained
        ):
            return told(found, cause=STEPPED if _spread(found) else MIXED)
        if run.scale >= scale:
            return told(
                cause=KEPT, seen=f"the scale is {run.scale:g}, expected less than {scale:g}"
            )
    return None


def _has_finite_update(run: Run) -> bool:
    """Return whether the last batch had an update with an inf, and another one without, which may step."""
    return len({*run.verdicts[-1]}) > 1


def _spread(found: Iterable[Difference], names: Iterable[str] | None = None) -> bool:
    """Return whether something is inf or NaN, of these names or any."""
    return any(
        each.right is not None
        and each.right.dtype.kind == "f"
        and not np.isfinite(each.right).all()
        for each in found
        if names is None or each.name in names
    )

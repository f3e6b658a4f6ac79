"""The check skipped_step_changes_nothing."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.backend import NOTHING, Fault, Run, Seeded
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.checks.excused import Excuses, is_copy
from ampsim.testing.loop.loop import LoopError
from ampsim.testing.loop.play import Batch, Make, advance, begin, iterations
from ampsim.testing.loop.state import DATA, Difference, State, differences, moved, same

SCALE = 2.0**8
FAR = 2.0**16  # a scale that can fall many times before it reaches a min_scale of 1
MOST = 15  # skips in a row
EARLY = 2  # iterations before the one in which faults are seeded
PARAMETERS = 4  # in which a fault is seeded, at most
STEPPED = (
    "the optimizer stepped on the inf: optimizer.step() is called directly, or inf and NaN are removed from the "
    "gradients before the scaler checks them. Step every optimizer with scaler.step(optimizer)"
)
KEPT = "the scaler is not updated: update is not called, does not get the inf, or, in JAX, its result is discarded"
POISONED = "it includes a non-finite loss and never recovers: exclude non-finite values before you average"
MIXED = (
    "the step was not skipped, or not as a whole: an inf or NaN is removed from the gradients, or only some gradients "
    "or backward passes are checked. Let scaler.step(optimizer) check all gradients after the last pass"
)
COUNTED = (
    "it changes although the step was skipped, as a schedule, an average, or a momentum outside scaler.step: advance "
    "it only after a step that was taken. torch's scaler lowers scaler.get_scale() in scaler.update() exactly if the "
    "step was skipped; a scaler with hysteresis or a min_scale may keep its scale, so let it report the skip. In "
    "JAX, keep the old state where gradients are not finite. If it counts batches, not steps, name it `data` in state"
)
HIDDEN = (
    "something outside state changed in the skipped step: gradients that were not cleared, or a counter, an average, "
    "or a random number generator that state does not name"
)


@check(issue="https://github.com/Lightning-AI/pytorch-lightning/issues/18828")
def skipped_step_changes_nothing(make: Make, batches: Sequence[Batch]) -> Broken | None:
    """A step with an inf or NaN in its gradients changes no state except the data position, and the
    scale falls.

    The result of batches a, b, c with an overflow in b equals the result of a, c. The check seeds
    an inf in all gradients. Then it seeds an inf, a -inf, and a NaN in one element of the first,
    the last, and a sampled gradient, in a single backward pass of several, in the scaled loss, and
    in the data. The result is exact because each batch has its own seed. State that a forward pass
    changes may change: see `Excuses`. The check does not test by how much the scale falls.
    """
    groups = iterations(make, batches)
    if len(groups) < 2:
        raise NotApplicableError(
            "pass more batches: a finite step must update the scaler after at least 2 of them"
        )
    skip = Skip(make, groups, min(len(groups) // 2, EARLY))
    for fault in skip.faults():
        if broken := skip.alone(fault):
            return broken
    return skip.hidden() or skip.in_data() or in_a_row(make, groups)


class Skip:
    """The skipped iteration: its result without a fault, and the effect of faults in it."""

    def __init__(
        self, make: Make, groups: Sequence[Sequence[Batch]], place: int
    ) -> None:
        self.make = make
        self.before = [*chain(*groups[:place])]
        self.group = [*groups[place]]
        self.after = [*chain(*groups[place + 1 :])]
        run, self.clean = self._played(NOTHING)
        self.owners = run.owners()
        self.trained = {*run.parameters()}
        start = run.states[len(self.before)]
        end = run.states[-1]
        early = self.clean.early
        play_others = self._otherwise
        self.excuses = Excuses(
            start, end, early, play_others, self.trained, self.owners
        )
        self.everywhere = Fault() if self.clean.passes else Fault(place="loss")
        if not (self.clean.passes or self._played(self.everywhere)[0].reacts(SCALE)):
            raise NotApplicableError(
                "no backward pass reached a parameter: name the model or the optimizer in state"
            )

    def _begin(self) -> Run:
        return advance(begin(self.make, SCALE), self.before)

    def _otherwise(self) -> State:
        """Return what the iteration leaves on the data of the batches after it, or before."""
        others = [*self.after, *self.before, *self.group]
        pairs = zip(self.group, others, strict=False)
        return advance(
            self._begin(), (Batch(b.place, o.data) for b, o in pairs)
        ).states[-1]

    def _played(self, fault: Fault) -> tuple[Run, Seeded]:
        run = self._begin()
        with run.seeding(fault) as seeded:
            advance(run, self.group)
        return run, seeded

    def faults(self) -> Iterator[Fault]:
        """Yield the faults to seed."""
        names = [name for name in self.clean.passes if name]
        yield self.everywhere
        # Without names, no hook reaches a single gradient.
        targets = self._drawn(names) or ["", ""]
        place = "" if names else self.everywhere.place
        values = (math.nan, -math.inf, math.inf, -math.inf)
        for value, name in zip(values, targets, strict=False):
            yield Fault(value, name, place=place)
        last = names[-1] if names else ""
        passes = self.clean.passes.get(last, 0)
        if passes > 1:
            yield from (Fault(math.inf, last, 0), Fault(math.nan, last, passes - 1))
        yield Fault(place="loss")

    def _drawn(self, names: Sequence[str]) -> list[str]:
        """Return the first, the last, and a sampled parameter, and the first of each optimizer."""
        if not names:
            return []
        firsts = {self.owners.get(name, ""): name for name in reversed(names)}
        drawn = random.Random(len(names)).choice(names)  # noqa: S311
        return [*dict.fromkeys((names[-1], names[0], *sorted(firsts.values()), drawn))][
            :PARAMETERS
        ]

    def alone(self, fault: Fault) -> Broken | None:
        """Return a failure if the state after one fault is neither unchanged nor that of a finite
        step.
        """
        run, _ = self._played(fault)
        found, _ = self.excuses.split(run.states[-1], (SCALE, run.scale))
        if found and self._is_whole_step(found):
            return None  # the fault was in a gradient that is cleared, or that no optimizer has
        affected = self._affected(
            fault, found, has_finite_update=len({*run.verdicts[-1]}) > 1
        )
        if affected:
            return self._broken(fault, self._cause(affected), affected)
        if found and fault.name:
            return None  # other optimizers have stepped, perhaps with another scaler
        if not run.reacts(SCALE) and not self._is_left_alone(fault):
            seen = f"the scale is {run.scale:g}, expected less than {SCALE:g}"
            return self._broken(fault, KEPT, seen=seen)
        return None

    def _is_whole_step(self, found: Sequence[Difference]) -> bool:
        """Return whether all is as after a finite step."""
        clean = self.excuses.clean
        names = {each.name for each in found}
        stepped = {
            e.name for e in moved(self.excuses.start, clean) if e.name in self.trained
        }
        return stepped <= names and all(
            same(each.right, clean.get(each.name)) for each in found
        )

    def _affected(
        self, fault: Fault, found: list[Difference], *, has_finite_update: bool
    ) -> list[Difference]:
        """Leave out what another optimizer, or another update of the iteration, may rightly change."""
        poisoned = [each for each in found if each.is_poisoned]
        if has_finite_update:
            return poisoned
        is_shared = len({*self.owners.values()}) > 1
        if is_shared and fault.place == "loss":
            # Losses of another scaler are as they were.
            clean = self.excuses.clean
            names = {
                each.name for each in found if same(each.right, clean.get(each.name))
            }
            return [
                each for each in found if each.name not in names & self.owners.keys()
            ]
        owner = self.owners.get(fault.name)
        if is_shared and owner:
            # Others may step, as long as they stay finite.
            names = {each.name for each in found if self.owners.get(each.name) == owner}
            return [each for each in found if each.name in names or each.is_poisoned]
        return found

    def _cause(self, found: Sequence[Difference]) -> str:
        if any(each.is_poisoned and each.name in self.trained for each in found):
            return STEPPED
        return MIXED if any(each.name in self.trained for each in found) else COUNTED

    def _is_left_alone(self, fault: Fault) -> bool:
        """Return whether the fault is in a parameter that no optimizer has, or that a finite step
        does not change.
        """
        changes = (each.name for each in moved(self.excuses.start, self.excuses.clean))
        return bool(fault.name) and (
            fault.name not in self.owners or self.trained.isdisjoint(changes)
        )

    def hidden(self) -> Broken | None:
        """Compare the batches after a skip with those of a run without the skipped batch, at the
        same scale.
        """
        run, _ = self._played(self.everywhere)
        _, excused = self.excuses.split(run.states[-1], (SCALE, run.scale))
        passing = differences(self.excuses.start, run.states[-1])
        inputs = [name for name, is_input in excused.items() if is_input]
        inputs += [each.name for each in passing if each.name.startswith(DATA)]
        keys = {name.partition(".")[0] for name in inputs}
        state = run.loop.state
        if not self.after or not all(
            key in state and run.loads(state[key]) for key in keys
        ):
            return None  # the next batch is another one than without this one
        other = self._begin()
        other.hold(run.held(keys))
        other.set_scale(run.scale)
        for each in (run, other):
            advance(each, self.after)
        scales = {*run.scales, *other.scales, run.scale, other.scale}
        found = [
            each
            for each in differences(other.states[-1], run.states[-1])
            if each.name not in excused
            and not each.name.startswith(DATA)
            and not is_copy(each.right, scales)
        ]
        place = self.after[-1].place
        return Broken(f"after batch {place}", HIDDEN, found) if found else None

    def in_data(self) -> Broken | None:
        """Seed an inf in the data, and so in the unscaled loss, for steps on it and averages of it."""
        run = self._begin()
        try:
            advance(run, self.group, with_inf)
        except LoopError:  # raising here is correct
            return None
        # Statistics of a forward pass have more than one number.
        found = [
            each
            for each in moved(self.excuses.start, run.states[-1])
            if each.is_poisoned
            and each.left is not None
            and np.isfinite(each.left).all()
            and (each.left.size == 1 or each.name in self.trained)
        ]
        if not found:
            return None
        is_stepped = any(each.name in self.trained for each in found)
        where = f"after batch {self.group[-1].place} with inf in its data"
        return Broken(where, STEPPED if is_stepped else POISONED, found)

    def _broken(
        self, fault: Fault, cause: str, found: Sequence[Difference] = (), seen: str = ""
    ) -> Broken:
        where = f"after the skipped batch {self.group[-1].place}, with {fault}"
        return Broken(where, cause, found, seen)


def in_a_row(make: Make, groups: Sequence[Sequence[Batch]]) -> Broken | None:
    """Seed an inf in all gradients of every iteration but the first, until the loop raises."""
    run = advance(begin(make, SCALE), groups[0])
    run.set_scale(FAR)
    start = run.states[-1]
    trained = {*run.parameters()}
    for number, group in enumerate(groups[1:MOST], 1):
        scale = run.scale
        try:
            with run.seeding() as seeded:
                advance(run, group)
        except LoopError:  # some loops raise after many skips
            return None
        if not seeded.passes or not (seeded.passes.keys() & run.owners().keys()):
            return None
        where = f"after batch {group[-1].place}, skip {number} in a row, with {Fault()}"
        if found := [
            each for each in moved(start, run.states[-1]) if each.name in trained
        ]:
            return Broken(where, STEPPED, found)
        if not run.reacts(scale):
            seen = f"the scale is {run.scale:g}, expected less than {scale:g}"
            return Broken(where, KEPT, seen=seen)
    return None


def with_inf(data: Any) -> Any:
    """Return a batch with inf for each fraction in its arrays."""
    if isinstance(data, Mapping):
        return {key: with_inf(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [with_inf(value) for value in data]
    return data + np.inf if "float" in str(getattr(data, "dtype", "")) else data

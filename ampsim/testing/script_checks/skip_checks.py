"""The check of skipped steps, in iterations with an overflow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ampsim.testing.lines import Place
from ampsim.testing.script_checks.check import BYPASSED, Finding, check, needs
from ampsim.testing.script_checks.observation import Observation
from ampsim.testing.script_checks.scale_checks import (
    gradients_do_not_depend_on_loss_scale,
    unchanged_outcome,
)
from ampsim.testing.script_checks.snapshot import Snapshot
from ampsim.testing.script_checks.trace import Event, OptimizerTrace
from ampsim.testing.script_checks.trial import TrialRecord

ENDED_WELL = ("two windows", "end", "enough")  # see `TrialRecord`
OFTEN = 0.9  # of the windows: a schedule that advances so often advances in each one
SMALLEST = 1e-30  # a scale below has no room to fall
KEPT = "the scaler is not updated: call scaler.update() in each iteration, also where the step is skipped"
TAKEN = (
    "the step is taken, as inf and NaN are removed from the gradients, or are added after the scaler has looked for "
    "them: let scaler.step(optimizer) decide"
)
OUTSIDE = "they change outside the step, which is skipped: change them only after a step that was taken"
COUNTS = (
    "the schedule counts steps that were not taken: with torch's scaler, step it only if scaler.get_scale() is "
    "not lower after scaler.update() than before; a scaler with hysteresis must report the skip"
)
AGAIN = "the same parameters are averaged twice: update the average only after a step that was taken"
RAISES = (
    "overflows are a part of loss scaling: let the scaler skip the step, and with Fabric pass error_if_nonfinite=False "
    "to clip_gradients"
)


@dataclass(frozen=True)
class Skip:
    """One optimizer in one trial with an overflow."""

    name: str
    outcome: TrialRecord
    unchanged: TrialRecord
    optimizer: OptimizerTrace

    @property
    def before(self) -> Snapshot:
        """When the first gradient had arrived."""
        return self.outcome.before[self.name]

    @property
    def after(self) -> Snapshot:
        """At the end of the iteration."""
        return self.outcome.after[self.name]

    def finding(self, what: str, seen: str, cause: str) -> Finding:
        """Return a finding at the line that changes something; else at the step, the update, or the
        backward pass.
        """
        places = self.outcome.lines(f"{what} of {self.name}")
        calls = self.outcome.calls(self.name)
        for kind in ("step", "optimizer.step", "update", "backward"):
            places += [event.where for event in calls if event.kind == kind]
        return self.finding_at([*places, self.optimizer.where][0], seen, cause)

    def finding_at(self, where: Place, seen: str, cause: str) -> Finding:
        """Return a finding of this trial."""
        calls = self.outcome.calls(self.name)
        order = [event for event in calls if event.kind != "backward"]
        return Finding(where, seen, cause, [self.outcome.seeded[self.name], *order])

    @property
    def is_single(self) -> bool:
        """Whether one window overflows, and not each one."""
        return not self.outcome.trial.overflows

    @property
    def has_moved(self) -> bool:
        """Whether parameters have changed, by more than weights that are normalized again."""
        return not self.before.has_equal_parameters(self.after)

    @property
    def raises(self) -> bool:
        """Whether the script raises in the trial, and not without the overflow."""
        if self.outcome.error:
            return self.outcome.error != self.unchanged.error
        return self.outcome.ended not in (*ENDED_WELL, self.unchanged.ended)


def _skips(run: Observation) -> list[Skip]:
    """Return what had an overflow."""
    unchanged = unchanged_outcome(run)
    found = [
        Skip(name, outcome, unchanged, run.optimizer(name))
        for outcome in run.outcomes
        for name in outcome.seeded
        if name in outcome.after and name in unchanged.after
    ]
    needs(found, "no overflow could be seeded in a gradient")
    return found


@check
def skipped_step_changes_nothing(run: Observation) -> Iterator[Finding]:
    """A step with an inf in its gradients changes no state, the scale falls, and the script goes
    on.

    State is parameters, learning rate schedules, and averages of parameters.
    """
    skips = _skips(run)
    dependent = [*gradients_do_not_depend_on_loss_scale.function(run)]
    for skip in skips:
        if skip.raises:
            # To give up after many skipped steps is right.
            if skip.is_single and skip.outcome.ended != "killed":
                yield _raised(skip)
        elif skip.has_moved:
            # A step that bypasses the scaler, or a shared parameter, is told with the gradients.
            if skip.is_single and not dependent:
                yield _stepped(skip)
        elif skip.is_single and skip.after.scale >= skip.before.scale > SMALLEST:
            seen = f"the scale stays at {skip.after.scale:g} after an overflow"
            yield skip.finding("scale", seen, KEPT)
        else:
            yield from _next_step(skip)
            yield from _schedule(skip)
            yield from _average(skip)


def _raised(skip: Skip) -> Finding:
    # So say unscale_() and step() of a scaler without an update.
    is_kept = "has already been called" in skip.outcome.error
    cause = KEPT if is_kept else RAISES
    seen = f"the script raises {skip.outcome.error or skip.outcome.ended}"
    return skip.finding_at(skip.outcome.events[-1].where, seen, cause)


def _stepped(skip: Skip) -> Finding:
    finite = all(np.isfinite(array).all() for array in skip.after.parameters.values())
    seen = f"parameters of {skip.name} change" + ("" if finite else " to inf or NaN")
    seen = f"{seen} although their gradients have an inf"
    calls = skip.outcome.calls(skip.name)
    if direct := [call for call in calls if call.kind == "optimizer.step"]:
        return skip.finding_at(direct[0].where, seen, BYPASSED)
    if any(skip.outcome.attempts.get(skip.name, [])[:1]):
        return skip.finding("gradients", seen, TAKEN)
    return skip.finding("parameters", seen, OUTSIDE)


def _next_step(skip: Skip) -> Iterator[Finding]:
    attempts = skip.outcome.attempts.get(skip.name, [])
    unchanged = skip.unchanged.attempts.get(skip.name, [])
    is_kept = attempts[:2] == [False, False] and unchanged[:2] == [True, True]
    steps = _concerning(skip.name, "step", skip.outcome.events)
    has_new_gradients = any(event.passes for event in steps[1:2])
    if skip.is_single and is_kept and has_new_gradients:
        cause = (
            "the inf stays in the gradients and is added to the next ones, so that each later step is skipped: call "
            "optimizer.zero_grad() also after a skipped step"
        )
        yield skip.finding("scale", f"{skip.name} skips the next step, too", cause)


def _schedule(skip: Skip) -> Iterator[Finding]:
    """Find each call of a schedule that advances in each window, and in the skipped one; one per
    epoch may do so.
    """
    during = skip.outcome.events[skip.before.events : skip.after.events]
    calls = _concerning(skip.name, "schedule", during)
    # Where an optimizer steps more than once in a window, only overflows in a row skip all of its
    # steps.
    steps = len(skip.unchanged.attempts.get(skip.name, []))
    windows = max(len(skip.unchanged.marks), 1)
    count = max(steps / windows, 1.0)
    is_skipped = count == 1 or not skip.is_single
    for call in {call.where: call for call in calls if is_skipped}.values():
        frequency = skip.optimizer.schedules.get((call.schedule, call.made))
        if frequency and frequency.calls >= OFTEN * frequency.attempts / count:
            seen = f"{call.schedule}.step() runs after a skipped step of {skip.name}"
            if call.where.library:
                seen = f"{seen}; the schedule is made at {call.made}"
            yield replace(
                skip.finding_at(call.where, seen, COUNTS),
                excuse=_library_schedule(call),
            )


def _concerning(name: str, kind: str, events: Sequence[Event]) -> list[Event]:
    """Return the events of a kind that concern an optimizer."""
    return [each for each in events if each.kind == kind and name in each.optimizers]


def _library_schedule(call: Event) -> str:
    """Return why a script is right although a schedule advances: a library makes and steps it."""
    stepped = call.where.library
    made = call.made.library if call.made else ""
    if not stepped or stepped.partition("/")[0] != made.partition("/")[0]:
        return ""
    return (
        f"the script is right: {stepped} steps the library's own {call.schedule} after a "
        "skipped step"
    )


def _average(skip: Skip) -> Iterator[Finding]:
    if skip.name in skip.outcome.averaged:
        seen = f"an average of the parameters of {skip.name} moves after a skipped step"
        yield skip.finding("averages", seen, AGAIN)

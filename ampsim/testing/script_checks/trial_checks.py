"""The checks that compare repeated iterations: at another loss scale, and with overflows."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.script_checks.check import Blamed, Finding, check, needs
from ampsim.testing.script_checks.checks import needs_scaled_step
from ampsim.testing.script_checks.observation import Observation
from ampsim.testing.script_checks.snapshot import ROUNDING, Array, Snapshot, has_copy, is_averaged
from ampsim.testing.script_checks.trace import Event, OptimizerTrace
from ampsim.testing.script_checks.trials import OVERFLOWS, Outcome

CLOSE = 0.1  # relative difference of gradients that fp16 may make
OFTEN = 0.9  # of the windows: what happens so often happens in each one
SMALLEST = 1e-30  # a scale below has no room to fall
# In a line that writes to a copy of the parameters: it is the first value of an average.
AVERAGING = re.compile(
    r"(?<![a-z])ema(?![b-z])|averag|(?<![a-z])swa(?![a-z])|polyak", re.IGNORECASE
)
EXPLAINED = "the findings above explain what it would show"
KEPT = "the scaler is not updated: call scaler.update() in each iteration, also where the step is skipped"
TAKEN = (
    "the step is taken, as inf and NaN are removed from the gradients, or are added after the scaler has looked for "
    "them: let scaler.step(optimizer) decide"
)
OUTSIDE = (
    "they change outside the step, which is skipped: change them only after a step that was taken"
)
AGAIN = (
    "the same parameters are averaged twice: update the average only after a step that was taken"
)


def _unchanged(run: Observation) -> Outcome:
    """Return the unchanged trial, or skip the check if nothing can be compared with it."""
    needs(run.start, "too few taken steps with a scaled loss were seen")
    unchanged = run.outcome("unchanged")
    if unchanged is None:
        raise NotApplicableError("the iteration could not be repeated")
    attempts = unchanged.attempts.values()
    needs(attempts and all(all(taken[:1]) for taken in attempts), "the iteration overflows itself")
    repeated = run.outcome("repeated")
    is_equal = repeated is not None and all(
        _is_close(gradients, repeated.gradients.get(name, []), 1e-6)
        for name, gradients in unchanged.gradients.items()
    )
    needs(is_equal, "the iteration gives other gradients when it is repeated: set all seeds")
    return unchanged


def _is_close(left: Sequence[Array], right: Sequence[Array], tolerance: float) -> bool:
    if [len(array) for array in left] != [len(array) for array in right] or not left:
        return not left and not right
    one, two = np.concatenate(left), np.concatenate(right)
    return bool(np.linalg.norm(one - two) <= tolerance * np.linalg.norm(one))


def _at_another_scale(run: Observation) -> Outcome:
    other = run.outcome("scale")
    if other is None:
        raise NotApplicableError("the iteration could not be repeated at another scale")
    return other


@check("scale")
def gradients_do_not_depend_on_loss_scale(run: Observation, blamed: Blamed) -> Iterator[Finding]:
    """The gradients that a step uses do not depend on the loss scale."""
    unchanged, other = _unchanged(run), _at_another_scale(run)
    names = [name for name in unchanged.gradients if ("scale", name) not in blamed]
    needs(names, EXPLAINED)
    for name in names:
        gradients, changed = unchanged.gradients[name], other.gradients.get(name, [])
        if not changed or _is_close(gradients, changed, CLOSE):
            continue
        order = _calls(unchanged, name)
        factor = _scale_of(other, name) / _scale_of(unchanged, name)
        ratio = _norm(changed) / _norm(gradients) if _norm(gradients) else math.inf
        seen = f"with {factor:g} times the scale, {name} steps with gradients of {ratio:.3g} times the norm"
        steps = [each.where for each in order if "step" in each.kind]
        repeated = run.outcome("repeated") or unchanged
        places = [*_lines(repeated, f"gradients of {name}"), *steps, _optimizer(run, name).where]
        yield Finding(places[0], seen, _power_cause(ratio, factor), order, [name])


def _power_cause(ratio: float, factor: float) -> str:
    """Return the usual cause of gradients that change by a factor when the scale does."""
    if math.isclose(ratio, factor, rel_tol=CLOSE):
        return "the gradients are multiplied by the scale and never divided: step with scaler.step(optimizer)"
    if math.isclose(ratio, 1 / factor, rel_tol=CLOSE):
        return (
            "the gradients are divided by the scale twice, or their loss is not scaled, or they are clipped or "
            "normalized before scaler.unscale_(optimizer)"
        )
    return (
        "the scaled gradients are mixed with something that is not scaled (a decay, a penalty, noise, a threshold): "
        "call scaler.unscale_(optimizer) before anything reads or changes gradients"
    )


@check()
def logged_numbers_are_unscaled(run: Observation, _: Blamed) -> Iterator[Finding]:
    """No number that the script reads of a tensor, as a loss or a norm, is multiplied by the loss scale."""
    needs_scaled_step(run)
    unchanged, other = _unchanged(run), _at_another_scale(run)
    factors = [_scale_of(other, name) / _scale_of(unchanged, name) for name in unchanged.before]
    needs(factors, "no backward pass reaches an optimizer")
    cause = (
        "the number changes whenever the loss scale changes: log the loss before scaler.scale(loss), and norms of "
        "gradients after scaler.unscale_(optimizer)"
    )
    factor = factors[0]
    scales = {snapshot.scale for snapshot in unchanged.before.values()}
    for where, read in unchanged.reads.items():
        numbers, others = np.array(read), np.array(other.reads.get(where, []))
        if len(numbers) != len(others) or not np.isfinite(numbers).all() or scales & {*read}:
            continue
        # The trial moves the scale back at the update, so later optimizers of an iteration show no change.
        changed = ~np.isclose(numbers, others, rtol=1e-3, atol=0)
        if changed.any() and np.allclose(
            factor * numbers[changed], others[changed], rtol=1e-3, atol=0
        ):
            old, new = numbers[changed][0], others[changed][0]
            seen = f"with {factor:g} times the scale, {new:.6g} is read instead of {old:.6g}"
            yield Finding(where, seen, cause)


def _lines(outcome: Outcome, what: str) -> list[str]:
    """Return the lines of the script that change something in a trial, beside torch's own calls."""
    known = {event.where.partition(" ")[0] for event in outcome.events}
    return [
        change.where
        for change in outcome.changes
        if change.what == what and change.where not in known
    ]


@dataclass(frozen=True)
class Skip:
    """One optimizer in one trial with an overflow."""

    name: str
    outcome: Outcome
    unchanged: Outcome
    optimizer: OptimizerTrace

    @property
    def before(self) -> Snapshot:
        """When the first gradient had arrived."""
        return self.outcome.before[self.name]

    @property
    def after(self) -> Snapshot:
        """At the end of the iteration."""
        return self.outcome.after[self.name]

    def place(self, what: str) -> str:
        """Return the line that changes something; else where the step was, or the update, or the backward pass."""
        calls = _calls(self.outcome, self.name)
        kinds = ("step", "optimizer.step", "update", "backward")
        places = [event.where for kind in kinds for event in calls if event.kind == kind]
        return [*_lines(self.outcome, f"{what} of {self.name}"), *places, self.optimizer.where][0]

    def finding(self, where: str, seen: str, cause: str) -> Finding:
        """Return a finding of this trial."""
        calls = [event for event in _calls(self.outcome, self.name) if event.kind != "backward"]
        return Finding(where, seen, cause, [self.outcome.seeded[self.name], *calls], [self.name])

    @property
    def has_stepped(self) -> bool:
        """Whether parameters or the optimizer's state have changed."""
        pairs = (
            (value, self.after.state.get(key, value)) for key, value in self.before.state.items()
        )
        return self.has_moved or any(old != new for old, new in pairs)

    @property
    def is_taken(self) -> bool:
        """Whether one of the optimizer's steps with an overflow was taken."""
        attempts = self.outcome.attempts.get(self.name, [])
        return any(attempts if self.outcome.trial == OVERFLOWS else attempts[:1])

    @property
    def has_moved(self) -> bool:
        """Whether parameters have changed, outside a step by more than weights that are normalized again."""
        is_in_step = self.is_taken or self.name in self.outcome.moved_in_step
        return not self.before.has_equal_parameters(self.after, 0.0 if is_in_step else ROUNDING)

    @property
    def raises(self) -> bool:
        """Whether the script raises in the trial, and not without the overflow."""
        return self.outcome.ended not in ("two windows", "end", "enough", self.unchanged.ended)


def _skips(run: Observation, blamed: Blamed) -> list[Skip]:
    """Return what had an overflow, but for optimizers that other findings explain."""
    unchanged = _unchanged(run)
    found = [
        Skip(name, outcome, unchanged, _optimizer(run, name))
        for outcome in run.outcomes
        for name in outcome.seeded
        if name in outcome.after and name in unchanged.after
    ]
    needs(found, "no overflow could be seeded in a gradient")
    left = [skip for skip in found if ("skip", skip.name) not in blamed]
    needs(left, EXPLAINED)
    return left


@check("skip")
def script_continues_after_overflow(run: Observation, blamed: Blamed) -> Iterator[Finding]:
    """The script does not raise after an overflow."""
    for skip in _skips(run, blamed):
        # To give up after many skipped steps is right.
        if not skip.raises or skip.outcome.ended == "killed" or skip.outcome.trial == OVERFLOWS:
            continue
        seen = f"the script raises {skip.outcome.ended}"
        cause = (
            "overflows are a part of loss scaling: let the scaler skip the step, and with Fabric pass "
            "error_if_nonfinite=False to clip_gradients"
        )
        if "unscale_() has already been called" in seen:
            cause = KEPT
        yield skip.finding(skip.outcome.events[-1].where, seen, cause)


@check()
def skipped_step_changes_nothing(run: Observation, blamed: Blamed) -> Iterator[Finding]:
    """A step with an inf in its gradients changes no state, and the scale falls.

    State is parameters, optimizer state, learning rate schedules, and averages of parameters.
    """
    for skip in _skips(run, blamed):
        if skip.raises:
            continue
        if skip.outcome.trial == OVERFLOWS:
            if not skip.has_stepped:
                yield from _schedule(skip)
                yield from _average(skip)
        elif skip.has_stepped:
            yield _stepped(skip)
        elif skip.after.scale >= skip.before.scale > SMALLEST:
            seen = f"the scale stays at {skip.after.scale:g} after an overflow"
            yield skip.finding(skip.place("scale"), seen, KEPT)
        else:
            yield from _next_step(skip)
            yield from _schedule(skip)
            yield from _average(skip)


def _stepped(skip: Skip) -> Finding:
    finite = all(np.isfinite(array).all() for array in skip.after.parameters)
    what = "parameters" if skip.has_moved else "optimizer state"
    seen = f"{what} of {skip.name} change" + ("" if finite else " to inf or NaN")
    place = skip.place("gradients" if skip.is_taken else "parameters")
    cause = TAKEN if skip.is_taken else OUTSIDE
    return skip.finding(place, f"{seen} although their gradients have an inf", cause)


def _next_step(skip: Skip) -> Iterator[Finding]:
    attempts = skip.outcome.attempts.get(skip.name, [])
    unchanged = skip.unchanged.attempts.get(skip.name, [])
    if attempts[:2] == [False, False] and unchanged[:2] == [True, True]:
        cause = (
            "the inf stays in the gradients and is added to the next ones, so that each later step is skipped: call "
            "optimizer.zero_grad() also after a skipped step"
        )
        yield skip.finding(skip.place("scale"), f"{skip.name} skips the next step, too", cause)


def _schedule(skip: Skip) -> Iterator[Finding]:
    """Find a schedule that advances in each window, and in the skipped one; one per epoch may do so."""
    during = skip.outcome.events[skip.before.events : skip.after.events]
    calls = [e for e in during if e.kind == "schedule" and skip.name in e.stages]
    # Where an optimizer steps more than once in a window, only overflows in a row skip all of its steps.
    count = max(
        len(skip.unchanged.attempts.get(skip.name, [])) / max(len(skip.unchanged.marks), 1), 1.0
    )
    is_skipped = count == 1 or skip.outcome.trial == OVERFLOWS
    windows = len(skip.optimizer.attempts) / count - 1  # the run may end within the last one
    if calls and is_skipped and skip.optimizer.schedules >= OFTEN * windows:
        cause = (
            "the schedule counts steps that were not taken: step it only if scaler.get_scale() is not lower after "
            "scaler.update() than before"
        )
        seen = f"{calls[0].note}.step() runs after a skipped step of {skip.name}"
        yield skip.finding(calls[0].where, seen, cause)


def _average(skip: Skip) -> Iterator[Finding]:
    """Find an average that moves, or in its first steps is set to the parameters."""
    averages = [c for c in skip.outcome.changes if c.what == f"averages of {skip.name}"]
    # A single overflow needs the same average in the unchanged iteration, which each one in a row shows itself.
    is_single = skip.outcome.trial != OVERFLOWS
    usual = is_averaged(skip.unchanged.before[skip.name], skip.unchanged.after[skip.name])
    if (usual or not is_single) and is_averaged(skip.before, skip.after):
        seen = f"an average of the parameters of {skip.name} moves after a skipped step"
        yield skip.finding(skip.place("averages"), seen, AGAIN)
        return
    named = [change for change in averages if AVERAGING.search(change.source)]
    if not is_single and named and has_copy(skip.after):
        seen = (
            f"the first value of an average is set to the parameters of {skip.name} after a skipped step "
            f"({named[0].source})"
        )
        yield skip.finding(named[0].where, seen, AGAIN)


def _optimizer(run: Observation, name: str) -> OptimizerTrace:
    return next(optimizer for optimizer in run.optimizers if optimizer.name == name)


def _scale_of(outcome: Outcome, name: str) -> float:
    return outcome.before[name].scale if name in outcome.before else math.nan


def _norm(arrays: Sequence[Array]) -> float:
    return math.sqrt(sum(float(np.square(array).sum()) for array in arrays))


def _calls(outcome: Outcome, name: str) -> list[Event]:
    """Return the calls that concern an optimizer, up to its first step and the update after it."""
    calls: list[Event] = []
    has_stepped = False
    for event in outcome.events:
        concerns = name in event.stages and event.kind != "zero_grad"
        if concerns or event.kind == "update":
            calls.append(event)
        has_stepped = has_stepped or (name in event.stages and "step" in event.kind)
        if event.kind == "update" and has_stepped:
            break
    return calls

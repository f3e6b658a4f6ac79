"""The checks that compare repeated iterations: at another loss scale, and with overflows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.script_checks.check import Finding, check, needs
from ampsim.testing.script_checks.observation import Observation
from ampsim.testing.script_checks.outcome import Outcome
from ampsim.testing.script_checks.snapshot import Array, Snapshot
from ampsim.testing.script_checks.trace import Event, OptimizerTrace

CLOSE = 0.1  # relative difference of gradients that fp16 may make
OFTEN = 0.9  # of the windows: a schedule that advances so often advances in each one
SMALLEST = 1e-30  # a scale below has no room to fall
KEPT = "the scaler is not updated: call scaler.update() in each iteration, also where the step is skipped"
BYPASSED = "the step bypasses the scaler, which skips it on inf and NaN: call scaler.step(optimizer)"
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
MISPLACED = {  # calls between the backward pass and `unscale_`
    "optimizer.step": BYPASSED,
    "clip": "the threshold is compared with gradients times the loss scale: call scaler.unscale_(optimizer) before "
    "clipping; with accelerate, call accelerator.clip_grad_norm_ in a step that syncs gradients",
    "update": "update() changes the scale between the backward pass and the step: call it once, after all optimizers "
    "of the iteration have stepped",
}
RAISES = (
    "overflows are a part of loss scaling: let the scaler skip the step, and with Fabric pass error_if_nonfinite=False "
    "to clip_gradients"
)


def _unchanged(run: Observation) -> Outcome:
    """Return the unchanged trial, or skip the check if nothing can be compared with it."""
    needs(run.has_started, "too few taken steps with a scaled loss were seen")
    needs(run.can_fork, "a process that uses CUDA cannot be forked: pass --on-cpu")
    unchanged, repeated = run.outcome("unchanged"), run.outcome("repeated")
    if unchanged is None or repeated is None:
        raise NotApplicableError("the iteration could not be repeated")
    attempts = unchanged.attempts.values()
    needs(
        attempts and all(all(taken[:1]) for taken in attempts),
        "the iteration overflows itself",
    )
    is_equal = all(
        _first_apart(steps, repeated.gradients.get(name, []), 1e-6) is None
        for name, steps in unchanged.gradients.items()
    )
    needs(
        is_equal,
        "the iteration gives other gradients when it is repeated: set all seeds",
    )
    return unchanged


def _first_apart(
    left: Sequence[Array], right: Sequence[Array], tolerance: float
) -> int | None:
    """Return the first step whose gradients differ by more than a relative tolerance."""
    for number, (one, two) in enumerate(zip(left, right, strict=False)):
        is_alike = one.shape == two.shape
        if not is_alike or np.linalg.norm(one - two) > tolerance * np.linalg.norm(one):
            return number
    return None if len(left) == len(right) else min(len(left), len(right))


def _at_another_scale(run: Observation) -> Outcome:
    other = run.outcome("scale")
    if other is None:
        raise NotApplicableError("the iteration could not be repeated at another scale")
    return other


@check
def gradients_do_not_depend_on_loss_scale(run: Observation) -> Iterator[Finding]:
    """The gradients that a step uses do not depend on the loss scale."""
    unchanged, other = _unchanged(run), _at_another_scale(run)
    for name, steps in unchanged.gradients.items():
        others = other.gradients.get(name, [])
        number = _first_apart(steps, others, CLOSE)
        calls = _calls(unchanged, name, number or 0)
        event, cause = _misplaced(calls) or (None, "")
        if number is None or number >= len(others):
            # A clip whose threshold the gradients have not reached; a threshold may follow the
            # scale.
            if event and event.kind == "clip" and event in _calls(other, name):
                seen = f"{event.note} gets gradients of {name} that are multiplied by the loss scale"
                yield Finding(event.where, seen, cause, calls)
            continue
        factor = _scale_of(other, name) / _scale_of(unchanged, name)
        old, new = (float(np.linalg.norm(each[number])) for each in (steps, others))
        ratio = new / old if old else math.inf
        seen = f"with {factor:g} times the scale, {name} steps with gradients of {ratio:.3g} times the norm"
        repeated = run.outcome("repeated") or unchanged
        places = _lines(repeated, f"gradients of {name}")
        places += [call.where for call in calls if "step" in call.kind]
        where = event.where if event else [*places, _optimizer(run, name).where][0]
        yield Finding(where, seen, cause or _power_cause(ratio, factor), calls)


def _misplaced(calls: Sequence[Event]) -> tuple[Event, str] | None:
    """Return the call that makes gradients depend on the scale, and the cause, if their order shows
    it.
    """
    seen: dict[str, Event] = {}
    for call in calls:
        if "unscale_" in seen:
            if call.kind == "backward":
                cause = "call unscale_ once per step, after the last backward pass"
                return seen["unscale_"], cause
        elif "backward" in seen and call.kind in MISPLACED:
            return call, MISPLACED[call.kind]
        if call.kind == "step":
            break
        seen[call.kind] = call
    return None


def _power_cause(ratio: float, factor: float) -> str:
    """Return the usual cause of gradients that change by a factor when the scale does."""
    if math.isclose(ratio, factor, rel_tol=CLOSE):
        return "the gradients are multiplied by the scale and never divided: step with scaler.step(optimizer)"
    if math.isclose(ratio, 1 / factor, rel_tol=CLOSE):
        return (
            "the gradients are divided by the scale twice, as those of a parameter in two optimizers, or their loss is "
            "not scaled, or they are clipped or normalized before scaler.unscale_(optimizer)"
        )
    return (
        "the scaled gradients are mixed with something that is not scaled (a decay, a penalty, noise, a threshold): "
        "call scaler.unscale_(optimizer) before anything reads or changes gradients"
    )


@check
def logged_numbers_are_unscaled(run: Observation) -> Iterator[Finding]:
    """No number that the script reads of a tensor, as a loss or a norm, is multiplied by the loss
    scale.
    """
    unchanged, other = _unchanged(run), _at_another_scale(run)
    needs(
        unchanged.reads or run.scaled_reads,
        f"the script reads no number of a tensor in the repeated iteration, one of {run.steps} "
        "steps; let it log in each step",
    )
    factors = [
        _scale_of(other, name) / _scale_of(unchanged, name) for name in unchanged.before
    ]
    needs(factors, "no backward pass reaches an optimizer")
    cause = (
        "the number changes whenever the loss scale changes: log the loss before scaler.scale(loss), and norms of "
        "gradients after scaler.unscale_(optimizer)"
    )
    factor = factors[0]
    scales = {snapshot.scale for snapshot in unchanged.before.values()}
    for where, read in unchanged.reads.items():
        numbers, others = np.array(read), np.array(other.reads.get(where, []))
        if (
            len(numbers) != len(others)
            or not np.isfinite(numbers).all()
            or scales & {*read}
        ):
            continue
        # The trial moves the scale back at the update, so later optimizers of an iteration show no
        # change.
        changed = ~np.isclose(numbers, others, rtol=1e-3, atol=0)
        if changed.any() and np.allclose(
            factor * numbers[changed], others[changed], rtol=1e-3, atol=0
        ):
            old, new = numbers[changed][0], others[changed][0]
            seen = f"with {factor:g} times the scale, {new:.6g} is read instead of {old:.6g}"
            yield Finding(where, seen, cause)
    for where in run.scaled_reads:
        yield Finding(where, "the scaled loss is read", cause)


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

    def finding(self, what: str, seen: str, cause: str) -> Finding:
        """Return a finding at the line that changes something; else at the step, the update, or the
        backward pass.
        """
        calls = _calls(self.outcome, self.name)
        kinds = ("step", "optimizer.step", "update", "backward")
        places = [
            event.where for kind in kinds for event in calls if event.kind == kind
        ]
        where = [
            *_lines(self.outcome, f"{what} of {self.name}"),
            *places,
            self.optimizer.where,
        ][0]
        return self.finding_at(where, seen, cause)

    def finding_at(self, where: str, seen: str, cause: str) -> Finding:
        """Return a finding of this trial."""
        calls = [e for e in _calls(self.outcome, self.name) if e.kind != "backward"]
        return Finding(where, seen, cause, [self.outcome.seeded[self.name], *calls])

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
        return self.outcome.ended not in (
            "two windows",
            "end",
            "enough",
            self.unchanged.ended,
        )


def _skips(run: Observation) -> list[Skip]:
    """Return what had an overflow."""
    unchanged = _unchanged(run)
    found = [
        Skip(name, outcome, unchanged, _optimizer(run, name))
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
    is_kept = "unscale_() has already been called" in skip.outcome.ended
    seen = f"the script raises {skip.outcome.ended}"
    return skip.finding_at(
        skip.outcome.events[-1].where, seen, KEPT if is_kept else RAISES
    )


def _stepped(skip: Skip) -> Finding:
    finite = all(np.isfinite(array).all() for array in skip.after.parameters.values())
    seen = f"parameters of {skip.name} change" + ("" if finite else " to inf or NaN")
    seen = f"{seen} although their gradients have an inf"
    calls = _calls(skip.outcome, skip.name)
    if direct := [call for call in calls if call.kind == "optimizer.step"]:
        return skip.finding_at(direct[0].where, seen, BYPASSED)
    if any(skip.outcome.attempts.get(skip.name, [])[:1]):
        return skip.finding("gradients", seen, TAKEN)
    return skip.finding("parameters", seen, OUTSIDE)


def _next_step(skip: Skip) -> Iterator[Finding]:
    attempts = skip.outcome.attempts.get(skip.name, [])
    unchanged = skip.unchanged.attempts.get(skip.name, [])
    is_kept = attempts[:2] == [False, False] and unchanged[:2] == [True, True]
    events = skip.outcome.events
    steps = [e for e in events if e.kind == "step" and skip.name in e.optimizers]
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
    calls = [e for e in during if e.kind == "schedule" and skip.name in e.optimizers]
    # Where an optimizer steps more than once in a window, only overflows in a row skip all of its
    # steps.
    steps = len(skip.unchanged.attempts.get(skip.name, []))
    count = max(steps / max(len(skip.unchanged.marks), 1), 1.0)
    is_skipped = count == 1 or not skip.is_single
    for call in {call.where: call for call in calls if is_skipped}.values():
        frequency = skip.optimizer.schedules.get((call.note, call.made))
        if frequency and frequency.calls >= OFTEN * frequency.attempts / count:
            seen = f"{call.note}.step() runs after a skipped step of {skip.name}"
            if " in " in call.where:
                seen = f"{seen}; the schedule is made at {call.made}"
            yield replace(
                skip.finding_at(call.where, seen, COUNTS),
                excuse=_library_schedule(call),
            )


def _library_schedule(call: Event) -> str:
    """Return why a script is right although a schedule advances: a library makes and steps it."""
    stepped, made = (place.partition(" in ")[2] for place in (call.where, call.made))
    if not stepped or stepped.partition("/")[0] != made.partition("/")[0]:
        return ""
    return (
        f"the script is right: {stepped} steps the library's own {call.note} after a "
        "skipped step"
    )


def _average(skip: Skip) -> Iterator[Finding]:
    if skip.name in skip.outcome.averaged:
        seen = f"an average of the parameters of {skip.name} moves after a skipped step"
        yield skip.finding("averages", seen, AGAIN)


def _optimizer(run: Observation, name: str) -> OptimizerTrace:
    return next(optimizer for optimizer in run.optimizers if optimizer.name == name)


def _scale_of(outcome: Outcome, name: str) -> float:
    return outcome.before[name].scale if name in outcome.before else math.nan


def _calls(outcome: Outcome, name: str, number: int = 0) -> list[Event]:
    """Return the calls that concern one step of an optimizer, since its last one, and the update
    after it.
    """
    calls: list[Event] = []
    steps = 0
    for event in outcome.events:
        if steps > number and event.kind == "update":
            return [*calls, event]
        is_step = name in event.optimizers and "step" in event.kind
        if event.kind == "update" or (name in event.optimizers and steps <= number):
            calls.append(event)
        if is_step:
            calls = calls if steps >= number else []
            steps += 1
    return calls

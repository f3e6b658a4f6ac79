"""The checks that compare repeated iterations: at another loss scale, and with an overflow."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.script_checks.check import Blamed, Finding, check, needs
from ampsim.testing.script_checks.observation import Observation, OptimizerSummary
from ampsim.testing.script_checks.trace import Event
from ampsim.testing.script_checks.trials import UNCHANGED, Array, Outcome, Snapshot

CLOSE = 0.1  # relative difference of gradients that fp16 may make
OFTEN = 0.9  # of the steps: what happens so often happens at each step
EXPLAINED = "the findings above explain what it would show"
KEPT = "the scaler is not updated: call scaler.update() in each iteration, also where the step is skipped"
TAKEN = (
    "the step is taken, as inf and NaN are removed from the gradients, or are added after the scaler has looked for "
    "them: let scaler.step(optimizer) decide"
)
OUTSIDE = (
    "they change outside the step, which is skipped: change them only after a step that was taken"
)
ROUNDING = 4 * float(np.finfo(np.float32).eps)  # relative
SMALLEST = 1e-30  # a scale below has no room to fall


def _trials(run: Observation) -> tuple[Outcome, list[Outcome]]:
    """Return the unchanged trial and the ones that can be compared with it, or skip the check."""
    needs(run.start, "too few taken steps with a scaled loss were seen")
    unchanged = run.outcome(UNCHANGED.kind)
    if unchanged is None or unchanged.ended == "killed":
        raise NotApplicableError("the iteration could not be repeated")
    attempts = unchanged.attempts.values()
    needs(attempts and all(all(taken[:1]) for taken in attempts), "the iteration overflows itself")
    repeated = run.outcome("repeated")
    is_equal = repeated is not None and all(
        _is_close(gradients, repeated.gradients.get(name, []), 1e-6)
        for name, gradients in unchanged.gradients.items()
    )
    needs(is_equal, "the iteration gives other gradients when it is repeated: set all seeds")
    return unchanged, [each for each in run.outcomes if each.trial.kind in ("gradient", "loss")]


def _is_close(left: Sequence[Array], right: Sequence[Array], tolerance: float) -> bool:
    if [len(array) for array in left] != [len(array) for array in right] or not left:
        return not left and not right
    one, two = np.concatenate(left), np.concatenate(right)
    return bool(np.linalg.norm(one - two) <= tolerance * np.linalg.norm(one))


@check()
def gradients_do_not_depend_on_loss_scale(run: Observation, blamed: Blamed) -> Iterator[Finding]:
    """The gradients that a step uses do not depend on the loss scale."""
    unchanged, _ = _trials(run)
    other = run.outcome("scale")
    if other is None or other.ended == "killed":
        raise NotApplicableError("the iteration could not be repeated at another scale")
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
        places = [*_lines(run, "writes", name), *steps, _optimizer(run, name).where]
        yield Finding(places[0], seen, _power_cause(ratio, factor), order, (name,))


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


def _lines(run: Observation, what: str, name: str) -> list[str]:
    """Return the lines of the script that change something of an optimizer, beside torch's own calls.

    Args:
        run: The observation.
        what: "writes", "moves", or "averaged", see `Outcome`.
        name: Of the optimizer.
    """
    outcome = run.outcome("repeated")
    if outcome is None:
        return []
    known = {event.where.partition(" ")[0] for event in outcome.events}
    return [where for where in getattr(outcome, what).get(name, []) if where not in known]


@dataclass(frozen=True)
class Skip:
    """One optimizer in one trial with an overflow."""

    name: str
    outcome: Outcome
    unchanged: Outcome
    optimizer: OptimizerSummary

    @property
    def before(self) -> Snapshot:
        """When the first gradient had arrived."""
        return self.outcome.before[self.name]

    @property
    def after(self) -> Snapshot:
        """At the end of the iteration."""
        return self.outcome.after[self.name]

    @property
    def order(self) -> list[Event | str]:
        """Where the inf was seeded, and the calls after it."""
        calls = [event for event in _calls(self.outcome, self.name) if event.kind != "backward"]
        return [self.outcome.seeded[self.name], *calls]

    def place(self) -> str:
        """Return where the step was, or the update, or the backward pass if there was none."""
        calls = _calls(self.outcome, self.name)
        kinds = ("step", "optimizer.step", "update", "backward")
        places = [event.where for kind in kinds for event in calls if event.kind == kind]
        return places[0] if places else self.optimizer.where

    def finding(self, where: str, seen: str, cause: str) -> Finding:
        """Return a finding of this trial."""
        return Finding(where, seen, cause, self.order, (self.name,))

    @property
    def has_stepped(self) -> bool:
        """Whether parameters or the optimizer's state have changed."""
        state = self.before.state
        changed = any(
            self.after.state[key] != value
            for key, value in state.items()
            if key in self.after.state
        )
        return changed or self.has_moved

    @property
    def is_taken(self) -> bool:
        """Whether the optimizer's first step was taken."""
        return self.outcome.attempts.get(self.name, [])[:1] == [True]

    @property
    def has_moved(self) -> bool:
        """Whether parameters have changed, outside a taken step by more than weights that are normalized again."""
        rounding = 0.0 if self.is_taken else ROUNDING
        return not self.before.has_equal_parameters(self.after, rounding)


def _skips(run: Observation, blamed: Blamed) -> list[Skip]:
    """Return what had an overflow, but for optimizers that other findings explain."""
    unchanged, others = _trials(run)
    found = [
        Skip(name, outcome, unchanged, _optimizer(run, name))
        for outcome in others
        for name in outcome.seeded
        if name in outcome.after and name in unchanged.after
    ]
    needs(found, "no overflow could be seeded in a gradient")
    left = [skip for skip in found if ("skip", skip.name) not in blamed]
    needs(left, EXPLAINED)
    return left


def _raises(skip: Skip) -> bool:
    return skip.outcome.ended not in ("two windows", "end", "enough", skip.unchanged.ended)


@check("skip")
def script_continues_after_overflow(run: Observation, blamed: Blamed) -> Iterator[Finding]:
    """The script does not raise after an overflow."""
    for skip in _skips(run, blamed):
        if _raises(skip) and skip.outcome.ended != "killed":
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
        if _raises(skip):
            continue
        if skip.has_stepped:
            yield _stepped(run, skip)
            continue
        if skip.after.scale >= skip.before.scale > SMALLEST:
            seen = f"the scale stays at {skip.after.scale:g} after an overflow"
            yield skip.finding(skip.place(), seen, KEPT)
            continue
        yield from _next_step(skip)
        yield from _schedule(skip)
        if _is_averaged(*_pair(skip.unchanged, skip.name)) and _is_averaged(
            skip.before, skip.after
        ):
            cause = "the same parameters are averaged twice: update the average only after a step that was taken"
            seen = f"an average of the parameters of {skip.name} moves after a skipped step"
            places = [*_lines(run, "averaged", skip.name), skip.place()]
            yield skip.finding(places[0], seen, cause)


def _stepped(run: Observation, skip: Skip) -> Finding:
    finite = all(np.isfinite(array).all() for array in skip.after.parameters)
    what = "parameters" if skip.has_moved else "optimizer state"
    seen = f"{what} of {skip.name} change" + ("" if finite else " to inf or NaN")
    places = [*_lines(run, "writes" if skip.is_taken else "moves", skip.name), skip.place()]
    cause = TAKEN if skip.is_taken else OUTSIDE
    return skip.finding(places[0], f"{seen} although their gradients have an inf", cause)


def _next_step(skip: Skip) -> Iterator[Finding]:
    attempts = skip.outcome.attempts.get(skip.name, [])
    unchanged = skip.unchanged.attempts.get(skip.name, [])
    if attempts[:2] == [False, False] and unchanged[:2] == [True, True]:
        cause = (
            "the inf stays in the gradients and is added to the next ones, so that each later step is skipped: call "
            "optimizer.zero_grad() also after a skipped step"
        )
        yield skip.finding(skip.place(), f"{skip.name} skips the next step, too", cause)


def _schedule(skip: Skip) -> Iterator[Finding]:
    """Find a schedule that advances at each step, and in the skipped one; one per epoch may do so."""
    during = skip.outcome.events[skip.before.events : skip.after.events]
    calls = [e for e in during if e.kind == "schedule" and skip.name in e.optimizers]
    steps = len(skip.optimizer.attempts) - 1  # the run may end within the last one
    if (
        calls
        and skip.after.schedules > skip.before.schedules
        and skip.optimizer.schedules >= OFTEN * steps
    ):
        cause = (
            "the schedule counts steps that were not taken: step it only if scaler.get_scale() is not lower after "
            "scaler.update() than before"
        )
        seen = f"{calls[0].note}.step() runs after a skipped step of {skip.name}"
        yield skip.finding(calls[0].where, seen, cause)


@check(is_note=True)
def learning_rate_counts_taken_steps(run: Observation, blamed: Blamed) -> Iterator[Finding]:
    """A learning rate that the script sets itself follows the steps that were taken."""
    for skip in _skips(run, blamed):
        old, new = skip.before.rates, skip.after.rates
        is_own = not skip.optimizer.schedules and new == skip.unchanged.after[skip.name].rates
        if old != new and is_own and not skip.has_stepped:
            seen = f"the learning rate goes from {old[0]:.6g} to {new[0]:.6g} in a skipped step"
            cause = "it follows the iterations; a few skipped steps matter little in a long run"
            yield skip.finding(skip.place(), seen, cause)


def _optimizer(run: Observation, name: str) -> OptimizerSummary:
    return next(optimizer for optimizer in run.optimizers if optimizer.name == name)


def _pair(outcome: Outcome, name: str) -> tuple[Snapshot, Snapshot]:
    return outcome.before[name], outcome.after[name]


def _scale_of(outcome: Outcome, name: str) -> float:
    return outcome.before[name].scale if name in outcome.before else math.nan


def _norm(arrays: Sequence[Array]) -> float:
    return math.sqrt(sum(float(np.square(array).sum()) for array in arrays))


def _calls(outcome: Outcome, name: str) -> list[Event]:
    """Return the calls that concern an optimizer, up to its first step and the update after it."""
    calls: list[Event] = []
    has_stepped = False
    for event in outcome.events:
        concerns = name in event.optimizers and event.kind != "zero_grad"
        is_inner = event.kind == "unscale_" and calls and calls[-1].where == event.where
        if (concerns and not is_inner) or event.kind == "update":
            calls.append(event)
        has_stepped = has_stepped or (name in event.optimizers and "step" in event.kind)
        if event.kind == "update" and has_stepped:
            break
    return calls


def _is_averaged(before: Snapshot, after: Snapshot) -> bool:
    """Return whether a tensor has moved from where it was towards a parameter, as an average does."""
    for index, olds in before.averages.items():
        parameter, news = after.parameters[index], after.averages.get(index, [])
        # A copy that stays as it is, as that of the best parameters, is no average.
        for old in _without(olds, news):
            gap = parameter - old
            size = float(gap @ gap)
            is_near = 0 < size < 0.25 * float(parameter @ parameter)
            moves = [new - old for new in _without(news, olds)]
            # A slow average of little that is new moves by the rounding of its own sum.
            least = ROUNDING**2 * float(old @ old)
            if is_near and any(
                move @ move < least or _is_part_of(move, gap, size) for move in moves
            ):
                return True
    return False


def _without(arrays: Sequence[Array], others: Sequence[Array]) -> list[Array]:
    values = {array.tobytes() for array in others}
    return [array for array in arrays if array.tobytes() not in values]


def _is_part_of(move: Array, gap: Array, size: float) -> bool:
    part = float(move @ gap) / size
    rest = move - part * gap
    return 1e-6 < part < 0.999 and float(rest @ rest) < 0.0025 * float(move @ move)

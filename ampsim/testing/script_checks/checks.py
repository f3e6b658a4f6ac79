"""The checks of a script: each looks at an `Observation` and yields its findings."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from ampsim.testing.check import Check, stating
from ampsim.testing.judge import NotApplicableError
from ampsim.testing.script_checks.observation import Observation, OptimizerSummary
from ampsim.testing.script_checks.trace import Event
from ampsim.testing.script_checks.trials import UNCHANGED, Array, Outcome, Snapshot

FEW = 3  # steps below which nothing is said of what a script never does
CLOSE = 0.1  # relative difference of gradients that fp16 may make
OFTEN = 0.9  # of the steps: what happens so often happens at each step
LOST = 0.5  # of the backward passes of one line; fewer are lost at the end of an epoch
EXPLAINED = "the findings above explain what it would show"
KEPT = "the scaler is not updated: call scaler.update() in each iteration, also where the step is skipped"
TAKEN = (
    "the step is taken, as inf and NaN are removed from the gradients, or are added after the scaler has looked for "
    "them: let scaler.step(optimizer) decide"
)
OUTSIDE = (
    "they change outside the step, which is skipped: change them only after a step that was taken"
)
NOT_SCALED = "this loss is not scaled, and its gradients are divided by the scale: call scaler.scale(loss).backward()"
SMALLEST = 1e-30  # a scale below has no room to fall


Effect = Literal[
    "scale", "skip"
]  # gradients that depend on the scale; a skipped step that changes something
Blamed = set[tuple[Effect, str]]  # effects on optimizers that earlier findings explain


@dataclass(frozen=True)
class Finding:
    """A violation of a property.

    Attributes:
        where: file:line.
        seen: What was seen there.
        cause: Why, and the fix.
        order: The calls that lead to it.
        optimizers: Names of the optimizers whose gradients it explains.
    """

    where: str
    seen: str
    cause: str
    order: Sequence[Event | str] = ()
    optimizers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ScriptCheck(Check):
    """A check of scripts. Its function takes an observation and what earlier findings explain."""

    group: str = "script"
    explains: Sequence[Effect] = ()


CHECKS: dict[str, ScriptCheck] = {}


def check(*explains: Effect, is_note: bool = False) -> Callable[..., ScriptCheck]:
    """Register a function as a check: its name and the first paragraph of its docstring are the check's.

    Args:
        explains: What a finding is the cause of, so that later checks do not report it of the same optimizers.
        is_note: Whether a finding changes little in most runs, and is not a failure.
    """
    return partial(stating, ScriptCheck, CHECKS)(explains=explains, is_note=is_note)


def needs(condition: object, reason: str) -> None:
    """Skip the check, with a reason, unless a condition holds."""
    if not condition:
        raise NotApplicableError(reason)


# ------------------------------------------------------------------------------------------------- the order of calls


def _violations(run: Observation, name: str, cause: str) -> Iterator[Finding]:
    for violation in run.violations:
        if violation.check == name:
            *_, last = violation.events
            yield Finding(last.where, violation.seen, cause, violation.events, violation.optimizers)


def _needs_scaled_step(run: Observation) -> None:
    needs(run.of_kind("scale") and run.steps, "no step with a scaled loss was seen")


@check("scale", "skip")
def step_uses_scaler(run: Observation, _: Blamed) -> Iterator[Finding]:
    """An optimizer whose loss is scaled is stepped by the scaler."""
    _needs_scaled_step(run)
    scaled = [event for event in run.of_kind("backward") if event.note == "scaled loss"]
    for event in run.of_kind("optimizer.step"):
        (name,) = event.optimizers
        passes = [each for each in scaled if name in each.optimizers and each.is_used]
        if passes and not _is_plain(run, event):
            yield Finding(
                event.where,
                f"optimizer.step() of {name} is called directly",
                "the step does not skip on inf and NaN, and uses gradients that are multiplied by the loss scale "
                "unless they were unscaled: call scaler.step(optimizer)",
                [passes[0], event],
                (name,),
            )


def _is_plain(run: Observation, step: Event) -> bool:
    """Return whether the last backward pass before a step was of a loss that is not scaled."""
    (name,) = step.optimizers
    place = next(index for index, event in enumerate(run.events) if event is step)
    for event in reversed(run.events[:place]):
        if event.kind == "backward" and name in event.optimizers:
            return event.note != "scaled loss"
    return True


@check("scale")
def gradients_are_unscaled_before_clipping(run: Observation, _: Blamed) -> Iterator[Finding]:
    """Gradients are clipped, and their norm is taken, after the scaler has unscaled them."""
    needs(run.of_kind("clip"), "the script does not call torch's functions that clip gradients")
    cause = (
        "the threshold is compared with gradients times the loss scale: call scaler.unscale_(optimizer) before "
        "clipping; with accelerate, call accelerator.clip_grad_norm_ in a step that syncs gradients"
    )
    for finding in _violations(run, "gradients_are_unscaled_before_clipping", cause):
        if not _threshold_follows_scale(run, finding.where):
            yield finding


def _threshold_follows_scale(run: Observation, where: str) -> bool:
    """Return whether the threshold of a clip is multiplied by the scale."""
    outcomes = [run.outcome("unchanged"), run.outcome("scale")]
    events = [outcome.events if outcome else [] for outcome in outcomes]
    thresholds = [
        next((event.value for event in each if event.kind == "clip" and event.where == where), None)
        for each in events
    ]
    return None not in thresholds and thresholds[0] != thresholds[1]


@check()
def clipping_precedes_step(run: Observation, _: Blamed) -> Iterator[Finding]:
    """Gradients are clipped before the step that uses them."""
    needs(run.of_kind("clip"), "the script does not call torch's functions that clip gradients")
    cause = "the clipping has no effect: move it between scaler.unscale_(optimizer) and scaler.step(optimizer)"
    yield from _violations(run, "clipping_precedes_step", cause)


@check()
def gradients_are_clipped_once_per_step(run: Observation, _: Blamed) -> Iterator[Finding]:
    """Gradients are clipped once per step, after the last backward pass."""
    needs(run.of_kind("clip"), "the script does not call torch's functions that clip gradients")
    cause = "a sum of gradients, some of them clipped, is not the clipped gradient: clip where the step is taken"
    yield from _violations(run, "gradients_are_clipped_once_per_step", cause)


@check("scale", "skip")
def gradients_are_divided_once(run: Observation, _: Blamed) -> Iterator[Finding]:
    """Each gradient is divided by the loss scale once."""
    _needs_scaled_step(run)
    cause = (
        "call scaler.unscale_(optimizer) once per step, after the last backward pass, and give each parameter to one "
        "optimizer"
    )
    yield from _violations(run, "gradients_are_divided_once", cause)


@check("scale")
def losses_of_a_step_are_scaled(run: Observation, _: Blamed) -> Iterator[Finding]:
    """All losses whose gradients a step uses are scaled."""
    _needs_scaled_step(run)
    yield from _violations(run, "losses_of_a_step_are_scaled", NOT_SCALED)


@check("scale")
def update_follows_step(run: Observation, _: Blamed) -> Iterator[Finding]:
    """scaler.update() runs after the step that uses the gradients."""
    _needs_scaled_step(run)
    cause = (
        "if update() changes the scale, the gradients are divided by another scale than they were multiplied by: "
        "call it once, after all optimizers of the iteration have stepped"
    )
    yield from _violations(run, "update_follows_step", cause)


@check("scale", "skip")
def scaler_accepts_each_call(run: Observation, _: Blamed) -> Iterator[Finding]:
    """The scaler accepts each call of unscale_, step, and update."""
    needs(run.of_kind("unscale_", "step", "update"), "no gradients were unscaled")
    cause = (
        "call unscale_ and step once per optimizer and update(), after the last backward pass of a scaled loss, and "
        "update() once after the steps"
    )
    yield from _violations(run, "scaler_accepts_each_call", cause)


@check()
def scaler_is_created_once(run: Observation, _: Blamed) -> Iterator[Finding]:
    """An optimizer is stepped by one scaler."""
    _needs_scaled_step(run)
    cause = "a new scaler starts at its initial scale, and its first steps overflow: create it before the loops"
    yield from _violations(run, "scaler_is_created_once", cause)


@check()
def logged_loss_is_unscaled(run: Observation, _: Blamed) -> Iterator[Finding]:
    """The scaled loss is not read as a number."""
    _needs_scaled_step(run)
    cause = (
        "the number changes whenever the loss scale changes: log the loss before scaler.scale(loss)"
    )
    for finding in _violations(run, "logged_loss_is_unscaled", cause):
        if finding.where not in run.scale_reads:  # where it may be divided by the scale
            yield finding


# ------------------------------------------------------------------------------------------- what happens and does not


@check("scale", "skip")
def step_changes_parameters(run: Observation, _: Blamed) -> Iterator[Finding]:
    """Parameters that receive gradients change."""
    backward = run.of_kind("backward")
    needs(len(backward) >= 2 * FEW, f"{len(backward)} backward passes were seen, too few")
    for optimizer in run.optimizers:
        # A pass that reaches other optimizers, too, may be theirs, as that of a generator through its discriminator.
        passes = [event for event in backward if event.optimizers == (optimizer.name,)]
        if optimizer.has_moved or len(passes) < 2 * FEW:
            continue
        taken, steps = sum(optimizer.attempts), len(optimizer.attempts)
        cause = (
            "no step is taken with these gradients: call scaler.step(optimizer) in each iteration"
        )
        if steps and not taken:
            cause = "each step was skipped: look for inf and NaN in the loss"
        seen = f"no parameter of {optimizer.name} changes in {len(passes)} backward passes"
        order = [passes[0], f"{taken} of {steps} steps taken"]
        yield Finding(passes[0].where, seen, cause, order, (optimizer.name,))


@check()
def gradients_reach_a_step(run: Observation, _: Blamed) -> Iterator[Finding]:
    """The gradients of each backward pass reach a step."""
    needs(run.steps >= FEW, f"{run.steps} steps were seen, too few")
    passes = [event for event in run.of_kind("backward")[:-1] if event.optimizers]
    used = Counter(event.where for event in passes if event.is_used)
    lost = Counter(event.where for event in passes if not event.is_used)
    for where, count in lost.items():
        # A place whose gradients are never used has another purpose, as an adversarial example.
        if used[where] and count >= LOST * (count + used[where]) and count >= FEW:
            event = next(each for each in passes if each.where == where and not each.is_used)
            cause = (
                "their gradients are cleared before the step, which uses a part of the batches: call "
                "optimizer.zero_grad() after the step, not in each micro-batch"
            )
            seen = f"{count} of {count + used[where]} backward passes here reach no step"
            yield Finding(where, seen, cause, [event], event.optimizers)


@check()
def fp16_loss_is_scaled(run: Observation, _: Blamed) -> Iterator[Finding]:
    """A loss that is computed under fp16 autocast is scaled."""
    half = run.autocasts.get("torch.float16")
    needs(half, "no fp16 autocast was entered")
    needs(run.steps >= FEW, f"{run.steps} steps were seen, too few")
    if half and not run.of_kind("scale"):
        cause = "small gradients become zero in fp16: use torch.amp.GradScaler, or bfloat16"
        yield Finding(half, "fp16 autocast without a scaled loss", cause)


@check()
def resume_is_exact(run: Observation, _: Blamed) -> Iterator[Finding]:
    """A checkpoint with the optimizer's state has the scaler's state, and both are loaded."""
    saves = [kinds for kinds in run.saved.values() if "optimizer" in kinds]
    needs(saves or run.loaded, "no optimizer was saved or loaded while the script ran")
    needs(run.scalers, "no enabled scaler was seen")
    restart = "a resumed run restarts at the initial scale, and its first steps are skipped"
    for kinds in saves:
        event = kinds["optimizer"]
        if "scaler" not in kinds:
            cause = (
                f"{restart}: save scaler.state_dict() beside optimizer.state_dict(), and load it"
            )
            seen = "the checkpoint has the optimizer's state, and not the scaler's"
            yield Finding(event.where, seen, cause, [event])
        elif run.unloaded and " in " not in kinds["scaler"].where:
            cause = f"{restart}: call scaler.load_state_dict() where the optimizer is loaded"
            seen = "the optimizer's state is loaded, and the scaler's state, which is saved, is not"
            yield Finding(run.unloaded, seen, cause, [kinds["scaler"]])
    is_loaded = any(optimizer.is_loaded for optimizer in run.optimizers)
    if "scaler" in run.loaded and is_loaded and not run.loaded_scalers and not run.unloaded:
        event = run.loaded["scaler"]
        cause = f"{restart}: call scaler.load_state_dict()"
        seen = "the checkpoint has the scaler's state, and only the optimizer's is loaded"
        yield Finding(event.where, seen, cause, [event])


# ------------------------------------------------------------------------------------------------ comparison of trials


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
        return changed or not self.before.has_equal_parameters(self.after)


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
    """A step with an inf in its gradients changes no parameter, optimizer state, schedule, or average; the scale falls."""
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
    moved = not skip.before.has_equal_parameters(skip.after)
    what = "parameters" if moved else "optimizer state"
    seen = f"{what} of {skip.name} change" + ("" if finite else " to inf or NaN")
    is_taken = skip.outcome.attempts.get(skip.name, [])[:1] == [True]
    places = [*_lines(run, "writes" if is_taken else "moves", skip.name), skip.place()]
    cause = TAKEN if is_taken else OUTSIDE
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


# ------------------------------------------------------------------------------------------------------------- helpers


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
            if is_near and any(_is_part_of(new - old, gap, size) for new in _without(news, olds)):
                return True
    return False


def _without(arrays: Sequence[Array], others: Sequence[Array]) -> list[Array]:
    values = {array.tobytes() for array in others}
    return [array for array in arrays if array.tobytes() not in values]


def _is_part_of(move: Array, gap: Array, size: float) -> bool:
    part = float(move @ gap) / size
    rest = move - part * gap
    return 1e-6 < part < 0.999 and float(rest @ rest) < 0.0025 * float(move @ move)

"""The checks that compare an iteration with the same one at another loss scale."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.lines import Place
from ampsim.testing.script_checks.check import BYPASSED, Finding, check, needs
from ampsim.testing.script_checks.observation import Observation
from ampsim.testing.script_checks.snapshot import Array
from ampsim.testing.script_checks.trace import Event
from ampsim.testing.script_checks.trial import TrialRecord

SAME = 1e-6  # relative difference of gradients of the same iteration
CLOSE = 0.1  # the same that fp16 may make
EXACT = 1e-3  # relative difference of numbers that are multiplied by a power of two
MISPLACED = {  # calls between the backward pass and `unscale_`
    "optimizer.step": BYPASSED,
    "clip": "the threshold is compared with gradients times the loss scale: call scaler.unscale_(optimizer) before "
    "clipping; with accelerate, call accelerator.clip_grad_norm_ in a step that syncs gradients",
    "update": "update() changes the scale between the backward pass and the step: call it once, after all optimizers "
    "of the iteration have stepped",
}
LOGGED = (
    "the number changes whenever the loss scale changes: log the loss before scaler.scale(loss), and norms of "
    "gradients after scaler.unscale_(optimizer)"
)


def unchanged_outcome(run: Observation) -> TrialRecord:
    """Return the unchanged trial, or skip the check if nothing can be compared with it."""
    needs(run.has_started, "too few taken steps with a scaled loss were seen")
    needs(run.can_fork, "a process that uses CUDA cannot be forked: pass --on-cpu")
    unchanged = run.outcome("unchanged")
    repeated = run.outcome("repeated")
    if unchanged is None or repeated is None:
        raise NotApplicableError("the iteration could not be repeated")
    first_steps = [taken[0] for taken in unchanged.attempts.values()]
    needs(first_steps and all(first_steps), "the iteration overflows itself")
    for name, steps in unchanged.gradients.items():
        others = repeated.gradients.get(name, [])
        needs(
            _first_apart(steps, others, SAME) is None,
            "the iteration gives other gradients when it is repeated: set all seeds",
        )
    return unchanged


def _first_apart(
    left: Sequence[Array], right: Sequence[Array], tolerance: float
) -> int | None:
    """Return the first step whose gradients differ by more than a relative tolerance."""
    for number, (one, two) in enumerate(zip(left, right, strict=False)):
        if one.shape != two.shape:
            return number
        if np.linalg.norm(one - two) > tolerance * np.linalg.norm(one):
            return number
    return None if len(left) == len(right) else min(len(left), len(right))


def _other_outcome(run: Observation) -> TrialRecord:
    other = run.outcome("scale")
    if other is None:
        raise NotApplicableError("the iteration could not be repeated at another scale")
    return other


@check
def gradients_do_not_depend_on_loss_scale(run: Observation) -> Iterator[Finding]:
    """The gradients that a step uses do not depend on the loss scale."""
    unchanged = unchanged_outcome(run)
    other = _other_outcome(run)
    for name, steps in unchanged.gradients.items():
        others = other.gradients.get(name, [])
        number = _first_apart(steps, others, CLOSE)
        calls = unchanged.calls(name, number or 0)
        event, cause = _misplaced(calls) or (None, "")
        if number is None or number >= len(others):
            # A clip whose threshold the gradients have not reached; a threshold may follow the
            # scale.
            is_clip = event is not None and event.kind == "clip"
            if event and is_clip and event in other.calls(name):
                seen = f"{event.note} gets gradients of {name} that are multiplied by the loss scale"
                yield Finding(event.where, seen, cause, calls)
            continue
        factor = other.scale(name) / unchanged.scale(name)
        old = float(np.linalg.norm(steps[number]))
        new = float(np.linalg.norm(others[number]))
        ratio = new / old if old else math.inf
        seen = f"with {factor:g} times the scale, {name} steps with gradients of {ratio:.3g} times the norm"
        where = event.where if event else _changing_place(run, name, calls)
        yield Finding(where, seen, cause or _power_cause(ratio, factor), calls)


def _changing_place(run: Observation, name: str, calls: Sequence[Event]) -> Place:
    """Return the line that changes gradients of an optimizer; else its step."""
    repeated = run.outcome("repeated")
    places = repeated.lines(f"gradients of {name}") if repeated else []
    places += [call.where for call in calls if "step" in call.kind]
    return [*places, run.optimizer(name).where][0]


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
    unchanged = unchanged_outcome(run)
    other = _other_outcome(run)
    needs(
        unchanged.reads or run.scaled_reads,
        f"the script reads no number of a tensor in the repeated iteration, one of {run.steps} "
        "steps; let it log in each step",
    )
    needs(unchanged.before, "no backward pass reaches an optimizer")
    scales = {snapshot.scale for snapshot in unchanged.before.values()}
    first = next(iter(unchanged.before))
    factor = other.scale(first) / unchanged.scale(first)
    for where, numbers in unchanged.reads.items():
        pair = _multiplied(numbers, other.reads.get(where, []), factor)
        if pair and scales.isdisjoint(numbers):
            old, new = pair
            seen = f"with {factor:g} times the scale, {new:.6g} is read instead of {old:.6g}"
            yield Finding(where, seen, LOGGED)
    for where in run.scaled_reads:
        yield Finding(where, "the scaled loss is read", LOGGED)


def _multiplied(
    left: Sequence[float], right: Sequence[float], factor: float
) -> tuple[float, float] | None:
    """Return the first numbers that differ, if all that differ do so by a factor."""
    olds = np.array(left)
    news = np.array(right)
    if len(olds) != len(news) or not np.isfinite(olds).all():
        return None
    # The trial moves the scale back at the update, so later optimizers of an iteration show no
    # change.
    changed = ~np.isclose(olds, news, rtol=EXACT, atol=0)
    olds = olds[changed]
    news = news[changed]
    if not len(olds) or not np.allclose(factor * olds, news, rtol=EXACT, atol=0):
        return None
    return float(olds[0]), float(news[0])

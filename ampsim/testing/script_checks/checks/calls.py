"""The checks of the order of calls."""

from collections.abc import Iterator

from ampsim.testing.script_checks.check import (
    Blamed,
    Finding,
    check,
    needs,
    needs_scaled_step,
)
from ampsim.testing.script_checks.observation import Observation
from ampsim.testing.script_checks.trace import Event


def _violations(run: Observation, name: str, cause: str) -> Iterator[Finding]:
    for violation in run.violations:
        if violation.check == name:
            *_, last = violation.events
            yield Finding(last.where, violation.seen, cause, violation.events, violation.optimizers)


@check("scale", "skip")
def step_uses_scaler(run: Observation, _: Blamed) -> Iterator[Finding]:
    """An optimizer whose loss is scaled is stepped by the scaler."""
    needs_scaled_step(run)
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
    needs_scaled_step(run)
    cause = (
        "call scaler.unscale_(optimizer) once per step, after the last backward pass, and give each parameter to one "
        "optimizer"
    )
    yield from _violations(run, "gradients_are_divided_once", cause)


@check("scale")
def losses_of_a_step_are_scaled(run: Observation, _: Blamed) -> Iterator[Finding]:
    """All losses whose gradients a step uses are scaled."""
    needs_scaled_step(run)
    cause = "this loss is not scaled, and its gradients are divided by the scale: call scaler.scale(loss).backward()"
    yield from _violations(run, "losses_of_a_step_are_scaled", cause)


@check("scale")
def update_follows_step(run: Observation, _: Blamed) -> Iterator[Finding]:
    """scaler.update() runs after the step that uses the gradients."""
    needs_scaled_step(run)
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
    needs_scaled_step(run)
    cause = "a new scaler starts at its initial scale, and its first steps overflow: create it before the loops"
    yield from _violations(run, "scaler_is_created_once", cause)


@check()
def logged_loss_is_unscaled(run: Observation, _: Blamed) -> Iterator[Finding]:
    """The scaled loss is not read as a number."""
    needs_scaled_step(run)
    cause = (
        "the number changes whenever the loss scale changes: log the loss before scaler.scale(loss)"
    )
    for finding in _violations(run, "logged_loss_is_unscaled", cause):
        if finding.where not in run.scale_reads:  # where it may be divided by the scale
            yield finding

"""The checks of what a script calls, and of what it never does."""

from collections.abc import Iterator

from ampsim.testing.script_checks.check import Finding, check, needs
from ampsim.testing.script_checks.observation import Observation

FEW = 6  # backward passes below which nothing is said of what a script never does


@check
def scaler_is_created_once(run: Observation) -> Iterator[Finding]:
    """An optimizer is stepped by one scaler."""
    needs(run.of_kind("step"), "no step with a scaler was seen")
    cause = "a new scaler starts at its initial scale, and its first steps overflow: create it before the loops"
    places = {scaler.name: scaler.where for scaler in run.scalers}
    last: dict[str, str] = {}
    for event in run.of_kind("step"):
        (name,) = event.optimizers
        if last.setdefault(name, event.scaler) != event.scaler:
            seen = f"{name} is stepped by another scaler than before: {event.scaler}"
            yield Finding(places[event.scaler], seen, cause, [event])
        last[name] = event.scaler


@check
def losses_of_a_step_are_scaled(run: Observation) -> Iterator[Finding]:
    """All losses whose gradients a step uses are scaled."""
    steps = run.of_kind("step", "optimizer.step")
    needs(steps, "no step was seen")
    cause = "this loss is not scaled, and its gradients are divided by the scale: call scaler.scale(loss).backward()"
    seen = "gradients of a loss that is not scaled are added to scaled ones"
    for event in steps:
        plain = [call for call in event.passes if call.note == "plain loss"]
        if 0 < len(plain) < len(event.passes):
            yield Finding(plain[0].where, seen, cause, [*event.passes, event])


@check
def step_changes_parameters(run: Observation) -> Iterator[Finding]:
    """Parameters that receive gradients change."""
    backward = run.of_kind("backward")
    needs(len(backward) >= FEW, f"{len(backward)} backward passes were seen, too few")
    for optimizer in run.optimizers:
        # A pass that reaches other optimizers, too, may be theirs, as that of a generator through
        # its discriminator.
        passes = [event for event in backward if event.optimizers == [optimizer.name]]
        if optimizer.has_moved or len(passes) < FEW:
            continue
        taken, steps = sum(optimizer.attempts), len(optimizer.attempts)
        cause = "no step is taken with these gradients: call scaler.step(optimizer) in each iteration"
        if steps and not taken:
            cause = "each step was skipped: look for inf and NaN in the loss"
        seen = (
            f"no parameter of {optimizer.name} changes in {len(passes)} backward passes"
        )
        order = str(passes[0]), f"{taken} of {steps} steps taken"
        yield Finding(passes[0].where, seen, cause, order)


@check
def resume_is_exact(run: Observation) -> Iterator[Finding]:
    """A checkpoint with the optimizer's state has the scaler's state."""
    needs(run.scalers, "no enabled scaler was seen")
    saves = [save for save in run.saves if "optimizer" in save.kinds]
    needs(
        saves,
        "no optimizer is saved in these steps; ampsim lint reads what the source saves",
    )
    cause = (
        "a resumed run restarts at the initial scale, and its first steps are skipped: save scaler.state_dict() beside "
        "optimizer.state_dict(), and load it"
    )
    seen = "the checkpoint has the optimizer's state, and not the scaler's"
    for save in saves:
        # Two files of one folder may be parts of one checkpoint.
        others = [each for each in run.saves if each.folder == save.folder]
        parts = [
            each for each in others if each.is_part or save.is_part or each is save
        ]
        if not any("scaler" in each.kinds for each in parts):
            yield Finding(save.event.where, seen, cause, [save.event])

"""The checks of what a script calls, and of what it never does."""

from collections.abc import Iterator, Sequence

from ampsim.testing.lines import Place
from ampsim.testing.script_checks.check import Finding, check, needs
from ampsim.testing.script_checks.observation import Observation
from ampsim.testing.script_checks.trace import Event

UNUSED = "call scaler.scale(loss).backward() and scaler.step(optimizer), or do not create a scaler"
UNNEEDED = "bfloat16 has the range of float32, and needs no loss scale: create the scaler with enabled=False"
CLEARED = "clear gradients only after a step; step after the last micro-batch of an epoch, too"
NEVER_CLEARED = (
    "the gradients of each step are added to those of all steps before: "
    "call optimizer.zero_grad() in each iteration"
)
LATE = "the step does not use what is clipped: clip before scaler.step(optimizer), after scaler.unscale_(optimizer)"
AGAIN = (
    "the gradients are divided by the scale a second time, and the optimizer moves twice: "
    "step once per backward pass"
)
MISUSES = {  # part of what a scaler raises -> the cause
    "step() has already been called": "call scaler.update() in each iteration, after scaler.step(optimizer)",
    "unscale_() has already been called": "call scaler.unscale_(optimizer) once per step, after "
    "the last backward pass, and scaler.update() after each step, also after a skipped one",
    "unscale_() is being called after step()": "call scaler.unscale_(optimizer) before scaler.step(optimizer)",
    "unscale FP16 gradients": "the parameters are fp16: keep them in float32, and run the forward pass in autocast",
    "No inf checks were recorded": "no gradient of a scaled loss has arrived in this optimizer since the last update: "
    "call scaler.scale(loss).backward() before scaler.step(optimizer)",
}
NOT_LOADED = (
    "the scale restarts in a resumed run, and its first steps are skipped: "
    "call scaler.load_state_dict"
)
NOT_SAVED = (
    "a resumed run restarts at the initial scale, and its first steps are skipped: save scaler.state_dict() beside "
    "optimizer.state_dict(), and load it"
)
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
def scaler_accepts_each_call(run: Observation) -> Iterator[Finding]:
    """No call of a scaler raises an error."""
    for text, cause in MISUSES.items():
        if text in run.error_message:
            seen = f"the script raises {run.error_message}"
            yield Finding(Place(run.error_place), seen, cause, run.events[-3:])


@check
def losses_of_a_step_are_scaled(run: Observation) -> Iterator[Finding]:
    """All losses whose gradients a step uses are scaled."""
    steps = run.of_kind("step", "optimizer.step")
    needs(steps, "no step was seen")
    cause = "this loss is not scaled, and its gradients are divided by the scale: call scaler.scale(loss).backward()"
    seen = "gradients of a loss that is not scaled are added to scaled ones"
    for event in steps:
        plain = [call for call in event.passes if not call.is_scaled]
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
        taken = sum(optimizer.attempts)
        steps = len(optimizer.attempts)
        cause = "no step is taken with these gradients: call scaler.step(optimizer) in each iteration"
        if steps and not taken:
            cause = "each step was skipped: look for inf and NaN in the loss"
        seen = (
            f"no parameter of {optimizer.name} changes in {len(passes)} backward passes"
        )
        order = str(passes[0]), f"{taken} of {steps} steps taken"
        yield Finding(passes[0].where, seen, cause, order)


@check
def scaler_scales_fp16_training(run: Observation) -> Iterator[Finding]:
    """An enabled scaler scales losses, and of fp16 training."""
    needs(run.scalers, "no enabled scaler was seen")
    scales = run.of_kind("scale")
    steps = run.of_kind("step", "optimizer.step")
    if not scales and len(steps) >= FEW and run.ended == "end":
        seen = f"the scaler scales no loss in {len(steps)} steps"
        yield Finding(run.scalers[0].where, seen, UNUSED, steps[:1])
    if scales and run.precisions == {"torch.bfloat16"}:
        seen = "the loss is scaled, and autocast is bfloat16 wherever it is enabled"
        yield Finding(scales[0].where, seen, UNNEEDED, scales[:1])


@check
def gradients_are_used_once(run: Observation) -> Iterator[Finding]:
    """A step uses all gradients that have arrived since the last step, and nothing uses them after
    it.
    """
    needs(run.of_kind("step", "optimizer.step"), "no step was seen")
    for optimizer in run.optimizers:
        name = optimizer.name
        calls = [event for event in run.events if name in event.optimizers]
        # A script that combines gradients of several passes clears them after it has read them.
        if not optimizer.own_gradients:
            yield from _cleared_too_early(name, calls)
            yield from _never_cleared(name, calls)
        useless = [event for event in calls if event.is_useless]
        again = [event for event in useless if "step" in event.kind]
        if again:
            seen = f"{name} takes a second step with the same gradients"
            yield Finding(again[0].where, seen, AGAIN, calls[-4:])
        clips = [event for event in calls if event.kind == "clip"]
        late = [event for event in useless if event.kind == "clip"]
        if 2 * len(late) > len(clips):
            seen = f"gradients are clipped after the step of {name} that uses them"
            yield Finding(late[0].where, seen, LATE, late[:1])


def _cleared_too_early(name: str, calls: Sequence[Event]) -> Iterator[Finding]:
    """Find backward passes whose gradients no step uses, at places whose gradients steps do use."""
    used = {event.where for call in calls for event in call.passes}
    lost = [
        event
        for event in calls
        if event.is_useless and event.is_scaled and event.where in used
    ]
    # A pass that reaches other optimizers, too, may be theirs.
    lost = [event for event in lost if event.optimizers == [name]]
    if lost:
        seen = f"gradients of {len(lost)} backward passes are cleared before a step of {name}"
        yield Finding(lost[0].where, seen, CLEARED, lost[:1])


def _never_cleared(name: str, calls: Sequence[Event]) -> Iterator[Finding]:
    """Find steps whose gradients have those of earlier steps in them."""
    steps = [event for event in calls if event.passes]
    mixed = [event for event in steps if event.adds_to_old]
    if 2 * len(mixed) > len(steps):
        seen = f"{name} steps with gradients of its earlier steps, too"
        yield Finding(mixed[0].where, seen, NEVER_CLEARED, calls[-4:])


@check
def resume_is_exact(run: Observation) -> Iterator[Finding]:
    """A checkpoint with the optimizer's state has the scaler's state."""
    needs(run.scalers, "no enabled scaler was seen")
    loads = [event for event in run.of_kind("load") if event.optimizers]
    saves = [save for save in run.saves if "optimizer" in save.kinds]
    needs(
        saves or loads,
        "no optimizer is saved in these steps; ampsim lint reads what the source saves",
    )
    if loads and _scaler_is_missed(run):
        seen = "the optimizer's state is loaded, and the scaler's is not"
        yield Finding(loads[0].where, seen, NOT_LOADED, loads[:1])
    for save in saves:
        # Two files of one folder may be parts of one checkpoint.
        others = [each for each in run.saves if each.folder == save.folder]
        parts = [
            each for each in others if each.is_part or save.is_part or each is save
        ]
        if not any("scaler" in each.kinds for each in parts):
            seen = "the checkpoint has the optimizer's state, and not the scaler's"
            yield Finding(save.event.where, seen, NOT_SAVED, [save.event])


def _scaler_is_missed(run: Observation) -> bool:
    """Return whether no scaler is loaded, although the run resumes, or its checkpoint has one."""
    if any(event.scaler for event in run.of_kind("load")):
        return False
    first = next((event.kind for event in run.of_kind("scale", "load")), "")
    return first == "load" or any("scaler" in save.kinds for save in run.saves)

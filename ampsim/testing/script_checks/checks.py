"""The checks of what a script calls, in which order, and of what it never does.

An earlier finding may explain a later one, so `ampsim.testing.script_checks.trial_checks` come last.
"""

from collections import Counter
from collections.abc import Iterator

from ampsim.testing.script_checks.check import Blamed, Finding, check, needs
from ampsim.testing.script_checks.observation import Observation
from ampsim.testing.script_checks.trace import Event

FEW = 3  # steps below which nothing is said of what a script never does
LOST = 0.5  # of the backward passes of one line; fewer are lost at the end of an epoch
STILL_SCALED = ("scaled", "partly scaled", "mixed")
RESTART = "a resumed run restarts at the initial scale, and its first steps are skipped"


def needs_scaled_step(run: Observation) -> None:
    """Skip the check unless a step with a scaled loss was seen."""
    needs(run.of_kind("scale") and run.steps, "no step with a scaled loss was seen")


def needs_clip(run: Observation) -> None:
    """Skip the check unless gradients were clipped by torch's functions."""
    needs(run.of_kind("clip"), "the script does not call torch's functions that clip gradients")


def calls_before(run: Observation, event: Event, name: str) -> list[Event]:
    """Return the calls for the gradients of an optimizer since its last step, and the event itself."""
    calls: list[Event] = []
    for each in run.events:
        calls += [each] * (name in each.stages or each.kind == "update")
        if each is event:
            break
        is_step = each.kind in ("step", "optimizer.step")
        if name in each.stages and (is_step or each.kind == "zero_grad"):
            calls = calls[-1:]
    return calls


def finding(run: Observation, event: Event, name: str, seen: str, cause: str) -> Finding:
    """Return a finding at a call that concerns an optimizer."""
    return Finding(event.where, seen, cause, calls_before(run, event, name), [name])


def staged(run: Observation, *kinds: str) -> Iterator[tuple[Event, str]]:
    """Yield the events of these kinds with each optimizer that they concern."""
    for event in run.of_kind(*kinds):
        for name in event.stages:
            yield event, name


@check("scale", "skip")
def step_uses_scaler(run: Observation, _: Blamed) -> Iterator[Finding]:
    """An optimizer whose loss is scaled is stepped by the scaler."""
    needs_scaled_step(run)
    cause = (
        "the step does not skip on inf and NaN, and uses gradients that are multiplied by the loss scale "
        "unless they were unscaled: call scaler.step(optimizer)"
    )
    for event, name in staged(run, "optimizer.step"):
        passes = [call for call in calls_before(run, event, name) if call.kind == "backward"]
        if passes and passes[-1].note == "scaled loss":
            seen = f"optimizer.step() of {name} is called directly"
            yield finding(run, event, name, seen, cause)


@check("scale")
def gradients_are_unscaled_before_clipping(run: Observation, _: Blamed) -> Iterator[Finding]:
    """Gradients are clipped, and their norm is taken, after the scaler has unscaled them."""
    needs_clip(run)
    cause = (
        "the threshold is compared with gradients times the loss scale: call scaler.unscale_(optimizer) before "
        "clipping; with accelerate, call accelerator.clip_grad_norm_ in a step that syncs gradients"
    )
    for event, name in staged(run, "clip"):
        if event.stages[name] in STILL_SCALED and not _threshold_follows_scale(run, event.where):
            seen = f"{event.note} gets gradients of {name} that are multiplied by the loss scale"
            yield finding(run, event, name, seen, cause)


def _threshold_follows_scale(run: Observation, where: str) -> bool:
    """Return whether the threshold of a clip is multiplied by the scale."""
    thresholds = []
    for outcome in (run.outcome("unchanged"), run.outcome("scale")):
        clips = (
            [e for e in outcome.events if e.kind == "clip" and e.where == where] if outcome else []
        )
        thresholds.append(clips[0].value if clips else None)
    return None not in thresholds and thresholds[0] != thresholds[1]


@check()
def clipping_precedes_step(run: Observation, _: Blamed) -> Iterator[Finding]:
    """Gradients are clipped before the step that uses them."""
    needs_clip(run)
    cause = "the clipping has no effect: move it between scaler.unscale_(optimizer) and scaler.step(optimizer)"
    for event, name in staged(run, "clip"):
        if event.stages[name] == "used":
            seen = f"{event.note} runs after the step of {name}, which has used the gradients"
            yield finding(run, event, name, seen, cause)


@check()
def gradients_are_clipped_once_per_step(run: Observation, _: Blamed) -> Iterator[Finding]:
    """Gradients are clipped once per step, after the last backward pass."""
    needs_clip(run)
    cause = "a sum of gradients, some of them clipped, is not the clipped gradient: clip where the step is taken"
    for event, name in staged(run, "clip"):
        kinds = [call.kind for call in calls_before(run, event, name)]
        first = kinds.index("clip")
        is_plain = event.stages[name] not in (*STILL_SCALED, "used")
        if is_plain and "backward" in kinds[first:]:
            seen = (
                f"{event.note} clips the gradients of {name} after each of several backward passes"
            )
            yield finding(run, event, name, seen, cause)


@check("scale", "skip")
def gradients_are_divided_once(run: Observation, _: Blamed) -> Iterator[Finding]:
    """Each gradient is divided by the loss scale once."""
    needs_scaled_step(run)
    cause = (
        "call scaler.unscale_(optimizer) once per step, after the last backward pass, and give each parameter to one "
        "optimizer"
    )
    for event, name in staged(run, "step"):
        calls = calls_before(run, event, name)
        divisions = [call for call in calls if call.kind == "unscale_"]
        if event.stages[name] == "mixed" and divisions:
            seen = "gradients are added after unscale_ has divided the earlier ones"
            yield finding(run, divisions[-1], name, seen, cause)
        if event.stages[name] == "used":
            seen = f"{name} steps again with gradients that its last step has divided and used"
            yield finding(run, event, name, seen, cause)
    for event, name in staged(run, "unscale_", "step"):
        for other in event.divided_by:
            seen = f"a parameter is in {other} and in {name}; both divide its gradient by the scale"
            order = calls_before(run, event, name)
            yield Finding(event.where, seen, cause, order, [other, name])


@check("scale")
def losses_of_a_step_are_scaled(run: Observation, _: Blamed) -> Iterator[Finding]:
    """All losses whose gradients a step uses are scaled."""
    needs_scaled_step(run)
    cause = "this loss is not scaled, and its gradients are divided by the scale: call scaler.scale(loss).backward()"
    for event, name in staged(run, "unscale_", "step", "optimizer.step"):
        if event.stages[name] != "partly scaled":
            continue
        calls = calls_before(run, event, name)
        plain = [call for call in calls if call.note == "plain loss"] or [event]
        seen = "gradients of a loss that is not scaled are added to scaled ones"
        yield Finding(plain[0].where, seen, cause, calls, [name])


@check("scale")
def update_follows_step(run: Observation, _: Blamed) -> Iterator[Finding]:
    """scaler.update() runs after the step that uses the gradients."""
    needs_scaled_step(run)
    cause = (
        "if update() changes the scale, the gradients are divided by another scale than they were multiplied by: "
        "call it once, after all optimizers of the iteration have stepped"
    )
    for event, name in staged(run, "unscale_", "step"):
        updates = [call for call in calls_before(run, event, name) if call.kind == "update"]
        if event.is_late and updates:
            seen = f"update() runs between the backward pass of {name} and its step"
            order = calls_before(run, event, name)
            yield Finding(updates[-1].where, seen, cause, order, [name])


@check("scale", "skip")
def scaler_accepts_each_call(run: Observation, _: Blamed) -> Iterator[Finding]:
    """The scaler accepts each call of unscale_, step, and update."""
    calls = run.of_kind("unscale_", "step", "update")
    needs(calls, "no gradients were unscaled")
    cause = (
        "call unscale_ and step once per optimizer and update(), after the last backward pass of a scaled loss, and "
        "update() once after the steps"
    )
    for event in calls:
        if event.error:
            seen = f"{event.kind} raises: {event.error}"
            names = [*event.stages]
            order = calls_before(run, event, *names[:1] or [""])
            yield Finding(event.where, seen, cause, order, names)


@check()
def scaler_is_created_once(run: Observation, _: Blamed) -> Iterator[Finding]:
    """An optimizer is stepped by one scaler."""
    needs_scaled_step(run)
    cause = "a new scaler starts at its initial scale, and its first steps overflow: create it before the loops"
    places = {scaler.name: scaler.where for scaler in run.scalers}
    last: dict[str, str] = {}
    for event, name in staged(run, "step", "optimizer.step"):
        if event.scaler and last.get(name) and event.scaler != last[name]:
            seen = f"{name} is stepped by another scaler than before: {event.scaler}"
            yield Finding(places[event.scaler], seen, cause, [event], [name])
        last[name] = event.scaler


@check("scale", "skip")
def step_changes_parameters(run: Observation, _: Blamed) -> Iterator[Finding]:
    """Parameters that receive gradients change."""
    backward = run.of_kind("backward")
    needs(len(backward) >= 2 * FEW, f"{len(backward)} backward passes were seen, too few")
    for optimizer in run.optimizers:
        # A pass that reaches other optimizers, too, may be theirs, as that of a generator through its discriminator.
        passes = [event for event in backward if [*event.stages] == [optimizer.name]]
        if optimizer.has_moved or len(passes) < 2 * FEW:
            continue
        taken, steps = sum(optimizer.attempts), len(optimizer.attempts)
        cause = (
            "no step is taken with these gradients: call scaler.step(optimizer) in each iteration"
        )
        if steps and not taken:
            cause = "each step was skipped: look for inf and NaN in the loss"
        seen = f"no parameter of {optimizer.name} changes in {len(passes)} backward passes"
        order = str(passes[0]), f"{taken} of {steps} steps taken"
        yield Finding(passes[0].where, seen, cause, order, [optimizer.name])


@check()
def gradients_reach_a_step(run: Observation, _: Blamed) -> Iterator[Finding]:
    """The gradients of each backward pass reach a step."""
    needs(run.steps >= FEW, f"{run.steps} steps were seen, too few")
    passes = [event for event in run.of_kind("backward")[:-1] if event.stages]
    used = Counter(event.where for event in passes if event.is_used)
    lost = Counter(event.where for event in passes if not event.is_used)
    cause = (
        "their gradients are cleared before the step, which uses a part of the batches: call optimizer.zero_grad() "
        "after the step, not in each micro-batch"
    )
    for where, count in lost.items():
        # A place whose gradients are never used has another purpose, as an adversarial example.
        total = count + used[where]
        if used[where] and count >= max(LOST * total, FEW):
            yield Finding(where, f"{count} of {total} backward passes here reach no step", cause)


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
    needs(run.scalers, "no enabled scaler was seen")
    saves = [save for save in run.saves if "optimizer" in save.kinds]
    needs(saves or run.unsaved, "no optimizer is saved")
    cause = f"{RESTART}: save scaler.state_dict() beside optimizer.state_dict(), and load it"
    for save in saves:
        # Two files of one folder may be parts of one checkpoint.
        others = [each for each in run.saves if each.folder == save.folder]
        parts = [each for each in others if each.is_part or save.is_part or each is save]
        if not any("scaler" in each.kinds for each in parts):
            seen = "the checkpoint has the optimizer's state, and not the scaler's"
            yield Finding(save.event.where, seen, cause, [save.event])
    if run.unsaved and not saves:
        seen = "the optimizer's state is saved here, and the scaler's nowhere"
        yield Finding(run.unsaved, seen, cause, ["read in the sources"])
    scalers = [save.event for save in run.saves if "scaler" in save.kinds]
    # The name of a library after the line shows that it saves, and so loads, the scaler.
    if saves and run.unloaded and scalers and " in " not in scalers[0].where:
        seen = "the optimizer's state is loaded, and the scaler's state, which is saved, is not"
        yield Finding(run.unloaded, seen, f"{RESTART}: call scaler.load_state_dict()", scalers[:1])

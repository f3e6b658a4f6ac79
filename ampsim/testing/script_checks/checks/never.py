"""The checks of what a script does over the whole run, and of what it never does."""

from collections import Counter
from collections.abc import Iterator

from ampsim.testing.script_checks.check import (
    FEW,
    Blamed,
    Finding,
    check,
    needs,
)
from ampsim.testing.script_checks.observation import Observation

LOST = 0.5  # of the backward passes of one line; fewer are lost at the end of an epoch


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
        order = str(passes[0]), f"{taken} of {steps} steps taken"
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

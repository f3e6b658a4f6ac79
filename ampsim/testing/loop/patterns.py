"""The usual causes, by the pattern of what differs: a table, read from the top."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampsim.testing.loop import law as by
from ampsim.testing.loop.law import Broken
from ampsim.testing.loop.state import Difference


@dataclass(frozen=True)
class Pattern:
    """A kind of difference, and what usually made it so.

    Attributes:
        power: of the scale, by which the change of an array is multiplied; None: by no one power.
        name: a regular expression for the array's name.
        cause: in words, with the cure.
        pattern: what the law itself said.
    """

    cause: str
    name: str = ""
    power: int | None = None
    pattern: str = ""


_READ = (
    "scaler.get_scale() before and after scaler.update() tells: it falls only if the step was skipped; in JAX, keep "
    "the old one where gradients are not finite"
)
PATTERNS: Mapping[str, Sequence[Pattern]] = {  # by the law's name
    "scale_is_invisible": (
        Pattern(
            "S times as large: the norm is of scaled gradients; call scaler.unscale_(optimizer) before it is taken",
            r"^logged.*(norm|grad)",
            1,
        ),
        Pattern("S times as large: the scaled loss is logged; log the loss before scaler.scale", r"^logged", 1),
        Pattern(
            "a second moment S^2 times as large is one of gradients that were never unscaled: "
            "step with scaler.step(optimizer), and name every parameter in its optimizer",
            r"_sq|second|square",
            2,
        ),
        Pattern("S^2 times as large: scaled twice, or squared while scaled", power=2),
        Pattern(
            "S times as large: never unscaled; step with scaler.step(optimizer), and unscale by hand what is taken "
            "from gradients",
            power=1,
        ),
        Pattern(
            "1/S as large: unscaled twice, or clipped before scaler.unscale_(optimizer), or the loss is never scaled",
            power=-1,
        ),
        Pattern("1/S^2 as large: unscaled twice, of a loss that was never scaled", power=-2),
        Pattern(
            "differs only once the scale has moved: divided by the scale after scaler.update() and not before, or "
            "gradients kept over an update without their scale",
            pattern=by.GROWS,
        ),
        Pattern(
            "by one factor for all, which is no power of S: clipped or normalised before scaler.unscale_(optimizer)",
            pattern=by.ALIKE,
        ),
        Pattern(
            "by no one power of S: one branch of the loss is not scaled, gradients are clipped or mixed before "
            "scaler.unscale_(optimizer), or a constant is compared with what is scaled"
        ),
    ),
    "skipped_step_never_happened": (
        Pattern(
            "the inf was stepped with: optimizer.step() is called directly, or inf and NaN are taken out of the "
            "gradients before the scaler looks; step every optimizer with scaler.step(optimizer)",
            pattern=by.STEPPED,
        ),
        Pattern(
            "the scaler is not updated: no update is called, or it is not told of the inf, or in JAX its result is "
            "dropped",
            pattern=by.KEPT,
        ),
        Pattern(
            "a loss that is not finite is taken into it for ever: leave out what is not finite before it is averaged",
            pattern=by.POISONED,
        ),
        Pattern(
            "it is neither left alone nor what a clean step makes of it: an inf or NaN is taken out of gradients, or "
            "part of them is looked at, or one backward pass of several; let the scaler look at all gradients, after "
            "the last pass, by scaler.step(optimizer)",
            r"^(?!.*(\.lr$|last_epoch|_step_count|_last_lr|sched|ema|averag|shadow|swa))",
            pattern=by.MIXED,
        ),
        Pattern("what is logged is kept from the skipped step, or averaged over it", r"^logged", pattern=by.HIDDEN),
        Pattern(
            "something outside state went on in the skipped step: gradients that were not cleared, or a counter, an "
            "average, a generator of random numbers that state does not name",
            pattern=by.HIDDEN,
        ),
        Pattern(
            f"the schedule goes on although the optimizer did not step; {_READ}",
            r"\.lr$|last_epoch|_step_count|_last_lr|sched",
        ),
        Pattern(f"the average is updated although the parameters did not move; {_READ}", r"ema|averag|shadow|swa"),
        Pattern(
            "the optimizer's state is updated before it is known that the step is skipped: gradients reach a momentum "
            "outside scaler.step(optimizer)",
            r"moment|exp_avg|\.state\.",
        ),
        Pattern(
            f"it goes on although the step was skipped; {_READ}. What counts batches and not steps is called `data` in "
            "state"
        ),
    ),
    "resume_is_invisible": (
        Pattern(
            "saving goes through the optimizer's step or the scaler's update, or leaves something else in the model",
            pattern=by.SAVING,
        ),
        Pattern(
            "what was saved does not fit what make builds: build in make, or in load, what the loop adds while it "
            "trains, as parameter groups",
            pattern=by.LOADING,
        ),
        Pattern(
            "its place among the batches of one step is in the checkpoint, and the gradients added up so far are not: "
            "save between steps alone, so that Loop's save= refuses elsewhere, or save the gradients as well",
            pattern=by.WINDOW,
        ),
        Pattern(
            "all that state names was loaded, and training goes on otherwise: it carries something more, which a "
            "checkpoint of state loses; name it in state, or give Loop save= and load=",
            pattern=by.UNNAMED,
        ),
        Pattern(
            "the scaler's state is not saved, or not loaded, or changed afterwards: scaler.state_dict() belongs into "
            "the checkpoint, and scaler.load_state_dict() comes last",
            r"^scaler\.",
        ),
        Pattern("it is not saved, or not loaded, or changed between the two"),
    ),
    "splitting_is_invisible": (
        Pattern(
            "the verdict is of one micro-batch, or comes before all are added: unscale and update once, after the last "
            "one",
            pattern=by.VERDICT,
        ),
        Pattern(
            "it goes on with each micro-batch: update it once per step, after scaler.update()",
            r"ema|averag|shadow|swa|step|count|\.lr$|last_epoch",
        ),
        Pattern(
            "the loss of a micro-batch is not divided by their number once: never, twice, or by another number; "
            "or gradients are cleared between them"
        ),
    ),
    "ranks_are_invisible": (
        Pattern(
            "the gradients of the ranks are not averaged alike: of some parameters only, or each clipped before the "
            "mean",
            pattern=by.APART,
        ),
        Pattern(
            "all ranks step with the same gradients, which are not the mean of theirs: summed and not divided by the "
            "number of ranks, divided twice, or clipped by each rank before they are averaged",
            pattern=by.MEAN,
        ),
        Pattern(
            "a rank goes its own way after its own verdict: let all agree on the verdict before any of them skips a "
            "collective",
            pattern=by.WAITS,
        ),
        Pattern(
            "it follows the rank's own gradients, or its own number: ask after scaler.update() whether the scale fell, "
            "once all ranks have one verdict",
            pattern=by.COUNTED,
        ),
        Pattern(
            "the verdict is of one rank: average the gradients before the scaler looks at them; where each rank keeps "
            "its own, let the scaler ask the others, as ampsim.torch.GradScaler(group=group) does"
        ),
    ),
    "scaler_changes_by_update_only": (
        Pattern(
            "a scaler of the loop's own, or one that is made anew: its scale and its count are in no checkpoint, and "
            "begin again; use the one that make is given",
            pattern=by.OTHER,
        ),
        Pattern(
            "its state is set, or loaded, in the middle of training: leave it to scaler.update()", pattern=by.JUMPS
        ),
        Pattern(
            "each update counts a clean step, so that the scale grows too soon: update once, after the last "
            "scaler.step(optimizer)",
            pattern=by.AGAIN,
        ),
    ),
    "it_learns": (
        Pattern(
            "it is named in state and never called: step it where the optimizer has stepped. What moves once per epoch "
            "is called `data` in state, or given batches of more than one",
            pattern=by.STILL,
        ),
        Pattern("every step is skipped: look for inf or NaN in the loss at this scale", pattern=by.SKIPPED),
        Pattern(
            "it is not in the graph of the loss, or detached from it; if it is not to be trained, take it from the "
            "optimizer, or requires_grad_(False)",
            pattern=by.UNREACHED,
        ),
        Pattern(
            "it has gradients and no optimizer steps with them, or the move is lost in the parameter's dtype: keep "
            "float32 parameters",
            pattern=by.STUCK,
        ),
    ),
}


def cause_of(law: str, broken: Broken) -> tuple[str, Difference | None]:
    """Return the usual cause of a difference, and the array that shows it; "" if the table has none."""
    for each in PATTERNS[law]:
        if each.pattern and each.pattern != broken.pattern:
            continue
        for difference in broken.differences:
            if re.search(each.name, difference.name) and (
                each.power is None or each.power == _power(difference.factor(), broken.scale)
            ):
                return each.cause, difference
        if not broken.differences and each.power is None:
            return each.cause, None
    return "", None


def _power(factor: float | None, scale: float) -> float | None:
    if factor is None or factor <= 0 or scale <= 1:
        return None
    power = math.log(factor, scale)
    return round(power) if abs(power - round(power)) * math.log(scale) < 1e-3 else None

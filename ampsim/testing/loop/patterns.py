"""The usual causes by the names of what differs, where the check itself does not know one: a
table, read from the top.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampsim.testing.loop.check import Broken
from ampsim.testing.loop.checks.skipped import HIDDEN, MIXED
from ampsim.testing.loop.state import Difference


@dataclass(frozen=True)
class Pattern:
    """A kind of difference, and its usual cause.

    Attributes:
        cause: the usual cause and the fix, as text.
        name: a regular expression for the array's name.
        power: power of the scale by which the change of an array is multiplied; None for no single power.
        instead: the more general cause from the check, which this cause replaces.
    """

    cause: str
    name: str = ""
    power: int | None = None
    instead: str = ""


_READ = (
    "compare scaler.get_scale() before and after scaler.update(): it falls only if the step was skipped. In JAX, keep "
    "the old state where gradients are not finite"
)
_SCHEDULED, _AVERAGED = r"\.lr$|last_epoch|_step_count|_last_lr|sched", r"ema|averag|shadow|swa"
PATTERNS: Mapping[str, Sequence[Pattern]] = {  # by the check's name
    "gradients_do_not_depend_on_loss_scale": (
        Pattern(
            "S times as large: the norm is of scaled gradients; call scaler.unscale_(optimizer) before the norm",
            r"^logged.*(norm|grad)",
            1,
        ),
        Pattern(
            "S times as large: the scaled loss is logged; log the loss before scaler.scale",
            r"^logged",
            1,
        ),
        Pattern(
            "a second moment S^2 times as large comes from gradients that were never unscaled: "
            "step with scaler.step(optimizer), and name every parameter in its optimizer",
            r"_sq|second|square",
            2,
        ),
        Pattern("S^2 times as large: scaled twice, or squared while scaled", power=2),
        Pattern(
            "S times as large: never unscaled; step with scaler.step(optimizer), and unscale other values that are "
            "computed from gradients",
            power=1,
        ),
        Pattern(
            "1/S as large: unscaled twice, or clipped before scaler.unscale_(optimizer), or the loss is never scaled",
            power=-1,
        ),
        Pattern("1/S^2 as large: unscaled twice, from a loss that was never scaled", power=-2),
        Pattern(
            "no single power of S: one branch of the loss is not scaled, gradients are clipped or mixed before "
            "scaler.unscale_(optimizer), or a constant is compared with a scaled value"
        ),
    ),
    "skipped_step_changes_nothing": (
        Pattern(MIXED, rf"^(?!.*({_SCHEDULED}|{_AVERAGED}))", instead=MIXED),
        Pattern(
            "the logged value comes from the skipped step, or is averaged over it",
            r"^logged",
            instead=HIDDEN,
        ),
        Pattern(HIDDEN, instead=HIDDEN),
        Pattern(f"the schedule advances although the optimizer did not step; {_READ}", _SCHEDULED),
        Pattern(
            f"the average is updated although the parameters did not change; {_READ}", _AVERAGED
        ),
        Pattern(
            "the optimizer's state is updated before the scaler skips the step: gradients reach a momentum "
            "outside scaler.step(optimizer)",
            r"moment|exp_avg|\.state\.",
        ),
        Pattern(
            f"it changes although the step was skipped; {_READ}. If it counts batches, not steps, name it `data` in "
            "state"
        ),
    ),
    "resume_is_exact": (
        Pattern(
            "the scaler's state is not saved, not loaded, or changed afterwards: put scaler.state_dict() into "
            "the checkpoint, and call scaler.load_state_dict() last",
            r"^scaler\.",
        ),
        Pattern("it is not saved, not loaded, or changed between saving and loading"),
    ),
    "micro_batches_equal_one_batch": (
        Pattern(
            "it changes with each micro-batch: update it once per step, after scaler.update()",
            rf"{_AVERAGED}|step|count|\.lr$|last_epoch",
        ),
        Pattern(
            "the loss of a micro-batch is not divided exactly once by the number of micro-batches, "
            "or gradients are cleared between micro-batches"
        ),
    ),
}


def cause_of(check: str, broken: Broken) -> tuple[str, Difference | None]:
    """Return the usual cause of a difference, and the array that shows it; "" for no known cause."""
    table = PATTERNS.get(check, ())
    if broken.cause not in {each.instead for each in table}:
        return broken.cause, next(iter(broken.differences), None)
    for each in table:
        if each.instead and each.instead != broken.cause:
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

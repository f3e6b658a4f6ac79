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
    """A kind of difference, and what usually made it so.

    Attributes:
        cause: in words, with the cure.
        name: a regular expression for the array's name.
        power: of the scale, by which the change of an array is multiplied; None: by no one power.
        instead: the cause that the check itself knows, of which this is a kind.
    """

    cause: str
    name: str = ""
    power: int | None = None
    instead: str = ""


_READ = (
    "scaler.get_scale() before and after scaler.update() tells: it falls only if the step was skipped; in JAX, keep "
    "the old one where gradients are not finite"
)
_SCHEDULED, _AVERAGED = r"\.lr$|last_epoch|_step_count|_last_lr|sched", r"ema|averag|shadow|swa"
PATTERNS: Mapping[str, Sequence[Pattern]] = {  # by the check's name
    "gradients_do_not_depend_on_loss_scale": (
        Pattern(
            "S times as large: the norm is of scaled gradients; call scaler.unscale_(optimizer) before it is taken",
            r"^logged.*(norm|grad)",
            1,
        ),
        Pattern(
            "S times as large: the scaled loss is logged; log the loss before scaler.scale",
            r"^logged",
            1,
        ),
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
            "by no one power of S: one branch of the loss is not scaled, gradients are clipped or mixed before "
            "scaler.unscale_(optimizer), or a constant is compared with what is scaled"
        ),
    ),
    "skipped_step_changes_nothing": (
        Pattern(MIXED, rf"^(?!.*({_SCHEDULED}|{_AVERAGED}))", instead=MIXED),
        Pattern(
            "what is logged is kept from the skipped step, or averaged over it",
            r"^logged",
            instead=HIDDEN,
        ),
        Pattern(HIDDEN, instead=HIDDEN),
        Pattern(f"the schedule goes on although the optimizer did not step; {_READ}", _SCHEDULED),
        Pattern(f"the average is updated although the parameters did not move; {_READ}", _AVERAGED),
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
    "resume_is_exact": (
        Pattern(
            "the scaler's state is not saved, or not loaded, or changed afterwards: scaler.state_dict() belongs into "
            "the checkpoint, and scaler.load_state_dict() comes last",
            r"^scaler\.",
        ),
        Pattern("it is not saved, or not loaded, or changed between the two"),
    ),
    "micro_batches_equal_one_batch": (
        Pattern(
            "it goes on with each micro-batch: update it once per step, after scaler.update()",
            rf"{_AVERAGED}|step|count|\.lr$|last_epoch",
        ),
        Pattern(
            "the loss of a micro-batch is not divided by their number once: never, twice, or by another number; "
            "or gradients are cleared between them"
        ),
    ),
}


def cause_of(check: str, broken: Broken) -> tuple[str, Difference | None]:
    """Return the usual cause of a difference, and the array that shows it; "" if none is known."""
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

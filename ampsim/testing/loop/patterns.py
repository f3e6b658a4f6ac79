"""The usual causes, by the pattern of what differs: a table, read from the top."""

import math
import re
from dataclasses import dataclass

from ampsim.testing.loop.law import Broken
from ampsim.testing.loop.state import Difference


@dataclass(frozen=True)
class Pattern:
    """A kind of difference, and what usually made it so.

    Attributes:
        law: the law's name.
        power: of the scale, by which the change of an array is multiplied; None: by no one power.
        name: a regular expression for the array's name.
        cause: in words, with the cure.
        pattern: what the law itself said.
    """

    law: str
    power: int | None
    name: str
    cause: str
    pattern: str = ""


_SCALE = "scale_is_invisible"
PATTERNS = (
    Pattern(
        _SCALE,
        1,
        r"^logged.*(norm|grad)",
        "S times as large: the norm is of scaled gradients; call scaler.unscale_(optimizer) before it is taken",
    ),
    Pattern(_SCALE, 1, r"^logged", "S times as large: the scaled loss is logged; log the loss before scaler.scale"),
    Pattern(
        _SCALE,
        2,
        r"_sq|second|\bv\b",
        "a second moment S^2 times as large is one of gradients that were never unscaled: "
        "step with scaler.step(optimizer), and name every parameter in its optimizer",
    ),
    Pattern(_SCALE, 2, r"", "S^2 times as large: scaled twice, or squared while scaled"),
    Pattern(
        _SCALE,
        1,
        r"",
        "S times as large: never unscaled; step with scaler.step(optimizer), and unscale what is taken from gradients "
        "by hand",
    ),
    Pattern(
        _SCALE,
        -1,
        r"",
        "1/S as large: unscaled twice, or clipped before scaler.unscale_(optimizer), or the loss is never scaled",
    ),
    Pattern(_SCALE, -2, r"", "1/S^2 as large: unscaled twice, of a loss that was never scaled"),
    Pattern(
        _SCALE,
        None,
        r"",
        "differs only once the scale has moved: divided by the scale after scaler.update() and not before, or "
        "gradients kept over an update without their scale",
        pattern="only while the scale grows",
    ),
    Pattern(
        _SCALE,
        None,
        r"",
        "by no one power of S: one branch of the loss is not scaled, gradients are clipped or mixed before "
        "scaler.unscale_(optimizer), or a constant is compared with what is scaled",
    ),
)


def cause_of(law: str, broken: Broken) -> tuple[str, Difference | None]:
    """Return the usual cause of a difference, and the array that shows it; "" if the table has none."""
    for each in PATTERNS:
        if each.law != law or (each.pattern and each.pattern != broken.pattern):
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

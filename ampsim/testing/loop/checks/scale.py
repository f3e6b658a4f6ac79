"""The check gradients_do_not_depend_on_loss_scale."""

from collections.abc import Sequence

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.backend import Run
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.checks.excused import is_copy
from ampsim.testing.loop.play import NEVER, Batch, Make, advance, begin, play
from ampsim.testing.loop.state import LOGGED, Difference, beyond, differences

SLIGHT = 0.05  # of a change: what the rounding of half precision and subnormal numbers do not reach
# Initial scale and growth interval of the runs that are compared with scale 1.
PLANS = ((2.0**8, NEVER), (2.0**16, NEVER), (1.0, 1))
POWERS = {  # of the scale, by which a change is multiplied
    1: "S times as large: step with scaler.step(optimizer), call scaler.unscale_(optimizer) before norms and other "
    "values that are computed from gradients, and log the loss before scaler.scale",
    2: "S^2 times as large: scaled twice, or a second moment of gradients that were never unscaled: step with "
    "scaler.step(optimizer), and name every parameter in its optimizer",
    -1: "1/S as large: unscaled twice, as a parameter in two optimizers, or clipped before "
    "scaler.unscale_(optimizer), or the loss is never scaled",
    -2: "1/S^2 as large: unscaled twice, from a loss that was never scaled",
}
MIXED = (
    "no single power of S: one branch of the loss is not scaled, a parameter is in two optimizers, which both divide "
    "its gradient, gradients are clipped or mixed before scaler.unscale_(optimizer), or a constant is compared with a "
    "scaled value"
)
GROWS = (
    "differs only after the scale changed: the loop divides by the scale after scaler.update() instead of the one "
    "before, or keeps gradients over an update without their scale"
)


@check(issue="https://github.com/areal-project/AReaL/pull/1659")
def gradients_do_not_depend_on_loss_scale(
    make: Make, batches: Sequence[Batch]
) -> Broken | None:
    """Parameters, optimizer state, other state, and logged values are equal at any loss scale, but
    for rounding.

    In float32 they are equal bit for bit, because a product with a power of two changes only the
    exponent, as long as no number overflows or becomes subnormal. Changes that differ by less than
    a twentieth may be the rounding of half precision, or of a constant that the loop adds. A copy
    of the scale, as in logs, is not compared.
    """
    doubt = ""
    reference = play(make, batches, 1.0)
    for scale, interval in PLANS:
        run = begin(make, scale, interval)
        for step, batch in enumerate(batches):
            advance(run, [batch])
            if run.overflows(step) != reference.overflows(step):
                doubt = f"batch {batch.place} overflows at scale {max(run.scales[step], 1.0):g}"
                break
            if any(reference.verdicts) and not reference.verdicts[step]:
                continue  # a micro-batch, whose gradients are still scaled
            if found := _apart(reference, run, step):
                return _broken(found, run.scales[step], batch)
    if doubt:
        raise NotApplicableError(doubt)
    return None


def _apart(reference: Run, run: Run, step: int) -> list[Difference]:
    """Return what differs by more than rounding, and is no copy of the scale."""
    before = reference.states[step]
    left = reference.states[step + 1]
    right = run.states[step + 1]
    scales = {*run.scales, run.scale}
    trained = {*run.parameters()}
    far = {each.name for each in beyond(SLIGHT, before, left, right)}
    return [
        each
        for each in differences(left, right, before)
        if (each.name in far or (each.name.startswith(f"{LOGGED}.") and _is_far(each)))
        and (each.name in trained or not is_copy(each.right, scales))
    ]


def _is_far(each: Difference) -> bool:
    """Return whether a logged value differs by more than its rounding."""
    if each.changes is None:
        return True
    left, right = each.changes
    return not bool((abs(right - left) <= SLIGHT * abs(left).max(initial=0.0)).all())


def _broken(found: Sequence[Difference], scale: float, batch: Batch) -> Broken:
    """Return the failure, with a cause by the power of the scale that one change is multiplied by."""
    powers = [power for each in found if (power := _power(each.factor(), scale))]
    # A run that begins at scale 1 differs only once the scale has grown.
    is_grown = scale < 2.0**8
    cause = POWERS[powers[0]] if powers else GROWS if is_grown else MIXED
    moving = ", which doubles after each update" if is_grown else ""
    where = f"after batch {batch.place} at scale {scale:g}{moving}, against scale 1"
    return Broken(where, cause, found)


def _power(factor: float | None, scale: float) -> int | None:
    """Return the power of the scale that a factor is, up to the rounding of a sum; None for none."""
    if factor is None or scale <= 1:
        return None
    return next((each for each in POWERS if abs(factor / scale**each - 1) < 1e-3), None)

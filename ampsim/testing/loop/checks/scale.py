"""The check gradients_do_not_depend_on_loss_scale."""

from collections.abc import Sequence
from dataclasses import replace

from ampsim.testing.judge import NotApplicableError
from ampsim.testing.loop.check import Broken, check
from ampsim.testing.loop.checks.excused import is_copy
from ampsim.testing.loop.run import Run
from ampsim.testing.loop.runs import NEVER, Batch, Make, advance, begin, play, run_class
from ampsim.testing.loop.state import LOGGED, Difference, beyond, differences

LOGS = 2.0**-17  # of a logged number: what rounding makes of it
SLIGHT = 1e-3  # of a change: what rounding and numbers below the normal ones do not reach
GROWS = (
    "differs only after the scale changed: the loop divides by the scale after scaler.update() instead of the one "
    "before, or keeps gradients over an update without their scale"
)
ALIKE = (
    "all differ by one factor that is no power of S: gradients are clipped or normalized before "
    "scaler.unscale_(optimizer)"
)
SHARED = "is in two optimizers, and both steps divide its gradient by the scale: give each parameter to one optimizer"
PLANS = (
    (2.0**8, NEVER),
    (2.0**16, NEVER),
    (1.0, 1),
)  # initial scale and growth interval of the runs that are compared with scale 1


@check(issue="https://github.com/areal-project/AReaL/pull/1659")
def gradients_do_not_depend_on_loss_scale(make: Make, batches: Sequence[Batch]) -> Broken | None:
    """In float32, parameters, optimizer state, other state, and logged values are bitwise equal at any loss scale.

    This is exact, because a product with a power of two changes only the exponent, as long as no number overflows or
    becomes subnormal. Changes that differ by less than a thousandth are rounding, as of a constant that the loop adds.
    If an operation returns half precision, only a difference by a power of the scale is a failure. A copy of the scale,
    as in logs, is not compared.
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
            if found := _compare(reference, run, step, batch, grows=interval == 1):
                why = "" if _by_a_power(found) else run_class(make).half_precision(make, batches)
                if not why:
                    return found
                doubt = (
                    f"tested only up to powers of the scale, because {why}: {found.differences[0]}"
                )
                break
    if doubt:
        raise NotApplicableError(doubt)
    return None


def _compare(reference: Run, run: Run, step: int, batch: Batch, *, grows: bool) -> Broken | None:
    before, left, right = reference.states[step], reference.states[step + 1], run.states[step + 1]
    copies, trained = (
        ({*reference.scales, reference.scale}, {*run.scales, run.scale}),
        {*run.parameters()},
    )
    found = [
        each
        for each in differences(left, right, before)
        if each.name in trained
        or not (is_copy(each.left, copies[0]) and is_copy(each.right, copies[1]))
    ]
    if not found:
        return None
    apart = {each.name for each in beyond(SLIGHT, before, left, right)}
    apart |= {
        each.name for each in found if each.name.startswith(f"{LOGGED}.") and each.size() > LOGS
    }
    found = [each for each in found if each.name in apart]
    if not found:
        return None
    scale = run.scales[step]
    moving = ", which doubles after each update" if grows else ""
    where = f"after batch {batch.place} at scale {scale:g}{moving}, against scale 1"
    broken = Broken(where, step, found, scale)
    shared = run.shared()
    if any(each.name == shared for each in found):
        return replace(broken, cause=f"{shared} {SHARED}")
    return (
        broken
        if _by_a_power(broken)
        else replace(broken, cause=GROWS if grows else ALIKE if _alike(found) else "")
    )


def _by_a_power(broken: Broken) -> bool:
    """Return whether the change of an array is multiplied by a power of the scale."""
    return any(is_power(each.factor(), broken.scale) for each in broken.differences)


def _alike(found: Sequence[Difference]) -> bool:
    """Return whether the changes of all arrays are multiplied by one factor."""
    factors = [each.factor() for each in found]
    known = [factor for factor in factors if factor is not None]
    return len(known) == len(factors) and max(known) - min(known) < 1e-3 * max(map(abs, known))


def is_power(factor: float | None, scale: float) -> bool:
    """Return whether a factor is a power of the scale, other than 1, up to the rounding of a sum."""
    powers = [scale**power for power in (-2, -1, 1, 2)] if scale > 1 else []
    return factor is not None and any(abs(factor / power - 1) < 1e-3 for power in powers)

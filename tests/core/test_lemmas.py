"""The float lemmas that loss scaling rests on: proved by z3, or refuted and the counterexample run
in numpy.

What fp16 alone decides is enumerated in `test_exhaustive`; these are the ones over all of float32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ampsim import Rule, State, update

z3: Any = pytest.importorskip("z3", reason="pip install -c constraints.txt --group dev")
pytestmark = pytest.mark.deep

SEEDS, BUDGET_MS = (0, 1, 2), 20_000
NEAREST = z3.RNE()
HALF, SINGLE, DOUBLE = z3.Float16(), z3.Float32(), z3.Float64()


def number(x: float, sort: Any = SINGLE) -> Any:
    return z3.FPVal(x, sort)


ONE, SMALLEST_NORMAL = number(1.0), number(2.0**-126)


def finite(x: Any) -> Any:
    return z3.Not(z3.Or(z3.fpIsNaN(x), z3.fpIsInf(x)))


def within(x: Any, low: float, high: float, sort: Any = SINGLE) -> Any:
    return z3.And(z3.fpLEQ(number(low, sort), x), z3.fpLEQ(x, number(high, sort)))


def above(x: Any, limit: Any) -> Any:
    return z3.fpGT(z3.fpAbs(x), limit)


def times(x: Any, y: Any) -> Any:
    return z3.fpMul(NEAREST, x, y)


def cast(x: Any, sort: Any) -> Any:
    return z3.fpFPToFP(NEAREST, x, sort)


def power_of_two(name: str, low: int, high: int) -> tuple[Any, Any]:
    """A float32 2^k with low <= k <= high, and the constraint that makes it one. Normal range only."""
    exponent = z3.BitVec(name, 8)
    scale = z3.fpBVToFP(
        z3.Concat(z3.BitVecVal(0, 1), exponent, z3.BitVecVal(0, 23)), SINGLE
    )
    return scale, z3.And(z3.UGE(exponent, low + 127), z3.ULE(exponent, high + 127))


def reciprocal_of_power(scale_name: str, low: int, high: int) -> tuple[Any, Any, Any]:
    """2^k, 2^-k by its bits (the first lemma: that is what a division yields), and the constraint."""
    scale, is_power = power_of_two(scale_name, low, high)
    exponent = z3.BitVec(scale_name, 8)
    inverse_exponent = z3.BitVecVal(254, 8) - exponent
    inverse = z3.fpBVToFP(
        z3.Concat(z3.BitVecVal(0, 1), inverse_exponent, z3.BitVecVal(0, 23)), SINGLE
    )
    return scale, inverse, is_power


def search(*claim_denied: Any) -> tuple[Any, Any]:
    """z3's verdict and solver. Any seed's verdict is sound; how long one takes is luck."""
    for seed in SEEDS:
        solver = z3.Solver()
        solver.set("random_seed", seed)
        solver.set("timeout", BUDGET_MS)
        solver.add(*claim_denied)
        verdict = solver.check()
        if verdict != z3.unknown:
            return verdict, solver
    raise AssertionError(
        f"undecided with {len(SEEDS)} seeds of {BUDGET_MS} ms: {solver.reason_unknown()}"
    )


def proved(*claim_denied: Any) -> None:
    verdict, solver = search(*claim_denied)
    assert verdict == z3.unsat, f"refuted by {solver.model()}"


def counterexample(*claim_denied: Any) -> Callable[[Any], np.float32]:
    """A reader of the counterexample's values, as numpy floats."""
    verdict, solver = search(*claim_denied)
    assert verdict == z3.sat, "no counterexample exists"
    model = solver.model()

    def value(x: Any) -> np.float32:
        bits = model.eval(z3.fpToIEEEBV(x), model_completion=True).as_long()
        return np.array([bits], np.uint32).view(np.float32)[0]

    return value


# ----------------------------------------------------------------------------------- the reciprocal


def test_torch_reciprocal_of_power_is_exact() -> None:
    # f32(1 / f64(S)) == f32(1 / S), and S times it is 1, for S = 2^-126 .. 2^126
    scale, is_power = power_of_two("k", -126, 126)
    single = z3.fpDiv(NEAREST, ONE, scale)
    double = cast(z3.fpDiv(NEAREST, number(1.0, DOUBLE), cast(scale, DOUBLE)), SINGLE)
    proved(is_power, z3.Or(single != double, times(single, scale) != ONE))


def test_power_of_two_reciprocal_negates_exponent() -> None:
    scale, inverse, is_power = reciprocal_of_power("k", -126, 126)
    proved(is_power, z3.fpDiv(NEAREST, ONE, scale) != inverse)


def test_reciprocal_can_overflow() -> None:
    scale = z3.FP("s", SINGLE)
    denied = (
        z3.fpGT(scale, number(0.0)),
        finite(scale),
        z3.fpIsInf(z3.fpDiv(NEAREST, ONE, scale)),
    )
    found = counterexample(*denied)(scale)
    with np.errstate(over="ignore", divide="ignore"):
        assert found > 0
        assert np.isinf(np.float32(1) / found)
        assert np.isinf((1.0 / np.float64(found)).astype(np.float32))
    proved(
        *denied, z3.fpGT(scale, number(2.0**-128))
    )  # 2^-128 is the largest such scale


# ---------------------------------------------------------------------------------- exact unscaling


def scaling(low: int, high: int) -> tuple[Any, Any, list[Any]]:
    """(g, S g, (S g)(1/S) != g and S g did not overflow) for S = 2^low .. 2^high."""
    gradient = z3.FP("g", SINGLE)
    scale, inverse, is_power = reciprocal_of_power("k", low, high)
    scaled = times(gradient, scale)
    lost = times(scaled, inverse) != gradient  # as bits: the sign of zero counts too
    return gradient, scaled, [is_power, finite(gradient), finite(scaled), lost]


def test_unscale_is_exact_above_smallest_normal() -> None:
    _, scaled, denied = scaling(-14, 24)
    proved(*denied, above(scaled, SMALLEST_NORMAL))


def test_unscale_is_exact_from_scale_one() -> None:
    _, _, denied = scaling(0, 24)
    proved(*denied)


def test_normal_scaled_gradient_can_be_inexact() -> None:
    # S g may have been rounded *up* to the smallest normal.
    gradient, scaled, denied = scaling(-14, 24)
    normal = z3.fpGEQ(z3.fpAbs(scaled), SMALLEST_NORMAL)
    value = counterexample(*denied, normal, above(gradient, SMALLEST_NORMAL))
    g, s = value(gradient), value(scaling_factor())
    assert abs(g) > 2.0**-126
    assert abs(g * s) == np.float32(2.0**-126)
    assert (g * s) * (np.float32(1) / s) != g


def scaling_factor() -> Any:
    return power_of_two("k", -14, 24)[0]


def test_fp16_chain_is_exact_for_normals() -> None:
    # As `test_exhaustive` counts it: the guard is on the rounded value.
    gradient = z3.FP("g", HALF)
    scale, inverse, is_power = reciprocal_of_power("k", -14, 24)
    wide = cast(gradient, SINGLE)
    scaled = cast(times(wide, scale), HALF)
    proved(
        is_power,
        finite(gradient),
        finite(scaled),
        above(scaled, number(2.0**-14, HALF)),
        times(cast(scaled, SINGLE), inverse) != wide,
    )


def test_finite_gradient_can_overflow_in_unscale() -> None:
    # At scales below 1 the reciprocal exceeds 1; the non-finite check came before.
    gradient = z3.FP("g", SINGLE)
    _, inverse, is_power = reciprocal_of_power("k", -14, -1)
    value = counterexample(
        is_power, finite(gradient), z3.fpIsInf(times(gradient, inverse))
    )
    with np.errstate(over="ignore"):
        assert np.isfinite(value(gradient))
        assert np.isinf(value(gradient) * (np.float32(1) / value(scaling_factor())))


# -------------------------------------------------------------------------------------------------
# the update


def product(scale: Any, factor: Any) -> Any:
    """Torch's f32(f64(S) * factor), for a factor that is a double."""
    return cast(times(cast(scale, DOUBLE), factor), SINGLE)


def grown(scale: Any, factor: Any) -> Any:
    return z3.If(z3.fpIsInf(product(scale, factor)), scale, product(scale, factor))


def sound(scale: Any) -> Any:
    return z3.And(finite(scale), z3.fpGEQ(scale, number(0.0)))


@pytest.mark.parametrize("direction", ["growth", "backoff"])
def test_factors_keep_scale_finite_and_nonnegative(direction) -> None:
    """Factors of float32 precision; `test_machine` samples full doubles."""
    scale, narrow = z3.FP("s", SINGLE), z3.FP("f", SINGLE)
    factor = cast(narrow, DOUBLE)
    if direction == "growth":
        proved(
            sound(scale),
            within(narrow, 1.0, 1024.0),
            z3.Not(sound(grown(scale, factor))),
        )
    else:
        backs = z3.And(z3.fpGT(narrow, number(0.0)), z3.fpLT(narrow, ONE))
        proved(sound(scale), backs, z3.Not(sound(product(scale, factor))))


def test_halved_scale_can_be_zero() -> None:
    scale = z3.FP("s", SINGLE)
    down = product(scale, number(0.5, DOUBLE))
    denied = (z3.fpGT(scale, number(0.0)), finite(scale), z3.fpIsZero(down))
    found = float(counterexample(*denied)(scale))
    assert found == 2.0**-149
    assert update(Rule(), State(found), True).scale == 0.0
    proved(*denied, z3.fpNEQ(scale, number(2.0**-149)))  # the only one


# Not decided by z3: that f32(f64(x) * f64(y)) == x * y and f32(f64(x) / f64(y)) == x / y in
# float32. Comparing a 24-bit multiplier with a 53-bit one exceeds 60 s, even for float16 inside
# float32. On paper the product is exact in double (24 + 24 <= 53 bits, exponents far inside), and
# for quotients 53 >= 2 * 24 + 2 suffices (Figueroa 1995). `test_machine` holds both against the
# hardware's own float32 on a million pairs.

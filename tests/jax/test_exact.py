"""The integer product is the machine's arithmetic: any scale, any factor, ties and subnormals on
purpose.
"""

import math
from fractions import Fraction

import jax
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from ampsim.core.machine import round_to_float32
from ampsim.jax import exact_product
from ampsim.jax.exact_product import FLOAT32, FLOAT64
from tests.jax.helpers import enable_x64

HOW = st.sampled_from(["multiply", "divide"])


@jax.jit
def product32(bits, limbs, exponent):
    return exact_product.product(FLOAT32, bits, exact_product.Factor(limbs, exponent))


def ours(scale: float, value: float, how: str) -> float:
    limbs = FLOAT32.divisor_limbs if how == "divide" else FLOAT32.limbs
    bits = product32(
        np.float32(scale).view(np.uint32),
        *exact_product.factor(FLOAT32, value, how, limbs),
    )
    return float(np.asarray(bits).view(np.float32))


def double(scale: float, value: float, how: str) -> float:
    return scale * value if how == "multiply" else scale / value


float32s = st.integers(0, FLOAT32.infinity).map(
    lambda bits: float(np.uint32(bits).view(np.float32))
)
subnormals = st.integers(0, 2**24).map(lambda bits: bits * 2.0**-149)
small = st.integers(1, 40).map(float)
factors = st.one_of(
    st.floats(2.0**-40, 2.0**40),
    small,
    small.map(lambda n: 1 / n),
    st.floats(1.0, 2.0, width=32),
)


@given(st.one_of(float32s, subnormals, small), factors, HOW)
@example(2.0**-126, 0.5, "multiply")  # what XLA would flush
@example(9 * 2.0**-149, 6.0, "divide")  # a tie among subnormals
@example(2.0**-149, 2.0, "divide")
@example(3 * 2.0**-149, 2.0**-25, "multiply")
@example(
    3.0, 3002403509676715 * 2.0**-50, "multiply"
)  # a tie of double, and then of float32
@example(2.0**127, 2.0, "multiply")
@example(math.inf, 0.5, "multiply")
@example(0.0, 2.0, "multiply")
def test_equals_double_then_float32(scale, value, how) -> None:
    assert ours(scale, value, how) == round_to_float32(double(scale, value, how))


@given(st.one_of(float32s, subnormals, small), st.integers(-1, 1), HOW)
@example(3 * 2.0**-149, -1, "multiply")  # a tie among subnormals
@example(2.0**-126, -1, "multiply")
@example(2.0**-126 * (2 - 2.0**-23), -1, "multiply")  # rounds to a normal number
@example(2.0**-126 - 2.0**-149, 1, "multiply")
@example(0.0, -1, "multiply")
@example(math.inf, 1, "multiply")
@example(2.0**127, 1, "multiply")
@example(math.inf, -1, "multiply")
@example(0.0, 1, "divide")
def test_doubling_and_halving_are_exact(scale, exponent, how) -> None:
    value = 2.0**exponent
    bits = product32(
        np.float32(scale).view(np.uint32), *exact_product.factor(FLOAT32, value, how, 0)
    )
    assert float(np.asarray(bits).view(np.float32)) == round_to_float32(
        double(scale, value, how)
    )


@given(
    st.integers(2**23, 2**24 - 1),
    st.integers(2**23, 2**24 - 1),
    st.integers(-3, 3),
    HOW,
)
def test_double_rounding_ties(n, m, units, how) -> None:
    """Factors for which the product in double lies within a few units of halfway between two
    float32 numbers.
    """
    tie = Fraction(2 * m + 1, 2**24)
    value = float(
        tie / Fraction(n, 2**23) if how == "multiply" else Fraction(n, 2**23) / tie
    )
    value += units * math.ulp(value)
    scale = n / 2**23
    assert ours(scale, value, how) == round_to_float32(double(scale, value, how))


@given(
    st.one_of(st.floats(0.0, 1e300), st.floats(5e-324, 1e-300), small),
    st.one_of(st.floats(1e-30, 1e30), small),
    HOW,
)
@example(3 * 5e-324, 2.0, "divide")
@example(9 * 5e-324, 6.0, "divide")  # a tie, which a reciprocal rounded down misses
@example(1.7e308, 2.0, "multiply")
def test_float64_equals_double(scale, value, how) -> None:
    with enable_x64(True):
        limbs = FLOAT64.divisor_limbs if how == "divide" else FLOAT64.limbs
        bits = product64(
            np.float64(scale).view(np.uint64),
            *exact_product.factor(FLOAT64, value, how, limbs),
        )
        result = float(np.asarray(bits).view(np.float64))
    assert result == double(scale, value, how)


@jax.jit
def product64(bits, limbs, exponent):
    return exact_product.product(FLOAT64, bits, exact_product.Factor(limbs, exponent))

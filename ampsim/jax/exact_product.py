"""Product of a scale and a constant, in integer arithmetic on bits.

XLA may turn S / c into S * (1 / c), contract a product and a sum, and flush subnormals, so the
result of a float expression depends on the compiler, on ``jit``, and on ``vmap``. Integer
arithmetic is exact. The result equals that of ``core.machine.Arithmetic`` for every scale, factor,
device, and transform: a product or quotient in double, then rounded to the format of the scale.

A positive scale is n * 2^e with p bits in n (24 in float32). A factor is K * 2^q with K held in
limbs of W - p bits, W the word (32 bits), so that n * limb + carry fits a word and the product is
one pass over the limbs. A division multiplies by K = ceil(2^B / d): its product exceeds the
quotient by less than 2^p units in the last place, hence after the lowest `IGNORED` limbs are
dropped it is the quotient rounded down (Granlund and Montgomery, "Division by invariant integers
using multiplication", PLDI 1994), with so many bits left that a quotient which is no tie differs
from one in them.
"""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax


@dataclass(frozen=True)
class WordLayout:
    """The bits of a scale as an unsigned integer; `core.formats` has the numbers of a format."""

    dtype: type[np.floating]
    word: type[np.unsignedinteger]  # unsigned integer of the same size
    width: int  # W: bits of a word
    precision: int  # p: bits of a mantissa, the hidden one included
    limbs: int  # of a factor that multiplies
    divisor_limbs: int  # of a factor that divides
    # This many units of 2^-W of a word from a tie round to the tie: half an ulp of double.
    near_tie: int

    @property
    def limb(self) -> int:
        """Bits of a limb: what a word has beyond n."""
        return self.width - self.precision

    @property
    def infinity(self) -> int:
        """The bits of inf; a NaN's are larger."""
        return ((1 << self.limb) - 1) << (self.precision - 1)

    @property
    def top_place(self) -> int:
        """The place of a word's highest bit."""
        return self.width - 1

    @property
    def smallest_normal(self) -> int:
        """Its bits; a subnormal's are smaller."""
        return 1 << (self.precision - 1)


# Of a product with a divisor, 77 and 106 bits are inexact, 109 and 108 bits are kept.
FLOAT32 = WordLayout(np.float32, np.uint32, 32, 24, 7, 21, near_tie=2**10)
FLOAT64 = WordLayout(np.float64, np.uint64, 64, 53, 5, 16, near_tie=0)  # rounded once
LAYOUTS = {"float32": FLOAT32, "float64": FLOAT64}
IGNORED = 10  # limbs


class Factor(NamedTuple):
    """A positive constant, as numpy or JAX arrays."""

    # (limbs,), words, lowest first; the highest bit of the last is set. (0,): 1/2, 1, or 2.
    limbs: Array | npt.NDArray[np.unsignedinteger]
    exponent: Array | npt.NDArray[np.int32]  # (): floor(log2(factor))


def factor(
    layout: WordLayout, value: float, how: Literal["multiply", "divide"], limbs: int
) -> Factor:
    """Return the constant with which `product` multiplies by `value`, or divides by it; no limbs
    for 1/2, 1, or 2.
    """
    exact = Fraction(value)
    if how == "divide":
        exact = 1 / exact
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    if exact < Fraction(2) ** exponent:
        exponent -= 1
    if limbs == 0:
        return Factor(np.zeros(0, layout.word), np.array(exponent, np.int32))
    mantissa = exact / Fraction(2) ** exponent
    whole = math.ceil(mantissa * 2 ** (limbs * layout.limb - 1))
    cut = []
    for _ in range(limbs):
        whole, low_bits = divmod(whole, 1 << layout.limb)
        cut.append(low_bits)
    return Factor(np.array(cut, layout.word), np.array(exponent, np.int32))


def to_bits(layout: WordLayout, x: Array) -> Array:
    """Return the bits of a float as an unsigned integer, without its sign."""
    without_sign = layout.word((1 << layout.top_place) - 1)
    return lax.bitcast_convert_type(x, layout.word) & without_sign


def from_bits(layout: WordLayout, bits: Array) -> Array:
    """Return the float that has these bits."""
    return lax.bitcast_convert_type(bits, layout.dtype)


def product(layout: WordLayout, bits: Array, by: Factor) -> Array:
    """Return the bits of scale * factor, correctly rounded; 0, inf and NaN stay what they are.

    Args:
        layout: the layout of the scale.
        bits: (), words: the scale's bits, sign bit clear.
        by: what to multiply with.
    """
    if by.limbs.shape[0] == 0:
        return _shifted(layout, bits, by.exponent)
    n, exponent = _normalized(layout, bits)
    exponent = exponent + by.exponent
    word, below, inexact = _multiply(layout, n, by.limbs)
    # The product has its highest bit in the word's highest place, or one below.
    short = word < layout.word(1 << layout.top_place)
    word = jnp.where(short, (word << 1) | (below >> layout.top_place), word)
    below = jnp.where(short, below << 1, below)
    exponent = exponent + jnp.where(short, 0, 1)
    rounded = _round(layout, word, below, inexact, exponent)
    not_finite = bits >= layout.word(layout.infinity)
    return jnp.where((bits == 0) | not_finite, bits, rounded)


def _shifted(
    layout: WordLayout, bits: Array, exponent: Array | npt.NDArray[np.int32]
) -> Array:
    """Return the bits of scale * 2^exponent, for an exponent of -1, 0, or 1.

    Most rules double and halve, so these few operations are what most compiled steps contain. As an
    integer, the bits of a number below 2 * smallest_normal count units of the smallest subnormal.
    """
    normal = layout.word(layout.smallest_normal)
    doubled = jnp.where(bits < normal, bits << 1, bits + normal)
    half = bits >> 1
    tie_up = bits & half & 1  # of an odd half, to even
    halved = jnp.where(bits < 2 * normal, half + tie_up, bits - normal)
    infinity = layout.word(layout.infinity)
    not_finite = bits >= infinity
    halved = jnp.where(not_finite, bits, halved)
    doubled = jnp.where(not_finite, bits, jnp.minimum(doubled, infinity))
    # XLA drops what a constant exponent does not use.
    return jnp.where(exponent > 0, doubled, jnp.where(exponent < 0, halved, bits))


def _normalized(layout: WordLayout, bits: Array) -> tuple[Array, Array]:
    """Return the mantissa with its highest bit set, and the exponent field, <= 0 for a subnormal."""
    field = (bits >> (layout.precision - 1)).astype(np.int32)
    is_subnormal = field == 0
    fraction = bits & layout.word(layout.smallest_normal - 1)
    normal = fraction | layout.word(layout.smallest_normal)
    zeros = jnp.minimum(lax.clz(fraction), layout.top_place)
    lead = zeros.astype(np.int32) - layout.limb
    subnormal = fraction << jnp.maximum(lead, 0).astype(layout.word)
    mantissa = jnp.where(is_subnormal, subnormal, normal)
    return mantissa, jnp.where(is_subnormal, 1 - lead, field)


def _multiply(
    layout: WordLayout, n: Array, limbs: Array | npt.NDArray[np.unsignedinteger]
) -> tuple[Array, Array, Array]:
    """Return the highest word of the product n * K, the 3 limbs below it, and whether any bit below
    those is set.
    """
    count = limbs.shape[0]
    low_bits = layout.word((1 << layout.limb) - 1)
    carry = jnp.zeros_like(n)
    lows = []
    for i in range(count):
        word = n * limbs[i] + carry
        carry = word >> layout.limb
        lows.append(word & low_bits)
    *rest, c, b, a, _ = lows
    below = (a << layout.limb) | b
    below = (below << layout.limb) | c
    below = below << (layout.width - 3 * layout.limb)
    # The low limbs of a product with a rounded reciprocal, at least 53 + p bits, are not exact.
    ignored = IGNORED if count == layout.divisor_limbs else 0
    inexact = functools.reduce(jnp.bitwise_or, rest[ignored:]) != 0
    return word, below, inexact


def _round(
    layout: WordLayout, word: Array, below: Array, inexact: Array, exponent: Array
) -> Array:
    """Return the bits of the float nearest to (word + below 2^-W + inexact) * 2^exponent, ties to
    even.
    """
    one = layout.word(1)
    # A subnormal result keeps fewer bits: p - (1 - exponent) of them.
    drop = layout.limb + jnp.clip(1 - exponent, 0, layout.precision + 1)
    vanishes = drop > layout.width
    drop = jnp.minimum(drop, layout.width).astype(layout.word)
    drop_but_one = drop - one
    kept = (word >> drop_but_one) >> 1
    tail = word - ((kept << drop_but_one) << 1)
    half = one << drop_but_one
    near = layout.word(layout.near_tie)
    # The true product is a tie, or so near to one that double would have rounded it to one.
    is_near_above = (below < near) | ((below == near) & ~inexact)
    is_near_below = below > ~near
    tie_above = (tail == half) & is_near_above
    tie_below = (tail == half - one) & is_near_below
    up = jnp.where(tie_above | tie_below, (kept & one) == one, tail >= half)
    highest = layout.infinity >> (layout.precision - 1)
    field = (jnp.clip(exponent, 1, highest) - 1).astype(layout.word)
    bits = (field << (layout.precision - 1)) + kept
    bits = jnp.minimum(bits + up.astype(layout.word), layout.word(layout.infinity))
    return jnp.where(vanishes, layout.word(0), bits)


def product_of_either(
    layout: WordLayout, bits: Array, which: Array, a: Factor, b: Factor
) -> Array:
    """Return the product with `a` where `which`, else with `b`."""
    if a.limbs.shape[0] == 0:
        return jnp.where(which, product(layout, bits, a), product(layout, bits, b))
    limbs = jnp.where(which, a.limbs, b.limbs)
    exponent = jnp.where(which, a.exponent, b.exponent)
    return product(layout, bits, Factor(limbs, exponent))

"""How a number is printed: as plain text, for the ledger, and as Typst markup, for the page."""

import math
from typing import Any

WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
DIGITS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def show(value: Any, form: str) -> tuple[str, str]:
    """(plain text, Typst markup).

    Args:
        value: a number; for the form "text" anything.
        form: "words" (below thirteen), "2^" (a power of two), "e1" (digits after the point, times a power of ten),
            "%1" (a share as a percentage), "text", or a format specification such as ".2f" or ",d".

    Raises:
        ValueError: the value does not fit the form.
    """
    if form == "text":
        return str(value), str(value)
    if form == "words":
        if value != int(value) or not 0 <= value < len(WORDS):
            raise ValueError(f"{value!r}: expected a whole number below {len(WORDS)} for the form 'words'")
        return WORDS[int(value)], WORDS[int(value)]
    if form == "2^":
        return _power_of_two(value)
    if form.startswith("e") and value == 0:
        return "0", "0"
    if form.startswith("e"):
        digits, exponent = f"{value:.{form[1:]}e}".split("e")
        plain = f"{_minus(digits)}·10{str(int(exponent)).translate(DIGITS)}"
        return plain, f"${digits} dot 10^({int(exponent)})$"
    if form.startswith("%"):
        text = f"{100 * value:.{form[1:]}f}"
        return f"{_minus(text)} %", f"{_minus(text)}~%"
    text = _minus(format(round(value) if form.endswith("d") else value, form))
    if form.endswith("d") and round(value) != value:
        raise ValueError(f"{value!r}: expected a whole number for the form {form!r}")
    return text, text


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _power_of_two(value: float) -> tuple[str, str]:
    mantissa, exponent = math.frexp(value)
    if mantissa != 0.5:
        raise ValueError(f"{value!r}: expected a power of two for the form '2^'")
    return f"2{str(exponent - 1).translate(DIGITS)}", f"$2^({exponent - 1})$"

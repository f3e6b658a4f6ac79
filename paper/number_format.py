"""How a number is printed: as Typst markup."""

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

WORDS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
Value = (
    float | str
)  # what a number of the paper is; only the forms "text" and "sentence" print text
BOUND = re.compile("<=|>=")


def show(value: Value, form: str) -> str:
    """Return a value as Typst markup.

    Args:
        value: A number; for the form "text" anything.
        form: "words" (below thirteen), "2^" (a power of two), "e1" (digits after the point, times a
            power of ten), "%1" (a share as a percentage), "text", "sentence" (with code and powers
            of two), or a format specification such as ".2f" or ",d". For a bound, "<=" before the
            form rounds up, as "at most" and "within" need; ">=" rounds down, as "at least" needs.

    Raises:
        ValueError: The value does not fit the form.
    """
    if form == "text":
        return escaped(str(value))
    if form == "sentence":
        return typeset(str(value))
    if isinstance(value, str):
        raise ValueError(f"{value!r}: expected a number for the form {form!r}")
    if bound := BOUND.match(form):
        form = form[2:]
        value = _outwards(
            value, form, ROUND_CEILING if bound[0] == "<=" else ROUND_FLOOR
        )
    if form == "words":
        return _in_words(value)
    if form == "2^":
        return _power_of_two(value)
    if form.startswith("e"):
        return _scientific(value, form[1:])
    if form.startswith("%"):
        return _minus(f"{100 * value:.{form[1:]}f}~%")
    if form.endswith("d") and round(value) != value:
        raise ValueError(f"{value!r}: expected a whole number for the form {form!r}")
    return _minus(format(round(value) if form.endswith("d") else value, form))


def escaped(text: str) -> str:
    """Return plain text as Typst markup."""
    return re.sub(r"([\\#$*_`<>@\[\]~^])", r"\\\1", text)


def typeset(sentence: str) -> str:
    """Return a plain sentence as Typst markup, with its code as code and powers of two as powers."""
    parts = sentence.replace("+-", "±").split("`")
    text = [re.sub(r"2\\\^(-?\d+)", r"$2^(\1)$", escaped(part)) for part in parts]
    return "".join(f"`{part}`" if at % 2 else text[at] for at, part in enumerate(parts))


def _outwards(value: float, form: str, rounding: str) -> float:
    """Return a value rounded to the last digit that its form prints."""
    exact = Decimal(repr(float(value)))
    if form[0] == "%":
        places = int(form[1:]) + 2
    elif form[0] == "e":
        places = int(form[1:]) - exact.adjusted()
    elif match := re.fullmatch(r",?(?:\.(\d+)f|d)|words", form):
        places = int(match[1] or 0)
    else:
        raise ValueError(f"{form!r}: expected a form with digits after '<=' or '>='")
    return float(exact.quantize(Decimal(1).scaleb(-places), rounding))


def _in_words(value: float) -> str:
    if value != int(value) or not 0 <= value < len(WORDS):
        raise ValueError(
            f"{value!r}: expected a whole number below {len(WORDS)} for the form 'words'"
        )
    return WORDS[int(value)]


def _scientific(value: float, places: str) -> str:
    if value == 0:
        return "0"
    digits, exponent = f"{value:.{places}e}".split("e")
    return f"${digits} dot 10^({int(exponent)})$"


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _power_of_two(value: float) -> str:
    mantissa, exponent = math.frexp(value)
    if mantissa != 0.5:
        raise ValueError(f"{value!r}: expected a power of two for the form '2^'")
    return f"$2^({exponent - 1})$"

"""Golden texts: what a user is shown or given, to the letter, in ``golden/`` beside the tests that make it.

A test asks for the fixture `golden` and calls it with a text; its own name is the text's. What is meant to change is
made anew by ``AMPSIM_GOLDEN=write python -m pytest -q -n0 tests/testing``: then read ``git diff tests/testing/golden``.

Numbers are rounded to three digits and what is next to nothing is `tiny`, as another processor sums in another order.
Lines of files, addresses and versions are left out.
"""

import difflib
import math
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

Golden = Callable[[str], None]  # the fixture
FOLDER = Path(__file__).parent / "golden"
WRITTEN_WITH = {"hypothesis": "6.170", "torch": "2.13"}  # others draw and word otherwise
ANEW = "if it is meant: AMPSIM_GOLDEN=write python -m pytest -q -n0 tests/testing"
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?:e[+-]?\d+)?\b|(?<![\w.])\d+e[+-]?\d+\b")
LEFT_OUT = [
    (r"(?<=\()/(?:[\w.-]+/)+(?=\w+\.py\b)", ""),
    (r"\.py:\d+", ".py:N"),
    (r"0x[0-9a-f]{8,}", "0x"),
    (r'("(?:ampsim|torch|hypothesis)": )"[^"]*"', r"\1VERSION"),
    (r"\b(torch|jax|jaxlib|flax|numpy|keras) \d[\w.+]*\w", r"\1 VERSION"),
]


def applies() -> bool:
    """Whether the texts are those of the versions that are installed."""
    return all(version(name).startswith(f"{known}.") for name, known in WRITTEN_WITH.items())


def without_law(text: str) -> str:
    """Return a finding without the lines that are its law's: `test_outputs` has them once for all."""
    return "\n".join(line for line in text.splitlines() if not line.startswith(("  law ", "  issue ")))


def compare(file: str, name: str, text: str) -> None:
    """Hold a text against the golden one of this name, or write it."""
    text = canonical(text)
    if os.environ.get("AMPSIM_GOLDEN") == "write":
        texts = {**read(file), name: text}
        read.cache_clear()
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{file}.txt").write_text("".join(f"=== {each}\n{texts[each]}\n" for each in sorted(texts)), "utf-8")
    elif applies():
        expected = read(file).get(name, "")
        if sys.gettrace() is not None:  # coverage has Python's one tracer, and no order of events is seen
            expected, text = (re.sub(r"(?m)^  order .*\n", "", each) for each in (expected, text))
        if text != expected:
            diff = difflib.unified_diff(expected.splitlines(), text.splitlines(), f"golden/{file}.txt", name, "", "", 2)
            pytest.fail("\n".join([*diff, ANEW]), pytrace=False)


@cache
def read(file: str) -> dict[str, str]:
    """Return the texts of a file by name."""
    path = FOLDER / f"{file}.txt"
    parts = re.split(r"(?m)^=== (.*)\n", path.read_text("utf-8"))[1:] if path.exists() else []
    return {name: text.removesuffix("\n") for name, text in zip(parts[::2], parts[1::2], strict=True)}


def canonical(text: str) -> str:
    """Return a text without what differs from machine to machine."""
    for pattern, left in LEFT_OUT:
        text = re.sub(pattern, left, text)
    return NUMBER.sub(lambda found: rounded(found[0]), text).rstrip()


def rounded(number: str) -> str:
    """Return a number with three digits; a power of two, and what is short and not tiny, as it is."""
    value = float(number)
    if math.frexp(value)[0] in (0.0, 0.5) or (value >= 1e-6 and len(number) < 8):
        return number
    return f"{value:.3g}" if value >= 1e-6 else "tiny"

"""The file that is written: what is broken and why it matters, the imports that the code uses, one
test.
"""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from importlib import metadata
from itertools import groupby

from ampsim.core.formats import far_power
from ampsim.testing.check import Check

WIDTH = 110


def written(check: Check, seen: str, parts: Sequence[str], body: Sequence[str]) -> str:
    """Return the file.

    Args:
        check: The check that fails.
        seen: How it fails.
        parts: Imports and definitions that the test uses.
        body: Lines of the test.
    """
    future = "from __future__ import annotations"
    plain = sorted(part for part in parts if part.startswith("import "))
    names = sorted(part for part in parts if part.startswith("from "))
    head = _docstring(check, seen)
    front = "\n".join([head, "", future, "", *plain, *names])
    definitions = [part for part in parts if part not in (*plain, *names)]
    test = textwrap.indent("\n".join(body), "    ")
    test = f"def test_{check.name}():\n{test}\n"
    return "\n\n\n".join([front, *definitions, test])


def _docstring(check: Check, seen: str) -> str:
    plain = re.sub(r"\x1b\[\d*m", "", seen)  # without a terminal's colors
    lines = [
        textwrap.shorten(f"{check.name}: {plain}", 2 * WIDTH, placeholder=" ..."),
        check.statement,
        f"Reported before: {check.issue}" if check.issue else "",
        f"Seen with torch {metadata.version('torch')}.",
    ]
    first, *rest = [textwrap.fill(line, WIDTH) for line in lines if line]
    return "\n".join([f'"""{first}', "", *rest, '"""'])


def call(name: str, named: Mapping[str, object], *first: str) -> str:
    """Write a call with these named values, after arguments that are written already."""
    arguments = [*first]
    for key, each in named.items():
        arguments.append(f"{key}={value(each)}")
    return f"{name}({', '.join(arguments)})"


def value(each: object) -> str:
    """Write a value as Python reads it back, with `math` and `SimpleNamespace`."""
    if isinstance(each, float):
        return number(each)
    if isinstance(each, Mapping):
        return call("dict", each)
    if hasattr(each, "_asdict"):
        return call("SimpleNamespace", each._asdict())
    if isinstance(each, list):
        return _listed(each)
    if isinstance(each, tuple):
        items = "".join(f"{value(item)}, " for item in each)
        return f"({items.rstrip()})"
    if isinstance(each, frozenset):
        return f"frozenset({sorted(each)})"  # the same text whatever the hash seed
    return repr(each)


def _listed(values: list[object]) -> str:
    """Write a list; where a value comes more than 3 times in a row, as a sum: ``[0] * 9 + [1]``."""
    items = [*map(value, values)]
    longest = 0
    parts = []
    for item, run in groupby(items):
        times = len([*run])
        longest = max(longest, times)
        parts.append(f"[{item}] * {times}")
    return " + ".join(parts) if longest > 3 else f"[{', '.join(items)}]"


def number(number: float) -> str:
    """Write a number as Python reads it back."""
    if not math.isfinite(number):
        return "-math.inf" if number < 0 else f"math.{number}"
    return (far_power(number, 11) or repr(number)).replace("2**", "2.0**")

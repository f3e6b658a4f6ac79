"""The file that is written: what is broken and why it matters, the imports that the code uses, one test."""

import importlib
import math
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from ampsim.core.formats import far_power

WIDTH = 110
STANDARD = ("copy", "io", "itertools", "math", "numpy", "pickle", "random", "sys")
NAMES = {  # a name that code uses -> the line that imports it
    "TestCase": "from unittest import TestCase",
    "SimpleNamespace": "from types import SimpleNamespace",
    "namedtuple": "from collections import namedtuple",
    "contextmanager": "from contextlib import contextmanager",
    "suppress": "from contextlib import suppress",
    "cache": "from functools import cache",
    "partial": "from functools import partial",
}


class Text(NamedTuple):
    """The words for a failure: the check's name, what was seen, the check, a report, the cause."""

    check: str
    seen: str
    statement: str
    issue: str = ""
    cause: str = ""


def written(
    about: Text, imports: Sequence[str], body: Sequence[str], head: Sequence[str] = ()
) -> str:
    """Write the file.

    Args:
        about: what its docstring says.
        imports: lines; of the standard library none, as those follow from the code.
        body: lines of the test.
        head: lines before it.
    """
    code = "\n".join(body).strip("\n")
    front = "\n".join(head).strip("\n")
    every = f"{front}\n{code}"
    used = [f"import {name}" for name in STANDARD if re.search(rf"\b{name}\.", every)]
    used += sorted(
        line for name, line in NAMES.items() if re.search(rf"(?:\b{name}\(|@{name}\b)", every)
    )
    used += sorted(line for line in {*imports} - {*used} if _top(line) in sys.stdlib_module_names)
    lines = sorted({*imports} - {*used}, key=lambda line: (line.startswith("from"), line))
    body = textwrap.indent(code, "    ", lambda line: bool(line.strip()))
    parts = [_docstring(about, imports), "", *used, *[""] * bool(used), *lines, ""]
    parts += [*[""] * front.startswith(("class ", "def ")), front, "", ""] if front else [""]
    return re.sub(
        r"\n{4,}", "\n\n\n", "\n".join([*parts, f"def test_{about.check}():", f"{body}\n"])
    )


def _top(line: str) -> str:
    return line.split()[1].partition(".")[0]


def _docstring(about: Text, imports: Sequence[str]) -> str:
    seen = re.sub(r"\x1b\[\d*m", "", about.seen)  # colours of a terminal
    head = textwrap.fill(
        textwrap.shorten(f"{about.check}: {seen}", 2 * WIDTH, placeholder=" ..."), WIDTH
    )
    rest = [about.statement, about.cause, f"Reported before: {about.issue}" if about.issue else ""]
    lines = [textwrap.fill(line, WIDTH) for line in rest if line]
    return "\n".join([f'"""{head}', "", *lines, f"Seen with {versions(imports)}.", '"""'])


def versions(imports: Sequence[str]) -> str:
    """Return the packages that import lines name, with their versions."""
    tops = dict.fromkeys(map(_top, imports))
    found = {top: getattr(importlib.import_module(top), "__version__", None) for top in tops}
    return (
        ", ".join(f"{top} {version}" for top, version in found.items() if version)
        or "its version of today"
    )


def value(each: object) -> str:
    """Write a value as Python reads it back."""
    if isinstance(each, float):
        return number(each)
    if isinstance(each, Mapping):
        return f"dict({', '.join(f'{name}={value(one)}' for name, one in each.items())})"
    floats = isinstance(each, list) and all(isinstance(one, float) for one in each)
    if isinstance(each, list) and floats and 3 < len(each) < 9 * len({*each}):
        return hexadecimal(each)
    if isinstance(each, list):
        runs = [(value(one), len(list(run))) for one, run in groupby(each)]
        if max((times for _, times in runs), default=0) > 3:
            return " + ".join(f"[{one}]" + f" * {times}" * (times > 1) for one, times in runs)
        return f"[{', '.join(map(value, each))}]"
    if hasattr(each, "_asdict"):
        return f"SimpleNamespace({value(each._asdict())[5:-1]})"
    if isinstance(each, tuple):
        return f"({', '.join(map(value, each))}{',' * (len(each) == 1)})"
    return f'"{each}"' if isinstance(each, str) and '"' not in each else repr(each)


def number(number: float) -> str:
    """Write a number as Python reads it back."""
    if not math.isfinite(number):
        return "-math.inf" if number < 0 else f"math.{number}"
    return (far_power(number, 11) or repr(number)).replace("2**", "2.0**")


def hexadecimal(values: Sequence[float]) -> str:
    """Write an expression for a list of numbers, to the last bit."""
    words = " ".join(each.hex().replace(".0000000000000p", "p") for each in values)
    if len(words) > WIDTH - 50:
        words = '""\n' + textwrap.indent(textwrap.fill(words, WIDTH), "    ") + '\n""'
    return f'[*map(float.fromhex, "{words}".split())]'

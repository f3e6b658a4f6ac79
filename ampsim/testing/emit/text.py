"""The file that is written: what is broken and why it matters, the imports that the code uses, one test."""

import importlib
import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

WIDTH = 110
STANDARD = ("copy", "io", "itertools", "math", "numpy", "pickle", "random", "sys", "tempfile")
NAMES = {  # a name that code uses -> the line that imports it
    "TestCase": "from unittest import TestCase",
    "SimpleNamespace": "from types import SimpleNamespace",
    "namedtuple": "from collections import namedtuple",
    "suppress": "from contextlib import suppress",
    "partial": "from functools import partial",
    "timedelta": "from datetime import timedelta",
}


class Text(NamedTuple):
    """The words for a failure: the law's name, what was seen, the law, a public report, and the usual cause."""

    law: str
    seen: str
    statement: str
    issue: str = ""
    cause: str = ""


def written(about: Text, imports: Sequence[str], body: Sequence[str], head: Sequence[str] = ()) -> str:
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
    used += sorted(line for name, line in NAMES.items() if re.search(rf"\b{name}\(", every))
    lines = sorted(imports, key=lambda line: (line.startswith("from"), line))
    body = textwrap.indent(code, "    ", lambda line: bool(line.strip()))
    parts = [_docstring(about, imports), "", *used, *[""] * bool(used), *lines, ""]
    parts += [*[""] * front.startswith("def "), front, "", ""] if front else [""]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join([*parts, f"def test_{about.law}():", body, ""]))


def _docstring(about: Text, imports: Sequence[str]) -> str:
    seen = re.sub(r"\x1b\[\d*m", "", about.seen)  # colours of a terminal
    head = textwrap.fill(textwrap.shorten(f"{about.law}: {seen}", 2 * WIDTH, placeholder=" ..."), WIDTH)
    rest = [about.statement, about.cause, f"Reported before: {about.issue}" if about.issue else ""]
    lines = [textwrap.fill(line, WIDTH) for line in rest if line]
    return "\n".join([f'"""{head}', "", *lines, f"Seen with {versions(imports)}.", '"""'])


def versions(imports: Sequence[str]) -> str:
    """Return the packages that import lines name, with their versions."""
    tops = dict.fromkeys(line.split()[1].partition(".")[0] for line in imports)
    found = {top: getattr(importlib.import_module(top), "__version__", None) for top in tops}
    return ", ".join(f"{top} {version}" for top, version in found.items() if version) or "its version of today"

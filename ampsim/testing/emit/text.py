"""The file that is written: what is broken and why it matters, the imports that the code uses, one
test.
"""

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
    """Return the file.

    Args:
        about: What its docstring says.
        imports: Lines that import what the code uses.
        body: Lines of the test.
        head: Definitions before the test.
    """
    standard = [line for line in imports if _top(line) in sys.stdlib_module_names]
    groups = [standard, [line for line in imports if line not in standard]]
    front = ["\n".join(sorted(group, key=_by_form)) for group in groups if group]
    code = textwrap.indent("\n".join(body), "    ")
    parts = [*head, f"def test_{about.check}():\n{code}"]
    return (
        "\n\n".join([_docstring(about, imports), *front])
        + "\n\n\n"
        + "\n\n\n".join(parts)
        + "\n"
    )


def _by_form(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line


def _top(line: str) -> str:
    return line.split()[1].partition(".")[0]


def _docstring(about: Text, imports: Sequence[str]) -> str:
    seen = re.sub(r"\x1b\[\d*m", "", about.seen)  # colours of a terminal
    head = textwrap.fill(
        textwrap.shorten(f"{about.check}: {seen}", 2 * WIDTH, placeholder=" ..."), WIDTH
    )
    rest = [
        about.statement,
        about.cause,
        f"Reported before: {about.issue}" if about.issue else "",
    ]
    lines = [textwrap.fill(line, WIDTH) for line in rest if line]
    return "\n".join(
        [f'"""{head}', "", *lines, f"Seen with {versions(imports)}.", '"""']
    )


def versions(imports: Sequence[str]) -> str:
    """Return the packages that import lines name, with their versions."""
    tops = dict.fromkeys(map(_top, imports))
    found = {
        top: getattr(importlib.import_module(top), "__version__", None) for top in tops
    }
    return (
        ", ".join(f"{top} {version}" for top, version in found.items() if version)
        or "its version of today"
    )


def value(each: object) -> str:
    """Write a value as Python reads it back, with `math` and `SimpleNamespace`."""
    if isinstance(each, float):
        return number(each)
    if isinstance(each, Mapping):
        return f"dict({_arguments(each)})"
    if hasattr(each, "_asdict"):
        return f"SimpleNamespace({_arguments(each._asdict())})"
    if isinstance(each, list):
        return _listed(each)
    if isinstance(each, tuple):
        return f"({''.join(f'{value(one)}, ' for one in each).rstrip(' ')})"
    if isinstance(each, frozenset):
        return f"frozenset({sorted(each)})"  # the same text whatever the hash seed
    return repr(each)


def _arguments(named: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value(each)}" for name, each in named.items())


def _listed(values: list[object]) -> str:
    """Write a list; if a value comes more than 3 times in a row, as a sum: ``[False] * 300 +
    [True]``.
    """
    runs = [(one, len(list(run))) for one, run in groupby(map(value, values))]
    if max((times for _, times in runs), default=0) <= 3:
        return f"[{', '.join(map(value, values))}]"
    return " + ".join(f"[{one}]" + f" * {times}" * (times > 1) for one, times in runs)


def number(number: float) -> str:
    """Write a number as Python reads it back."""
    if not math.isfinite(number):
        return "-math.inf" if number < 0 else f"math.{number}"
    return (far_power(number, 11) or repr(number)).replace("2**", "2.0**")

"""The file that is written: what is broken and why it matters, the imports that the code uses, one
test.
"""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from importlib import metadata
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
    plain = [line for line in imports if line.startswith("import")]
    front = "\n".join([*sorted(plain), *sorted({*imports} - {*plain})])
    code = textwrap.indent("\n".join(body), "    ")
    parts = [f"{_docstring(about)}\n\n{front}", *head]
    return "\n\n\n".join([*parts, f"def test_{about.check}():\n{code}\n"])


def _docstring(about: Text) -> str:
    seen = re.sub(
        r"\x1b\[\d*m", "", f"{about.check}: {about.seen}"
    )  # a terminal's colors
    report = f"Reported before: {about.issue}" if about.issue else ""
    version = f"Seen with torch {metadata.version('torch')}."
    rest = [about.statement, about.cause, report, version]
    lines = [textwrap.fill(line, WIDTH) for line in rest if line]
    first = textwrap.fill(textwrap.shorten(seen, 2 * WIDTH, placeholder=" ..."), WIDTH)
    return "\n".join([f'"""{first}', "", *lines, '"""'])


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

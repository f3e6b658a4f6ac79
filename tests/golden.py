"""Complete outputs that are committed, in ``golden/`` beside the tests that make them.

A test compares, and `python -m tests.golden` writes them anew; `python -m tests.golden lint diagnose` writes those of
some rooms. Then `git diff` is what to read: each line of it is a line that a user will see. They are those of
Python 3.11 and of the packages of constraints.txt, as versions print differently what is not ours; with others nothing
is compared. A file is sections, each a line ``=== name`` and what was printed.
"""

import difflib
import importlib
import inspect
import math
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

Golden = Callable[[str], None]  # the fixture of tests/testing
ROOT = Path(__file__).parents[1]
WRITING = "AMPSIM_GOLDEN"
PRINTING = ("flax", "hypothesis", "jax", "numpy", "optax", "rich", "torch", "typer")
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?:e[+-]?\d+)?\b|(?<![\w.])\d+e[+-]?\d+\b")
LEFT_OUT = [
    (r"(?<=\()/(?:[\w.-]+/)+(?=\w+\.py\b)", ""),
    (r"\.py:\d+", ".py:N"),
    (r"0x[0-9a-f]{8,}", "0x"),
    (r'("(?:ampsim|torch|hypothesis)": )"[^"]*"', r"\1VERSION"),
    (r"\b(torch|jax|jaxlib|flax|numpy|keras) \d[\w.+]*\w", r"\1 VERSION"),
]


def agree(path: Path, found: Mapping[str, str]) -> None:
    """Hold texts, by name, against the committed file; or write it, where that is asked for."""
    if not applies():
        pytest.skip(f"written with Python 3.11 and constraints.txt, here {sys.version.split()[0]} {_others()}")
    first: dict[str, str] = {}
    found = {
        name: text if first.setdefault(text, name) == name else f"as {first[text]}" for name, text in found.items()
    }
    if os.environ.get(WRITING) == "write":
        _write(path, found)
    committed = sections(path.read_text("utf-8"))
    assert [*found] == [*committed], f"{path.name}: other names; python -m tests.golden writes it anew"
    for name, text in found.items():
        _compare(path, name, committed[name], text)


def agree_part(path: Path, name: str, text: str) -> None:
    """Hold one text against its section of the committed file; or write that section."""
    if os.environ.get(WRITING) == "write":
        before = sections(path.read_text("utf-8")) if path.exists() else {}
        _write(path, dict(sorted({**before, name: text}.items())))
    elif applies():
        _compare(path, name, sections(path.read_text("utf-8")).get(name, ""), text)


def applies() -> bool:
    """Whether the committed outputs are those of the versions that are installed."""
    return sys.version_info[:2] == (3, 11) and not _others()


def canonical(text: str) -> str:
    """Return a text without files, addresses and versions, and with three digits of numbers.

    What is next to nothing is `tiny`, as another processor sums in another order.
    """
    for pattern, left in LEFT_OUT:
        text = re.sub(pattern, left, text)
    return NUMBER.sub(lambda found: _rounded(found[0]), text).rstrip()


def _rounded(number: str) -> str:
    """Return a number with three digits; a power of two, and what is short and not tiny, as it is."""
    value = float(number)
    if math.frexp(value)[0] in (0.0, 0.5) or (value >= 1e-6 and len(number) < 8):
        return number
    return f"{value:.3g}" if value >= 1e-6 else "tiny"


def without_law(text: str) -> str:
    """Return a finding without the lines that are its law's: `test_outputs` has them once for all."""
    return "\n".join(line for line in text.splitlines() if not line.startswith(("  law ", "  issue ")))


def defaults(package: ModuleType) -> str:
    """Return what the functions and classes of a package take where nothing is given, and of dataclasses the kind."""
    names = [each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    modules = [importlib.import_module(name) for name in [package.__name__, *sorted(names)] if "__main__" not in name]
    return "\n".join(line for module in modules for line in _defaults(module, vars(module)))


def _defaults(module: ModuleType, members: Mapping[str, Any], owner: str = "") -> Iterator[str]:
    for name, each in members.items():
        function = getattr(each, "__func__", each)
        if getattr(function, "__module__", None) != module.__name__:
            continue
        if isinstance(function, FunctionType) and function.__code__.co_filename == module.__file__:
            taken = inspect.signature(function).parameters.values()
            given = [f"{of.name}={of.default!r}" for of in taken if of.default is not of.empty]
            yield from [f"{owner or module.__name__}.{name}: {_stable(', '.join(given))}"] if given else []
        elif isinstance(each, type) and not owner:
            if kind := getattr(each, "__dataclass_params__", None):
                given = {of.name: of.default for of in fields(each) if of.default is not MISSING}
                yield f"{module.__name__}.{name}, frozen={kind.frozen}, eq={kind.eq}: {_stable(given)}"
            yield from _defaults(module, vars(each), f"{module.__name__}.{name}")


@cache
def _others() -> list[str]:
    pins = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    there = {
        name: metadata.version(name).partition("+")[0] for name in PRINTING if any(metadata.distributions(name=name))
    }
    return [f"{name} {version}" for name, version in there.items() if pins.get(name, version) != version]


def _stable(value: object) -> str:
    text = re.sub(r" at 0x\w+", "", f"{value}").replace(str(ROOT), "HERE")
    return re.sub(r"(?<=set\(\{)[^}]*", lambda found: ", ".join(sorted(found[0].split(", "))), text)


def sections(text: str) -> dict[str, str]:
    """Return the sections of a file by their names."""
    parts = re.split(r"^=== (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _write(path: Path, found: Mapping[str, str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"=== {name}\n{_whole(text)}" for name, text in found.items()), "utf-8")


def _whole(text: str) -> str:
    return text if text.endswith("\n") or not text else f"{text}\n"


def _compare(path: Path, name: str, committed: str, text: str) -> None:
    if sys.gettrace() is not None:  # coverage has Python's one tracer, and no order of events is seen
        committed, text = (re.sub(r"(?m)^  order .*\n", "", each) for each in (committed, _whole(text)))
    if _whole(text) != committed:
        lines = difflib.unified_diff(committed.splitlines(), text.splitlines(), "committed", "found", n=1, lineterm="")
        raise AssertionError("\n".join([f"{path.name}, {name}: python -m tests.golden writes it anew", *lines]))


def main(rooms: list[str]) -> int:
    """Run the tests of committed outputs with the wish to write; return pytest's exit status."""
    files = (path for path in (ROOT / "tests").rglob("test_*.py") if not rooms or path.parent.name in rooms)
    tests = sorted(path for path in files if "golden" in path.read_text("utf-8"))
    if not tests:
        raise SystemExit(f"no test of {', '.join(rooms)} has committed outputs; expected folders of tests, as diagnose")
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *map(str, tests)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, WRITING: "write"}, check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What a shell completes: dialects, and the names of laws, read off the source, as importing the kit takes seconds."""

import re
from pathlib import Path

from ampsim.core import dialects
from ampsim.core.laws import HISTORY_LAWS, UPDATE_LAWS

_TESTING = Path(__file__).parents[1] / "testing"
_LAW = re.compile(r"^@law\((?:.|\n)*?^def (\w+)\(", re.MULTILINE)


def laws() -> list[str]:
    """Return the names of all laws of scalers, of loops and of ranks."""
    files = [*_TESTING.glob("*/laws/*.py"), _TESTING / "ranks" / "laws.py"]
    found = [law.__name__ for law in (*UPDATE_LAWS, *HISTORY_LAWS)]
    return [*dict.fromkeys(found + [name for file in sorted(files) for name in _LAW.findall(file.read_text("utf-8"))])]


def complete_law(incomplete: str) -> list[str]:
    """Return the laws that begin with what was typed."""
    return [name for name in laws() if name.startswith(incomplete)]


def complete_dialect(incomplete: str) -> list[str]:
    """Return the dialects that begin with what was typed, then those that have it somewhere."""
    names = [name for name in dialects.names() if incomplete.lower() in name.lower()]
    return sorted(names, key=lambda name: not name.startswith(incomplete))

"""What a shell completes: dialects, and the names of laws, read off the source, as importing the kit takes seconds."""

import re
from pathlib import Path

from ampsim.core import dialects
from ampsim.core.laws import HISTORY_LAWS, UPDATE_LAWS

_TESTING = Path(__file__).parents[1] / "testing"
_PARTS = (
    ("kit/checks/*.py", "t: Trial"),
    ("loop/laws/*.py", "make: Make, batches: Sequence[Batch]"),
    ("ranks/laws.py", "scenario: Scenario, lives: Lives, "),
)


def laws() -> list[str]:
    """Return the names of all checks of scalers and laws of loops and of ranks."""
    found = [law.__name__ for law in (*UPDATE_LAWS, *HISTORY_LAWS)]
    for files, parameters in _PARTS:
        for file in sorted(_TESTING.glob(files)):
            pattern = rf"^@(?:check|law)\((?:.|\n)*?^def (\w+)\(\s*{re.escape(parameters)}"
            found += re.findall(pattern, file.read_text("utf-8"), re.MULTILINE)
    return [*dict.fromkeys(found)]


def complete_law(incomplete: str) -> list[str]:
    """Return the laws that begin with what was typed."""
    return [name for name in laws() if name.startswith(incomplete)]


def complete_dialect(incomplete: str) -> list[str]:
    """Return the dialects that begin with what was typed, then those that have it somewhere."""
    names = [name for name in dialects.names() if incomplete.lower() in name.lower()]
    return sorted(names, key=lambda name: not name.startswith(incomplete))

"""The environments that peers run in: where they are, and whether they are whole.

Theory of operation
-------------------
An environment is a table of environments.toml, built into a folder of its own below `folder`. Its stamp, written last,
is the hash of the table, so that one that is half built, or built of other pins, is told from a whole one.
"""

import hashlib
import json
import os
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

TABLES = Path(__file__).with_name("environments.toml")
STAMP = "ampsim-stamp"


class NoEnvironmentError(RuntimeError):
    """An environment that is not there, half built, or built of other pins than those of today."""


def folder() -> Path:
    """Return where environments are: $AMPSIM_PEERS, or .peers beside the package."""
    return Path(os.environ.get("AMPSIM_PEERS") or Path(__file__).parents[2] / ".peers").absolute()


@cache
def tables() -> Mapping[str, dict[str, Any]]:
    """Return every environment's table, by name."""
    return tomllib.loads(TABLES.read_text())


def stamp(name: str) -> str:
    """Return the hash of what an environment is built of."""
    return hashlib.sha256(json.dumps(tables()[name], sort_keys=True).encode()).hexdigest()[:16]


def state(name: str) -> str:
    """Return how far an environment is: 'ready', 'missing', 'half built', or 'outdated'."""
    home = folder() / name
    if name == "main":
        return "ready"
    if not home.exists():
        return "missing"
    if not (home / STAMP).exists():
        return "half built"
    return "ready" if (home / STAMP).read_text() == stamp(name) else "outdated"


def python(name: str) -> str:
    """Return an environment's interpreter; raise NoEnvironmentError unless it is whole and of today's pins."""
    if (found := state(name)) != "ready":
        raise NoEnvironmentError(
            f"environment {name} in {folder()} is {found}: run `make peers`, or python -m ampsim.peers {name}"
        )
    return sys.executable if name == "main" else str(folder() / name / "bin" / "python")


def variables(name: str) -> Mapping[str, str]:
    """Return the environment variables that an environment's peers need."""
    return {} if name == "main" else tables()[name].get("variables", {})

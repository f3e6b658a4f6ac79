"""What is imported only when it is used."""

import importlib
from typing import Any

from ampsim.core.extras import needing


def load(module: str) -> Any:
    """Import a module of a package that `ampsim.jax` does not need by itself; ImportError with the cure without it."""
    with needing():
        return importlib.import_module(module)

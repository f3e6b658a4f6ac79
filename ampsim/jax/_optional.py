"""What is imported only when it is used."""

import importlib
from typing import Any


def load(module: str) -> Any:
    """Import a module of a package that `ampsim.jax` does not need by itself; ImportError with the cure without it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{package} is not installed: pip install {package}") from error

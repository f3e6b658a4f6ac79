"""The `pip install` command for a missing package.

>>> str(missing(ModuleNotFoundError("No module named 'tyro.conf'", name="tyro.conf"))).partition(";")[0]
"No module named 'tyro.conf'"
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROUGHT_BY = {  # the name to import -> the extra of ampsim that installs it
    "hypothesis": "testing",
    "jax": "jax",
    "matplotlib": "report",
    "numba": "experiments",
    "optax": "jax",
    "pytest": "testing",
    "tensorboard": "report",
    "torch": "torch",
    "typst": "experiments",
    "tyro": "experiments",
    "wandb": "report",
}
_CHECKOUT = (Path(__file__).parents[2] / "pyproject.toml").exists()


def line_to_type(package: str) -> str:
    """Return the `pip install` command for a package: by extra of ampsim, or by its own name."""
    extra = BROUGHT_BY.get(package)
    if extra is None:
        return f"pip install {package}"
    # ampsim is on no package index, so its extras are installed from a clone.
    options = "-c constraints.txt -e " if _CHECKOUT else ""
    place = "" if _CHECKOUT else " in a clone of ampsim"
    return f"pip install {options}'.[{extra}]'{place}"


def missing(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error with the `pip install` command if an extra of ampsim has the package."""
    package = (error.name or "").partition(".")[0]
    if package not in BROUGHT_BY:
        return error
    return ModuleNotFoundError(
        f"{error.msg}; {line_to_type(package)}", name=error.name, path=error.path
    )


@contextmanager
def needing(command: str | None = None) -> Iterator[None]:
    """Add the `pip install` command to errors of imports in this block.

    Args:
        command: Name of a command that prints the error and exits; None raises the error.

    Raises:
        ModuleNotFoundError: If a module is missing and `command` is None.
        SystemExit: With status 2, if a module is missing in a command.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if command is None:
            raise missing(error) from None
        print(f"{command}: error: {missing(error)}", file=sys.stderr)
        raise SystemExit(2) from None


def load(module: str) -> Any:
    """Import a module; if it is missing, ModuleNotFoundError shows the `pip install` command."""
    with needing():
        return importlib.import_module(module)

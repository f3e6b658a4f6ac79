"""What to type for a package that is missing.

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
    "flax": "frameworks",
    "hypothesis": "testing",
    "jax": "jax",
    "jmp": "frameworks",
    "matplotlib": "figures",
    "numba": "replay",
    "optax": "jax",
    "pytest": "testing",
    "tensorboard": "trackers",
    "torch": "torch",
    "typst": "paper",
    "tyro": "experiments",
    "wandb": "trackers",
}
_CHECKOUT = (Path(__file__).parents[2] / "pyproject.toml").exists()


def line_to_type(package: str) -> str:
    """Return the line that installs a package: by its extra, in a checkout or from an index; else by its own name."""
    extra = BROUGHT_BY.get(package)
    if extra is None:
        return f"pip install {package}"
    return (
        f"pip install -c constraints.txt -e '.[{extra}]'"
        if _CHECKOUT
        else f"pip install 'ampsim[{extra}]'"
    )


def missing(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the same error with the line to type, where an extra of ampsim brings the package."""
    package = (error.name or "").partition(".")[0]
    if package not in BROUGHT_BY:
        return error
    return ModuleNotFoundError(
        f"{error.msg}; {line_to_type(package)}", name=error.name, path=error.path
    )


@contextmanager
def needing(command: str | None = None) -> Iterator[None]:
    """Let imports that need an extra say so; those of a command in one line, with which it ends.

    Raises:
        ModuleNotFoundError: as the import did, with the line to type. SystemExit, of status 2, for a command.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if command is None:
            raise missing(error) from None
        print(f"{command}: error: {missing(error)}", file=sys.stderr)
        raise SystemExit(2) from None


def load(module: str) -> Any:
    """Import a module of a package that is needed only here; without it ModuleNotFoundError says the line to type."""
    with needing():
        return importlib.import_module(module)

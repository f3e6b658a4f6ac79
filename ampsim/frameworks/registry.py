"""Registry of adapters: all classes in `adapters` with their own name."""

import importlib
import pkgutil
from collections.abc import Iterator

from ampsim.frameworks import adapters
from ampsim.frameworks.adapter import Adapter


def _found() -> Iterator[type[Adapter]]:
    for file in pkgutil.iter_modules(adapters.__path__):
        module = importlib.import_module(f"{adapters.__name__}.{file.name}")
        for each in vars(module).values():
            if (
                isinstance(each, type)
                and "name" in vars(each)
                and each.__module__ == module.__name__
            ):
                yield each


REGISTRY = {
    adapter.name: adapter
    for adapter in sorted(_found(), key=lambda adapter: adapter.name)
}
"""Adapter classes by name, in alphabetical order; their packages need not be installed."""


def load(name: str) -> type[Adapter]:
    """Return an adapter class by name; its package need not be installed.

    Args:
        name: Name of the adapter.

    Returns:
        The class, a subclass of `Adapter`.

    Raises:
        KeyError: If there is no such adapter.
    """
    if name not in REGISTRY:
        raise KeyError(f"no adapter {name!r}: expected one of {', '.join(REGISTRY)}")
    return REGISTRY[name]

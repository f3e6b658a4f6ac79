"""The names of the peers, and what each stands for: every class of `frameworks` that has a name of its own."""

import importlib
import pkgutil
from collections.abc import Iterator

from ampsim.peers import frameworks
from ampsim.peers.peer import Peer


def _found() -> Iterator[type[Peer]]:
    for file in pkgutil.iter_modules(frameworks.__path__):
        module = importlib.import_module(f"{frameworks.__name__}.{file.name}")
        for each in vars(module).values():
            if (
                isinstance(each, type)
                and "name" in vars(each)
                and each.__module__ == module.__name__
            ):
                yield each


REGISTRY = {peer.name: peer for peer in sorted(_found(), key=lambda peer: peer.name)}
"""The class that drives a peer, whose package need not be there, by the peer's name; in alphabetical order."""


def load(name: str) -> type[Peer]:
    """Return the class that drives a peer, whose package need not be there; raise KeyError for an unknown name."""
    if name not in REGISTRY:
        raise KeyError(f"no peer {name!r}; there are {', '.join(REGISTRY)}")
    return REGISTRY[name]

"""``python -m ampsim.peers [NAME ...]``: build these environments, or all; ``--list`` tells how far they are."""

import sys
from collections.abc import Sequence

from rich.console import Console

from ampsim.peers import environments
from ampsim.peers.build import build_all
from ampsim.peers.registry import REGISTRY


def main(arguments: Sequence[str]) -> int:
    """Build or list, and return the exit status: 1 if an environment could not be had, 2 for a name there is not."""
    console = Console(markup=False)
    wanted = [each for each in arguments if each != "--list"] or [*environments.tables()]
    if unknown := [each for each in wanted if each not in environments.tables()]:
        there = ", ".join(environments.tables())
        console.print(f"no environment {', '.join(unknown)}; there are {there}")
        return 2
    failed = {} if "--list" in arguments else build_all(wanted, console)
    for name in wanted:
        peers = [each for each, peer in REGISTRY.items() if peer.environment == name]
        console.print(f"{name}: {environments.state(name)}; peers: {', '.join(peers)}", soft_wrap=True)
    for name, reason in failed.items():
        console.print(f"{name} could not be had: {reason}", soft_wrap=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

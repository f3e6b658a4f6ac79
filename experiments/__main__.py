"""Entry point of `python -m experiments`, which lists and runs the experiments."""

import sys
from collections.abc import Sequence

from ampsim.core.extras import needing
from ampsim.core.output import run_command


def main(argv: Sequence[str]) -> int:
    """Return the exit status: 0 success, 1 a run failed, 2 invalid arguments, 130 interrupted."""
    with needing("experiments"):
        if argv[:1] == [
            "gpu"
        ]:  # loads neither rich nor tyro, which a borrowed machine may lack
            from experiments.runner import gpu

            return gpu.main(argv[1:])
        from experiments.runner import commands
    return commands.main(argv)


if __name__ == "__main__":
    raise SystemExit(run_command("experiments", lambda: main(sys.argv[1:])))

"""``python -m ampsim`` is the same program as ``ampsim``."""

import os
import sys

from ampsim.core.output import run_command


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run_command("ampsim", _command))


def _command() -> int:
    from ampsim.cli import main as program

    os.environ.setdefault(
        "HYPOTHESIS_STORAGE_DIRECTORY", os.devnull
    )  # else the folder that this is run in
    program()


if __name__ == "__main__":
    main()

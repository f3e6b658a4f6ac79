"""``python -m ampsim`` is the same program as ``ampsim``."""

import sys


def main() -> None:
    """Run the command line; `lint` reads files, and loads nothing that only the other commands need."""
    if sys.argv[1:2] == ["lint"]:
        from ampsim.lint.command import main as lint

        sys.exit(lint(sys.argv[2:]))
    from ampsim.cli import main as program

    program()


if __name__ == "__main__":
    main()

"""``ampsim lint``: `ampsim.lint` reads its own arguments, and starts without the rest of the package."""

import typer


def lint_files(context: typer.Context) -> None:
    """Read training loops without running them, and name what breaks a check. Exit status 1: there are findings.

    Example: ampsim lint train.py; ampsim lint --explain AMP101
    """
    from ampsim.lint.command import main

    raise typer.Exit(main(context.args))

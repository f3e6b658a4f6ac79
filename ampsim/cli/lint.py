"""``ampsim lint``: `ampsim.lint` parses its own arguments and imports no other package."""

import typer


def lint_files(context: typer.Context) -> None:
    """Find loss-scaling problems in training loops without running them. Exit status: 1 for an
    error or a warning.

    Example: ampsim lint train.py; ampsim lint --explain AMP101
    """
    from ampsim.lint.command import main

    raise typer.Exit(main(context.args))

"""``ampsim lint`` and ``adapt``: doors to `ampsim.lint`, which reads its own arguments and starts alone."""

import typer


def lint_files(context: typer.Context) -> None:
    """Read training loops without running them, and name what breaks a law. Exit status 1: there are findings.

    Example: ampsim lint train.py; ampsim lint --explain AMP101
    """
    from ampsim.lint.command import main

    raise typer.Exit(main(context.args))


def adapt_file(context: typer.Context) -> None:
    """Write a loop as a module for check-loop, as far as its source has it. Exit status 1: TODO marks the rest.

    Example: ampsim adapt train.py > my_loop.py; ampsim check-loop my_loop:make
    """
    from ampsim.lint.adapt.command import main

    raise typer.Exit(main(context.args))

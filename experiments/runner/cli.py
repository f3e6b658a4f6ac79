"""The command line of an experiment: `Options` and the experiment's `Config`, field by field."""

import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from ampsim.core.extras import needing
from ampsim.core.files import BusyError, DamagedFileError
from ampsim.core.output import run_command
from ampsim.runs.record import data_file
from experiments.runner import device, pool, settings
from experiments.runner.execute import (
    Options,
    Outcome,
    Run,
    UnitsFailedError,
    execute,
    refuse,
)
from experiments.runner.experiment import Config, Experiment, UsageError

STYLE = (tyro.conf.FlagCreatePairsOff,)
INLINE = tyro.conf.arg(
    name=""
)  # its fields are options of the command; those within a field keep its name


def main(stem: str, argv: Sequence[str] | None = None) -> int:
    """Run one experiment from a command line and print its table; return the exit status."""
    given = sys.argv[1:] if argv is None else list(argv)

    def command() -> int:
        with pool.Workers() as workers:
            return attempt(stem, given, workers, show=True).status

    return run_command(stem, command)


def attempt(
    stem: str,
    argv: Sequence[str],
    workers: pool.Workers,
    *,
    show: bool = False,
) -> Outcome:
    """Run one experiment; print an error and return its exit status."""
    try:
        with pool.kernels(own=not Experiment(stem).repeats):
            run = parse(stem, argv)
            if run.options.check_figure:
                return check_figures(run)
            outcome = execute(run, workers)
    except (
        UsageError,
        BusyError,
        DamagedFileError,
        UnitsFailedError,
        OSError,
    ) as error:
        return Outcome(refuse(stem, error), "failed")
    if show and outcome.status == 0 and not run.options.smoke:
        print_table(run)
    return outcome


def check_figures(run: Run) -> Outcome:
    """Check, before a unit runs, that each figure of an experiment will find the arms that it
    needs.

    Raises:
        UsageError: An arm is missing; the message names it.
    """
    with needing("figures"):
        from figures import __main__, rendering
        from figures.results import Result
    rows = tuple(unit.named() for unit in run.experiment.units(run.config))
    planned = Result(run.stem, run.path, {}, rows)
    drawn = [
        name for name in __main__.stems() if run.stem in rendering.experiments_of(name)
    ]
    for name in drawn:
        try:
            rendering.require_arms(name, [planned])
        except ValueError as error:
            raise UsageError(str(error)) from error
    counts = f"{len(planned.arms)} arms, {len(rows)} units"
    names = ", ".join(drawn) or "none"
    print(f"{run.stem}: {counts}; figures whose arms are there: {names}")
    return Outcome(0, "checked")


def print_table(run: Run) -> None:
    """Print the table of an experiment that has one."""
    if hasattr(run.experiment.module, "table"):
        _, rows = data_file.read(run.path)
        console = Console(width=max(120, Console().width), highlight=False)
        console.print(run.experiment.module.table(rows), markup=False)


def parse(stem: str, argv: Sequence[str]) -> Run:
    """Return the run of a command line.

    Raises:
        UsageError: A device or package is missing, a setting is invalid, or settings differ from
            the defaults without `--out`.
        SystemExit: An option is unknown, or ``--help`` was passed.
    """
    experiment = Experiment(stem)
    experiment.require_packages()  # before they are imported
    module = experiment.module
    default = module.SMOKE if "--smoke" in argv else module.Config()
    fields = [
        ("options", Annotated[Options, INLINE], Options()),
        ("config", Annotated[module.Config, INLINE], default),
        (
            "out",
            Path | None,
            None,
        ),  # data file; required if settings differ from the defaults
    ]
    command = dataclasses.make_dataclass("Command", fields, frozen=True)
    parsed: Any = tyro.cli(
        command,
        args=list(argv),
        prog=f"python -m experiments.{stem}",
        description=module.__doc__,
        config=STYLE,
    )
    options, config = parsed.options, parsed.config
    settings.check(config)
    allowed = (
        sorted({"cpu", *experiment.devices}) if options.smoke else experiment.devices
    )  # a smoke run may use any machine
    device.require(options.device, allowed)
    path = parsed.out or default_path(experiment, config, options)
    elsewhere = options.reproduce and not (parsed.out or options.smoke)
    reference = experiment.data(path.parent.name) if elsewhere else path
    return Run(experiment, config, options, path, list(argv), reference)


def data_path(experiment: Experiment, options: Options) -> Path:
    """Return the file for the default settings: the committed one, or that of a reproduction."""
    slug = device.slug(options.device)
    return experiment.data_here(slug) if options.reproduce else experiment.data(slug)


def default_path(experiment: Experiment, config: Config, options: Options) -> Path:
    """Return the file for the default settings, committed or made here; a new temporary one for a
    smoke run.

    Raises:
        UsageError: Settings differ from the defaults and would replace the committed data.
    """
    if options.smoke:
        return (
            Path(tempfile.mkdtemp(prefix="ampsim-smoke-")) / f"{experiment.stem}.jsonl"
        )
    path = data_path(experiment, options)
    for name, wanted in dataclasses.asdict(experiment.module.Config()).items():
        if (value := getattr(config, name)) != wanted:
            raise UsageError(
                f"{name}={value}: expected the default {wanted} for {path}; "
                "to write the result of other settings, pass --out FILE"
            )
    return path

"""The command line of an experiment: `Options` and the experiment's `Config`, field by field."""

import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from ampsim import records
from experiments.runner import device
from experiments.runner.execute import Options, Run, UnitsFailedError, execute, show
from experiments.runner.experiment import DATA, Config, Experiment, UsageError
from experiments.runner.pool import Workers

STYLE = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)


def main(stem: str, argv: Sequence[str] | None = None, workers: Workers | None = None) -> int:
    """Run one experiment from a command line, in workers that may be there already; return the exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        if "--help" not in argv and "-h" not in argv:
            Experiment(stem).require_packages()  # before they are imported
        run = parse(stem, argv)
        with contextlib.nullcontext(workers) if workers else Workers() as workers:
            status = execute(run, workers)
        if status == 0 and not run.options.smoke:
            show(run)
        return status
    except UsageError as error:
        print(f"{stem}: error: {error}", file=sys.stderr)
        return 2
    except (records.DamagedFileError, UnitsFailedError) as error:
        print(f"{stem}: error: {error}", file=sys.stderr)
        return 1


def parse(stem: str, argv: Sequence[str]) -> Run:
    """Return the run that a command line asks for.

    Raises:
        UsageError: a device or package that is not there, or other settings without a file to write to.
        SystemExit: a field that there is not, or ``--help``.
    """
    experiment = Experiment(stem)
    try:
        module = experiment.module
    except ModuleNotFoundError:
        experiment.require_packages()  # says which, and the cure
        raise
    default = module.SMOKE if "--smoke" in argv else module.Config()
    fields = [
        ("options", Options, Options()),
        ("config", module.Config, default),
        ("out", Path | None, None),  # data file; needed where the settings differ from the defaults
    ]
    command: Any = dataclasses.make_dataclass("Command", fields, frozen=True)
    parsed = tyro.cli(
        command, args=list(argv), prog=f"python -m experiments.{stem}", description=module.__doc__, config=STYLE
    )
    options, config = parsed.options, parsed.config
    allowed = sorted({"cpu", *experiment.devices}) if options.smoke else experiment.devices  # smoke tries the code
    device.require(options.device, allowed)
    path = parsed.out or default_path(stem, config, options, module.Config())
    return Run(experiment, config, options, path, list(argv))


def default_path(stem: str, config: Config, options: Options, default: Config) -> Path:
    """Return the committed file for the default settings, a new temporary one for a smoke run.

    Raises:
        UsageError: other settings, which would replace the committed data.
    """
    if options.smoke:
        return Path(tempfile.mkdtemp(prefix="ampsim-smoke-")) / f"{stem}.jsonl"
    path = DATA / device.slug(options.device) / f"{stem}.jsonl"
    for name, wanted in dataclasses.asdict(default).items():
        if (value := getattr(config, name)) != wanted:
            raise UsageError(
                f"{name}={value}: expected the default {wanted} for {path}; "
                "to keep the result of other settings pass --out FILE"
            )
    return path

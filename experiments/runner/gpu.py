"""Run what a CUDA device can show: `python -m experiments gpu [STEM ...] --minutes N`.

Runs the named experiments, or all that support CUDA, the most valuable first. At the time limit,
the finished units are kept. To continue, run the same command; finished experiments do not run
again.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from experiments.runner import device, pool
from experiments.runner.execute import Options, Run, execute
from experiments.runner.experiment import Experiment, UsageError, stems

FIRST = ("gpt_fp16", "resnet_fp16", "scale_crash")  # all others follow


def main(argv: Sequence[str]) -> int:
    """Run experiments on the device until the time is over.

    Args:
        argv: Options of the command line.

    Returns:
        The exit status: 0 success, 1 an experiment failed, 2 no device, 130 the time is over.
    """
    parser = argparse.ArgumentParser("python -m experiments gpu", description=__doc__)
    possible = [stem for stem in stems() if "cuda" in Experiment(stem).devices]
    order = sorted(
        possible, key=lambda stem: FIRST.index(stem) if stem in FIRST else len(FIRST)
    )
    parser.add_argument(
        "stems", nargs="*", metavar="STEM", help="default: all that support CUDA"
    )
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="time limit; default: 9"
    )
    parser.add_argument("--dry", action="store_true", help="run a few steps on the CPU")
    told = parser.parse_args(argv)
    name = "cpu" if told.dry else "cuda"
    try:
        device.require(name)
        if unknown := set(told.stems) - set(order):
            raise UsageError(
                f"{', '.join(unknown)}: expected some of {', '.join(order)}"
            )
    except UsageError as error:
        print(f"experiments gpu: error: {error}", file=sys.stderr)
        return 2
    signal.signal(
        signal.SIGALRM, signal.default_int_handler
    )  # as Ctrl-C: finished units are kept
    signal.setitimer(signal.ITIMER_REAL, 60 * told.minutes)
    statuses = []
    try:
        with pool.Workers() as workers:
            for stem in told.stems or order:
                statuses.append(
                    run_experiment(Experiment(stem), name, workers, dry=told.dry)
                )
                if statuses[-1] == 130:
                    break
    except KeyboardInterrupt:
        statuses.append(130)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return max(statuses)


def run_experiment(
    chosen: Experiment, name: str, workers: pool.Workers, *, dry: bool
) -> int:
    """Run one experiment with its default settings, or a few steps; return the exit status."""
    folder = Path(tempfile.mkdtemp(prefix="ampsim-smoke-")) if dry else None
    try:
        chosen.require_packages()
        config = chosen.module.SMOKE if dry else chosen.module.Config()
        path = folder / "smoke.jsonl" if folder else chosen.data(device.slug(name))
        options = Options(device="cpu" if dry else "cuda", smoke=dry)
        argv = ["--device", name]
        with pool.kernels(own=not chosen.repeats):
            run = Run(chosen, config, options, path, argv, path)
            return execute(run, workers).status
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        print(f"{chosen.stem}: error: {error}", file=sys.stderr)
        return 1

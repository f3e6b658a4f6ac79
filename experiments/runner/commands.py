"""Commands of `python -m experiments`: list the experiments, or `all` runs those with missing or
stale data.

`records [--data DIR]` compares the data that `make reproduce` computed here with the committed
data. `adopt [--data DIR]` replaces the committed data with it. `claims [--data DIR] [--sentences]`
evaluates every claim of the gallery and the paper on the committed data and on a folder. `gpu` runs
experiments on a CUDA device within a time limit: see `experiments/runner/gpu.py`. `python -m
experiments STEM [options]` is the same as `python -m experiments.STEM [options]`. Several stems
share one pool of workers.
"""

import argparse
import difflib
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from ampsim.core.files import BusyError, DamagedFileError
from experiments.runner import everything, new, reproduced
from experiments.runner.cli import main as run_one
from experiments.runner.execute import refuse
from experiments.runner.experiment import Experiment, UsageError, stems
from figures import claim_results

USAGE = (
    "usage: python -m experiments [all | STEM...] "
    "[--device cpu|cuda] [--smoke] [--jobs N] [--force | --reproduce] [--help]\n"
    "       python -m experiments gpu [STEM...] [--minutes N]\n"
    "       python -m experiments new NAME\n"
    "       python -m experiments records [--data DIR]\n"
    "       python -m experiments adopt [--data DIR]\n"
    "       python -m experiments claims [--data DIR] [--sentences]\n"
    "\n"
    "all                 run every experiment whose data is missing or stale\n"
    "STEM...             run these experiments\n"
    "gpu                 run what a CUDA device can show, within a time limit\n"
    "new                 write a small experiment with a figure, a claim, and a test\n"
    "records             compare data computed here with the committed data\n"
    "adopt               replace the committed data with the data computed here\n"
    "claims              evaluate every claim of the gallery and the paper, a line each;\n"
    "                    --sentences prints what each claim says\n"
    "\n"
    "Experiments:"
)


def main(argv: Sequence[str]) -> int:
    """Return the exit status: 0 success, 1 a run failed, 2 invalid arguments, 130 interrupted."""
    name, options = (argv[0], argv[1:]) if argv else ("--help", [])
    if name in ("-h", "--help"):
        print(USAGE)
        for stem in stems():
            print(f"\n{stem}\n    {Experiment(stem).question}")
        return 0
    if name == "all":
        return everything.main(options)
    if name == "new":
        return new.main(options)
    if name in ("records", "adopt", "claims"):
        return reproduction(name, options)
    named = list(itertools.takewhile(lambda word: word in stems(), argv))
    if len(named) > 1:
        return everything.main(argv[len(named) :], named)
    if named:
        return run_one(name, options)
    (near,) = difflib.get_close_matches(name, [*stems(), "all"], n=1, cutoff=0.0)
    expected = f"expected one of {', '.join(stems())} or all; did you mean {near!r}?"
    print(f"experiments: error: {name!r}: {expected}", file=sys.stderr)
    return 2


def reproduction(name: str, options: Sequence[str]) -> int:
    """Compare, adopt, or evaluate the data of a folder; by default that of `make reproduce`."""
    parser = argparse.ArgumentParser(f"python -m experiments {name}")
    parser.add_argument("--data", type=Path, metavar="DIR")
    if name == "claims":
        parser.add_argument("--sentences", action="store_true")
    given = parser.parse_args(options)
    folder = given.data or reproduced.folder()
    try:
        if name == "records":
            print("\n".join(reproduced.compare(folder)))
        elif name == "adopt":
            print("\n".join(reproduced.adopt(folder)))
        else:
            here = folder if given.data or folder.exists() else None
            judged = list(claim_results.judge_all(here))
            print("\n".join(claim_results.lines(judged, sentences=given.sentences)))
            if here is None:
                print("No data from this machine: run `make reproduce` to compute it.")
    except (UsageError, BusyError, DamagedFileError, OSError) as error:
        return refuse(f"experiments {name}", error)
    return 0

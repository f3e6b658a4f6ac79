"""What `python -m experiments` does: it lists the experiments; `all` runs those whose data is missing or stale.

`records [--data DIR]` compares what `make reproduce` made here with the committed data, `adopt` puts it in its place.
`claims [--data DIR]` judges every claim of gallery and paper by the committed data, and by that of a folder.
`gpu` runs what an accelerator can show, within some minutes: `experiments/runner/gpu.py`.
`bits` says whether this processor gives the bits that the committed data are made of; `--json [NAME]` prints them.
`python -m experiments STEM [options]` is the same as `python -m experiments.STEM [options]`; several run in one pool.
"""

import difflib
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ampsim import records
from ampsim.core.files import BusyError, DamagedFileError
from experiments.runner import everything, reproduced
from experiments.runner.cli import main as run_one
from experiments.runner.cli import refuse
from experiments.runner.experiment import Experiment, UsageError, stems
from figures import claim_results

USAGE = (
    "usage: python -m experiments [all | STEM...] "
    "[--device cpu|cuda] [--smoke] [--jobs N] [--force | --reproduce]\n"
    "       [--on ray|auto|ray://HOST:PORT] [--help]\n"
    "       python -m experiments gpu [--minutes N] [--dry] [--jobs N] [--out DIR]\n"
    "       python -m experiments records [--data DIR]\n"
    "       python -m experiments adopt [--data DIR]\n"
    "       python -m experiments claims [--data DIR]\n"
    "       python -m experiments bits [--json [NAME]]"
)


def main(argv: Sequence[str]) -> int:
    """Return the exit status: 0 good, 1 a run failed, 2 wrong use, 130 stopped by the user."""
    name, options = (argv[0], argv[1:]) if argv else ("", [])
    if name in ("", "-h", "--help"):
        print(USAGE)
        for stem in stems():
            print(f"\n{stem}\n    {Experiment(stem).question}")
        return 0
    if name == "all":
        return everything.main(options)
    if name in ("records", "adopt", "claims"):
        return reproduction(name, options)
    if name == "bits":
        return compare_bits(options)
    named = list(itertools.takewhile(lambda word: word in stems(), argv))
    if len(named) > 1:
        return everything.main(argv[len(named) :], named)
    if name in stems():
        return run_one(name, options)
    near = difflib.get_close_matches(name, [*stems(), "all"], n=1, cutoff=0.0)[0]
    print(f"experiments: error: {name!r}: expected one of {', '.join(stems())} or all; did you mean {near!r}?",
          file=sys.stderr)  # fmt: skip
    return 2


def reproduction(name: str, options: Sequence[str]) -> int:
    """Compare, adopt or judge the data of a folder, which is that of a reproduction where none is named."""
    if options and (options[0] != "--data" or len(options) != 2):
        print(
            f"experiments: error: {' '.join(options)!r}: expected {name} [--data DIR]",
            file=sys.stderr,
        )
        return 2
    folder = Path(options[1]) if options else reproduced.folder()
    console = Console(width=max(120, Console().width), highlight=False)
    try:
        if name == "records":
            console.print(reproduced.table(folder), markup=False)
        elif name == "adopt":
            print("\n".join(reproduced.adopt(folder)))
        else:
            judged = list(claim_results.judge_all(folder if options or folder.exists() else None))
            console.print(claim_results.table(judged), markup=False)
            if not options and not folder.exists():
                print("no data of this machine")
    except (UsageError, BusyError, DamagedFileError, OSError) as error:
        return refuse(f"experiments {name}", error)
    return 0


def compare_bits(options: Sequence[str]) -> int:
    """Print how the digests of this processor stand to those on record, or with `--json` the line for the record."""
    from experiments.runner import kernel_digests  # it loads torch

    if options[:1] == ["--json"] and len(options) < 3:
        print(records.encode(kernel_digests.line(*options[1:])))
    elif options:
        print(
            f"experiments: error: {' '.join(options)!r}: expected bits [--json [NAME]]",
            file=sys.stderr,
        )
        return 2
    else:
        print("\n".join(kernel_digests.compare(kernel_digests.digests())))
    return 0

"""Run the checks of one engine on this rank: `torchrun -m experiments.engine_drivers ENGINE FILE`.

Each rank appends its outcomes to FILE and its rank, as JSON Lines.
"""

import importlib
import json
import logging
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from experiments.engine_drivers import ENGINES
from experiments.engine_drivers.checks import (
    CHECKS,
    RANK_CHECKS,
    Check,
    Train,
    settled_scale,
)
from experiments.engine_drivers.job import rank, ranks

WAIT = timedelta(seconds=60)  # for the other ranks, in a collective


def outcome(check: Check, train: Train) -> str:
    """Return passed, failed, or the error that the engine raised."""
    try:
        return "passed" if check(train) else "failed"
    except Exception as error:  # an engine may raise anything
        return f"error: {type(error).__name__}: {str(error).splitlines()[0][:120]}"


def main(name: str, path: str) -> None:
    """Run the checks of an engine for as many ranks as there are."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    module, function = ENGINES[name].function.split(":")
    train: Train = getattr(
        importlib.import_module(f"experiments.engine_drivers.{module}"), function
    )
    # After the imports: torch.distributed.nn keeps a group that exists when it is imported.
    dist.init_process_group("gloo", timeout=WAIT)
    with Path(f"{path}.{rank()}").open("w") as file:
        for check in RANK_CHECKS if ranks() > 1 else CHECKS:
            print(
                json.dumps([check.__name__, outcome(check, train)]),
                file=file,
                flush=True,
            )
        print(json.dumps(["settled_scale", settled_scale(train)]), file=file)
    dist.barrier()  # no rank leaves while another one uses its connection
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

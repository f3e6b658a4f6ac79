"""Ranks as processes with gloo: what torch.distributed really does, in the one order that comes.

Each rank is one process for all scenarios, forked where that is possible, as to import torch takes
seconds. Each scenario has a process group of its own, so that one which ends badly leaves nothing
behind for the next. A rank whose partner is gone by then is told by gloo, and one whose partner is
busy elsewhere by the group's time-out.
"""

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import c10d_logger

from ampsim.testing.child import GRACE, child
from ampsim.testing.examples import warm_up
from ampsim.testing.ranks.gradients import Gradients, World
from ampsim.testing.ranks.scenario import Make, RankRecord, Scenario, play

# What gloo says to a rank whose partner does not come.
_ALONE = re.compile("Connection (closed|reset)|[Tt]imed out|Broken pipe")

_LOGGER = c10d_logger.__file__  # of a decorator around each collective


def play_all(
    make: Make,
    scenarios: Sequence[Scenario],
    size: int,
    gradients: Gradients,
    limit: float,
) -> dict[Scenario, list[RankRecord]]:
    """Run scenarios with every rank a process; return what was seen on each, up to the one that did
    not end.

    Args:
        make: makes a rank's scaler; picklable where processes are not forked.
        scenarios: what to play.
        size: ranks.
        gradients: as `check_ranks` takes them.
        limit: seconds per collective, and per scenario.
    """
    played: dict[Scenario, list[RankRecord]] = {}
    warm_up()  # once, before the fork
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        given = make, scenarios, size, gradients, limit, folder
        ranks = [
            started.enter_context(child(_serve, rank, *given)) for rank in range(size)
        ]
        for scenario in scenarios:
            played[scenario] = [_next_record(answers, limit) for _, answers in ranks]
            if any(record is _HUNG for record in played[scenario]):
                break
    return played


_HUNG = RankRecord(error="did not end", waits="")


def _next_record(answers: Connection, limit: float) -> RankRecord:
    # The limit is for coming together, and again for being told that nobody comes.
    if not answers.poll(2 * limit + GRACE):
        return _HUNG
    try:
        record: RankRecord = answers.recv()
    except EOFError:
        return RankRecord(error="ended its process")
    return record


def _serve(
    rank: int,
    make: Make,
    scenarios: Sequence[Scenario],
    size: int,
    gradients: Gradients,
    limit: float,
    folder: str,
    sending: Connection,
) -> None:
    """Run every scenario, in the child, and send what was seen."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    for number, scenario in enumerate(scenarios):
        record = RankRecord()
        try:
            place = Path(folder, str(number)).as_uri()
            wait = timedelta(seconds=limit)
            dist.init_process_group(
                "gloo", init_method=place, rank=rank, world_size=size, timeout=wait
            )
            dist.barrier()  # nobody leaves while another one is still connecting
            play(make, World(dist.group.WORLD, _first), scenario, gradients, record)
        except (Exception, SystemExit) as error:
            if _ALONE.search(str(error)):
                record.waits = _place(error)
            else:
                record.error = f"{type(error).__name__}: {error}"
        if dist.is_initialized():
            dist.destroy_process_group()
        sending.send(record)


def _first(value: object) -> Any:
    """Return what rank 0 passes."""
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def _place(error: BaseException) -> str:
    """Return the collective that a call waits in, and the line that called it."""
    calls = traceback.extract_tb(error.__traceback__)
    home = str(Path(dist.__file__).parent / "distributed_c10d.py")
    collectives = [call.name for call in calls if call.filename == home]
    others = [each for each in calls if each.filename not in (home, _LOGGER)]
    caller = others[-1]
    what = collectives[0] if collectives else caller.line or "a collective"
    file = Path(caller.filename).name
    return f"{what} ({file}:{caller.lineno} in {caller.name})"

"""Ranks as threads under the scheduler, in the orders that a schedule chooses.

What gloo or NCCL would do a `Meeting` does: the n-th collective of each rank on a group is the same
meeting, if it is of the same kind, and who is there waits for the others. A result is written when
it is waited for, which is as late as it may be, so that a scaler that looks before sees what it
would see on a slow network. Who waits for somebody who does not come is a deadlock, which the
scheduler finds at once.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ampsim.testing import scheduler
from ampsim.testing.ranks.gradients import World
from ampsim.testing.ranks.scenario import Make, RankRecord, Scenario, play
from ampsim.testing.scheduler.locks import Primitive

STEPS = 3000  # of one run, at most
PATIENCE = 64  # steps between those in which a late rank goes on
Tensors = list[torch.Tensor]
Write = Callable[[list[Any]], object]  # writes the result of what all ranks brought
OPERATIONS: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {  # of stacked tensors
    dist.ReduceOp.SUM: lambda ranks: ranks.sum(0),
    dist.ReduceOp.AVG: lambda ranks: ranks.sum(0) / len(ranks),
    dist.ReduceOp.MAX: lambda ranks: ranks.amax(0),
    dist.ReduceOp.MIN: lambda ranks: ranks.amin(0),
}


class Meeting(Primitive):
    """One collective: what each rank brought, by rank."""

    def __init__(self, what: str, size: int, number: int) -> None:
        super().__init__(f"{what} {number}")
        self.size = size
        self.brought: dict[int, Any] = {}
        self.waiting: set[int] = set()

    @property
    def status(self) -> str:
        missing = [str(rank) for rank in range(self.size) if rank not in self.brought]
        return f"without rank {' and '.join(missing)}" if missing else "complete"

    def bring(self, rank: int, value: Any) -> None:
        """Come to the collective."""
        self._task_runner.switch("come to", self)
        self.brought[rank] = value

    def is_complete(self) -> bool:
        """Return whether all ranks have come by now."""
        self._task_runner.switch("look at", self)
        return len(self.brought) == self.size

    def wait(self, rank: int) -> list[Any]:
        """Wait for all ranks, and return what they brought."""
        self.waiting.add(rank)
        self._task_runner.switch("wait", self, lambda: len(self.brought) == self.size)
        self.waiting.remove(rank)  # unless the run ended here
        return [self.brought[rank] for rank in range(self.size)]


Meetings = dict[tuple[int, str], Meeting]  # by number and kind


class _Work(dist.Work):
    """The work of a collective: `wait` writes its result."""

    def __init__(
        self, meeting: Meeting, rank: int, tensors: Tensors, write: Write
    ) -> None:
        super().__init__()
        self._meeting = meeting
        self._rank = rank
        self._tensors = tensors
        self._write = write
        self._waited = False

    def wait(self, timeout: object = None) -> bool:
        if not self._waited:
            self._write(self._meeting.wait(self._rank))
            self._waited = True
        return True

    def get_future(self) -> Any:
        """Return a complete future: who waits for one hands over to no other rank."""
        self.wait()
        future: Any = torch.futures.Future()
        future.set_result(self._tensors)
        return future

    def is_completed(self) -> bool:
        if self._meeting.is_complete():
            self.wait()
        return self._waited


class Group(dist.ProcessGroup):
    """A process group as one rank has it: torch.distributed's functions take it."""

    def __init__(self, rank: int, size: int, meetings: Meetings) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # a group without a store
        self._meetings = meetings
        self._next = 0

    def come(self, what: str, value: Any) -> Meeting:
        """Come to this rank's next collective."""
        key = self._next, what
        if key not in self._meetings:
            self._meetings[key] = Meeting(what, self.size(), self._next)
        self._next += 1
        self._meetings[key].bring(self.rank(), value)
        return self._meetings[key]

    def share(self, what: str, value: Any) -> list[Any]:
        """Return what every rank passes, by rank."""
        return self.come(what, value).wait(self.rank())

    def _work(self, what: str, tensors: Tensors, write: Write) -> _Work:
        brought = [tensor.detach().clone() for tensor in tensors]
        return _Work(self.come(what, brought), self.rank(), tensors, write)

    def allreduce(self, tensors: Tensors, opts: Any = None) -> _Work:  # type: ignore[override]
        """Reduce each tensor over the ranks, in place."""
        return self._work("all_reduce", tensors, _reducing(tensors, opts))

    def reduce(self, tensors: Tensors, opts: Any = None) -> _Work:  # type: ignore[override]
        """Reduce each tensor over the ranks, in place on one of them."""
        written = tensors if self.rank() == opts.rootRank else []
        return self._work("reduce", tensors, _reducing(written, opts))

    def allgather(  # type: ignore[override]
        self, outputs: list[Tensors], inputs: Tensors, opts: Any = None
    ) -> _Work:
        """Copy each rank's tensor into the output with its number."""

        def write(brought: list[Any]) -> None:
            for i, output in enumerate(outputs):
                for rank, tensor in enumerate(output):
                    tensor.copy_(brought[rank][i])

        return self._work("all_gather", inputs, write)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> _Work:  # type: ignore[override]
        """Copy one rank's tensors to all."""

        def write(brought: list[Any]) -> None:
            for tensor, theirs in zip(tensors, brought[opts.rootRank], strict=True):
                tensor.detach().copy_(theirs)

        return self._work("broadcast", tensors, write)

    def getBackendName(self) -> str:  # noqa: N802
        return "threads"


def _reducing(tensors: Tensors, opts: Any) -> Write:
    """Return what writes into tensors the reduction of what all ranks brought."""
    op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    (join,) = [join for each, join in OPERATIONS.items() if op == each]

    def write(brought: list[Any]) -> None:
        for i, tensor in enumerate(tensors):
            stacked = torch.stack([each[i] for each in brought])
            tensor.detach().copy_(join(stacked))

    return write


def live_together(
    c: scheduler.Scheduler,
    size: int,
    meetings: Meetings,
    live: Callable[[Group], object],
) -> None:
    """Give every rank a thread to live in, and its group, which is torch.distributed's default one
    there.
    """
    here = threading.local()

    def begin(rank: int) -> None:
        here.group = Group(rank, size, meetings)
        live(here.group)

    _answer_for_groups(c, lambda: getattr(here, "group", None))
    for thread in [c.spawn(f"rank {rank}", begin, rank) for rank in range(size)]:
        thread.join()


def _answer_for_groups(c: scheduler.Scheduler, mine: Callable[[], Any]) -> None:
    """Let torch.distributed know a `Group` where it asks a table of processes, until the run ends."""

    def gather(objects: list[Any], value: Any, group: Any = None) -> None:
        objects[:] = (group or mine()).share("all_gather_object", value)

    def barrier(group: Any = None, **_: Any) -> None:
        (group or mine()).share("barrier", None)

    def ranks(group: Any = None) -> list[int]:
        return [*range((group or mine()).size())]

    c.replace(type(dist.group), "WORLD", property(lambda _: mine()))
    c.replace(dist, "all_gather_object", gather)
    c.replace(dist, "barrier", barrier)
    c.replace(dist, "get_process_group_ranks", ranks)


def late(rank: int) -> scheduler.Chooser:
    """Return a schedule in which a rank goes on if no other one can, or every `PATIENCE` steps, as
    others may poll.
    """

    def choose(step: int, names: Sequence[str]) -> int:
        is_turn = step % PATIENCE == 0
        for place, name in enumerate(names):
            if (name == f"rank {rank}") == is_turn:
                return place
        return 0

    return choose


def play_on_threads(
    make: Make,
    scenario: Scenario,
    size: int,
    schedule: Any = scheduler.KEEP_RUNNING,
) -> list[RankRecord]:
    """Run a scenario with every rank a thread; return what was seen on each."""
    meetings = Meetings()
    records = [RankRecord() for _ in range(size)]

    def live(group: Group) -> None:
        record = records[group.rank()]
        world = World(group, lambda value: group.share("share", value)[0])
        try:
            play(make, world, scenario, "sharded", record)
        except Exception as error:  # on one rank, which is no end of the others
            record.error = f"{type(error).__name__}: {error}"

    def program(c: scheduler.Scheduler) -> None:
        live_together(c, size, meetings, live)

    failure = scheduler.attempt(program, schedule, max_steps=STEPS).failure
    if failure is not None and not isinstance(failure, scheduler.DeadlockError):
        raise failure  # a deadlock is seen in the records
    for meeting in meetings.values():
        for rank in meeting.waiting:
            records[rank].waits = f"{meeting} ({meeting.status})"
    return records

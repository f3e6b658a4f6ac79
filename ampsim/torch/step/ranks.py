"""Ranks of a process group that share found_inf before any rank steps."""

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ampsim.torch.gradients.collect import Groups
from ampsim.torch.gradients.unscale import FoundInf
from ampsim.torch.state.device import event_on
from ampsim.torch.state.version import DeviceObservation
from ampsim.torch.step.records import Record


class Ranks:
    """The ranks of a group, with one scaler each.

    Assumes that all ranks unscale and step in the same order, as collectives require. Gradients may be missing.
    Optimizers are numbered in the order of their first use on a rank. If a rank omits a step or changes the order, all
    ranks raise, and no optimizer steps with the flag of another one.
    """

    def __init__(self, group: Any, device: str) -> None:
        self._group, self._device = _checked(group), torch.device(device)
        self._members = set(dist.get_process_group_ranks(self._group))
        self._numbers: dict[
            int, tuple[Callable[[], Any], int]
        ] = {}  # by id: an optimizer, as long as it lives
        self._count = 0  # optimizers that this rank came to
        self._doubts: list[
            tuple[Tensor, torch.cuda.Event]
        ] = []  # results that have not arrived yet

    def check_equal(self, call: str, mine: dict[str, object]) -> None:
        """Raise ValueError on all ranks if a named value differs between ranks."""
        everyone: list[Any] = [None] * len(self._members)
        with _missing(call):
            dist.all_gather_object(
                everyone, {name: repr(value) for name, value in mine.items()}, self._group
            )
        for name in dict.fromkeys(name for each in everyone for name in each):
            values = [each.get(name) for each in everyone]
            if len(set(values)) > 1:
                shown = ", ".join(
                    f"{name}={value} on rank {rank}" for rank, value in enumerate(values)
                )
                raise ValueError(
                    f"{call} with {shown}: expected equal values on all ranks of the group"
                )

    def begin_to_agree(self, record: Record, ticket: int, *, joins_amax: bool) -> None:
        """Start the all-reduce of found_inf for this optimizer; the record waits for it when it is read.

        One all-reduce of a few float64, of which the largest counts: of the flags, not their sum, as a kernel asks
        whether a flag is 1; of amax; of ticket and number of the optimizer, and of their negatives, as the largest and
        the smallest differ where the ranks do. On a device a later call raises, and this call's flag is 1.
        """
        self._check_doubts()
        home = next(iter(record.found_inf), self._device)
        device = home if home.type == self._device.type else self._device
        flags = [flag.to(device, non_blocking=True).double() for flag in record.found_inf.values()]
        seen = record.observed if joins_amax else None
        amax = (
            [] if seen is None else [seen.amax.to(device).double().nan_to_num(torch.inf, torch.inf)]
        )
        key = [ticket, self._number(record.optimizer)]
        numbers = [
            torch.full((), n, dtype=torch.float64, device=device)
            for n in (*key, *(-n for n in key), 0)
        ]
        sent = torch.stack(
            [*numbers[:4], torch.stack([*flags, numbers[4]]).amax(), *(amax or numbers[4:])]
        )
        with _missing("found_inf"):
            work = dist.all_reduce(sent, dist.ReduceOp.MAX, self._group, async_op=True)

        def joined() -> FoundInf:
            with _missing("found_inf"):
                work.wait()
            differ = self._doubt(sent[:4])
            if joins_amax:
                record.observed = DeviceObservation(sent[5], None, 0)
            return FoundInf(
                {home: torch.maximum(sent[4], differ).float().to(home, non_blocking=True)}
            )

        record.expect(joined)

    def _number(self, optimizer: Any) -> int:
        known, number = self._numbers.get(id(optimizer), (bool, -1))
        if known() is not optimizer:
            number, self._count = self._count, self._count + 1
            try:
                known = weakref.ref(optimizer)
            except TypeError:  # a client's wrapper; then it is kept alive
                known = functools.partial(_same, optimizer)
            self._numbers[id(optimizer)] = known, number
        return number

    def _doubt(self, ends: Tensor) -> Tensor:
        """Return 1.0, shape (), if the ranks' keys differ; on the CPU that is an error at once."""
        if ends.device.type == "cpu":
            _check_alike(ends)
        elif ready := event_on(ends.device):
            on_host = torch.empty(ends.shape, dtype=ends.dtype, pin_memory=True).copy_(
                ends, non_blocking=True
            )
            self._doubts.append((on_host, ready))
        return (ends[:2] != -ends[2:]).any().double()

    def _check_doubts(self) -> None:
        while self._doubts and self._doubts[0][1].query():  # type: ignore[no-untyped-call]
            _check_alike(self._doubts.pop(0)[0])

    @torch.no_grad()
    def own_part(self, groups: Groups) -> Groups:
        """Take of each DTensor the part on this rank, if all ranks that have the other parts are in the group."""
        return {
            key: [grad if type(grad) is Tensor else self._own(grad) for grad in grads]
            for key, grads in groups.items()
        }

    def _own(self, grad: Any) -> Tensor:
        mesh = getattr(grad, "device_mesh", None)
        if mesh is None or not self._members.issuperset(mesh.mesh.flatten().tolist()):
            return grad  # type: ignore[no-any-return]
        return grad.to_local()  # type: ignore[no-any-return]


def _same(thing: Any) -> Any:
    return thing


def _check_alike(ends: Tensor) -> None:
    """Raise RuntimeError unless the largest ticket and number of all ranks are the smallest too."""
    ticket, number, first_ticket, first_number = (int(abs(end)) for end in ends.tolist())
    if (ticket, number) != (first_ticket, first_number):
        raise RuntimeError(
            f"the ranks did not agree on found_inf: they are at tickets {first_ticket} to {ticket} and optimizers "
            f"{first_number} to {number}, counted from 0 in the order in which a rank first came to them: expected "
            "the same calls in the same order; step every optimizer on every rank, one without gradients too"
        )


def _checked(group: Any) -> Any:
    """Return the group; raise RuntimeError if it is not initialized, TypeError if it is no group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"group={group!r}: expected torch.distributed to be initialized; call init_process_group() before"
        )
    if isinstance(group, str) and group == "world":
        return dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f'group={group!r}: expected a process group with this rank in it, or "world"; pass what new_group() returns'
        )
    return group


@contextmanager
def _missing(what: str) -> Iterator[None]:
    """Return the error for a failed collective, with its purpose."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        raise RuntimeError(
            f"the ranks did not agree on {what}: expected every rank of the group to come to this call within the "
            f"group's time-out; look which one ended, or made other calls ({first})"
        ) from error

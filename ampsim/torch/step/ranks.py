"""Ranks of a process group that train one model: what one finds in its gradients all know before any of them steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ampsim.torch.gradients.collect import Groups
from ampsim.torch.gradients.unscale import FoundInf
from ampsim.torch.state.version import DeviceObservation
from ampsim.torch.step.records import Record


class Ranks:
    """The ranks of a group, with one scaler each.

    Assumes that every rank unscales and steps in the same order, as any collective does. Gradients may be missing.
    """

    def __init__(self, group: Any, device: str) -> None:
        self._group, self._device = _checked(group), torch.device(device)
        self._members = set(dist.get_process_group_ranks(self._group))

    def check_equal(self, call: str, mine: dict[str, object]) -> None:
        """Raise ValueError, on every rank, if the ranks differ in what these names stand for."""
        everyone: list[Any] = [None] * len(self._members)
        with _missing(call):
            dist.all_gather_object(everyone, {name: repr(value) for name, value in mine.items()}, self._group)
        for name in dict.fromkeys(name for each in everyone for name in each):
            values = [each.get(name) for each in everyone]
            if len(set(values)) > 1:
                told = ", ".join(f"{name}={value} on rank {rank}" for rank, value in enumerate(values))
                raise ValueError(f"{call} with {told}: expected the same on all ranks of the group; pass the same")

    def begin_to_agree(self, record: Record, *, joins_amax: bool) -> None:
        """Let the record tell what all ranks found in this optimizer's gradients, as soon as somebody asks it.

        One all-reduce of one float32, or with amax, the largest of all ranks, of two float64. Of the flags the largest,
        not the sum: a kernel asks whether a flag is 1.
        """
        home = next(iter(record.found_inf), self._device)
        device = home if home.type == self._device.type else self._device
        flags = [flag.to(device, non_blocking=True) for flag in record.found_inf.values()]
        found = flags[0] if len(flags) == 1 else torch.stack([*flags, torch.zeros((), device=device)]).amax()
        if joins_amax:
            seen = record.observed
            amax = torch.zeros((), device=device) if seen is None else seen.amax.to(device)
            found = torch.stack([found.double(), amax.double().nan_to_num(torch.inf, torch.inf)])
        with _missing("found_inf"):
            work = dist.all_reduce(found, dist.ReduceOp.MAX, self._group, async_op=True)

        def joined() -> FoundInf:
            with _missing("found_inf"):
                work.wait()
            flag = (found[0].float() if joins_amax else found).to(home, non_blocking=True)
            if joins_amax:
                record.observed = DeviceObservation(found[1], None, 0)
            return FoundInf({flag.device: flag})

        record.expect(joined)

    @torch.no_grad()
    def own_part(self, groups: Groups) -> Groups:
        """Take of each DTensor the part on this rank, if all ranks that have the other parts are in the group."""
        return {
            key: [grad if type(grad) is Tensor else self._own(grad) for grad in grads] for key, grads in groups.items()
        }

    def _own(self, grad: Any) -> Tensor:
        mesh = getattr(grad, "device_mesh", None)
        if mesh is None or not self._members.issuperset(mesh.mesh.flatten().tolist()):
            return grad  # type: ignore[no-any-return]
        return grad.to_local()  # type: ignore[no-any-return]


def _checked(group: Any) -> Any:
    """Return the group; RuntimeError if there is none yet, TypeError for what is none."""
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
    """Say of a collective that failed what it was for."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        raise RuntimeError(
            f"the ranks did not agree on {what}: expected every rank of the group to come to this call within the "
            f"group's time-out; look which one ended, or made other calls ({first})"
        ) from error

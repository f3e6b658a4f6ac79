"""Ranks of a process group that share found_inf before any of them steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from ampsim.torch.gradients.collect import Groups
from ampsim.torch.gradients.divided import reference
from ampsim.torch.gradients.unscale import largest_flag
from ampsim.torch.streams import record_event

# The largest flag and the largest amax of all ranks; both ().
Joined = tuple[Tensor, Tensor]


class Ranks:
    """The ranks of a group, with one scaler each.

    Collectives assume that all ranks make the same calls in the same order. Each all-reduce also
    carries an iteration and the number of an optimizer, counted in the order in which a rank first
    used them. If these differ between ranks, all ranks raise. On a device the error comes with a
    later call, because this one does not wait; the step of this call is skipped on all ranks.
    """

    def __init__(self, group: Any, device: str) -> None:
        """Check the group.

        Args:
            group: Process group, or "world".
            device: Device type of the scaler.

        Raises:
            RuntimeError: If torch.distributed is not initialized.
            TypeError: If `group` is not a process group with this rank in it.
        """
        self._group, self._device = _checked(group), torch.device(device)
        self._members = set(dist.get_process_group_ranks(self._group))
        # by id: a reference that shows whether the id still belongs to the same optimizer
        self._numbers: dict[int, tuple[Callable[[], Any], int]] = {}
        self._count = 0
        # Keys on their way to the host, each with an event behind its copy.
        self._arriving: list[tuple[Tensor, torch.Event | None]] = []

    def check_equal(self, call: str, values: dict[str, object]) -> None:
        """Raise ValueError on all ranks if a named value differs between ranks."""
        shown = {name: repr(value) for name, value in values.items()}
        everyone: list[Any] = [None] * len(self._members)
        with _missing(call):
            dist.all_gather_object(everyone, shown, self._group)
        for name in sorted(set().union(*everyone)):
            ours = [one.get(name) for one in everyone]
            if len(set(ours)) > 1:
                by_rank = [f"{name}={v} on rank {i}" for i, v in enumerate(ours)]
                raise ValueError(
                    f"{call} with {', '.join(by_rank)}: expected equal values on all ranks of the "
                    "group"
                )

    def begin(
        self,
        optimizer: Optimizer,
        key: int,
        flags: list[Tensor],
        amax: Tensor | None = None,
    ) -> Callable[[], Joined]:
        """Start one asynchronous all-reduce of an optimizer's flags.

        Args:
            optimizer: Optimizer whose gradients were checked.
            key: Number of the iteration, equal on all ranks.
            flags: Flags of this rank, each of shape (); may be empty.
            amax: Largest unscaled gradient of this rank, shape (), for a policy.

        Returns:
            Function that waits for the result: the largest flag and the largest amax, shape ().

        Raises:
            RuntimeError: If another rank made other calls, or does not come.
        """
        self._raise_arrived()
        number = self._number(optimizer)
        # A MAX of the keys and of the negated keys shows whether all ranks have the same.
        numbers = [key, number, -key, -number, 0, 0]
        sent = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        sent[4] = largest_flag(flags, sent.device)
        if amax is not None:
            sent[5] = amax.to(sent.device).double().nan_to_num(torch.inf, torch.inf)
        with _missing("found_inf"):
            work = dist.all_reduce(sent, dist.ReduceOp.MAX, self._group, async_op=True)

        def joined() -> Joined:
            with _missing("found_inf"):
                work.wait()
            differ = self._compare(sent[:4])
            return torch.maximum(sent[4], differ).float(), sent[5]

        return joined

    def _number(self, optimizer: Optimizer) -> int:
        known, number = self._numbers.get(id(optimizer), (None, -1))
        if known is None or known() is not optimizer:
            number = self._count
            self._count += 1
            self._numbers[id(optimizer)] = reference(optimizer), number
        return number

    def _compare(self, keys: Tensor) -> Tensor:
        """Return 1.0, shape (), if the ranks' keys differ; on the CPU that raises."""
        if keys.is_cpu:
            _check_equal_keys(keys)
        else:
            on_host = torch.empty(keys.shape, dtype=keys.dtype, pin_memory=True)
            on_host.copy_(keys, non_blocking=True)
            self._arriving.append((on_host, record_event(keys.device)))
        return (keys[:2] != -keys[2:]).any().double()

    def _raise_arrived(self) -> None:
        while self._arriving:
            keys, event = self._arriving[0]
            if event is not None and not event.query():
                return
            del self._arriving[0]
            _check_equal_keys(keys)

    @torch.no_grad()
    def own_part(self, groups: Groups) -> Groups:
        """Replace each DTensor by this rank's part, if the ranks with other parts are members."""
        own = Groups()
        for key, grads in groups.items():
            own[key] = [*map(self._local, grads)]
        return own

    def _local(self, grad: Any) -> Any:
        mesh = getattr(grad, "device_mesh", None)
        if mesh is None or not self._members.issuperset(mesh.mesh.flatten().tolist()):
            return grad
        return grad.to_local()


def _check_equal_keys(keys: Tensor) -> None:
    """Raise RuntimeError unless the largest iteration and number are the smallest too."""
    iteration, number, first_iteration, first_number = keys.abs().int().tolist()
    if (iteration, number) != (first_iteration, first_number):
        raise RuntimeError(
            f"the ranks did not agree on found_inf: they are at iterations {first_iteration} to "
            f"{iteration} and optimizers {first_number} to {number}, counted from 0 in the order "
            "in which a rank first used them: expected the same calls in the same order; step each "
            "optimizer on all ranks, one without gradients too"
        )


def _checked(group: Any) -> Any:
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"group={group!r}: expected torch.distributed to be initialized; "
            "call init_process_group() before"
        )
    if isinstance(group, str) and group == "world":
        return dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f'group={group!r}: expected a process group with this rank in it, or "world"; '
            "pass what new_group() returns"
        )
    return group


@contextmanager
def _missing(purpose: str) -> Iterator[None]:
    """Name the purpose of a collective that fails."""
    try:
        yield
    except RuntimeError as error:
        first_line = str(error).partition("\n")[0]
        raise RuntimeError(
            f"the ranks did not agree on {purpose}: expected every rank of the group to come to "
            "this call within the group's time-out; look which one ended, or made other calls "
            f"({first_line})"
        ) from error

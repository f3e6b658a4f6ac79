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

# Places in the tensor that an all-reduce sends, float64. A MAX of the keys and of their negatives
# shows whether all ranks have the same.
_KEYS = slice(0, 3)  # the iteration, an optimizer's number, the loss scale
_SCALE = 2
_NEGATED_KEYS = slice(3, 6)
_FLAG = 6
_AMAX = 7
_SIZE = 8


class Ranks:
    """The ranks of a group, with one scaler each.

    Collectives assume that all ranks make the same calls in the same order. Each all-reduce also
    carries keys: the iteration, the number of an optimizer, counted in the order in which a rank
    first used them, and the loss scale. If these differ between ranks, all ranks raise. On a device
    the error comes with a later call, because this one does not wait; the step of this call is
    skipped on all ranks.
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
        # Reduced tensors on their way to the host, each with an event behind its copy.
        self._arriving: list[tuple[Tensor, torch.Event | None]] = []

    def begin(
        self,
        optimizer: Optimizer,
        iteration: int,
        scale: Tensor,
        flags: list[Tensor],
        amax: Tensor | None = None,
    ) -> Callable[[], Joined]:
        """Start one asynchronous all-reduce of an optimizer's flags.

        Args:
            optimizer: Optimizer whose gradients were checked.
            iteration: Number of the iteration.
            scale: Loss scale of the iteration, shape ().
            flags: Flags of this rank, each of shape (); may be empty.
            amax: Largest unscaled gradient of this rank, shape (), for a policy.

        Returns:
            Function that waits for the result: the largest flag and the largest amax, shape ().

        Raises:
            RuntimeError: If another rank made other calls, or does not come.
        """
        self._raise_arrived()
        known = torch.zeros(_SIZE, dtype=torch.float64)
        known[_KEYS] = torch.tensor([iteration, self._number(optimizer), 0])
        sent = known.to(self._device)
        sent[_SCALE] = scale
        sent[_NEGATED_KEYS] = -sent[_KEYS]
        sent[_FLAG] = largest_flag(flags, sent.device)
        if amax is not None:
            sent[_AMAX] = amax.to(sent.device).double().nan_to_num(torch.inf, torch.inf)
        with _explain_failure("found_inf"):
            work = dist.all_reduce(sent, dist.ReduceOp.MAX, self._group, async_op=True)

        def joined() -> Joined:
            with _explain_failure("found_inf"):
                work.wait()
            differ = self._compare(sent)
            return torch.maximum(sent[_FLAG], differ).float(), sent[_AMAX]

        return joined

    def _number(self, optimizer: Optimizer) -> int:
        known, number = self._numbers.get(id(optimizer), (None, -1))
        if known is None or known() is not optimizer:
            number = self._count
            self._count += 1
            self._numbers[id(optimizer)] = reference(optimizer), number
        return number

    def _compare(self, reduced: Tensor) -> Tensor:
        """Return 1.0, shape (), if the ranks' keys differ; on the CPU that raises."""
        if reduced.is_cpu:
            _check_equal_keys(reduced)
        else:
            on_host = torch.empty(reduced.shape, dtype=reduced.dtype, pin_memory=True)
            on_host.copy_(reduced, non_blocking=True)
            self._arriving.append((on_host, record_event(reduced.device)))
        return (reduced[_KEYS] != -reduced[_NEGATED_KEYS]).any().double()

    def _raise_arrived(self) -> None:
        while self._arriving:
            reduced, event = self._arriving[0]
            if event is not None and not event.query():
                return
            del self._arriving[0]
            _check_equal_keys(reduced)

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


def _check_equal_keys(reduced: Tensor) -> None:
    """Raise RuntimeError unless the largest of each key is the smallest too."""
    highest = reduced[_KEYS].tolist()
    lowest = reduced[_NEGATED_KEYS].neg().tolist()
    if highest != lowest:
        raise RuntimeError(
            "the ranks did not agree on found_inf: they are at iterations "
            f"{lowest[0]:.0f} to {highest[0]:.0f}, optimizers {lowest[1]:.0f} to {highest[1]:.0f}, "
            "counted from 0 in the order in which a rank first used them, and scales "
            f"{lowest[2]} to {highest[2]}: expected the same calls in the same order, with equal "
            "constants; step each optimizer on all ranks, one without gradients too"
        )


def _checked(group: Any) -> Any:
    if not dist.is_initialized():
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
def _explain_failure(purpose: str) -> Iterator[None]:
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

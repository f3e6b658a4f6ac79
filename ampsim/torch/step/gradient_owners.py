"""Whose gradients are in a ``.grad``: two tickets' sums in one tensor are an error, not silence.

Only scalers with depth > 0 need this: at depth 0 no two tickets are ever outstanding. A backward pass from a
scaled output tags each ``.grad`` that it writes with the output's ticket, by a hook that autograd calls after
it wrote one. The tag stays on the tensor when it is handed over.
"""

import weakref
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from ampsim.torch.state.version import AnyVersion
from ampsim.torch.threads.register import Ticket

ScaleTicket = Ticket[AnyVersion]
_TAG = "_ampsim_ticket"  # on a gradient: (its ticket, the gradient's _version when it was tagged)


class GradientOwners:
    """The tickets that gradients belong to, as tags on the gradients.

    The parameters it looks at are the leaves of the first scaled output's graph and those of optimizers seen.
    """

    def __init__(self, is_outstanding: Callable[[ScaleTicket], bool]) -> None:
        self._is_outstanding = is_outstanding
        self._hooked = WeakTensorKeyDictionary()  # param -> its hook's handle; a WeakSet would compare elements
        self._seen = WeakTensorKeyDictionary()  # an optimizer's first param -> weak references to all, once hooked
        self._running: dict[int, ScaleTicket] = {}  # backward passes now: autograd's number of it -> ticket

    def watch(self, scaled: Tensor, ticket: ScaleTicket) -> None:
        """Tag the gradients that the backward pass from `scaled` writes."""
        if not self._hooked:
            self._hook(_leaves_of(scaled))
        scaled.register_hook(partial(_begin, weakref.ref(self), ticket))  # type: ignore[no-untyped-call]

    def _hook(self, params: Iterable[Tensor]) -> None:
        for param in params:
            if param.requires_grad and param.is_leaf and param not in self._hooked:
                hook = partial(_written, weakref.ref(self))
                self._hooked[param] = param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def begin(self, ticket: ScaleTicket) -> None:
        """Note that a backward pass reached an output that was scaled by `ticket`."""
        number = torch._C._current_graph_task_id()  # noqa: SLF001 - the only name a backward pass has
        other = self._running.setdefault(number, ticket)
        if other is not ticket:
            raise RuntimeError(_mixed(other, ticket))
        engine = torch.autograd.Variable._execution_engine  # noqa: SLF001 - the way to run code at its end
        engine.queue_callback(partial(self._end, number))

    def _end(self, number: int) -> None:
        self._running.pop(number, None)

    def written(self, grad: Tensor | None) -> None:
        """Note that a backward pass has just written this gradient."""
        ticket = self._running.get(torch._C._current_graph_task_id())  # noqa: SLF001
        if ticket is None or grad is None:
            return
        owner, _ = getattr(grad, _TAG, (None, -1))
        if owner is not None and owner is not ticket and self._is_outstanding(owner):
            raise RuntimeError(_mixed(owner, ticket))
        setattr(grad, _TAG, (ticket, grad._version))  # noqa: SLF001

    def check_owner(self, optimizer: Optimizer, ticket: ScaleTicket) -> None:
        """Refuse to unscale by one ticket what another ticket's backward pass wrote, and nothing has since."""
        params = [param for group in optimizer.param_groups for param in group["params"]]
        seen = self._seen.get(params[0], []) if params else []  # type: ignore[no-untyped-call]
        if len(seen) != len(params) or not all(ref() is param for ref, param in zip(seen, params, strict=True)):
            self._hook(params)
            self._seen[params[0]] = [weakref.ref(param) for param in params]
        for grad in (param.grad for param in params):
            if grad is None:
                continue
            owner, version = vars(grad).get(_TAG, (ticket, -1))
            if owner is not ticket and version == grad._version:  # noqa: SLF001
                raise RuntimeError(
                    f"gradients of ticket {owner.index} would be unscaled by ticket {ticket.index}: expected "
                    "the ticket their loss was scaled with; pass it as ticket="
                )

    @staticmethod
    def release(optimizer: Optimizer) -> None:
        """Take the tags off: after a step the gradients may be zeroed and reused."""
        for group in optimizer.param_groups:
            for param in group["params"]:
                if (grad := param.grad) is not None:
                    vars(grad).pop(_TAG, None)


def _mixed(owner: ScaleTicket, ticket: ScaleTicket) -> str:
    return (
        f"the gradients of tickets {owner.index} and {ticket.index} were added into one .grad: expected "
        "each ticket's own; hand gradients over (and set .grad to None) before the next backward pass"
    )


# Hooks outlive scalers, so they hold them weakly.


def _begin(owners: "weakref.ref[GradientOwners]", ticket: ScaleTicket, _: Tensor) -> None:
    if (alive := owners()) is not None:
        alive.begin(ticket)


def _written(owners: "weakref.ref[GradientOwners]", param: Tensor) -> None:
    if (alive := owners()) is not None:
        alive.written(param.grad)


def _leaves_of(output: Tensor) -> list[Tensor]:
    """List the leaf tensors that a backward pass from `output` writes gradients of."""
    leaves, seen, waiting = [], set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        waiting += [after for after, _ in node.next_functions]
    return leaves

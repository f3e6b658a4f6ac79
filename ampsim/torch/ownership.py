"""Whose gradients are in a ``.grad``: two tickets' sums in one tensor are an error, not silence.

Only scalers with depth > 0 need this: at depth 0 no two tickets are ever outstanding. When a backward pass
ends, each ``.grad`` it wrote is tagged with its ticket; the tag stays on the tensor when it is handed over.
"""

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_TAG = "_ampsim_ticket"  # on a gradient: (its ticket, the gradient's _version when it was tagged)


class Ownership:
    """Tags on gradients.

    The parameters it looks at are those of optimizers seen, and until one was seen, the leaves of the graphs
    of scaled outputs.
    """

    def __init__(self) -> None:
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._leaves: list[weakref.ref[Tensor]] = []

    def watch(self, scaled: Tensor, ticket: Any, is_outstanding: Callable[[Any], bool]) -> None:
        """Tag the gradients that the backward pass from `scaled` writes."""
        if not self._optimizers and not self._leaves:
            self._leaves = [weakref.ref(leaf) for leaf in _leaves_of(scaled)]

        def at_start_of_backward(_: Tensor) -> None:
            engine = torch.autograd.Variable._execution_engine  # noqa: SLF001 - the way to run code at its end
            engine.queue_callback(partial(self._tag, ticket, is_outstanding))

        scaled.register_hook(at_start_of_backward)  # type: ignore[no-untyped-call]

    def _tag(self, ticket: Any, is_outstanding: Callable[[Any], bool]) -> None:
        for grad in self._gradients():
            owner, version = getattr(grad, _TAG, (None, -1))
            if version == grad._version:  # noqa: SLF001 - not written since it was tagged
                continue
            if owner is not None and owner is not ticket and is_outstanding(owner):
                raise RuntimeError(
                    f"the gradients of tickets {owner.index} and {ticket.index} were added into one .grad: expected "
                    "each ticket's own; hand gradients over (and set .grad to None) before the next backward pass"
                )
            setattr(grad, _TAG, (ticket, grad._version))  # noqa: SLF001

    def _gradients(self) -> Iterator[Tensor]:
        params = [p for o in self._optimizers for group in o.param_groups for p in group["params"]]
        leaves = [leaf for ref in self._leaves if (leaf := ref()) is not None]
        return (p.grad for p in params or leaves if p.grad is not None)

    def check(self, optimizer: Optimizer, ticket: Any) -> None:
        """Refuse to unscale by one ticket what another ticket's backward pass wrote."""
        self._optimizers.add(optimizer)
        for group in optimizer.param_groups:
            for param in group["params"]:
                owner, _ = getattr(param.grad, _TAG, (ticket, 0))
                if owner is not ticket:
                    raise RuntimeError(
                        f"gradients of ticket {owner.index} would be unscaled by ticket {ticket.index}: expected "
                        "the ticket their loss was scaled with; pass it as ticket="
                    )

    @staticmethod
    def release(optimizer: Optimizer) -> None:
        """After a step nobody owns the gradients any more: they may be zeroed and reused."""
        for group in optimizer.param_groups:
            for param in group["params"]:
                if hasattr(param.grad, _TAG):
                    delattr(param.grad, _TAG)


def _leaves_of(output: Tensor) -> list[Tensor]:
    """The leaf tensors that a backward pass from `output` writes gradients of."""
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

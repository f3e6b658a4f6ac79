"""Tags on gradients that say which ticket's loss they came from.

With ``depth`` > 0 several iterations are in flight, so a ``.grad`` may hold the sum of two of them,
or be divided by the scale of another one. Autograd tells when a backward pass reaches a scaled
loss, and when it ends. What it has written in between is tagged. A tag is two plain integers, so a
gradient with a tag can still be pickled.
"""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampsim.torch.gradients.collect import parameters

_TAG = "_ampsim_ticket"  # on a gradient: its ticket's key, and its version then


def tag_gradients_of(outputs: Tensor, scaled: Tensor, key: int) -> None:
    """Tag the gradients that the backward pass from a scaled output will write.

    Args:
        outputs: The output before it was scaled.
        scaled: The output after it was scaled.
        key: Key of the ticket.
    """
    if scaled.requires_grad:
        # The hook holds `outputs`, which is behind `scaled` in the graph, so there is no cycle.
        hook = partial(_begin_backward, outputs, key)
        scaled.register_hook(hook)  # type: ignore[no-untyped-call]


def _begin_backward(outputs: Tensor, key: int, _: Tensor) -> None:
    before = [(leaf, *_state(leaf)) for leaf in _leaves_of(outputs)]
    # The way to run code when the pass ends.
    engine = torch.autograd.Variable._execution_engine  # noqa: SLF001
    engine.queue_callback(partial(_end_backward, before, key))


def _end_backward(before: list[tuple[Tensor, Tensor | None, int]], key: int) -> None:
    for leaf, old, old_version in before:
        grad, version = _state(leaf)
        if grad is None or (grad is old and version == old_version):
            continue  # `torch.autograd.grad` writes none
        tag = vars(grad).get(_TAG)
        if tag is not None and tag[0] != key and tag[1] == old_version:
            raise RuntimeError(
                "the gradients of two tickets were added into one .grad: expected each ticket's "
                "own; hand the gradients over and set .grad to None before the next backward pass"
            )
        vars(grad)[_TAG] = key, version


def check_tags(optimizer: Optimizer, key: int) -> None:
    """Raise RuntimeError if a gradient came from another ticket's loss, unwritten since."""
    for param in parameters(optimizer):
        grad, version = _state(param)
        tag = None if grad is None else vars(grad).get(_TAG)
        if tag is not None and tag[0] != key and tag[1] == version:
            raise RuntimeError(
                f"this {type(optimizer).__name__} has gradients of another ticket: expected "
                "the ticket that scaled their loss; pass that one as ticket="
            )


def _state(leaf: Tensor) -> tuple[Tensor | None, int]:
    """Return a gradient and how often it was written.

    None in inference mode, where nothing counts the writes.
    """
    grad = leaf.grad
    if grad is None or grad.is_inference():
        return None, 0
    return grad, grad._version  # noqa: SLF001


def _leaves_of(output: Tensor) -> Iterable[Tensor]:
    """Yield the leaf tensors whose gradients a backward pass from an output writes."""
    if output.grad_fn is None:
        yield output
        return
    seen = {output.grad_fn}
    waiting = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            yield node.variable
        new = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= new
        waiting += new

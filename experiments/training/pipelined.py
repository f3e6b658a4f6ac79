"""A pipeline whose optimizer runs on a background thread, behind the backward passes."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ampsim.torch import OptimizerThread
from ampsim.torch.streams import record_event, wait_for


@dataclass(frozen=True)
class Weights:
    """One version of the weights, which nothing writes again."""

    tensors: tuple[Tensor, ...]
    ready: torch.Event | None  # recorded when they were made; None on the CPU


class Pipelined:
    """Runs the optimizer of a model behind its backward passes.

    Forward and backward run on the caller's thread with the model's own parameters. The optimizer
    runs on an `OptimizerThread` with float32 master weights. Iteration i uses the weights after
    max(0, i - depth) steps, whatever the schedule of threads. Gradients are handed over, not
    shared.

    Args:
        model: Module whose parameters are overwritten with the weights of each iteration.
        depth: Number of steps by which the weights may lag; at least 0.
        thread: Thread of the optimizer.
    """

    def __init__(
        self, model: nn.Module, *, depth: int, thread: OptimizerThread
    ) -> None:
        self.model, self._depth, self._thread = model, depth, thread
        self._params = [p for p in model.parameters() if p.requires_grad]
        self._device = self._params[0].device
        self._masters = [nn.Parameter(p.detach().float().clone()) for p in self._params]
        self._versions: dict[int, Weights] = {0: self._copy()}  # by number of steps
        self._changed = threading.Condition()
        self._iteration = 0
        self._error: BaseException | None = None

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the master weights, for the constructor of the optimizer."""
        return iter(self._masters)

    def _copy(self) -> Weights:
        pairs = zip(self._masters, self._params, strict=True)
        tensors = tuple(master.detach().to(p.dtype, copy=True) for master, p in pairs)
        return Weights(tensors, record_event(self._device))

    @torch.no_grad()
    def _take(self, steps: int) -> None:
        """Give the model the weights after some steps, which are waited for."""
        with self._changed:
            self._changed.wait_for(
                lambda: steps in self._versions or self._error is not None
            )
            if self._error is not None:
                raise RuntimeError(
                    "a step on the optimizer's thread failed"
                ) from self._error
            weights = self._versions[steps]
            self._versions.pop(steps - 1, None)  # later iterations take newer weights
        wait_for(weights.ready, self._device)
        for param, tensor in zip(self._params, weights.tensors, strict=True):
            param.copy_(tensor)

    def forward_backward(
        self, inputs: tuple[Any, ...], scale_loss: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Run the model on ``inputs``, backpropagate its scaled loss, and return that."""
        self._take(max(0, self._iteration - self._depth))
        loss = scale_loss(self.model(*inputs))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self, step: Callable[[], object]) -> None:
        """Run `step` on the optimizer's thread with the gradients."""
        grads = [p.grad for p in self._params]
        for param in self._params:
            param.grad = None
        self._iteration += 1
        self._thread.launch(partial(self._run, self._iteration, grads, step))

    def _run(
        self, steps: int, grads: list[Tensor | None], step: Callable[[], object]
    ) -> None:
        try:
            for master, grad in zip(self._masters, grads, strict=True):
                master.grad = None if grad is None else grad.to(master.dtype)
            step()
            weights = self._copy()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
            raise
        with self._changed:
            self._versions[steps] = weights
            self._changed.notify_all()

    def synchronize(self) -> None:
        """Wait for all steps, and give the model the newest weights."""
        self._take(self._iteration)

"""A small pipeline with the optimizer on a background thread, for use with an asynchronous scaler.

Forward and backward run on the caller's thread with the model's own parameters, which may be float16. The
optimizer runs on an `OptimizerThread` with float32 master weights. Gradients are handed over, not shared. Iteration i
uses the weights after max(0, i - depth) steps, whatever the schedule of threads: weights are versions in the same kind
of register as the scales.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ampsim.torch.state.device import event_on
from ampsim.torch.threads.optimizer_thread import OptimizerThread, shared_thread
from ampsim.torch.threads.register import Register, Ticket


@dataclass(frozen=True, eq=False)
class Weights:
    """One immutable version of the weights."""

    tensors: tuple[Tensor, ...]
    ready: tuple[
        torch.cuda.Event | None, ...
    ]  # for each, recorded when it was made; None on the CPU

    def copy_to(self, params: Iterable[Tensor]) -> None:
        """Overwrite `params`, on the current stream; waits on the device only."""
        self._wait()
        with torch.no_grad():
            for param, tensor in zip(params, self.tensors, strict=True):
                param.copy_(tensor)
        self.keep(self.tensors)

    def _wait(self) -> None:
        for tensor, event in zip(self.tensors, self.ready, strict=True):
            if event is not None:
                torch.cuda.current_stream(tensor.device).wait_event(event)

    def keep(self, tensors: Iterable[Tensor | None]) -> None:
        """Keep the memory of tensors from another stream until the current stream is done with them."""
        for tensor, event in zip(tensors, self.ready, strict=True):
            if event is not None and tensor is not None:
                tensor.record_stream(torch.cuda.current_stream(tensor.device))


class Pipelined:
    """Runs the optimizer of a model behind its backward passes, with the interface of RoundPipe's loop.

    Guarantees:
        * Iteration i uses the weights after max(0, i - depth) steps.
        * Step functions run on one background thread, in order; their exceptions reach the caller.

    Assumes:
        * One thread calls `forward_backward` and `step` alternately; no other code writes the model's parameters.

    Args:
        model: Module whose parameters are overwritten with the weights of each iteration.
        optim_dtype: Dtype of the master weights and their gradients.
        depth: Number of steps by which the weights may lag; at least 0.
        thread: Thread of the optimizer; None uses the process's shared thread.
    """

    def __init__(
        self,
        model: nn.Module,
        optim_dtype: torch.dtype = torch.float32,
        *,
        depth: int = 1,
        thread: OptimizerThread | None = None,
    ) -> None:
        self.model = model
        self.thread = thread or shared_thread()
        self._params = [p for p in model.parameters() if p.requires_grad]
        self._masters = [nn.Parameter(p.detach().to(optim_dtype, copy=True)) for p in self._params]
        self._register: Register[Weights] = Register(self._snapshot(), depth)
        self._ticket: Ticket[Weights] | None = None

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the master weights, for the constructor of the optimizer."""
        return iter(self._masters)

    def _snapshot(self) -> Weights:
        pairs = zip(self._masters, self._params, strict=True)
        tensors = tuple(master.detach().to(p.dtype, copy=True) for master, p in pairs)
        devices = {tensor.device: event_on(tensor.device) for tensor in tensors}
        return Weights(tensors, tuple(devices[tensor.device] for tensor in tensors))

    def forward_backward(
        self,
        input_args: tuple[Any, ...],
        label: Any = None,
        loss_fn: Callable[[Any, Any], Tensor] = lambda outputs, _: outputs,
    ) -> Tensor:
        """Run the model on ``input_args``, backpropagate ``loss_fn(outputs, label)``, and return this loss.

        May be called several times before `step`: gradients accumulate, all with the same weights.
        """
        if self._ticket is None:
            self._ticket = self._register.begin()
            self._ticket.value.copy_to(self._params)
        loss = loss_fn(self.model(*input_args), label)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self, step_fn: Callable[[], object], is_async: bool = True) -> None:
        """Run `step_fn` on the optimizer's thread with the gradients; wait for it unless `is_async`."""
        ticket = self._ticket
        if ticket is None:
            raise RuntimeError(
                "step() without forward_backward(): there are no gradients; call forward_backward() first"
            )
        grads = [p.grad for p in self._params]
        job = self.thread.launch(self._run, ticket, grads, step_fn)
        job.add_done_callback(partial(_close_if_failed, self._register))
        for param in self._params:
            param.grad = None
        self._ticket = None
        if not is_async:
            job.result()

    def _run(
        self, ticket: Ticket[Weights], grads: list[Tensor | None], step_fn: Callable[[], object]
    ) -> None:
        ticket.value.keep(grads)
        for master, grad in zip(self._masters, grads, strict=True):
            if grad is not None:
                grad = grad.to(master.dtype)
                master.grad = grad if master.grad is None else master.grad + grad
        step_fn()
        self._register.apply(ticket, lambda _: self._snapshot())

    def synchronize(self) -> None:
        """Wait for all steps, and give the model the newest weights."""
        self.thread.synchronize()
        self._register.newest.copy_to(self._params)


def _close_if_failed(register: Register[Weights], job: Future[None]) -> None:
    """Wake threads that wait for weights if a step, or earlier work, failed."""
    error = CancelledError("the step was cancelled") if job.cancelled() else Future.exception(job)
    if error is not None:
        register.close(error)

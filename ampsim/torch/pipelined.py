"""A small pipeline with the optimizer on a background thread: the loop that an asynchronous scaler is for.

Forward and backward run on the caller's thread with the model's own parameters, which may be float16. The
optimizer runs on an `OptimizerThread` with float32 master weights. Gradients are handed over, not shared, and
the weights that iteration i computes with are those after max(0, i - depth) steps, whatever the schedule: they
are versions in the same register that holds the scales.
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
    """One version of the weights; never written again."""

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
        """Keep the memory of one tensor per weight, made on another stream, until the current one is done with it."""
        for tensor, event in zip(tensors, self.ready, strict=True):
            if event is not None and tensor is not None:
                tensor.record_stream(torch.cuda.current_stream(tensor.device))


class Pipelined:
    """Runs a model's optimizer behind its backward passes, in the shape of RoundPipe's loop.

    Guarantees:
        * Iteration i computes with the weights after max(0, i - depth) steps.
        * Step functions run on one background thread, in order; their exceptions reach the caller.

    Assumes:
        * One thread calls `forward_backward` and `step`, in turns; the model's parameters are left alone.

    Args:
        model: its parameters are overwritten with the newest permitted weights before each iteration.
        optim_dtype: dtype of the master weights and their gradients.
        depth: how many steps the weights may lag.
        thread: where the optimizer runs; the process's shared one if None.
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
        """Iterate over the master weights: what the optimizer is made with."""
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
        """Run the model on ``input_args`` and backpropagate ``loss_fn(outputs, label)``, which is returned.

        May be called several times before `step`: gradients accumulate, all with the same weights.
        """
        if self._ticket is None:
            self._ticket = self._register.begin()
            self._ticket.value.copy_to(self._params)
        loss = loss_fn(self.model(*input_args), label)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self, step_fn: Callable[[], object], is_async: bool = True) -> None:
        """Hand the gradients over and run `step_fn` on the optimizer's thread; wait for it unless `is_async`."""
        ticket = self._ticket
        if ticket is None:
            raise RuntimeError(
                "step() without a forward_backward(): expected gradients; call that first"
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
    """Tell whoever waits for weights that they will never be made; also if other work failed before."""
    error = CancelledError("the step was cancelled") if job.cancelled() else Future.exception(job)
    if error is not None:
        register.close(error)

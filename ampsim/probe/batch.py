"""Gradients of the current step, until their counts are on the host."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from ampsim.core.formats import binade
from ampsim.probe.async_host_copy import Fetched
from ampsim.probe.counting import counts_of_each, exponent_counts

Kind = Literal["parameter", "activation"]
Key = tuple[Kind, str]


class HasScale(Protocol):
    """A GradScaler, torch's or ampsim's."""

    def get_scale(self) -> float:
        """Return the scale of the backward pass in progress."""


class Counts(NamedTuple):
    """Counts of gradients that were counted in one pass."""

    scale: float
    keys: list[Key]
    fetched: Fetched  # one of (len(keys), 281)


class Batch:
    """Gradients of one step.

    Gradients of parameters are counted together when the backward pass ends: their hooks do no
    work, as code that is not in the cache costs more than the counting. Gradients of activations
    are freed earlier, so their hooks count them.
    """

    def __init__(self, source: float | HasScale) -> None:
        self._source = source
        self._scale: float | None = None
        self._waiting: dict[Key, Tensor] = {}  # parameters to count later
        self._graph_task = -1  # the backward pass with a registered callback
        # Counts of single gradients, not yet on their way to the host.
        self._counted: dict[torch.device, list[tuple[Key, Tensor]]] = {}
        self._sent: list[Counts] = []

    def count_later(self, key: Key, param: Tensor) -> None:
        """Count the gradient of a parameter when the backward pass in progress is over."""
        self._waiting[key] = param
        task = torch._C._current_graph_task_id()  # noqa: SLF001
        # Another id is another pass: the previous one may have raised, or this one is nested in it.
        if task != self._graph_task:
            self._graph_task = task
            # After the callbacks of DistributedDataParallel, which are registered by the end of the
            # backward pass.
            _call_back(lambda: _call_back(self._count_waiting))

    def count_now(self, key: Key, grad: Tensor) -> None:
        """Count a gradient at once."""
        scale = self.scale
        values = grad.detach()
        if values.is_sparse:
            values = values.coalesce().values()
        if _must_be_divided(scale):
            values = values.float() / scale
        self._counted.setdefault(values.device, []).append(
            (key, exponent_counts(values))
        )

    def finish(self) -> list[Counts]:
        """Return the counts of the finished step without waiting."""
        self._count_waiting()
        for pairs in self._counted.values():
            self._send(pairs, torch.stack)
        sent = self._sent
        self._sent = []
        self._counted = {}
        self._scale = None
        return sent

    @property
    def scale(self) -> float:
        """Loss scale of the step; read from its source once per step."""
        if self._scale is None:
            source = self._source
            self._scale = float(
                source.get_scale() if hasattr(source, "get_scale") else source
            )
        return self._scale

    def _count_waiting(self) -> None:
        waiting = self._waiting
        self._waiting = {}
        singly = bool(waiting) and _must_be_divided(self.scale)
        together: dict[torch.device, list[tuple[Key, Tensor]]] = {}
        for key, param in waiting.items():
            grad = param.grad
            if grad is None:
                # An optimizer stepped within the backward pass and cleared it.
                continue
            if singly or grad.is_sparse:
                self.count_now(key, grad)
            else:
                together.setdefault(grad.device, []).append((key, grad))
        for pairs in together.values():
            self._send(pairs, counts_of_each)

    def _send(
        self, pairs: list[tuple[Key, Tensor]], count: Callable[[list[Tensor]], Tensor]
    ) -> None:
        """Count, and start the copy to the host."""
        counts = count([tensor for _, tensor in pairs])
        self._sent.append(
            Counts(self.scale, [key for key, _ in pairs], Fetched(counts))
        )


def _call_back(function: Callable[[], None]) -> None:
    """Make the backward pass in progress call a function when it is over."""
    torch.autograd.Variable._execution_engine.queue_callback(function)  # noqa: SLF001


def divides(scale: float) -> bool:
    """Return whether gradients can be divided by a scale at all."""
    return 0 < scale < math.inf


def _must_be_divided(scale: float) -> bool:
    """Return whether elements must be divided because the scale is no power of two."""
    return divides(scale) and binade(scale) is None

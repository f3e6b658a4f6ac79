"""A probe in the backward pass: a histogram of every gradient, each read once while it is still in the cache."""

import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ampsim.core.checks import whole
from ampsim.core.formats import FP16, Format
from ampsim.probe.histogram import DTYPES, Histogram, exponent_counts, merge_counts

Kind = Literal["parameter", "activation"]


class HasScale(Protocol):
    """A GradScaler, torch's or ampsim's."""

    def get_scale(self) -> float:
        """The scale of the backward pass in progress."""


class Row(NamedTuple):
    """One gradient at one step."""

    step: int
    kind: Kind
    """Whether the gradient is that of a parameter, or of a module's output."""
    name: str
    """The parameter's, or the module's (its i-th output's: ``name[i]``)."""
    scale: float
    """The loss scale that was divided out."""
    histogram: Histogram
    """Of the unscaled gradient."""


class _Entry(NamedTuple):
    scale: float
    counts: Tensor  # `exponent_counts`, on the gradient's device


class Probe:
    """Counts the exponents of gradients in the backward pass, every `every` steps.

    Hooks see gradients as the backward pass left them, that is scaled, whether the step is skipped or not. The scale
    is divided out: a power of two by moving the histogram, which is exact; any other by a float32 division before
    the count. A scale of 0 or inf cannot be divided out and is left in.

    With gradient accumulation the last backward pass of a step counts for parameters, whose gradient is then
    complete; activations' gradients add up. Sparse gradients are counted by their stored values.

    >>> model = nn.Linear(2, 1)
    >>> with Probe(model, scale=1024.0) as probe:
    ...     (model(torch.ones(3, 2)).sum() * 1024.0).backward()
    ...     probe.step()
    >>> [(row.name, row.histogram.largest) for row in probe.drain()]
    [('bias', 3.0), ('weight', 3.0)]

    Args:
        model: a module, or its named parameters as pairs or a mapping.
        every: steps from one sample to the next; the first step is sampled.
        scale: what the loss is multiplied by, or the scaler that knows. Of a scaler whose scale is on a device,
            each sampled step waits for it once, in the first hook.
        activations: also gradients of the outputs of modules without submodules; needs a module.

    Raises:
        ValueError: `every` below 1; TypeError: parameters of another dtype than float32, float16 and bfloat16, or
            activations without a module.
    """

    def __init__(
        self,
        model: nn.Module | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
        *,
        every: int = 1,
        scale: float | HasScale = 1.0,
        activations: bool = False,
    ) -> None:
        self._every = whole("every", every, 1, "the default is 1")
        self._parameters: dict[str, Any] = {name: param for name, param in _named(model) if param.requires_grad}
        for name, param in self._parameters.items():
            if param.dtype not in DTYPES:
                raise TypeError(f"{name} is {param.dtype}: expected float32, float16 or bfloat16; leave it out")
        self._modules = _leaves(model) if activations else {}
        self._source = scale
        self._scale: float | None = None
        self._step = 0
        self._entries: dict[tuple[int, Kind, str], _Entry] = {}
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        for name, param in self._parameters.items():
            hook = self._parameter_hook(name)
            self._hooks.callback(param.register_post_accumulate_grad_hook(hook).remove)
        for name, module in self._modules.items():
            self._hooks.callback(module.register_forward_hook(self._forward_hook(name)).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    @property
    def sampling(self) -> bool:
        """Whether the step in progress is sampled."""
        return self._step % self._every == 0

    def step(self) -> None:
        """Say that a step is over: call once for every step, after its backward passes, skipped or not."""
        self._step += 1
        self._scale = None

    def drain(self) -> list[Row]:
        """All since the last call, in the order in which the backward passes reached them.

        Waits for the devices of the gradients; call it between steps.
        """
        entries, self._entries = self._entries, {}
        # One copy a device, not one an entry.
        groups: dict[torch.device, list[Tensor]] = {}
        for entry in entries.values():
            groups.setdefault(entry.counts.device, []).append(entry.counts)
        columns = {device: iter(torch.stack(group).cpu().numpy()) for device, group in groups.items()}
        return [
            Row(*key, scale, _unscaled(Histogram.from_counts(next(columns[counts.device])), scale))
            for key, (scale, counts) in entries.items()
        ]

    def _parameter_hook(self, name: str) -> Any:
        def hook(param: Tensor) -> None:
            if self.sampling and param.grad is not None:
                self._entries[self._step, "parameter", name] = self._count(param.grad)

        return hook

    def _forward_hook(self, name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, outputs: Any) -> None:
            if not self.sampling:
                return
            many = isinstance(outputs, (tuple, list))
            for i, output in enumerate(outputs if many else [outputs]):
                # A module's hooks on its gradients would forbid to change its output in place; a tensor's do not.
                if getattr(output, "requires_grad", False):
                    output.register_hook(self._activation_hook(f"{name}[{i}]" if many else name))

        return hook

    def _activation_hook(self, name: str) -> Any:
        def hook(grad: Tensor) -> None:
            if not self.sampling or grad.dtype not in DTYPES:
                return
            key: tuple[int, Kind, str] = (self._step, "activation", name)
            entry, before = self._count(grad), self._entries.get(key)
            self._entries[key] = (
                entry if before is None else before._replace(counts=merge_counts(before.counts, entry.counts))
            )

        return hook

    def _count(self, grad: Tensor) -> _Entry:
        if self._scale is None:
            source = self._source
            self._scale = float(source.get_scale() if hasattr(source, "get_scale") else source)
        values = grad.detach().coalesce().values() if grad.is_sparse else grad.detach()
        if _divides(self._scale) and _exponent(self._scale) is None:
            values = values.float() / self._scale
        return _Entry(self._scale, exponent_counts(values))


def ceilings(rows: Iterable[Row], fmt: Format = FP16) -> npt.NDArray[np.float64]:
    """For each step the largest power of two at which no gradient in `rows` would overflow: what replay takes.

    Exact for the gradients probed; what overflowed inside a module and vanished before its output is not seen. A
    step that did overflow at its scale gets the next lower power of two: an upper bound, as how far down it would
    have overflowed cannot be known; a step at scale 0, of which nothing is known, gets 0.

    Returns:
        shape (steps,), one for each step with rows, in order. `ampsim.replay_ceilings` takes them for consecutive
        steps, as they are if the probe sampled every step; it refuses none at all.
    """
    least: dict[int, float] = {}
    for row in rows:
        unknown = row.histogram.not_finite or not _divides(row.scale)
        ceiling = _below(row.scale) if unknown else row.histogram.ceiling(fmt)
        least[row.step] = min(least.get(row.step, math.inf), ceiling)
    return np.array([least[step] for step in sorted(least)], np.float64)


def _named(model: Any) -> Iterable[tuple[str, Tensor]]:
    if isinstance(model, nn.Module):
        return model.named_parameters()
    return model.items() if isinstance(model, Mapping) else model


def _leaves(model: Any) -> dict[str, nn.Module]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"activations=True with a {type(model).__name__}: expected a module; pass the model itself")
    return {name: module for name, module in model.named_modules() if not list(module.children())}


def _divides(scale: float) -> bool:
    return 0 < scale < math.inf


def _exponent(scale: float) -> int | None:
    """log2 of a power of two, of other numbers None."""
    mantissa, exponent = math.frexp(scale)
    return exponent - 1 if mantissa == 0.5 else None


def _unscaled(histogram: Histogram, scale: float) -> Histogram:
    exponent = _exponent(scale) if _divides(scale) else None
    return histogram.times_power(-exponent) if exponent else histogram


def _below(scale: float) -> float:
    """The largest power of two below a scale; 0 below 0, and float32's largest below inf."""
    if not _divides(scale):
        return 2.0**127 if scale == math.inf else 0.0
    mantissa, exponent = math.frexp(scale)
    return math.ldexp(0.5, exponent - (mantissa == 0.5))

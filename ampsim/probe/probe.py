"""A probe in the backward pass: a histogram of every gradient."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from ampsim.core.formats import FP16, Format, binade
from ampsim.core.validation import as_float, as_int
from ampsim.probe.batch import Batch, Counts, HasScale, Key, Kind, divides
from ampsim.probe.binades import BINS
from ampsim.probe.counting import DTYPES
from ampsim.probe.histogram import Histogram, largest_of, moved

Model = nn.Module | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]


class GradientRecord(NamedTuple):
    """One gradient at one step.

    Attributes:
        step: the step, from 0.
        kind: whether the gradient is that of a parameter, or of a module's output.
        name: the parameter's, or the module's (its i-th output's: ``name[i]``).
        scale: the loss scale that was divided out.
        histogram: of the unscaled gradient.
    """

    step: int
    kind: Kind
    name: str
    scale: float
    histogram: Histogram


def _rows_of(step: int, counted: Counts) -> Iterator[GradientRecord]:
    """Yield one row per gradient, in the order of `counted`; waits for it."""
    counts = counted.fetched.wait()[0].numpy()
    exponent = binade(counted.scale) or 0
    histograms = moved(counts[:, :BINS], -exponent) if exponent else counts[:, :BINS]
    largest = np.ldexp(largest_of(counts).astype(np.float64), -exponent).tolist()
    for (kind, name), histogram, top in zip(counted.keys, histograms, largest, strict=True):
        yield GradientRecord(step, kind, name, counted.scale, Histogram(histogram, top))


class Probe:
    """Counts the exponents of gradients in the backward pass, every `every` steps, until it is closed.

    Gradients are taken as the backward pass left them, that is scaled, whether the step is skipped or not. Those of
    parameters are read when it ends: averaged, under DistributedDataParallel; an optimizer that steps within it comes
    too early. The scale is divided out: a power of two by moving the histogram, which is exact; any other by a
    float32 division before the count. A scale of 0 or inf cannot be divided out and is left in.

    With gradient accumulation the last backward pass of a step counts for parameters, whose gradient is then
    complete; activations' gradients add up. Sparse gradients are counted by their stored values. Until it is drained
    each gradient of each sampled step takes 2 kB of memory.

    It listens from the moment that it is made; `close`, or the end of a ``with`` block, takes its hooks off the model.

    >>> import torch
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
            each sampled step waits for it once. A number is positive and finite.
        activations: also gradients of the outputs of modules without submodules; needs a module.

    Raises:
        ValueError: `every` below 1, a number that is no scale, or nothing to watch; TypeError: parameters of another
            dtype than float32, float16 and bfloat16, or activations without a module.
    """

    def __init__(
        self,
        model: Model,
        *,
        every: int = 1,
        scale: float | HasScale = 1.0,
        activations: bool = False,
    ) -> None:
        self._every = as_int("every", every, 1, "the default is 1")
        parameters = {name: param for name, param in _named(model) if param.requires_grad}
        for name, param in parameters.items():
            if param.dtype not in DTYPES:
                raise TypeError(
                    f"{name} is {param.dtype}: expected float32, float16 or bfloat16; leave it out"
                )
        modules = _leaves(model) if activations else {}
        if not parameters and not modules:
            raise ValueError(
                "a model without parameters that need a gradient: expected at least one; pass the model that is "
                "trained, or activations=True"
            )
        self._step = 0
        self._batch = Batch(_checked(scale))
        self._counted: list[tuple[int, Counts]] = []  # with their step
        self._closed = False
        with ExitStack() as hooks:  # if one is refused, the others go
            for name, param in parameters.items():
                hook = partial(self._on_parameter, ("parameter", name))
                hooks.callback(param.register_post_accumulate_grad_hook(hook).remove)  # type: ignore[no-untyped-call]
            for name, module in modules.items():
                hooks.callback(module.register_forward_hook(partial(self._on_forward, name)).remove)
            self._hooks = hooks.pop_all()

    def __enter__(self) -> Self:
        if self._closed:
            raise RuntimeError("this probe is closed: expected an open one; make another")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the hooks off the model; what was counted can still be drained. Twice is once."""
        self._closed = True
        self._hooks.close()

    @property
    def sampling(self) -> bool:
        """Whether the step in progress is sampled."""
        return self._step % self._every == 0

    def step(self) -> None:
        """Say that a step is over: call once for every step, after its backward passes, skipped or not."""
        self._finish()
        self._step += 1

    def drain(self, *, wait: bool = True) -> list[GradientRecord]:
        """Return the rows since the last call, step by step; call it between steps.

        Args:
            wait: for the devices of the gradients. If not, the steps that have arrived, and the others next time.
        """
        self._finish()
        late = (
            step for step, counted in self._counted if not wait and not counted.fetched.arrived()
        )
        first_late = min(late, default=math.inf)
        rows: dict[tuple[int, Kind, str], GradientRecord] = {}
        for row in itertools.chain(
            *(_rows_of(*pair) for pair in self._counted if pair[0] < first_late)
        ):
            key = row[:3]
            if row.kind == "activation" and key in rows:
                row = row._replace(histogram=rows[key].histogram + row.histogram)
            rows[key] = row
        self._counted = [pair for pair in self._counted if pair[0] >= first_late]
        return list(rows.values())

    def _finish(self) -> None:
        self._counted += [(self._step, counted) for counted in self._batch.finish()]

    def _on_parameter(self, key: Key, param: Tensor) -> None:
        if self.sampling:
            self._batch.leave(key, param)

    def _on_forward(self, name: str, _module: nn.Module, _inputs: object, outputs: Any) -> None:
        if not self.sampling:
            return
        many = isinstance(outputs, (tuple, list))
        for i, output in enumerate(outputs if many else [outputs]):
            # A module's hooks on its gradients would forbid to change its output in place; a tensor's do not.
            if getattr(output, "requires_grad", False):
                output.register_hook(
                    partial(self._on_activation, ("activation", f"{name}[{i}]" if many else name))
                )

    def _on_activation(self, key: Key, grad: Tensor) -> None:
        if self.sampling and grad.dtype in DTYPES:
            self._batch.add(key, grad)


def overflow_thresholds(
    rows: Iterable[GradientRecord], fmt: Format = FP16
) -> npt.NDArray[np.float64]:
    """Return for each step the largest power of two at which no gradient in `rows` would overflow: what replay takes.

    Exact for the gradients probed; what overflowed inside a module and vanished before its output is not seen. A
    step that did overflow at its scale gets the next lower power of two: an upper bound, as how far down it would
    have overflowed cannot be known; a step at scale 0, of which nothing is known, gets 0.

    Returns:
        shape (steps,), one for each step with rows, in order. `ampsim.replay_thresholds` takes them for consecutive
        steps, as they are if the probe sampled every step; it refuses none at all.
    """
    least: dict[int, float] = {}
    for row in rows:
        unknown = row.histogram.not_finite or not divides(row.scale)
        threshold = _below(row.scale) if unknown else row.histogram.overflow_threshold(fmt)
        least[row.step] = min(least.get(row.step, math.inf), threshold)
    return np.array([least[step] for step in sorted(least)], np.float64)


def _named(model: Model) -> Iterable[tuple[str, Tensor]]:
    if isinstance(model, nn.Module):
        return model.named_parameters()
    return model.items() if isinstance(model, Mapping) else model


def _checked(scale: float | HasScale) -> float | HasScale:
    """Refuse a number by which no loss can be multiplied; a scaler's own are taken as they come."""
    if not hasattr(scale, "get_scale") and not divides(as_float("scale", scale)):
        raise ValueError(
            f"scale={scale!r}: expected a positive finite number; for a scale that changes pass the scaler"
        )
    return scale


def _leaves(model: Model) -> dict[str, nn.Module]:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"activations=True with a {type(model).__name__}: expected a module; pass the model itself"
        )
    return {name: module for name, module in model.named_modules() if not list(module.children())}


def _below(scale: float) -> float:
    """Return the largest power of two below a scale; 0 below 0, and float32's largest below inf."""
    if not divides(scale):
        return 2.0**127 if scale == math.inf else 0.0
    mantissa, exponent = math.frexp(scale)
    return math.ldexp(0.5, exponent - (mantissa == 0.5))

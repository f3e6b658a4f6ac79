"""A probe in the backward pass: exponent histograms of gradients."""

import itertools
import math
from collections.abc import Iterable, Iterator
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


class GradientRecord(NamedTuple):
    """Histogram of one gradient at one step.

    Attributes:
        step: Number of the step, from 0.
        kind: "parameter", or "activation" for the output of a module.
        name: Name of the parameter or module; ``name[i]`` for the i-th of several outputs.
        scale: Loss scale that was divided out.
        histogram: Histogram of the unscaled gradient.
    """

    step: int
    kind: Kind
    name: str
    scale: float
    histogram: Histogram


def _rows_of(step: int, counted: Counts) -> Iterator[GradientRecord]:
    """Yield one record per gradient, in the order of `counted`; waits for it."""
    counts = counted.fetched.wait().numpy()
    exponent = binade(counted.scale) or 0
    histograms = moved(counts[:, :BINS], -exponent) if exponent else counts[:, :BINS]
    largest = np.ldexp(largest_of(counts).astype(np.float64), -exponent).tolist()
    for (kind, name), histogram, top in zip(
        counted.keys, histograms, largest, strict=True
    ):
        yield GradientRecord(step, kind, name, counted.scale, Histogram(histogram, top))


class Probe:
    """Records exponent histograms of gradients in the backward pass.

    The probe reads scaled gradients, in skipped steps too. Gradients of parameters are read at the
    end of the backward pass, after the average of DistributedDataParallel; the optimizer must step
    later. The scale is divided out: a power of two shifts the histogram, which is exact; another
    scale divides the gradients in float32 before the count. A scale of 0 or inf is not divided out.

    With gradient accumulation, the last backward pass of a step counts for parameters, whose
    gradients are then complete; counts of activations are added. Sparse gradients are counted by
    their stored values. Each gradient of each sampled step takes 2 kB of memory until `drain`.

    The hooks are active from construction; `close`, or the end of a ``with`` block, removes them
    from the model.

    >>> import torch
    >>> from ampsim.probe import Probe
    >>> model = torch.nn.Linear(2, 1)
    >>> with Probe(model, scale=1024.0) as probe:
    ...     (model(torch.ones(3, 2)).sum() * 1024.0).backward()
    ...     probe.step()
    >>> [(row.name, row.histogram.largest) for row in probe.drain()]
    [('bias', 3.0), ('weight', 3.0)]

    Args:
        model: Module whose gradients are recorded.
        every: Number of steps between two samples, at least 1; step 0 is sampled.
        scale: Loss scale, a positive finite number, or a scaler with ``get_scale()``. If its scale
            is on a device, each sampled step waits for it once.
        activations: Whether to record gradients of the outputs of modules without submodules.

    Raises:
        TypeError: If a parameter is neither float32, float16, nor bfloat16.
        ValueError: If `every` is below 1, `scale` is invalid, or the model has no trainable
            parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 1,
        scale: float | HasScale = 1.0,
        activations: bool = False,
    ) -> None:
        self._every = as_int("every", every, 1, "the default is 1")
        parameters = {
            name: param
            for name, param in model.named_parameters()
            if param.requires_grad
        }
        for name, param in parameters.items():
            if param.dtype not in DTYPES:
                raise TypeError(
                    f"{name} is {param.dtype}: expected float32, float16, or bfloat16; omit this parameter"
                )
        modules = {}
        if activations:
            modules = {
                name: each
                for name, each in model.named_modules()
                if not [*each.children()]
            }
        if not parameters and not modules:
            raise ValueError(
                "a model without parameters that require a gradient: expected at least one; pass the trained "
                "model, or activations=True"
            )
        self._step = 0
        if not hasattr(scale, "get_scale") and not divides(as_float("scale", scale)):
            raise ValueError(
                f"scale={scale!r}: expected a positive finite number; for a dynamic scale pass the scaler"
            )
        self._batch = Batch(scale)
        self._counted: list[tuple[int, Counts]] = []  # with their step
        with ExitStack() as hooks:  # if one raises, the others are removed
            for name, param in parameters.items():
                hook = partial(self._on_parameter, ("parameter", name))
                hooks.callback(param.register_post_accumulate_grad_hook(hook).remove)  # type: ignore[no-untyped-call]
            for name, module in modules.items():
                hooks.callback(
                    module.register_forward_hook(partial(self._on_forward, name)).remove
                )
            self._hooks = hooks.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the hooks from the model; `drain` still works. Idempotent."""
        self._hooks.close()

    @property
    def sampling(self) -> bool:
        """Whether the current step is sampled."""
        return self._step % self._every == 0

    def step(self) -> None:
        """End a step.

        Call once per step, after its backward passes, for skipped steps too.
        """
        self._finish()
        self._step += 1

    def drain(self) -> list[GradientRecord]:
        """Return the records since the last call; waits for the device.

        Call it between steps.

        Returns:
            One record per gradient and sampled step, in the order of steps.
        """
        self._finish()
        counted = self._counted
        self._counted = []
        rows: dict[tuple[int, Kind, str], GradientRecord] = {}
        for row in itertools.chain(*(_rows_of(*pair) for pair in counted)):
            key = row[:3]
            if row.kind == "activation" and key in rows:
                row = row._replace(histogram=rows[key].histogram + row.histogram)
            rows[key] = row
        return list(rows.values())

    def _finish(self) -> None:
        self._counted += [(self._step, counted) for counted in self._batch.finish()]

    def _on_parameter(self, key: Key, param: Tensor) -> None:
        if self.sampling:
            self._batch.count_later(key, param)

    def _on_forward(
        self, name: str, _module: nn.Module, _inputs: object, outputs: Any
    ) -> None:
        if not self.sampling:
            return
        if not isinstance(outputs, (tuple, list)):
            self._watch(name, outputs)
            return
        for i, output in enumerate(outputs):
            self._watch(f"{name}[{i}]", output)

    def _watch(self, name: str, output: Any) -> None:
        # A module's backward hooks forbid in-place changes of its output; hooks of a tensor do not.
        if getattr(output, "requires_grad", False):
            output.register_hook(partial(self._on_activation, ("activation", name)))

    def _on_activation(self, key: Key, grad: Tensor) -> None:
        if self.sampling and grad.dtype in DTYPES:
            self._batch.count_now(key, grad)


def overflow_thresholds(
    rows: Iterable[GradientRecord], fmt: Format = FP16
) -> npt.NDArray[np.float64]:
    """Return the overflow threshold of each step, the input of `ampsim.replay_thresholds`.

    The threshold is the largest power of two at which no recorded gradient overflows. It is exact
    for the recorded gradients; an overflow inside a module that does not reach its output is not
    seen. For a step that overflowed, the result is the next power of two below its scale, an upper
    bound. For a step at scale 0 the result is 0.

    Args:
        rows: Records of a `Probe`.
        fmt: Floating-point format of the gradients.

    Returns:
        Array of shape ``(steps,)`` and dtype float64, one threshold per step with records, in
        order. `ampsim.replay_thresholds` treats the steps as consecutive, so sample each step
        (``every=1``).
    """
    least: dict[int, float] = {}
    for row in rows:
        unknown = row.histogram.not_finite or not divides(row.scale)
        threshold = (
            _below(row.scale) if unknown else row.histogram.overflow_threshold(fmt)
        )
        least[row.step] = min(least.get(row.step, math.inf), threshold)
    return np.array([least[step] for step in sorted(least)], np.float64)


def _below(scale: float) -> float:
    """Return the largest power of two below a scale; 0 below 0, and float32's largest below inf."""
    if not divides(scale):
        return 2.0**127 if scale == math.inf else 0.0
    mantissa, exponent = math.frexp(scale)
    return math.ldexp(0.5, exponent - (mantissa == 0.5))

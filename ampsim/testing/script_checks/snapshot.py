"""What an optimizer carries at one moment, as numbers."""

import gc
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ampsim.testing.script_checks.trace import OptimizerTrace

Array = npt.NDArray[np.float64]
SAMPLE = 4096  # elements of each tensor that are kept
SHAPES = 4  # parameters whose averages are looked for
STRAIGHT = 0.05  # of a move, that rounding may lead aside
LEAST, MOST = 1e-5, 0.999  # part of the way that an average moves in some steps
TINY = 1e-300  # for a division
ROUNDING = 4 * float(np.finfo(np.float32).eps)  # relative


@dataclass
class Snapshot:
    """What one optimizer carries at one moment.

    Attributes:
        parameters: By the id of each parameter that has received gradients, its first elements.
        scale: The current loss scale.
        events: Number of events of the trial so far.
    """

    parameters: dict[int, Array]
    scale: float
    events: int

    def has_equal_parameters(self, other: "Snapshot") -> bool:
        """Return whether no parameter differs by more than rounding; NaN equals nothing."""
        return all(
            np.allclose(old, other.parameters[key], rtol=ROUNDING, atol=0)
            for key, old in self.parameters.items()
        )


def take_snapshot(trace: OptimizerTrace, events: int) -> Snapshot:
    """Return what an optimizer carries now.

    Args:
        trace: Of the optimizer.
        events: Number of events of the trial so far.
    """
    return Snapshot(
        parameters={id(param): sample(param) for param in trace.trained},
        scale=trace.scaler.scale if trace.scaler else 1.0,
        events=events,
    )


def tensors_like(
    params: Sequence[Tensor], traces: Iterable[OptimizerTrace]
) -> dict[int, list[Tensor]]:
    """Return, by the index of a parameter, all other tensors of its shape, which may be averages of
    it.
    """
    known = {id(tensor) for param in params for tensor in (param, param.grad)}
    for trace in traces:
        known |= {id(tensor) for tensor in trace.first}
        for values in trace.optimizer.state.values():
            known |= {id(value) for value in values.values()}
    storages = {param.untyped_storage().data_ptr() for param in params}
    indices = {params[index].shape: index for index in watched(params)}
    found: dict[int, list[Tensor]] = {index: [] for index in indices.values()}
    for tensor in gc.get_objects():
        is_tensor = type(tensor) in (Tensor, torch.nn.Parameter)
        if not is_tensor or tensor.shape not in indices or id(tensor) in known:
            continue
        is_plain = tensor.grad_fn is None and tensor.is_floating_point()
        if is_plain and tensor.untyped_storage().data_ptr() not in storages:
            found[indices[tensor.shape]].append(tensor)
    return found


def watched(params: Sequence[Tensor]) -> list[int]:
    """Return the indices of the parameters whose averages are looked for: matrices of rare shapes."""
    shapes = [param.shape for param in params]
    matrices = [index for index, param in enumerate(params) if param.dim() > 1]
    return sorted(matrices, key=lambda index: shapes.count(shapes[index]))[:SHAPES]


def sample(tensor: Tensor) -> Array:
    """Return a copy of the first elements of a tensor, as float64."""
    values = tensor.detach()
    values = values.coalesce().values() if values.is_sparse else values
    values = torch.view_as_real(values) if values.is_complex() else values
    return values.reshape(-1)[:SAMPLE].double().cpu().numpy().copy()


def contents(tensors: Sequence[Tensor]) -> object:
    """Return what differs after a write to some of the tensors, or to their ``data``, which has no
    version.
    """
    found = []
    for tensor in tensors:
        if tensor.layout == torch.strided:
            values = tensor.detach().flatten()[:8].tolist()
            # Texts, as NaN is not equal to NaN.
            found.append((id(tensor), tensor._version, str(values)))
    return found


def shift(tensor: Tensor) -> None:
    """Double every other element of a matrix, so that an average shows how it moves back.

    A number that is computed again of a parameter does not move back on a straight line, whatever
    multiple of the parameter it is.
    """
    with suppress(RuntimeError):  # of a view that cannot be written
        tensor.data[::2, ::2].mul_(2)


def is_averaged(parameter: Array, olds: Sequence[Array], news: Sequence[Array]) -> bool:
    """Return whether one of some arrays has moved a part of the way to a parameter, as an average
    does.
    """
    # An array that stays as it is, as that of the best parameters, is no average.
    moved = _without(news, olds)
    size = float(parameter @ parameter)
    for old in _without(olds, news):
        gap = parameter - old
        # From far away, each number that is not as far is nearer to the parameter.
        is_near = float(gap @ gap) < size
        if is_near and any(_is_part_of(new - old, gap) for new in moved):
            return True
    return False


def _without(arrays: Sequence[Array], others: Sequence[Array]) -> list[Array]:
    """Return the arrays that are left when each of the others has taken away one of its values."""
    counts = Counter(array.tobytes() for array in arrays)
    counts.subtract(array.tobytes() for array in others)
    values = {array.tobytes(): array for array in arrays}
    return [array for value, array in values.items() if counts[value] > 0]


def _is_part_of(move: Array, gap: Array) -> bool:
    """Return whether a move leads along a gap, and not to its end, as a copy does."""
    part = float(move @ gap) / max(float(gap @ gap), TINY)
    rest = move - part * gap
    is_along = float(rest @ rest) <= STRAIGHT**2 * float(move @ move)
    return is_along and LEAST < part < MOST

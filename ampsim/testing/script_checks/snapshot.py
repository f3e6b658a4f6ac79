"""What an optimizer carries at one moment, as numbers."""

import gc
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ampsim.testing.script_checks.trace import OptimizerTrace

Array = npt.NDArray[np.float64]
SAMPLE = 4096  # elements of each tensor that are kept
SHAPES = 4  # parameters whose averages are looked for
ROUNDING = 4 * float(np.finfo(np.float32).eps)  # relative


@dataclass
class Snapshot:
    """What one optimizer carries at one moment.

    Attributes:
        parameters: The first elements of each parameter.
        averages: By the index of a parameter, all other tensors of its shape, which may be averages
            of it.
        scale: The current loss scale.
        events: Number of events of the trial so far.
    """

    parameters: list[Array]
    averages: dict[int, list[Array]]
    scale: float
    events: int

    def has_equal_parameters(self, other: "Snapshot") -> bool:
        """Return whether no parameter differs by more than rounding; NaN equals nothing."""
        pairs = zip(self.parameters, other.parameters, strict=True)
        return all(np.allclose(old, new, rtol=ROUNDING, atol=0) for old, new in pairs)


def take_snapshot(
    trace: OptimizerTrace, others: Iterable[OptimizerTrace], events: int
) -> Snapshot:
    """Return what an optimizer carries now.

    Args:
        trace: Of the optimizer.
        others: Of all optimizers, whose states hold no averages.
        events: Number of events of the trial so far.
    """
    params = trace.parameters
    alike = tensors_like(params, others)
    return Snapshot(
        parameters=[sample(param) for param in params],
        averages={key: [*map(sample, same)] for key, same in alike.items()},
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
    return [
        (
            id(tensor),
            tensor._version,
            str(tensor.detach().flatten()[:8].tolist()),
        )  # as NaN != NaN
        for tensor in tensors
        if tensor.layout == torch.strided
    ]


def is_averaged(before: Snapshot, after: Snapshot) -> bool:
    """Return whether a tensor has moved from where it was towards a parameter, as an average does."""
    for index, olds in before.averages.items():
        parameter, news = after.parameters[index], after.averages.get(index, [])
        # A copy that stays as it is, as that of the best parameters, is no average.
        moved = _without(news, olds)
        if any(_moves_towards(parameter, old, moved) for old in _without(olds, news)):
            return True
    return False


def _moves_towards(parameter: Array, old: Array, news: Sequence[Array]) -> bool:
    gap = parameter - old
    size = float(gap @ gap)
    if not 0 < size < 0.25 * float(parameter @ parameter):
        return False
    # A slow average of little that is new moves by the rounding of its own sum.
    least = ROUNDING**2 * float(old @ old)
    moves = [new - old for new in news]
    return any(move @ move < least or _is_part_of(move, gap, least) for move in moves)


def _without(arrays: Sequence[Array], others: Sequence[Array]) -> list[Array]:
    """Return the arrays that are left when each of the others has taken away one of its values."""
    counts = Counter(array.tobytes() for array in arrays)
    counts.subtract(array.tobytes() for array in others)
    values = {array.tobytes(): array for array in arrays}
    return [array for value, array in values.items() if counts[value] > 0]


def _is_part_of(move: Array, gap: Array, least: float) -> bool:
    part = float(move @ gap) / float(gap @ gap)
    rest = move - part * gap
    return (
        1e-6 < part < 0.999 and float(rest @ rest) < 0.0025 * float(move @ move) + least
    )

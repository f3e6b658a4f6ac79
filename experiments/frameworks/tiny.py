"""The model and the data that frameworks are tried on, float32, seeded, and small; and their
checkpoints.
"""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

Batch = tuple[
    Any, Any
]  # tensors or arrays: data (rows, 3) and target (rows, 1), float32


def batches(count: int = 4, rows: int = 8) -> list[Batch]:
    """Return batches of tensors that are drawn from a generator of their own."""
    draw = torch.Generator().manual_seed(7)
    return [
        (torch.randn(rows, 3, generator=draw), torch.randn(rows, 1, generator=draw))
        for _ in range(count)
    ]


def arrays() -> list[Batch]:
    """Return the same batches as arrays of numpy, for frameworks without torch."""
    return [(data.numpy(), target.numpy()) for data, target in batches()]


def model() -> nn.Sequential:
    """Return a fresh model, the same at each call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def adam(
    net: nn.Module, *, fused: bool = False
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.StepLR]:
    """Return an optimizer of the model, and a schedule that changes its rate at each step."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)


def loss_of(net: Callable[[Any], Any], batch: Batch) -> Any:
    """Return the mean square error, ()."""
    data, target = batch
    return ((net(data) - target) ** 2).mean()


def cut(batch: Batch, count: int) -> list[Batch]:
    """Return a batch as a list of micro-batches; `parts` takes either."""
    data, target = batch
    size = math.ceil(len(data) / count)
    return [
        (data[at : at + size], target[at : at + size])
        for at in range(0, len(data), size)
    ]


def loader(given: Sequence[Any]) -> DataLoader[Any]:
    """Return a loader of micro-batches as they are, which draws nothing from torch's generator:
    dropout does.
    """
    return DataLoader(given, batch_size=None, generator=torch.Generator())  # type: ignore[arg-type]


def parts(batch: Any) -> Sequence[Any]:
    """Return the micro-batches of which a step is to be made: those of the list, or the batch as
    the only one.
    """
    return batch if isinstance(batch, list) else [batch]


def saved(write: Callable[[Path], object]) -> dict[str, bytes]:
    """Return what a function writes into the folder that it is given: bytes by relative path."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def loaded(files: Mapping[str, bytes], read: Callable[[Path], object]) -> None:
    """Call a function with a folder in which these files lie."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        read(Path(folder))

"""From records to arrays: what several figures need of the data's columns."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ampsim.core.records import Record

Array = NDArray[np.float64]


def of_arm(records: Sequence[Record], arm: str) -> list[Record]:
    """The units of one arm, one a seed."""
    return [record for record in records if record["arm"] == arm]


def arms(records: Sequence[Record]) -> list[str]:
    """In the order of the file."""
    return list(dict.fromkeys(record["arm"] for record in records))


def scale(record: Record) -> Array:
    """The loss scale in force at each step, (steps,)."""
    steps = len(record["loss"])
    starts = [step for step, _ in record["scale_changes"]]
    lengths = np.diff([*starts, steps])
    return np.repeat([value for _, value in record["scale_changes"]], lengths).astype(np.float64)


def losses(records: Sequence[Record], block: int) -> Array:
    """Training loss averaged over blocks of `block` steps, (seeds, blocks); a last, shorter block is left out."""
    loss = np.array([record["loss"] for record in records], dtype=np.float64)
    whole = loss.shape[1] // block * block
    return np.asarray(loss[:, :whole].reshape(len(records), -1, block).mean(axis=2))


def regular(record: Record, every: int) -> NDArray[np.bool_]:
    """Which of `counted_steps` were counted by the clock and not because the step was skipped.

    A mean over time must not use the others, or skipped steps would weigh more.
    """
    return np.asarray(np.array(record["counted_steps"]) % every == 0)


def shares(record: Record, layer: int | None = None) -> dict[str, Array]:
    """Share of zero, subnormal, normal and overflowed elements per counted step, (counted,) each."""
    elements = np.array(record["elements"], dtype=np.float64)
    pick = slice(None) if layer is None else [layer]
    total = elements[pick].sum()
    parts = {name: np.array(record[name])[:, pick].sum(axis=1) / total for name in ("zero", "subnormal", "overflow")}
    return {**parts, "normal": 1.0 - parts["zero"] - parts["subnormal"] - parts["overflow"]}


def mean_shares(records: Sequence[Record], every: int, block: int) -> tuple[Array, dict[str, Array]]:
    """Shares of the classes, averaged over seeds and over blocks of `block` counts.

    Returns:
        The step in the middle of each block and, by class, the share there; (blocks,) each.
    """
    masks = [regular(record, every) for record in records]
    steps = np.array(records[0]["counted_steps"])[masks[0]]
    whole = len(steps) // block * block
    by_seed = [shares(record) for record in records]
    means = {
        name: np.mean([seed[name][mask][:whole] for seed, mask in zip(by_seed, masks, strict=True)], axis=0)
        for name in by_seed[0]
    }
    return (
        steps[:whole].reshape(-1, block).mean(axis=1),
        {name: np.asarray(mean.reshape(-1, block).mean(axis=1)) for name, mean in means.items()},
    )


def zero_by_layer(records: Sequence[Record], step: int) -> Array:
    """Share of elements that fp16 made zero at one counted step, (seeds, layers)."""
    rows = [np.array(r["zero"])[r["counted_steps"].index(step)] / np.array(r["elements"]) for r in records]
    return np.array(rows, dtype=np.float64)


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Label positions at least `gap` apart, each as near to its own as that allows, in the given order."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    placed = dict.fromkeys(order, 0.0)
    last = -np.inf
    for i in order:
        last = placed[i] = max(positions[i], last + gap)
    return [placed[i] for i in range(len(positions))]

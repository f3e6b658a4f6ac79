"""One iteration of a watched run: its measurements, and its record."""

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ampsim.probe.async_host_copy import Fetched
from ampsim.run_file import pack_counts
from ampsim.watch.measure import Counts, Norms

Record = dict[str, Any]


@dataclass(eq=False)
class Step:
    """One iteration, from its first gradients until its record is written."""

    sampled: bool
    optimizers: list[Optimizer] = field(default_factory=list)
    norms: list[Norms] = field(default_factory=list)
    counts: list[Counts] = field(default_factory=list)
    logged: Record = field(default_factory=dict)
    flags: list[list[Tensor]] = field(default_factory=list)  # per optimizer that was stepped
    fingerprint: list[Tensor] = field(default_factory=list)
    fetched: Fetched = field(default_factory=lambda: Fetched([]))
    waits: bool = False  # the record waits for values that may be logged
    written: bool = False
    late: dict[str, Fetched | float] = field(
        default_factory=dict
    )  # logged after the step and before the next one

    def fetch(self) -> None:
        """Start the copy of all measurements to the host."""
        tensors = [tensor for each in self.norms for tensor in (each.norms, each.scale)]
        tensors += [each.counts for each in self.counts] + [
            flag for flags in self.flags for flag in flags
        ]
        tensors += self.fingerprint + [
            value for value in self.logged.values() if isinstance(value, Tensor)
        ]
        self.fetched = Fetched(tensors)

    def on_host(self) -> tuple[Record, list[int]]:
        """Return the record without its step number, and the checksums; waits for the device."""
        tensors = iter(self.fetched.wait())
        pairs = [(each.names, next(tensors).tolist(), next(tensors).item()) for each in self.norms]
        counts = [(each.names, next(tensors).numpy()) for each in self.counts]
        skipped = [
            sum(next(tensors).item() for _ in flags) > 0 if flags else None for flags in self.flags
        ]
        moved = [int(value) for _ in self.fingerprint for value in next(tensors).tolist()]
        logged = {
            name: next(tensors).item() if isinstance(v, Tensor) else v
            for name, v in self.logged.items()
        }
        record = _record(pairs, skipped if any(self.flags) else [])
        for names, rows in counts:
            packed = {name: pack_counts(row) for name, row in zip(names, rows, strict=True)}
            record.setdefault("exponent_histograms", {}).update(packed)
        return record | logged, moved

    def logged_late(self) -> Record:
        """Return the values logged after the step; waits for the device."""
        return {
            name: v.wait()[0].item() if isinstance(v, Fetched) else v
            for name, v in self.late.items()
        }


def _record(
    pairs: list[tuple[list[str], list[float], float]], skipped: list[bool | None]
) -> Record:
    record: Record = {}
    if pairs:
        record["loss_scale"] = pairs[0][2]
    if skipped:
        record["skipped"] = any(skipped)
    if len(skipped) > 1:
        record["optimizers"] = skipped
    if pairs:
        scaled = [
            (name, norm, scale)
            for names, each, scale in pairs
            for name, norm in zip(names, each, strict=True)
        ]
        true = {name: norm / scale if scale else math.nan for name, norm, scale in scaled}
        record["grad_norm"] = math.hypot(*true.values())
        if bad := {name: _what(norm) for name, norm in true.items() if not math.isfinite(norm)}:
            record["nonfinite"] = bad
    return record


def _what(norm: float) -> str:
    return "has nan" if math.isnan(norm) else "has inf"

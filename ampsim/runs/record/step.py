"""One iteration of a watched run: its measurements, and its record."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ampsim.core.json_lines import Record
from ampsim.probe.async_host_copy import Fetched
from ampsim.runs.record.measure import (
    Counts,
    Norms,
    exponents_of,
    gradients_of,
    norms_of,
    on_host,
    read,
)
from ampsim.runs.record.run_file import BINS, pack_counts


@dataclass(eq=False, slots=True)
class Step:
    """One iteration, from its first gradients until its record is written.

    Attributes:
        is_sampled: Whether the exponents are counted.
        optimizers: Optimizers whose gradients were read.
        norms: Norms of the gradients, and the loss scale of these gradients.
        counts: Exponent counts; empty unless sampled.
        flags: The found_inf flags of the optimizers, see `measure.read`; [] without a scaler.
        logged: Values logged before the end of the iteration.
        checksums: Checksums of the parameters, in the steps that look for stalled parameters.
        steps: Number of optimizer steps since the last checksums.
    """

    is_sampled: bool = False
    optimizers: list[Optimizer] = field(default_factory=list)
    norms: list[tuple[Norms, Any]] = field(default_factory=list)
    counts: list[Counts] = field(default_factory=list)
    flags: list[Any] = field(default_factory=list)
    logged: Record = field(default_factory=dict)
    checksums: list[Any] = field(default_factory=list)
    steps: int = 0

    def measure(
        self, optimizer: Optimizer, scale: Tensor, is_sampled: Callable[[Tensor], bool]
    ) -> None:
        """Read the gradients of an optimizer, which are multiplied by the scale."""
        groups, scale_read = gradients_of(optimizer), read(scale)
        self.norms += [(norms, scale_read) for norms in norms_of(groups)]
        if self.is_sampled:
            self.counts += exponents_of(groups, scale, is_sampled)

    def has_arrived(self) -> bool:
        """Return whether all values are on the host. Copies of one device arrive in order."""
        scales = [scale for _, scale in self.norms]
        last = (*self.flags, *scales, *self.checksums, *self.logged.values())
        return all(value.arrived() for value in last if isinstance(value, Fetched))

    def record(self, number: int, names: dict[Tensor, str]) -> Record:
        """Return the record of the step; waits for the device."""
        record: Record = {"step": number}
        if self.norms:
            record["loss_scale"] = on_host(self.norms[0][1])
        if self.flags:
            record["skipped"] = any(map(on_host, self.flags))
        if self.norms:
            self._add_norms(record, names)
        for params, counts in self.counts:
            histograms = record.setdefault("exponent_histograms", {})
            for param, row in zip(params, counts.wait().numpy(), strict=True):
                histograms[name_of(param, names)] = pack_counts(row[:BINS])
        for name, value in self.logged.items():
            record[name] = on_host(value)
        return record

    def _add_norms(self, record: Record, names: dict[Tensor, str]) -> None:
        """Add the norm of all gradients, and what is not finite, by parameter."""
        nonfinite, unscaled = {}, []
        for (params, scaled), scale in self.norms:
            divisor = (
                on_host(scale) or math.nan
            )  # torch multiplies by 1 / 0, which gives NaN too
            norms = [norm / divisor for norm in on_host(scaled)]
            unscaled += norms
            for param, norm in zip(params, norms, strict=False):
                if not math.isfinite(norm):
                    what = "has nan" if math.isnan(norm) else "has inf"
                    nonfinite[name_of(param, names)] = what
        record["grad_norm"] = math.hypot(*unscaled)
        if nonfinite:
            record["nonfinite"] = nonfinite


def name_of(param: Tensor, names: dict[Tensor, str]) -> str:
    """Return the name of a parameter; of one that the model does not have, a number."""
    return names.setdefault(param, f"parameter {len(names)}")

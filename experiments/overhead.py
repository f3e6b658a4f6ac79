"""What does loss scaling cost above the bare optimizer step: torch's scaler and clip, or one read of the gradients?

Fused AdamW over many small and over few large tensors. Side by side in one run and interleaved: the bare
``optimizer.step()``; torch.amp.GradScaler with ``unscale_``, ``clip_grad_norm_``, ``step``, ``update``; ours
with ``unscale_and_clip_``, ``step``, ``update``; and both without the clip. All five step the same optimizer,
so that no arm has the better addresses. Also what was tried for the one read.

Takes about a minute on one CPU core, in one unit so that no second unit runs beside it. Device: cpu, where
the clock is the thread's CPU time, which other processes on a shared machine do not enter; or cuda, between
two events, with the calls counted that wait for the device. The latter has not been run yet.
"""

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ampsim.core import records
from ampsim.core.records import Record
from ampsim.torch import GradScaler
from experiments import _norms, _run

MAX_NORM = 1.0
ARMS = ("bare", "torch clip", "ours clip", "torch", "ours")


REPEATS = False  # it measures time


@dataclass(frozen=True)
class Config(_run.Config):
    steps: int = 40  # rounds of one trial; each round times every arm once
    seeds: tuple[int, ...] = (0,)  # of parameters and gradients
    trials: int = 5  # each with parameters at new addresses
    sizes: tuple[str, ...] = ("400x1000", "50x400000")  # tensors x elements, or gpt2-LAYERSxWIDTH


SMOKE = Config(steps=3, trials=1, sizes=("8x1000", "2x20000"))
CUDA_SIZES = ("gpt2-12x768", "gpt2-48x1600")  # GPT-2 small; 1.5 billion parameters


def arms(config: Config) -> list[str]:
    """One: whatever ran beside it would be measured too."""
    return ["fused AdamW"]


def inputs() -> dict[str, str]:
    return {}


def run(config: Config, unit: _run.Unit, device: str, tick: Callable[[int], None]) -> Record:
    """Time every size."""
    torch.set_num_threads(1)
    torch.manual_seed(unit.seed)
    sizes = config.sizes if device == "cpu" else (*config.sizes, *CUDA_SIZES)
    rows = []
    for size in sizes:
        trials = [time_trial(size, config.steps, device, tick) for _ in range(config.trials)]
        rows.append({"size": size, **trials[0].facts, **summary([trial.times for trial in trials])})
    tried = [_norms.tried(shapes(size), config.steps, clock_of(device)) for size in sizes] if device == "cpu" else []
    return {
        "clock": "thread CPU time" if device == "cpu" else "CUDA events",
        "rows": rows,
        "tried": dict(zip(sizes, tried, strict=False)),
    }


def shapes(size: str) -> list[tuple[int, ...]]:
    """`400x1000` is 400 vectors of 1000; `gpt2-12x768` a GPT-2 of 12 layers and width 768, embeddings tied."""
    if not size.startswith("gpt2-"):
        tensors, elements = map(int, size.split("x"))
        return [(elements,)] * tensors
    layers, width = map(int, size.removeprefix("gpt2-").split("x"))
    norm: list[tuple[int, ...]] = [(width,), (width,)]
    maps = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    block = norm * 2 + [shape for map_ in maps for shape in (map_, map_[1:])]
    return [(50257, width), (1024, width), *(block * layers), *norm]


class Trial:
    """One optimizer, the five ways to step it, and their times in seconds."""

    def __init__(self, size: str, device: str) -> None:
        self.params = [nn.Parameter(torch.randn(shape, device=device)) for shape in shapes(size)]
        self.optimizer = torch.optim.AdamW(self.params, lr=1e-4, fused=True)
        self.scalers: dict[str, Any] = {"torch": torch.amp.GradScaler(device), "ours": GradScaler(device)}
        self.one = torch.ones((), device=device)
        self.pattern = torch.randn(max(p.numel() for p in self.params), device=device)
        self.times: dict[str, list[float]] = {arm: [] for arm in ARMS}
        self.norms: dict[str, float] = {}
        self.syncs: dict[str, int] = {}
        self.facts: Record = {}
        for p in self.params:
            p.grad = torch.empty_like(p)

    def refill(self) -> None:
        """Fresh scaled gradients, the last parameter's first, as a backward pass leaves them."""
        scale = self.scalers["torch"].get_scale()
        for p in reversed(self.params):
            torch.mul(self.pattern[: p.numel()].view_as(p), 1e-3 * scale, out=p.grad)

    def step(self, arm: str) -> None:
        """What is timed."""
        name, _, clip = arm.partition(" ")
        if name == "bare":
            self.optimizer.step()
            return
        scaler = self.scalers[name]
        if clip and name == "torch":
            scaler.unscale_(self.optimizer)
            self.total = nn.utils.clip_grad_norm_(self.params, MAX_NORM)
        elif clip:
            self.total = scaler.unscale_and_clip_(self.optimizer, MAX_NORM)
        scaler.step(self.optimizer)
        scaler.update()

    def round(self, first: int, clock: "Clock", *, keep: bool) -> None:
        """Every arm once, in an order that turns from round to round."""
        for arm in ARMS[first:] + ARMS[:first]:
            self.refill()
            for scaler in self.scalers.values():
                scaler.scale(self.one)
            seconds = clock(lambda arm=arm: self.step(arm))  # type: ignore[misc]
            if keep:
                self.times[arm].append(seconds)
            if arm.endswith("clip"):
                self.norms[arm.split()[0]] = float(self.total)

    def finish(self, device: str) -> None:
        """Note elements, how far the norms are from float64's, and on CUDA what waited; there also make room.

        On the CPU the tensors stay, so that the next trial's lie elsewhere.
        """
        self.refill()
        scale = self.scalers["torch"].get_scale()
        square = sum(float(p.grad.double().square().sum()) for p in self.params if p.grad is not None)
        errors = {name: abs(norm / (square**0.5 / scale) - 1) for name, norm in self.norms.items()}
        self.facts = {"elements": sum(p.numel() for p in self.params), "norm_error": errors, "syncs": self.syncs}
        if device == "cuda":
            del self.params, self.optimizer, self.pattern


Clock = Callable[[Callable[[], None]], float]


def time_trial(size: str, rounds: int, device: str, tick: Callable[[int], None]) -> Trial:
    """Three rounds to warm up, then `rounds` that count."""
    trial, clock = Trial(size, device), clock_of(device)
    for index in range(rounds + 3):
        trial.round(index % len(ARMS), clock, keep=index >= 3)
        tick(max(0, index - 2))
    if device == "cuda":
        trial.syncs = {arm: count_syncs(trial, arm) for arm in ARMS}
    trial.finish(device)
    return trial


def clock_of(device: str) -> Clock:
    """Seconds that a function takes, by the clock that fits the device."""

    def cpu(work: Callable[[], None]) -> float:
        start = time.thread_time()
        work()
        return time.thread_time() - start

    def cuda(work: Callable[[], None]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1000

    return cpu if device == "cpu" else cuda


def count_syncs(trial: Trial, arm: str) -> int:
    """Calls in one step that wait for the device, as torch's debug mode sees them."""
    trial.refill()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            trial.step(arm)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)


def summary(trials: Sequence[dict[str, list[float]]]) -> Record:
    """Microseconds of each arm, one median a trial; and the ratios, one a trial."""
    medians = {arm: [1e6 * statistics.median(times[arm]) for times in trials] for arm in ARMS}
    spread = {arm: quartiles([t for times in trials for t in times[arm]]) for arm in ARMS}
    ratios = {}
    for kind in (" clip", ""):
        triples = list(zip(medians["bare"], medians["torch" + kind], medians["ours" + kind], strict=True))
        name = kind.strip() or "plain"
        ratios[f"{name} cost"] = [(theirs - bare) / (ours - bare) for bare, theirs, ours in triples]
        ratios[f"{name} whole"] = [theirs / ours for _, theirs, ours in triples]
    return {
        "microseconds": {arm: [round(t, 1) for t in times] for arm, times in medians.items()},
        "quartiles": spread,
        "ratios": {name: [round(r, 3) for r in values] for name, values in ratios.items()},
    }


def quartiles(seconds: Sequence[float]) -> list[float]:
    """Of all rounds of all trials, microseconds."""
    cuts = statistics.quantiles(seconds, n=4)
    return [round(1e6 * cut, 1) for cut in cuts]


def table(rows: Sequence[Record]) -> str:
    """What `make bench` prints: the middle trial, and the lowest and highest ratio."""
    lines = [f"{'tensors':<16}{'':<8}{'bare':>9}{'torch':>9}{'ours':>9}   cost above bare     whole"]
    for row in rows:
        for kind, suffix in (("clip", " clip"), ("plain", "")):
            times = [statistics.median(row["microseconds"][arm]) for arm in ("bare", "torch" + suffix, "ours" + suffix)]
            ratios = [ratio_text(row["ratios"][f"{kind} {what}"]) for what in ("cost", "whole")]
            numbers = "".join(f"{t:9.0f}" for t in times)
            lines.append(f"{row['size']:<16}{kind:<8}{numbers}   {ratios[0]:<20}{ratios[1]}")
    return "\n".join([*lines, "microseconds; ratios are torch / ours (lowest to highest trial)"])


def ratio_text(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main(argv: list[str]) -> int:
    """Run, then print the table of the file that the run left."""
    status = _run.main("overhead", argv)
    if status == 0 and "--smoke" not in argv:
        print(table(records.read(_run.parse("overhead", argv).path)[1][0]["rows"]))
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

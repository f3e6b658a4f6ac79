"""How much time does loss scaling add to the bare optimizer step, with torch's scaler and ampsim's?

Fused AdamW steps many small tensors and few large ones. All arms run interleaved in one process. Each
arm follows a backward pass, whose time is measured and subtracted. Arms: the bare
``optimizer.step()``; torch.amp.GradScaler with ``unscale_``, ``clip_grad_norm_``, ``step``, ``update``;
ampsim's scaler with ``unscale_and_clip_``, ``step``, ``update``; ampsim's scaler with torch's
``unscale_`` and ``clip_grad_norm_``; both without the clip; and the lower bound of any clip: one read of
the gradients, and the fused kernel with a ``grad_scale``. All arms step the same optimizer, so that no
arm has better addresses. If RoundPipe is installed, the same comparison runs on its optimizer thread:
the bare step, RoundPipe's own scaler, and ampsim's in its place.

The experiment is one unit, so that no second unit runs at the same time. Device: cpu, where the clock
is the process's CPU time, which other processes on a shared machine do not affect; or cuda, where times
are between two events, and calls that wait for the device are counted. It has not been run on cuda yet.
"""

import gc
import statistics
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import nn

from ampsim.core.json_lines import Record
from ampsim.torch import AsyncGradScaler, GradScaler, roundpipe
from ampsim.torch.gradients import unscale
from experiments import runner
from experiments.timing import clocks, rounds
from experiments.timing.roundpipe import load as load_roundpipe
from experiments.timing.shapes import FORM, shapes

MAX_NORM = 1.0
Scaler = torch.amp.GradScaler | AsyncGradScaler
STREAM = (
    "stream bare",
    "stream roundpipe",
    "stream ours",
)  # on RoundPipe's optimizer thread, with the clip
FLOOR = "floor"
ARMS = ("backward", "bare", FLOOR, "torch clip", "ours clip", "ours unscale", "torch", "ours")
REPEATS = False  # it measures time


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 16  # rounds per trial; each round times every arm once
    seeds: tuple[int, ...] = (0,)  # of parameters and gradients
    trials: int = 3  # each with parameters at new addresses
    sizes: Annotated[tuple[str, ...], runner.like(FORM, "400x1000")] = (
        "400x1000",
        "50x400000",
    )  # tensors x elements, or gpt2-LAYERSxWIDTH


SMOKE = Config(steps=3, trials=1, sizes=("8x1000", "2x20000"))
CUDA_SIZES = ("gpt2-12x768", "gpt2-48x1600")  # GPT-2 small; 1.5 billion parameters


def arms(config: Config) -> Mapping[str, runner.Single]:
    return {"fused AdamW": runner.Single()}


def run(
    config: Config, arm: runner.Single, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Time every size."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    sizes = config.sizes if device == "cpu" else (*config.sizes, *CUDA_SIZES)
    rows = []
    for size in sizes:
        trials = [time_trial(size, config.steps, device, tick) for _ in range(config.trials)]
        device_times, host_times = (
            [
                {arm: [seconds[clock] for seconds in times] for arm, times in trial.times.items()}
                for trial in trials
            ]
            for clock in (0, 1)
        )
        row = {"size": size, **trials[0].facts, **summary(device_times)}
        rows.append(
            row if device == "cpu" else {**row, "host": summary(host_times)["microseconds"]}
        )
    return {"clock": "process CPU time" if device == "cpu" else "CUDA events", "rows": rows}


class Trial:
    """One optimizer, the ways to step it, and their times, the backward pass before each included."""

    def __init__(self, size: str, device: str) -> None:
        self.params = [nn.Parameter(torch.randn(shape, device=device)) for shape in shapes(size)]
        self.optimizer = torch.optim.AdamW(self.params, lr=1e-4, fused=True)
        self.scalers: dict[str, Scaler] = {
            "torch": torch.amp.GradScaler(device),
            "ours": GradScaler(device),
        }
        # Not on CUDA: an error on its thread ends the process, and its scaler is for gradients that lie on the CPU.
        self.roundpipe = load_roundpipe() if device == "cpu" else None
        if self.roundpipe is not None:
            self.scalers["stream roundpipe"] = self.roundpipe.scaler()
            self.scalers["stream ours"] = roundpipe.GradScaler()
        self.arms = ARMS if self.roundpipe is None else (*ARMS, *STREAM)
        self.pattern = torch.randn(max(p.numel() for p in self.params), device=device)
        self.times: dict[str, list[clocks.Seconds]] = {}
        self.norms: dict[str, float] = {}
        self.syncs: dict[str, int] = {}
        self.facts: Record = {}
        for p in self.params:
            p.grad = torch.zeros_like(p)
        self.grads = [p.grad for p in self.params if p.grad is not None]
        self.scale = torch.ones((), device=device)

    def forward(self) -> torch.Tensor:
        """Return a scaled loss whose gradient is 1e-3 of the pattern. Gradients are 0, to be accumulated in place."""
        self.optimizer.zero_grad(set_to_none=False)
        parts = [torch.dot(p.view(-1), self.pattern[: p.numel()]) for p in self.params]
        losses = [scaler.scale(1e-3 * torch.stack(parts).sum()) for scaler in self.scalers.values()]
        return losses[0]

    def step(self, arm: str) -> None:
        """Do what is timed after the backward pass."""
        name, _, clip = arm.partition(" ")
        if name == "stream":
            self.step_on_stream(arm)
        elif name == "bare":
            self.optimizer.step()
        elif name == FLOOR:
            self.step_at_floor()
        elif name != "backward":
            scaler = self.scalers[name]
            if clip == "unscale":
                self.unscale_then_clip(scaler)
            elif clip:
                self.clip(scaler)
            scaler.step(self.optimizer)
            scaler.update()

    def clip(self, scaler: Scaler) -> None:
        """Clip with ours in one read, and with anyone else's scaler in torch's way."""
        if isinstance(scaler, GradScaler | AsyncGradScaler):
            self.total = scaler.unscale_and_clip_(self.optimizer, MAX_NORM)
        else:
            self.unscale_then_clip(scaler)

    def unscale_then_clip(self, scaler: Scaler) -> None:
        scaler.unscale_(self.optimizer)
        self.total = nn.utils.clip_grad_norm_(self.params, MAX_NORM)

    def step_at_floor(self) -> None:
        """Read the gradients once, as ours does, and have the kernel divide them."""
        optimizer: Any = self.optimizer
        unscale.norm_and_check({(self.scale.device, self.scale.dtype): self.grads}, self.scale)
        optimizer.grad_scale, optimizer.found_inf = self.scale, None
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf

    def step_on_stream(self, arm: str) -> None:
        """Step as RoundPipe's loop does, and wait for its thread."""
        assert self.roundpipe is not None  # noqa: S101 - or there were no such arm
        scaler = self.scalers.get(arm)

        def work() -> None:
            if scaler is None:
                self.optimizer.step()
            else:
                self.clip(scaler)
                scaler.step(self.optimizer)

        self.roundpipe.launch(work)
        if scaler is not None:
            scaler.update()
        self.roundpipe.synchronize()

    def once(self, arm: str, device: str) -> clocks.Seconds:
        """Time a backward pass and one arm."""
        loss = self.forward()

        def work() -> None:
            loss.backward()  # type: ignore[no-untyped-call]
            self.step(arm)

        seconds = clocks.timed(work, device)
        if arm.endswith((" clip", " unscale")) or arm in STREAM[1:]:
            self.norms[arm.removesuffix(" clip")] = float(self.total)
        return seconds

    def finish(self, device: str) -> None:
        """Note elements, how far the norms are from float64's, and on CUDA what waited; there also make room.

        On the CPU the tensors stay, so that the next trial's lie elsewhere.
        """
        self.forward().backward()  # type: ignore[no-untyped-call]
        scale = self.scalers["torch"].get_scale()
        square = sum(
            float(p.grad.double().square().sum()) for p in self.params if p.grad is not None
        )
        errors = {name: abs(norm / (square**0.5 / scale) - 1) for name, norm in self.norms.items()}
        self.facts = {
            "elements": sum(p.numel() for p in self.params),
            "norm_error": errors,
            "syncs": self.syncs,
        }
        if device == "cuda":
            del self.params, self.grads, self.optimizer, self.pattern
            gc.collect()  # hooks and parameters refer to each other, and the largest set has 25 GB


def time_trial(size: str, turns: int, device: str, tick: Callable[[int], None]) -> Trial:
    """Time every arm of new parameters once per round."""
    trial = Trial(size, device)
    trial.times = rounds.in_turn(trial.arms, lambda arm: trial.once(arm, device), turns, tick)
    if device == "cuda":
        trial.syncs = {arm: count_syncs(trial, arm) for arm in trial.arms}
    trial.finish(device)
    return trial


def count_syncs(trial: Trial, arm: str) -> int:
    """Count the calls in one step that wait for the device, as torch's debug mode sees them."""
    trial.forward().backward()  # type: ignore[no-untyped-call]
    return clocks.warned_waits(lambda: trial.step(arm), "cuda")


def summary(trials: Sequence[dict[str, list[float]]]) -> Record:
    """Return microseconds of each arm above the backward pass and the ratios, one median per trial."""
    middle = [
        {arm: 1e6 * statistics.median(seconds) for arm, seconds in times.items()}
        for times in trials
    ]
    above = {
        arm: [m[arm] - m["backward"] for m in middle] for arm in middle[0] if arm != "backward"
    }
    ratios = {}
    for label, (base, them, us) in compared(above).items():
        triples = list(zip(above[base], above[them], above[us], strict=True))
        ratios[f"{label} cost"] = [
            (theirs - bare) / (ours - bare) for bare, theirs, ours in triples
        ]
        ratios[f"{label} whole"] = [theirs / ours for _, theirs, ours in triples]
    return {
        "backward": [round(m["backward"], 1) for m in middle],
        "microseconds": {arm: [round(t, 1) for t in times] for arm, times in above.items()},
        "ratios": {name: [round(r, 3) for r in values] for name, values in ratios.items()},
    }


def compared(arms: Container[str]) -> dict[str, tuple[str, str, str]]:
    """Return what is held against what: by name, the bare step's arm, theirs and ours."""
    rows = {
        f"ours{kind or ' plain'}": ("bare", f"torch{kind}", f"ours{kind}") for kind in (" clip", "")
    }
    rows |= {"ours unscale": ("bare", "torch clip", "ours unscale"), "roundpipe clip": STREAM}
    rows["ours / floor"] = ("bare", "ours clip", FLOOR)
    return {label: row for label, row in rows.items() if row[2] in arms}


def table(records: Sequence[Record]) -> str:
    """Return what `make bench` prints: the middle trial, and the lowest and highest ratio."""
    lines = [
        f"{'tensors':<16}{'':<16}{'bare':>9}{'theirs':>9}{'ours':>9}   cost above bare     whole"
    ]
    for row in records[0]["rows"]:
        for label, arms in compared(row["microseconds"]).items():
            times = [statistics.median(row["microseconds"][arm]) for arm in arms]
            ratios = [rounds.spread(row["ratios"][f"{label} {what}"]) for what in ("cost", "whole")]
            numbers = "".join(f"{t:9.0f}" for t in times)
            lines.append(f"{row['size']:<16}{label:<16}{numbers}   {ratios[0]:<20}{ratios[1]}")
    legend = (
        "theirs: torch's scaler and clip, or RoundPipe's on its thread; unscale: torch's clip\n"
        "ours / floor: ours clip instead of theirs; instead of ours, one read and the kernel's own grad_scale"
    )
    return "\n".join(
        [
            *lines,
            f"microseconds above the backward pass; theirs / ours (lowest to highest trial)\n{legend}",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(runner.main("overhead"))

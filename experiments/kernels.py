"""What does the one read of the gradients cost on CUDA, beside the speed at which the device copies?

Bytes first. A word is one number of the gradient. Beside the optimizer torch moves 5 words per element: it reads and
writes to unscale, reads for the norm, reads and writes to clip. One read is enough, if scale and clip are left to
the fused optimizer, which then writes the gradient back: 2 words more than the bare step's 7, where torch has 12.
With ``fused_step=True`` a kernel of ours steps, which reads it only: 1 word more.

In one run, interleaved: the device's copy rate; ways to read all gradients, our Triton kernels among them; other
tile sizes and warps for these, all with an empty cache; and the whole step, from ``scale`` to ``update``, with torch's
scaler and clip, with ours, and where RoundPipe is installed with its scaler on its thread. Each is timed by events on
the device and by the host's clock, and its launches, copies, waits for the device and peak memory are counted.

Device: cuda, where it has not been run yet; on the CPU ``--smoke`` runs all but Triton.
"""

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
from rich.table import Table

from ampsim.records import Record
from ampsim.torch import GradScaler
from ampsim.torch.gradients import kernels
from experiments import runner
from experiments.timing import clocks, step_variants
from experiments.timing.clocks import Seconds, Work
from experiments.timing.rounds import in_turn
from experiments.timing.shapes import FORM, shapes
from experiments.timing.step_variants import BARE, OURS, Model, Way

DEVICES = ("cuda",)  # where its data is made
REPEATS = False  # it measures time
LEGEND = "floor: the words that must move, at the rate of a copy; whole, cost above the bare step: theirs / ours"
LIMIT = 10_000_000  # elements on a CPU: the largest size would need 31 GB


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 30  # rounds of one trial; each round times every way once
    seeds: tuple[int, ...] = (0,)  # of parameters and gradients
    trials: int = 3  # each with new tensors
    sizes: Annotated[tuple[str, ...], runner.like(FORM, "400x1000")] = (
        "400x1000",
        "gpt2-12x768",
        "gpt2-48x1600",
    )  # as in `overhead`
    # of parameters and gradients; of another one than float32 the reads alone are timed
    dtypes: Annotated[tuple[str, ...], runner.one_of(("float32", "float16", "bfloat16"))] = ("float32",)
    copied: int = 1 << 30  # float32 elements that are copied for the rate
    tiles: tuple[tuple[int, int], ...] = (
        (2048, 4), (4096, 8), (4096, 16), (8192, 4), (8192, 8), (8192, 16), (8192, 32), (16384, 16), (16384, 32),
    )  # fmt: skip  # elements and warps of a program, to be tried


SMOKE = Config(steps=2, trials=1, sizes=("8x1000", "2x20000"), dtypes=("float32", "float16"), copied=1 << 16)


@dataclass(frozen=True)
class Arm:
    """Parameters and gradients of one size and dtype; never two at a time, as one would be measured with the other."""

    size: str
    dtype: str  # a name of torch's


def arms(config: Config) -> Mapping[str, Arm]:
    return {f"{size} {dtype}": Arm(size, dtype) for dtype in config.dtypes for size in config.sizes}


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Measure one size; the columns are explained in `data/README.md`."""
    size, dtype = arm.size, getattr(torch, arm.dtype)
    elements = sum(torch.Size(shape).numel() for shape in shapes(size))
    if device == "cpu" and elements > LIMIT:
        raise runner.UsageError(f"{size} on cpu: expected cuda, where this is measured; pass --smoke to try it")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rates = clocks.copy_rates(config.copied, config.steps, device)
    make = partial(Model, size, dtype, device)
    facts, errors = counted(make())
    trials = []
    for _ in range(config.trials):
        gc.collect()  # the tensors before these
        trials.append(measure(make(), config, tick))
    return {
        "clock": "process CPU time" if device == "cpu" else "CUDA events",
        "tensors": len(shapes(size)),
        "elements": elements,
        "rates": rates,
        "errors": errors,
        **summary(facts, trials, elements * dtype.itemsize / rates["copy"] / 1e9),
    }


def kinds(model: Model) -> dict[str, dict[str, Way]]:
    """Return what is measured of a model."""
    return {
        "reads": step_variants.reads(model),
        "steps": {**step_variants.steps(model), **fused_steps(model)} if model.dtype is torch.float32 else {},
    }


def fused_steps(model: Model) -> dict[str, Way]:
    """Return the step by kernels of ours alone, where they run."""
    if not kernels.takes(model.grads):
        return {}
    scaler = GradScaler(model.device, fused_step=True)
    return {"ours, fused step": Way(8, lambda: step_variants.step_with(scaler, model))}


def works(ways: Mapping[str, Way]) -> dict[str, Work]:
    return {name: way.work for name, way in ways.items()}


def working(ways: Mapping[str, Work], restore: Work) -> tuple[dict[str, Work], dict[str, str]]:
    """Return the ways that work here, and the errors of the others."""
    errors = {}
    for name, work in ways.items():
        restore()
        try:
            work()
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return {name: work for name, work in ways.items() if name not in errors}, errors


def counted(model: Model) -> tuple[dict[str, dict[str, Record]], dict[str, str]]:
    """Return what is the same in every trial, by kind and way; and the errors of the ways that do not work here."""
    restore = model.restorer()
    facts: dict[str, dict[str, Record]] = {}
    failed: dict[str, str] = {}
    for kind, ways in kinds(model).items():
        usable, errors = working(works(ways), restore)
        failed |= errors
        facts[kind] = {
            name: {"words": ways[name].words, **count(usable[name], model.device, restore)} for name in usable
        }
    return facts, failed


def count(work: Work, device: str, restore: Work) -> Record:
    """Count launches, copies, waits and memory of one call."""
    restore()
    peak = clocks.peak_bytes(work, device)
    restore()
    warned = clocks.warned_waits(work, device)
    restore()
    return {**clocks.calls(work, device)._asdict(), "warned_waits": warned, "peak_bytes": peak}


class Measured(NamedTuple):
    """One trial."""

    norm_error: dict[str, float]  # relative, against float64
    reads: dict[str, list[Seconds]]
    tried: dict[str, list[Seconds]]
    steps: dict[str, list[Seconds]]


def measure(model: Model, config: Config, tick: Callable[[int], None]) -> Measured:
    """Time everything with one set of tensors."""

    def time(ways: dict[str, Work], before: Work) -> dict[str, list[Seconds]]:
        usable = working(ways, before)[0]

        def once(name: str) -> Seconds:
            before()
            return clocks.timed(usable[name], model.device)

        return in_turn([*usable], once, config.steps, tick)

    ways, cold = {kind: works(ways) for kind, ways in kinds(model).items()}, clocks.cold(model.device)
    return Measured(
        step_variants.norm_errors(model),
        time(ways["reads"], cold),
        time(step_variants.tried(model, config.tiles), cold),
        time(ways["steps"], model.restorer()),
    )


# -------------------------------------------------------------------------------------------------------- results


def summary(facts: Mapping[str, Mapping[str, Record]], trials: Sequence[Measured], word: float) -> Record:
    """Return each trial's medians and what follows; `word` is the seconds of one word of every element."""
    record: Record = {"norm_error": trials[0].norm_error}
    for kind, known in facts.items():
        record[kind] = {
            name: {**fact, **times([getattr(trial, kind)[name] for trial in trials], fact["words"] * word)}
            for name, fact in known.items()
        }
    tried = {name: [trial.tried[name] for trial in trials] for name in trials[0].tried}
    record["tried"] = {name: times(seconds, word)["device_us"] for name, seconds in tried.items()}
    return {**record, "ratios": ratios(record["steps"])}


def times(trials: Sequence[Sequence[Seconds]], floor: float) -> Record:
    """Return microseconds by both clocks, one median per trial, and the device's over the floor (in seconds)."""
    device = [statistics.median(seconds.device for seconds in trial) for trial in trials]
    host = [statistics.median(seconds.host for seconds in trial) for trial in trials]
    return {
        "device_us": [round(1e6 * seconds, 1) for seconds in device],
        "host_us": [round(1e6 * seconds, 1) for seconds in host],
        "of_floor": [round(seconds / floor, 3) for seconds in device],
    }


def ratios(steps: Mapping[str, Mapping[str, Any]]) -> Record:
    """Return theirs over ours, one per trial: the whole step and its cost above the bare one, by the device's clock."""
    found: Record = {}
    peers = sorted(steps.keys() - {BARE, OURS}) if {BARE, OURS} <= steps.keys() else []
    for peer in peers:
        rows = [*zip(*(steps[name]["device_us"] for name in (BARE, peer, OURS)), strict=True)]
        costs = [(theirs - bare) / (ours - bare) if ours > bare else None for bare, theirs, ours in rows]
        found[peer] = {
            "whole": [round(theirs / ours, 3) for _, theirs, ours in rows],
            "cost": [None if cost is None else round(cost, 3) for cost in costs],  # none where ours was free
        }
    return found


def table(rows: Sequence[Record]) -> Table:
    """Return the ways of every size; of the trials the middle one is shown."""
    shown = Table("way", "us", "host us", "of floor", "launches", "waits (warned)", "whole", "cost", title=LEGEND)
    for row in rows:
        shown.add_section()
        shown.add_row(f"{row['arm']}: copy {row['rates']['copy']} GB/s, read {row['rates']['read']} GB/s")
        for kind in ("reads", "steps"):
            for name, way in row[kind].items():
                ratio = row["ratios"].get(name, {}) if kind == "steps" else {}
                shown.add_row(
                    f"  {kind[:-1]}: {name}", *(middle(way[key]) for key in ("device_us", "host_us", "of_floor")),
                    str(way["launches"]), f"{way['waits']} ({way['warned_waits']})",
                    *(middle(ratio.get(what, [])) for what in ("whole", "cost")),
                )  # fmt: skip
    return shown


def middle(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    return f"{statistics.median(numbers):.5g}" if numbers else ""


if __name__ == "__main__":
    raise SystemExit(runner.main("kernels"))

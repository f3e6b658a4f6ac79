"""Quantities that claims and numbers use and that are not a plain column of a data file, with
definitions.
"""

import itertools
import operator
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import hypot, inf, sqrt
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ampsim.core import dialects
from ampsim.core.json_lines import Record
from ampsim.core.machine import Rule
from ampsim.core.replay.thresholds import replay_thresholds
from ampsim.core.theory import of_thresholds, skip_rate
from figures.results import ArmRecords, Result

INTERVALS = (5, 10, 20, 50, 100)  # of theory_real, whose records leave the warm-up out
# The 97.5 % quantile of Student's t by the size of a sample.
STUDENT = {
    2: 12.706,
    3: 4.303,
    4: 3.182,
    5: 2.776,
    6: 2.571,
    7: 2.447,
    8: 2.365,
    9: 2.306,
    10: 2.262,
}
UNBOUNDED = "scale_is_never_infinite"
BROKEN = ("failed",)  # of the conformance table's outcomes


def apart(
    run: Result, arms: Sequence[str], reference: str, column: str = "test_loss"
) -> float:
    """Return the largest distance of the arms' means from that of the reference."""
    return max(
        abs(run.arm(name).mean(column) - run.arm(reference).mean(column))
        for name in arms
    )


def total(run: Result, prefix: str, column: str) -> int:
    """Return the sum of a column over all arms whose names begin so.

    Raises:
        KeyError: No arm's name begins so.
    """
    found = [arm for name, arm in run.arms.items() if name.startswith(prefix)]
    if not found:
        raise KeyError(
            f"{run.path}: expected arms {prefix!r}..., among {', '.join(run.arms)}"
        )
    return sum(sum(arm.column(column)) for arm in found)


def cuda_runs(run: Result, *, held_out: bool = False) -> list[Record]:
    """Return the public CUDA runs that were developed on, or those that were held out."""
    records = (row for row in run.records if row["settings"]["held_out"] == held_out)
    return [
        {**each, "program": row["settings"]["program"]}
        for row in records
        for each in row["runs"]
    ]


def followed(run: Result, *, held_out: bool = False) -> list[Record]:
    """Return the public CUDA runs that the state machine was compared with."""
    return [row for row in cuda_runs(run, held_out=held_out) if "breaks" in row]


def settled_by_gpus(run: Result) -> dict[tuple[str, int, str], dict[int, list[float]]]:
    """Return log2 of the settled scale by number of GPUs, of one laboratory's configurations.

    The keys are model, ZeRO stage, and what the path names beside the number of nodes.
    """
    found: dict[tuple[str, int, str], dict[int, list[float]]] = {}
    for row in followed(run):
        if row["repository"] == "LambdaLabsML/DeepSpeedExamples" and row["gpus"]:
            path = re.sub(r"\d+xN|\d+$", "", row["path"].removesuffix(".log"))
            key = (row["model"], row["zero"], f"{path}, {row['rate']:.0e}")
            found.setdefault(key, {}).setdefault(row["gpus"], []).append(row["settled"])
    return {key: cell for key, cell in found.items() if len(cell) > 2}


def last_scales(arm: ArmRecords) -> list[float]:
    """Return the loss scale at the end of each seed's run."""
    return [float(row["scale_changes"][-1][1]) for row in arm]


def real_steps(run: Result) -> int:
    """Return the steps that each unit of theory_real records."""
    return int(run.config["steps"] - run.config["warmup"])


def real_rate(run: Result, interval: int) -> float:
    """Return the measured skip rate."""
    return run.arm(f"G={interval}").mean("skipped") / real_steps(run)


def real_z(
    run: Result, interval: int, thresholds: str = "", *, bound: bool = False
) -> float:
    """Return by how many standard deviations more steps were skipped than T3 says, or with `bound`
    than T1 allows.

    Each seed has a distribution of its own thresholds; their skips and variances add up.
    """
    seeds = skips_above(run, interval, thresholds, bound=bound)
    more = sum(above for above, _ in seeds)
    return more / hypot(*(deviation for _, deviation in seeds))


def skips_above(
    run: Result, interval: int, thresholds: str = "", *, bound: bool = False
) -> list[tuple[float, float]]:
    """Return per seed how many more steps were skipped than the distribution says, and their
    standard deviation.

    The deviation is that of the machine under independent thresholds of T3's distribution, in runs
    of this length.
    """
    steps = real_steps(run)
    skips = run.arm(f"G={interval}").column("skipped")
    distributions = per_seed(run.arm(thresholds or f"G={interval}"), "thresholds")
    seeds = []
    for skipped, distribution in zip(skips, distributions, strict=True):
        rate, _ = t3(distribution, interval)
        if bound:
            rate = skip_rate(Rule(growth_interval=interval))
        deviation, _ = _scatter(tuple(distribution.items()), interval, steps)
        seeds.append((skipped - steps * rate, deviation))
    return seeds


def levels_above(run: Result, interval: int) -> list[tuple[float, float]]:
    """Return per seed by how many bits the mean log2 scale lies above T3's, and its standard
    deviation.
    """
    arm = run.arm(f"G={interval}")
    steps = real_steps(run)
    levels = per_seed(arm, "scales")
    distributions = per_seed(arm, "thresholds")
    seeds = []
    for own, distribution in zip(levels, distributions, strict=True):
        _, level = t3(distribution, interval)
        _, deviation = _scatter(tuple(distribution.items()), interval, steps)
        seeds.append((fmean(own.keys(), own.values()) - level, deviation))
    return seeds


def forecast_error(run: Result, interval: int) -> float:
    """Return by how much more steps were skipped than T3 predicts from the float32 runs' first
    thresholds, over that.

    The steps that are counted come after those that the forecast saw.
    """
    arm = run.arm(f"G={interval}")
    prefix = run.config["prefix"]
    steps = (real_steps(run) - prefix) * len(run.seeds)
    seen: Counter[int] = Counter()
    for row in run.arm("fp32"):
        seen.update(in_order(row)[:prefix].tolist())
    rate, _ = t3(seen, interval)
    expected = rate * steps
    return float(sum(arm.column("later_skipped")) / expected - 1)


@cache
def _scatter(
    thresholds: tuple[tuple[int, int], ...], interval: int, steps: int, runs: int = 200
) -> tuple[float, float]:
    """Return the standard deviations of skipped steps and mean log2 scale of `runs` of `steps`, one
    after another.
    """
    levels, weights = np.array(thresholds, dtype=np.float64).T
    shares = weights / weights.sum()
    generator = np.random.default_rng(0)
    drawn = generator.choice(levels, size=(runs + 1) * steps, p=shares)
    rule = Rule(2.0 ** max(levels), growth_interval=interval)
    played = replay_thresholds(rule, np.exp2(drawn))
    by_run = played.skipped // steps
    skipped = np.bincount(by_run, minlength=runs + 1)[1:]  # the first run settles
    scales = np.log2(played.scales()).reshape(runs + 1, steps)
    levels = scales.mean(axis=1)[1:]
    return float(skipped.std(ddof=1)), float(levels.std(ddof=1))


def adapters(run: Result) -> list[Record]:
    """Return the scalers of the conformance table.

    A scale that is a Python float without a bound is never infinite, so it passes the check of
    that. But it leaves float32's range, and a float32 loss times it is infinite: here it fails.
    """
    failed = {
        "outcome": "failed",
        "seen": "the scale is a Python float, which grows beyond float32's largest number",
        "reason": "",
    }
    rows: list[Record] = []
    for row in run.records:
        if row["arm"] == "checks":
            continue
        if leaves_float32(row):
            row = {**row, "checks": {**row["checks"], UNBOUNDED: failed}}
        rows.append(row)
    return rows


def leaves_float32(adapter: Mapping[str, Any]) -> bool:
    """Return whether the dialect, which a scaler equals on all sequences, is a float64 without a
    bound.
    """
    if adapter["dialect"] not in dialects.ALL or not adapter["drift"]:
        return False
    rule = dialects.ALL[adapter["dialect"]].rule
    unbounded = rule.arithmetic.dtype == "float64" and rule.max_scale is None
    return unbounded and not adapter["drift"]["differing"]


def failed_checks(framework: Mapping[str, Any]) -> set[str]:
    """Return the checks that a scaler of the conformance table fails."""
    return {
        check
        for check, found in framework["checks"].items()
        if found["outcome"] in BROKEN
    }


def ends(run: Result) -> set[str]:
    """Return the conformance table's checks about the ends of float32."""
    return set(run.arm("checks").first["ends"])


def rank_cells(run: Result, scaler: str) -> list[dict[str, Any]]:
    """Return the cells of a scaler, each with the results of both `ranks` and the `outcome` in
    words.

    Cells are excluded if the optimizer cannot step such parameters even without a scaler.
    """
    names = ("raised", "error", "moved", "finite", "counted", "scale")
    cells = []
    refused = set()
    way = operator.itemgetter("cut", "optimizer", "loop")
    for cell in run.records[0]["cells"]:
        ranks = [dict(zip(names, seen, strict=True)) for seen in cell["ranks"]]
        if cell["scaler"] == "none" and any(rank["raised"] for rank in ranks):
            refused.add(way(cell))
        if cell["scaler"] == scaler:
            outcome = rank_outcome(ranks, overflow=cell["overflow"] != "none")
            cells.append({**cell, "ranks": ranks, "outcome": outcome})
    return [cell for cell in cells if way(cell) not in refused]


def rank_outcome(ranks: Sequence[Mapping[str, Any]], *, overflow: bool) -> str:
    """Return the outcome of the ranks: "right", "parted", "infinite", "raised", or "raised
    infinite".

    "right": all ranks step without an overflow, and all skip with one. "raised infinite": the call
    that raised has made a parameter infinite.
    """
    finite = all(rank["finite"] for rank in ranks)
    if any(rank["raised"] for rank in ranks):
        return "raised" if finite else "raised infinite"
    if not finite:
        return "infinite"
    seen = [(rank["moved"], rank["counted"], rank["scale"]) for rank in ranks]
    if any(other != seen[0] for other in seen):
        return "parted"
    moved, _, _ = seen[0]
    return "right" if moved != overflow else "wrong"


def rank_wrong(run: Result, scaler: str, outcome: str = "") -> list[dict[str, Any]]:
    """Return the cells that failed, or those with one outcome."""
    failed = [cell for cell in rank_cells(run, scaler) if cell["outcome"] != "right"]
    return [cell for cell in failed if outcome in ("", cell["outcome"])]


def rank_runs(run: Result, scaler: str) -> list[list[dict[str, Any]]]:
    """Return the columns of each rank, per seed and way to train."""
    return [
        each["ranks"]
        for row in run.records
        for each in row["runs"]
        if each["scaler"] == scaler
    ]


def parted_runs(run: Result) -> list[list[dict[str, Any]]]:
    """Return the runs with torch's sharded scaler in which the scales of the two ranks diverge."""
    return [
        ranks
        for ranks in rank_runs(run, "torch")
        if ranks[0]["scale_changes"] != ranks[1]["scale_changes"]
    ]


def real_level(run: Result, interval: int) -> float:
    """Return the mean log2 scale."""
    levels = counted(run.arm(f"G={interval}"), "scales")
    return fmean(levels.keys(), levels.values())


def t3(thresholds: Mapping[int, int], interval: int) -> tuple[float, float]:
    """Return T3's skip rate and mean log2 scale for these thresholds."""
    x, form = of_thresholds(thresholds, interval)
    return form.skip_rate, float(x @ form.levels)


def t3_rate(run: Result, interval: int, thresholds: str) -> float:
    """Return T3's skip rate from the thresholds of an arm, the run's own or float32's: the mean
    over seeds.
    """
    distributions = per_seed(run.arm(thresholds), "thresholds")
    return fmean(t3(each, interval)[0] for each in distributions)


def t3_level(run: Result, interval: int, thresholds: str) -> float:
    """Return T3's mean log2 scale from the thresholds of an arm: the mean over seeds."""
    distributions = per_seed(run.arm(thresholds), "thresholds")
    return fmean(t3(each, interval)[1] for each in distributions)


def per_seed(arm: ArmRecords, column: str) -> list[dict[int, int]]:
    """Return the steps at each level of `thresholds` or `scales`, per seed."""
    return [_counted(pairs) for pairs in arm.column(column)]


def counted(arm: ArmRecords, column: str) -> dict[int, int]:
    """Return the steps at each level of `thresholds` or `scales`, of all seeds together."""
    return _counted(itertools.chain.from_iterable(arm.column(column)))


def _counted(pairs: Iterable[Sequence[int]]) -> dict[int, int]:
    levels: Counter[int] = Counter()
    for level, steps in pairs:
        levels[level] += steps
    return dict(sorted(levels.items()))


def in_order(row: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return log2 of the thresholds of a unit of theory_real, one per step."""
    levels, steps = np.array(row["thresholds"]).T
    return np.repeat(levels, steps)


def correlation(row: Mapping[str, Any]) -> float:
    """Return the correlation of the thresholds of successive steps."""
    levels = in_order(row)
    return float(np.corrcoef(levels[:-1], levels[1:])[0, 1])


class OrderEffect(NamedTuple):
    """By how much the order of the thresholds raises the mean log2 scale, compared with shuffled
    thresholds.

    Attributes:
        bits: mean over the shuffles.
        deviation: standard deviation of a single shuffle, bits.
    """

    bits: float
    deviation: float


def order_effect(run: Result, interval: int, shuffles: int = 100) -> OrderEffect:
    """Replay torch's rule over the float32 runs' thresholds, in order and shuffled, and average
    over the seeds.

    No loss scale has influenced these thresholds, so a difference is due to their order alone.
    """
    generator = np.random.default_rng(0)
    arm = run.arm("fp32")
    traces = [in_order(row) for row in arm]

    def mean_level(levels: NDArray[np.int64]) -> float:
        rule = Rule(2.0 ** float(np.median(levels)), growth_interval=interval)
        return replay_thresholds(rule, np.exp2(levels.astype(float))).mean_log2_scale

    ordered = fmean(map(mean_level, traces))
    shuffled = [
        fmean(mean_level(generator.permutation(t)) for t in traces)
        for _ in range(shuffles)
    ]
    return OrderEffect(ordered - fmean(shuffled), float(np.std(shuffled, ddof=1)))


def at_share(run: Result, name: str, point: int) -> list[float]:
    """Return what became of the transformer's gradient at scale 2^-14, a share of 2^22 tokens, per
    seed.
    """
    return [row[name][point][row["log2_scales"].index(-14)] for row in run.arm("gpt")]


def lower_scale_costs(run: Result, bits: int) -> list[tuple[float, float]]:
    """Return what a loss scale some bits below the largest that fits costs, per network, seed, and
    snapshot.

    Args:
        run: `gradient_histogram`.
        bits: Of the loss scale, a multiple of the step between two scales of the data.

    Returns:
        Pairs: how much more of the gradient's elements is zero, as a share, and how much the error
        of the gradient grows, as a share of the true gradient's norm. Both are of backward passes
        in fp16.
    """
    costs = []
    for row in run.records:
        below = bits // (row["log2_scales"][1] - row["log2_scales"][0])
        for snapshot, overflowed in enumerate(row["real_overflowed"]):
            top = max(i for i, share in enumerate(overflowed) if share == 0)
            flushed = row["real_flushed"][snapshot]
            error = row["real_error"][snapshot]
            more_flushed = flushed[top - below] - flushed[top]
            more_error = error[top - below] - error[top]
            costs.append((more_flushed, more_error))
    return costs


def gpt_apart(run: Result) -> float:
    """Return how far the mean loss of any way to train with an averaged loss is from float32's."""
    arms = ("bf16", "unscaled", "static 2^16", "dynamic G=50")
    return apart(run, arms, "fp32")


def more_loss(run: Result, arm: str) -> NDArray[np.float64]:
    """Return how much higher the loss ends than in float32, per seed; a seed has the same weights
    and batches.
    """
    return run.arm(arm).numbers("final_loss") - run.arm("fp32").numbers("final_loss")


def half_width(sample: NDArray[np.float64]) -> float:
    """Return half the width of the mean's 95 % interval, by Student's t."""
    size = len(sample)
    return float(STUDENT[size] * sample.std(ddof=1) / size**0.5)


def policy_scores(run: Result, policy: str, column: str) -> list[float]:
    """Return a score of a policy on each recorded run; a recovery that never came is inf."""
    values = itertools.chain.from_iterable(run.arm(policy).column(column))
    return [inf if value is None else value for value in values]


def wilson(found: int, asked: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of the share `found` of `asked`; [0, 1] if `asked` is 0."""
    if not asked:
        return 0.0, 1.0
    z = 1.959964
    share = found / asked
    shrink = 1 + z * z / asked
    middle = (share + z * z / (2 * asked)) / shrink
    variance = share * (1 - share) / asked + (z / (2 * asked)) ** 2
    half = z / shrink * sqrt(variance)
    return max(0.0, middle - half), min(1.0, middle + half)


def census(run: Result, *path: str) -> tuple[int, int]:
    """Return how many loops of the census fail, and how many have the feature: ``wrong``,
    ``checks``, ``of``.
    """
    found = asked = 0
    for row in run.records:
        told = row
        for key in path:
            told = told[key]
        found += told["wrong"] if path[0] == "of" else told["loops"]
        asked += told["loops"] if path[0] == "of" else row["loops"]
    return found, asked


def emulations(run: Result, last: str = "vit") -> list[list[tuple[str, str, str]]]:
    """Return the arms' (task, operators, arithmetic) by emulated device, the task `last` at the
    end.
    """
    by_device: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for arm in run.arms.values():
        task = arm.settings["task"]
        device = arm.settings["operators"], arm.settings["arithmetic"]
        by_device.setdefault(device, []).append((task, *device))
    del by_device["cpu", "cpu"]
    return [sorted(arms, key=lambda arm: arm[0] == last) for arms in by_device.values()]


def worst_emulation(run: Result) -> float:
    """Return the largest share, over emulated devices, of steps that overflow unlike the CPU's."""
    return max(fmean(differing(run, *arm) for arm in arms) for arms in emulations(run))


def differing(run: Result, task: str, operators: str, arithmetic: str) -> float:
    """Return the share of emulated steps whose overflow differs from the CPU's at equal weights."""
    arm = run.arm(f"{task}, {operators}, {arithmetic}")
    return sum(len(row["differing"]) for row in arm) / (len(arm) * run.steps)


def against_cpu(
    run: Result, task: str, operators: str, arithmetic: str, *, column: str
) -> list[float]:
    """Return an emulated run's skips, or its mean log2 scale, minus those of the CPU's run, by
    seed.
    """
    arms = run.arm(f"{task}, {operators}, {arithmetic}"), run.arm(f"{task}, cpu, cpu")
    if column == "skips":
        own, cpu = (np.array(arm.skips(), dtype=np.float64) for arm in arms)
    else:
        own, cpu = (np.log2(arm.scales()).mean(axis=1) for arm in arms)
    return [float(difference) for difference in own - cpu]

"""The claims: each sentence that the gallery, the paper, and the tests rely on, with one tolerance.

A claim is a function of a result. It returns the numbers and which parts of the sentence hold. The
paper marks a sentence with ``#holds("name")``. The build and the tests fail on a sentence that the
data no longer supports.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from math import inf, isnan, log, log2
from statistics import fmean
from typing import Any

import numpy as np

from ampsim.core import dialects
from figures import derived_numbers as q
from figures.results import Result


class Finding:
    """The result of evaluating a claim: its numbers in words, and which parts of the claim hold."""

    def __init__(self, now: str, *parts: bool) -> None:
        self.now, self.parts = now, parts

    @property
    def holds(self) -> bool:
        """Whether the whole claim holds."""
        return all(self.parts)


Judge = Callable[[Result], Finding]


@dataclass(frozen=True)
class Claim:
    """A sentence about one data file, and the function that evaluates it on the data."""

    stem: str
    sentence: str
    judge: Judge


CLAIMS: dict[str, Claim] = {}


def claim(name: str, stem: str, sentence: str) -> Callable[[Judge], Judge]:
    """Return a decorator that adds a function to `CLAIMS`."""

    def enter(judge: Judge) -> Judge:
        if name in CLAIMS:
            raise ValueError(
                f"claim {name!r}: expected a unique name; {CLAIMS[name].judge.__name__} has this one"
            )
        CLAIMS[name] = Claim(stem, sentence, judge)
        return judge

    return enter


def spread(values: Iterable[float], digits: int = 3, factor: float = 1.0) -> str:
    """Return ``mean (lowest to highest)``, in significant digits."""
    scaled = factor * np.array(list(values))
    mean, low, high = (
        f"{float(f'{x:.{digits}g}'):g}"
        for x in (scaled.mean(), scaled.min(), scaled.max())
    )
    return f"{mean} ({low} to {high})"


def _per(rows: Iterable[Mapping[str, Any]], name: str) -> Counter[str]:
    """Return how many rows have each value of a column."""
    return Counter(row[name] for row in rows)


def losses(run: Result, *arms: str, column: str = "test_loss") -> str:
    """Return the losses of some arms in words."""
    return ", ".join(f"{name} {spread(run.arm(name).column(column))}" for name in arms)


@claim(
    "traces.all",
    "traces",
    "The reference state machine reproduces every recorded trace bit for bit",
)
def traces_are_repeated(run: Result) -> Finding:
    repeated = sum(row["repeated"] for row in run.records)
    return Finding(f"{repeated} of {len(run.records)}", repeated == len(run.records))


@claim("traces.every-dialect", "traces", "Every dialect has a recorded trace")
def every_dialect_was_recorded(run: Result) -> Finding:
    systems = len({row["system"] for row in run.records})
    return Finding(
        f"{systems} of {len(dialects.names())}", systems == len(dialects.names())
    )


@claim(
    "threads.ours",
    "threads",
    "With ampsim's scaler, no backward pass is unscaled with a wrong scale, at depths 1 and 4 and "
    "four growth intervals",
)
def ours_never_unscales_wrongly(run: Result) -> Finding:
    wrong = q.total(run, "ampsim ", "wrong")
    return Finding(f"{wrong} passes", wrong == 0)


@claim(
    "ranks",
    "ranks_cells",
    "Whichever rank overflows, all ranks agree with ampsim's scaler and a group, but not in all "
    "cells with torch's sharded scaler",
)
def ranks_agree(run: Result) -> Finding:
    ours, torchs = (q.rank_wrong(run, scaler) for scaler in ("ours", "torch"))
    asked = len(q.rank_cells(run, "torch"))
    now = f"torch's: {len(torchs)} of {asked} cells fail; ampsim's: {len(ours)} of {len(q.rank_cells(run, 'ours'))}"
    return Finding(now, not ours, len(torchs) > 0)


@claim(
    "ranks.fused",
    "ranks_cells",
    "All cells that fail with torch's sharded scaler have fused optimizers",
)
def ranks_fused(run: Result) -> Finding:
    wrong = _per(q.rank_wrong(run, "torch"), "loop")
    now = ", ".join(
        f"{loop}: {wrong[loop]} of {n}"
        for loop, n in _per(q.rank_cells(run, "torch"), "loop").items()
    )
    return Finding(now, set(wrong) == {"fused"})


@claim(
    "ranks.parted",
    "ranks_cells",
    "Without unscale_, an overflow on one rank desynchronizes plain and FSDP1 shards with fused "
    "SGD and fused AdamW, but not DDP or FSDP2",
)
def ranks_part(run: Result) -> Finding:
    cells = q.rank_wrong(run, "torch", "parted")
    found = {(cell["cut"], cell["optimizer"], cell["overflow"]) for cell in cells}
    said = set(product(("plain", "FSDP1"), ("SGD", "AdamW"), ("rank 0", "rank 1")))
    return Finding(
        f"{len(cells)} cells",
        found == said,
        {cell["way"] for cell in cells} == {"step"},
    )


@claim(
    "ranks.infinite",
    "ranks_cells",
    "After unscale_, fused SGD makes parameters infinite and raises no error",
)
def ranks_infinite(run: Result) -> Finding:
    cells = q.rank_wrong(run, "torch", "infinite")
    found = {(cell["cut"], cell["overflow"]) for cell in cells}
    said = {
        ("plain", "both"),
        ("FSDP1", "both"),
        *product(["DDP"], ("rank 0", "rank 1", "both")),
    }
    return Finding(
        f"{len(cells)} cells",
        found == said,
        {(c["optimizer"], c["way"]) for c in cells} == {("SGD", "unscale_")},
    )


@claim(
    "ranks.raised",
    "ranks_cells",
    "After unscale_, the step of fused AdamW raises in every cell; with finite gradients it "
    "raises after it has written parameters",
)
def ranks_raise(run: Result) -> Finding:
    cells = [
        c
        for c in q.rank_cells(run, "torch")
        if (c["optimizer"], c["loop"], c["way"]) == ("AdamW", "fused", "unscale_")
    ]
    ranks = [rank for cell in cells for rank in cell["ranks"]]
    infinite = sum(cell["outcome"] == "raised infinite" for cell in cells)
    now = f"{len(cells)} cells, in {infinite} of them a parameter is infinite by then"
    clean = [
        rank["moved"]
        for cell in cells
        if cell["overflow"] == "none"
        for rank in cell["ranks"]
    ]
    return Finding(
        now, all(rank["raised"] == "step" for rank in ranks), all(clean), infinite > 0
    )


@claim(
    "ranks.reductions",
    "rank_reductions",
    "With equal gradients, N ranks lose log2 N bits of range if fp16 gradients are summed before they are "
    "divided, none if they are divided first or reduced in float32, and half of it, rounded down, under FSDP in fp16",
)
def ranks_lose_bits(run: Result) -> Finding:
    rows = [(row["arm"], each) for row in run.records for each in row["measured"]]
    agree = [each["bits_lost"] == each["predicted"] for _, each in rows]
    most = {arm: each["bits_lost"] for arm, each in rows}
    summed, halved = (
        most["all-reduce in fp16: sum, divide"],
        most["FSDP2, reduced in fp16"],
    )
    now = f"{sum(agree)} of {len(agree)} as predicted; at most {summed} and, under FSDP, {halved} bits"
    return Finding(now, all(agree), summed == log2(max(run.config["ranks"])))


@claim(
    "ranks.deepspeed",
    "zero_reductions",
    "With equal gradients, DeepSpeed's scale settles log2 N bits lower on N ranks than on one under ZeRO-0, and at the "
    "same scale with prescale_gradients and under ZeRO-1 to 3",
)
def deepspeed_loses_bits(run: Result) -> Finding:
    lost = {
        (row["arm"], each["ranks"]): each["bits_lost"]
        for row in run.records
        for each in row["measured"]
    }
    summed = {ranks: bits for (arm, ranks), bits in lost.items() if arm == "ZeRO-0"}
    others = [bits for (arm, _), bits in lost.items() if arm != "ZeRO-0"]
    now = f"bits by ranks: {summed}; otherwise at most {max(others)}"
    agree = all(bits == log2(ranks) for ranks, bits in summed.items())
    return Finding(now, agree, len(summed) > 1, not any(others))


@claim(
    "log.power",
    "log_power",
    "A log that prints each overflow shows every seeded fault of a scaler in half of the runs, one that prints each "
    "scale shows all but a late scale in every run, one that prints each tenth scale shows most of the faults in every "
    "run, and no log contradicts the scaler without a fault",
)
def logs_show_faults(run: Result) -> Finding:
    def shares(form: str) -> dict[str, float]:
        return {
            arm: sum(row["shown"][form] for row in rows)
            / sum(row["runs"] for row in rows)
            for arm, rows in run.arms.items()
        }

    printed, whole, tenth = map(shares, ("overflows", "every 1", "every 10"))
    right = max(shares(form)["no fault"] for form in run.records[0]["shown"])
    faults = [arm for arm in printed if arm != "no fault"]
    half = sum(printed[arm] >= 0.5 for arm in faults)
    every = sum(tenth[arm] == 1 for arm in faults)
    now = f"{half} and {every} of {len(faults)} faults; {right:.0%} of the right scaler's runs"
    missed = {arm for arm in faults if whole[arm] < 1}
    return Finding(
        now,
        half == len(faults),
        missed == {"scale is one step late"},
        2 * every > len(faults),
        right == 0,
    )


@claim(
    "ranks.training",
    "ranks_training",
    "On two ranks with a fused optimizer, torch's sharded scaler puts inf into parameters after "
    "`unscale_`. Without `unscale_`, the ranks' scales diverge and both losses end in NaN. With "
    "ampsim's scaler, neither happens",
)
def ranks_train(run: Result) -> Finding:
    def count(scaler: str) -> tuple[int, int]:
        runs = q.rank_runs(run, scaler)
        lost = sum(any(rank["not_finite"] for rank in ranks) for ranks in runs)
        return lost, sum(
            ranks[0]["scale_changes"] != ranks[1]["scale_changes"] for ranks in runs
        )

    (lost, parted), ours = count("torch"), count("ours")
    nan = [
        all(isnan(rank["loss"][-1]) for rank in ranks) for ranks in q.parted_runs(run)
    ]
    now = (
        f"infinite parameters, diverged scales: torch's in {lost} and {parted} runs, NaN on both "
        f"ranks in {sum(nan)} of the latter; ampsim's in {ours[0]} and {ours[1]}"
    )
    return Finding(now, ours == (0, 0), lost > 0, parted > 0, all(nan))


@claim(
    "cuda.reproduced",
    "cuda_runs",
    "The state machine reproduces most public logs of CUDA runs, and every followed log of torch's "
    "GradScaler; with an interval three times as long it contradicts far more scales",
)
def cuda_reproduced(run: Result) -> Finding:
    rows = q.followed(run)
    whole = sum(not row["breaks"] for row in rows)
    breaks = sum(len(row["breaks"]) for row in rows)
    moves, control = (sum(row[name] for row in rows) for name in ("moves", "control"))
    torch = [row for row in rows if row["program"] in ("arcface", "swin")]
    now = (
        f"{whole} of {len(rows)} logs; {breaks} of {moves:,} moves contradicted, {control:,} with "
        f"the wrong interval; {len(torch)} logs of GradScaler"
    )
    return Finding(
        now,
        whole > 0.8 * len(rows),
        control > 50 * breaks,
        not any(row["breaks"] for row in torch),
    )


@claim(
    "cuda.bound",
    "cuda_runs",
    "No log of a CUDA run that prints its overflows has more than T1 and T10 allow",
)
def cuda_bound(run: Result) -> Finding:
    rows = [row for row in q.followed(run) if "most" in row]
    beyond = [row for row in rows if row["skips"] > row["most"]]
    now = f"{len(beyond)} of {len(rows)} logs beyond the bound"
    return Finding(now, bool(rows), not beyond)


@claim(
    "cuda.ranks",
    "cuda_runs",
    "In one laboratory's runs, the settled scale falls by one bit per doubling of the GPUs under "
    "ZeRO-0, and is the same at every size under ZeRO-3",
)
def cuda_ranks(run: Result) -> Finding:
    cells = q.settled_by_gpus(run)
    levels = {
        (stage, bits + (log2(gpus) if stage == 0 else 0), key)
        for key, cell in cells.items()
        for stage in key[1:2]
        for gpus, settled in cell.items()
        for bits in settled
    }
    sizes = [gpus for cell in cells.values() for gpus in cell]
    now = f"{len(cells)} configurations, {min(sizes)} to {max(sizes)} GPUs"
    return Finding(now, len(levels) == len(cells), {key[1] for key in cells} == {0, 3})


def failing_engines(run: Result, check: str) -> set[str]:
    """Return the engines that fail a check on one rank or on several."""
    return {
        row["arm"]
        for row in run.records
        for ranks in ("checks", "rank_checks")
        if row.get(ranks, {}).get(check, "passed") != "passed"
    }


@claim(
    "engines.growth",
    "engines",
    "Of the engines whose gradients do not depend on a constant loss scale, DeepSpeed's alone takes "
    "another gradient where the scale grows",
)
def growth_changes_gradients(run: Result) -> Finding:
    failed = failing_engines(run, "growing_scale_leaves_gradients_whole")
    failed -= failing_engines(run, "gradients_do_not_depend_on_loss_scale")
    return Finding(", ".join(sorted(failed)), failed == {"deepspeed", "deepspeed-3"})


@claim(
    "engines.other",
    "engines",
    "Fabric and verl do not continue exactly after a resume, and with slime's order of calls "
    "gradients depend on the loss scale; the other engines pass both checks",
)
def engines_fail_elsewhere(run: Result) -> Finding:
    resumed = failing_engines(run, "resume_is_exact")
    scaled = failing_engines(run, "gradients_do_not_depend_on_loss_scale")
    now = (
        f"resume: {', '.join(sorted(resumed))}; gradients: {', '.join(sorted(scaled))}"
    )
    return Finding(now, resumed == {"fabric", "verl"}, scaled == {"slime"})


@claim(
    "conformance.ours",
    "conformance",
    "Of the checks that apply to any loss scaler, only ampsim.torch.GradScaler fails none",
)
def only_ours_passes_all(run: Result) -> Finding:
    scalers = q.adapters(run)
    outcomes = {
        row["arm"]: {found["outcome"] for found in row["checks"].values()}
        for row in scalers
    }
    perfect = [arm for arm in outcomes if outcomes[arm] <= {"passed", "skipped"}]
    now = f"{', '.join(perfect) or 'none'} of {len(scalers)} scalers"
    return Finding(now, perfect == ["ampsim-torch"])


@claim(
    "loops.bugs",
    "loops",
    "Each bug from a public thread, seeded in a loop, fails the check that should catch it",
)
def planted_bugs_are_caught(run: Result) -> Finding:
    bugs = run.arm("bugs").first["bugs"].values()
    caught = sum(bug["caught"] for bug in bugs)
    return Finding(f"{caught} of {len(bugs)}", caught == len(bugs))


@claim(
    "real",
    "theory_real",
    "T3 predicts the skips of real runs within three standard deviations at five growth "
    "intervals. T1 bounds the skips from above. The mean scale lies above T3's",
)
def real_skips(run: Result) -> Finding:
    z = {
        g: (q.real_z(run, g), q.real_z(run, g, "fp32"), q.real_z(run, g, bound=True))
        for g in q.INTERVALS
    }
    now = ", ".join(
        f"G={g} {q.real_rate(run, g):.4f} ({own:+.1f} sd)"
        for g, (own, _, _) in z.items()
    )
    worst, forecast = (max(abs(row[i]) for row in z.values()) for i in (0, 1))
    above = all(
        q.real_level(run, g) > q.t3_level(run, g, f"G={g}") for g in q.INTERVALS
    )
    return Finding(
        now, worst < 3, forecast < 3, max(bound for *_, bound in z.values()) < -3, above
    )


@claim(
    "real.order",
    "theory_real",
    "The order of the thresholds raises the mean scale at five growth intervals, at four or more by "
    "over two standard deviations of shuffled thresholds",
)
def real_order(run: Result) -> Finding:
    effects = {g: q.order_effect(run, g) for g in q.INTERVALS}
    now = ", ".join(
        f"G={g} {effect.bits:+.3f} bits ({effect.bits / effect.deviation:+.1f} sd)"
        for g, effect in effects.items()
    )
    clear = sum(effect.bits > 2 * effect.deviation for effect in effects.values())
    return Finding(now, min(effect.bits for effect in effects.values()) > 0, clear >= 4)


@claim(
    "real.forecast",
    "theory_real",
    "From float32 gradients of earlier steps, T3 predicts the later fp16 skips within a "
    "tenth",
)
def real_forecast(run: Result) -> Finding:
    off = {g: q.forecast_error(run, g) for g in q.INTERVALS}
    now = ", ".join(f"G={g} {100 * error:+.1f} %" for g, error in off.items())
    return Finding(now, max(map(abs, off.values())) < 0.1)


@claim(
    "hist.untrained",
    "gradient_histogram",
    "In an untrained model at scale 2^-14, an fp16 backward pass flushes far more elements to "
    "zero than one rounding of the fp32 gradient",
)
def backward_against_rounding(run: Result) -> Finding:
    rounded, real = (
        q.at_share(run, "rounded_flushed", 0),
        q.at_share(run, "real_flushed", 0),
    )
    now = f"untrained: {spread(rounded, 3, 100)} % by rounding, {spread(real, 3, 100)} % in the backward pass"
    return Finding(now, max(rounded) < 0.4, min(real) > 0.9)


@claim(
    "hist.ranks",
    "gradient_histogram",
    "A loss scale ten bits below the largest that fits, as a sum over 1,024 ranks needs, flushes at "
    "most 3 % more of the elements and adds less than 10^-3 of the gradient's norm to its error",
)
def ten_bits_less(run: Result) -> Finding:
    flushed, error = zip(*q.lower_scale_costs(run, 10), strict=True)
    now = f"at most {100 * max(flushed):.2g} % more elements, and {max(error):.1e} more error"
    return Finding(now, max(flushed) <= 0.03, max(error) < 1e-3)


@claim(
    "sigmoid.unscaled",
    "sigmoid_underflow",
    "Without a loss scale, the loss of a deep sigmoid network stays at ln 10",
)
def sigmoid_unscaled(run: Result) -> Finding:
    stuck = [
        abs(x - log(10)) < 0.0025 for x in run.arm("unscaled").column("train_loss")
    ]
    return Finding(f"{sum(stuck)} of {len(stuck)}", all(stuck))


@claim(
    "sigmoid.plateau",
    "sigmoid_underflow",
    "With a scale on the plateau, each run of the sigmoid network ends below one nat, as in fp32",
)
def sigmoid_plateau(run: Result) -> Finding:
    arms = ("fp32", "static 2^12", "static 2^16", "dynamic G=50", "dynamic G=2000")
    return Finding(
        losses(run, *arms, column="train_loss"),
        max(run.arm(arm).max("train_loss") for arm in arms) < 1,
    )


@claim("gpt.mean", "gpt_fp16", "A transformer with a mean loss needs no loss scale")
def gpt_mean_loss(run: Result) -> Finding:
    return Finding(
        losses(run, "unscaled", "dynamic G=50", "fp32"), q.gpt_apart(run) < 0.015
    )


@claim(
    "gpt.global",
    "gpt_fp16",
    "With the loss as a share of a global batch, unscaled training fails",
)
def gpt_global_batch(run: Result) -> Finding:
    return Finding(
        losses(run, "global unscaled", "global dynamic", "global fp32"),
        run.arm("global unscaled").min("test_loss")
        > run.arm("global fp32").max("test_loss") + 0.5,
        q.apart(run, ["global dynamic"], "global fp32") < 0.01,
    )


MEAN_LOSS = ("bf16", "unscaled", "dynamic G=50", "init 2^8", "init 2^32", "sum")


@claim(
    "resnet",
    "resnet_fp16",
    "On images, with the loss as a share of a large batch (here 2^-16), unscaled training fails",
)
def resnet_share(run: Result) -> Finding:
    return Finding(
        losses(run, "global unscaled", "global dynamic", "unscaled", "fp32"),
        run.arm("global unscaled").min("test_loss") > 2,
        q.apart(run, [*MEAN_LOSS, "global dynamic"], "fp32") < 0.1,
    )


@claim(
    "sweep",
    "static_sweep",
    "Fixed scales from 2^-10 to 2^15 form a plateau between a slope and a cliff",
)
def sweep_plateau(run: Result) -> Finding:
    loss = {
        k: run.arm(f"static 2^{k}").mean("test_loss")
        for k in (-12, -10, -8, -4, 0, 4, 8, 12, 14, 15, 16, 17)
    }
    true = run.arm("fp32").mean("test_loss")
    flat = [k for k in loss if loss[k] < true + 0.05]
    now = f"within 0.05 nats of fp32 from 2^{flat[0]} to 2^{flat[-1]}"
    return Finding(
        now,
        {k for k in loss if -10 <= k <= 15} <= {*flat},
        min(loss[-12], loss[17]) > 1.4 * true,
    )


@claim(
    "sweep.left",
    "static_sweep",
    "From 2^-16 to 2^-14, the network learns almost nothing but does not diverge, and at 2^-12 "
    "it learns",
)
def sweep_left(run: Result) -> Finding:
    loss = [
        x for k in (-16, -15, -14) for x in run.arm(f"static 2^{k}").column("test_loss")
    ]
    next_to = run.arm("static 2^-12").column("test_loss")
    now = f"2^-16 to 2^-14 end at {spread(loss)}, 2^-12 at {spread(next_to)}"
    return Finding(now, min(loss) > 2.2, max(loss) < 2.5, max(next_to) < 2)


@claim(
    "sweep.right",
    "static_sweep",
    "At scales 2^20 and 2^24, every step is skipped",
)
def sweep_right(run: Result) -> Finding:
    shares = [
        len(row["found_inf"]) / len(row["loss"])
        for k in (20, 24)
        for row in run.arm(f"static 2^{k}")
    ]
    return Finding(
        f"at 2^20 and 2^24 {spread(shares, 3, 100)} % of steps are skipped",
        min(shares) == 1,
    )


NEAR = (
    "G=5",
    "G=20",
    "G=2000",
    "G=10 a=0.5 b=0.5",
    "G=5 a=0.25 b=0.25",
    "G=20 k=2",
    "headroom 1 bit",
    "headroom 3 bits",
)


@claim(
    "rules.loss",
    "rules_trained",
    "From an initial scale near the threshold, no rule's loss differs from float32's at the 95 % "
    "level",
)
def rules_loss(run: Result) -> Finding:
    more = {name: q.more_loss(run, name) for name in NEAR}
    name, nearest = max(
        more.items(), key=lambda item: abs(item[1].mean()) / q.half_width(item[1])
    )
    now = f"furthest from it {name}, by {nearest.mean():.3f} +- {q.half_width(nearest):.3f}"
    return Finding(
        f"{now} nats",
        len(run.seeds) == 10,
        all(abs(x.mean()) < q.half_width(x) for x in more.values()),
    )


@claim(
    "rules.start",
    "rules_trained",
    "From scale 1 with a growth interval of 200, at most two seeds leave the plateau",
)
def rules_start(run: Result) -> Finding:
    arm = run.arm("G=200 from 2^0")
    more = q.more_loss(run, arm.name)
    now = f"{arm.known('left_plateau')} of {len(arm)}, {more.mean():+.3f} +- {q.half_width(more):.3f} nats"
    return Finding(
        now, arm.known("left_plateau") <= 2, more.mean() > q.half_width(more)
    )


RATES = ("0.02", "0.03", "0.035", "0.04", "0.05")


@claim(
    "crash.none",
    "scale_crash",
    "The scale collapses if the learning rate is too high: for no seed at .02 and for all "
    "seeds at .05",
)
def crash_counts(run: Result) -> Finding:
    counts = {rate: run.arm(f"fp16 lr={rate}").known("crash_step") for rate in RATES}
    now = ", ".join(
        f"lr {rate}: {count} of {len(run.seeds)}" for rate, count in counts.items()
    )
    return Finding(now, counts["0.02"] == 0, counts["0.05"] == len(run.seeds))


@claim("crash.fp32", "scale_crash", "In float32, none of these runs crashes")
def crash_float32(run: Result) -> Finding:
    found = sum(run.arm(f"fp32 lr={rate}").known("crash_step") for rate in RATES)
    return Finding(f"{found} crashes", found == 0)


@claim(
    "storm",
    "overflow_storm",
    "Bad batches at a rate above ln2/G lower the scale until these runs end",
)
def storm(run: Result) -> Finding:
    ends = {
        rate: q.last_scales(run.arm(f"storm {rate}"))
        for rate in ("0.5", "0.8", "1.25", "2")
    }
    moved = {
        rate: [log2(scale) - 16 for scale in scales] for rate, scales in ends.items()
    }
    lost = run.arm("storm 2").min("test_loss")
    return Finding(
        "; ".join(
            f"{rate} of it: {spread(bits, 2)} bits" for rate, bits in moved.items()
        ),
        min(moved["0.5"]) > -8,
        fmean(moved["0.8"]) > -4,
        max(moved["1.25"]) < 0,
        max(moved["2"]) < -46,
        lost > run.arm("storm 2 floor=2^8").max("test_loss"),
        lost > run.arm("storm 2 G=4").max("test_loss"),
    )


@claim(
    "bench.margin",
    "policy_benchmark",
    "On recorded thresholds, a margin of one bit leaves no more bits unused on average than torch's "
    "default",
)
def bench_margin(run: Result) -> Finding:
    margin, default = (
        fmean(q.policy_scores(run, name, "unused"))
        for name in ("Headroom 1 bit", "Rule G=2000")
    )
    return Finding(f"{margin:.2f} bits, torch's {default:.2f}", margin <= default)


@claim(
    "bench.recovery",
    "policy_benchmark",
    "After a drop of the threshold by ten bits, torch's growth interval recovers by the end of no run",
)
def bench_recovery(run: Result) -> Finding:
    steps = q.policy_scores(run, "Rule G=2000", "recovery")
    recovered = len(steps) - steps.count(inf)
    return Finding(f"recovered in {recovered} of {len(steps)}", recovered == 0)


@claim(
    "async.scale",
    "async_depth",
    "The late scale alone causes less than a fifth of the loss increase that late weights cause",
)
def async_scale(run: Result) -> Finding:
    cost = run.arm("depth 4").mean("test_loss") - run.arm("depth 0").mean("test_loss")
    return Finding(
        losses(run, "depth 0", "scale 4", "depth 4"),
        q.apart(run, ["scale 4"], "depth 0") < 0.2 * cost,
    )


@claim(
    "census.wrong",
    "census",
    "Of the public fp16 loops that a search found, more than a third fail a check, in more than "
    "half of the repositories",
)
def public_loops_are_wrong(run: Result) -> Finding:
    found, asked = q.census(run, "wrong")
    everyone = {name for row in run.records for name in row["repositories"]}
    theirs = {name for row in run.records for name in row["wrong"]["repositories"]}
    lows = (q.wilson(found, asked)[0], q.wilson(len(theirs), len(everyone))[0])
    now = f"{found} of {asked} loops, in {len(theirs)} of {len(everyone)} repositories"
    return Finding(now, lows[0] > 1 / 3, lows[1] > 1 / 2)


@claim(
    "census.skips",
    "census",
    "Of the loops that a search found, most per-step schedules and nearly all averages of "
    "parameters advance in a skipped step",
)
def public_schedules_go_on(run: Result) -> Finding:
    schedules, averages = (
        q.census(run, "of", "schedule"),
        q.census(run, "of", "average"),
    )
    now = f"schedules {schedules[0]} of {schedules[1]}, averages {averages[0]} of {averages[1]}"
    return Finding(now, q.wilson(*schedules)[0] > 0.7, q.wilson(*averages)[0] > 0.9)


@claim(
    "emulated.overflow",
    "emulated_cuda",
    "At equal weights, no emulated matrix unit, control, or autocast list changes whether a step "
    "overflows in 0.5 % of the steps",
)
def emulation_overflows_alike(run: Result) -> Finding:
    worst = q.worst_emulation(run)
    return Finding(f"at most {100 * worst:.2g} %", worst < 0.005)


@claim(
    "emulated.scale",
    "emulated_cuda",
    "The mean log2 scale of emulated runs is within 0.1 bit of the CPU's, in the mean of the five "
    "models that do not crash",
)
def emulation_scales_alike(run: Result) -> Finding:
    means = [
        fmean(
            x
            for arm in arms[:-1]
            for x in q.against_cpu(run, *arm, column="log2_scale")
        )
        for arms in q.emulations(run, last="residual12")
    ]
    return Finding(spread(means, 2) + " bits", max(map(abs, means)) < 0.1)


@claim(
    "emulated.crash",
    "emulated_cuda",
    "Near a crash the rounding decides whether and when a run crashes: more than half of the "
    "emulated runs crash at another step than the CPU's, or only one of the two crashes",
)
def emulation_crashes_elsewhere(run: Result) -> Finding:
    cpu = run.arm("residual12, cpu, cpu").column("crash_step")
    others = [
        run.arm(", ".join(arms[-1])) for arms in q.emulations(run, last="residual12")
    ]
    pairs = [
        pair
        for arm in others
        for pair in zip(arm.column("crash_step"), cpu, strict=True)
    ]
    moved = sum(here != there for here, there in pairs)
    return Finding(f"{moved} of {len(pairs)} runs", moved > len(pairs) / 2)

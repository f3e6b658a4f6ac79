"""`claim | trial | now`: what short trials said before the experiments were written, and what the data says.

Trials had one to five seeds, other sizes and other code; the project's notes hold their numbers. *Now* is the mean
over seeds, with the lowest and highest in brackets.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ampsim.records import Record
from figures import results

Rows = list[Record]
REPRODUCED, CONTRADICTED, PARTLY = "reproduced", "contradicted", "in part"


class Claim(NamedTuple):
    """One row; `judge` gives the text of *now* and whether the claim was reproduced."""

    stem: str
    text: str
    trial: str
    judge: Callable[[Rows], tuple[str, str]]


def of(rows: Rows, arm: str, column: str) -> list[float]:
    """A column of an arm, one value a seed."""
    return [float(row[column]) for row in rows if row["arm"] == arm]


def spread(values: Sequence[float], digits: int = 3, factor: float = 1.0) -> str:
    """``mean (lowest to highest)``, in significant digits."""
    scaled = factor * np.array(values)
    mean, low, high = (f"{float(f'{x:.{digits}g}'):g}" for x in (scaled.mean(), scaled.min(), scaled.max()))
    return f"{mean} ({low} to {high})"


def verdict(*parts: bool | np.bool_) -> str:
    """Reproduced, in part, or contradicted."""
    return REPRODUCED if all(parts) else PARTLY if any(parts) else CONTRADICTED


# ------------------------------------------------------------------------------------------- one function a claim


def mean_loss(rows: Rows) -> tuple[str, str]:
    plain, scaled, true = (of(rows, arm, "test_loss") for arm in ("unscaled", "dynamic G=50", "fp32"))
    now = f"unscaled {spread(plain)}, dynamic {spread(scaled)}, fp32 {spread(true)}"
    return now, verdict(abs(np.mean(plain) - np.mean(true)) < 0.05)


def global_batch(rows: Rows) -> tuple[str, str]:
    plain, scaled, true = (of(rows, f"global {arm}", "test_loss") for arm in ("unscaled", "dynamic", "fp32"))
    now = f"unscaled {spread(plain)}, dynamic {spread(scaled)}, fp32 {spread(true)}"
    return now, verdict(min(plain) > max(true) + 1, abs(np.mean(scaled) - np.mean(true)) < 0.05)


def summed_loss(rows: Rows) -> tuple[str, str]:
    units = [row for row in rows if row["arm"] == "sum"]
    lowest = [min(np.log2(scale) for _, scale in row["scale_changes"]) for row in units]
    skips = [len(row["found_inf"]) for row in units]
    return f"lowest log2 S {spread(lowest)}, {spread(skips)} skips", verdict(max(lowest) < 12)


def backward_against_rounding(rows: Rows) -> tuple[str, str]:
    units = [row for row in rows if row["arm"] == "gpt"]
    shares = [
        [row[name][0][row["log2_scales"].index(-14)] for row in units] for name in ("rounded_flushed", "real_flushed")
    ]
    now = f"untrained: {spread(shares[0], 3, 100)} % by rounding, {spread(shares[1], 3, 100)} % in the backward pass"
    return now, verdict(max(shares[0]) < 0.4, min(shares[1]) > 0.9)


def plateau(rows: Rows) -> tuple[str, str]:
    fixed = [int(arm.removeprefix("static 2^")) for arm in {row["arm"] for row in rows} if arm.startswith("static")]
    true = np.mean(of(rows, "fp32", "test_loss"))
    flat = [k for k in sorted(fixed) if np.mean(of(rows, f"static 2^{k}", "test_loss")) < true + 0.05]
    whole = flat == [k for k in sorted(fixed) if flat[0] <= k <= flat[-1]]
    now = f"within 0.05 nats of fp32 from 2^{flat[0]} to 2^{flat[-1]}{'' if whole else ', with gaps'}"
    return now, verdict(whole, flat[0] <= -10, flat[-1] >= 15)


def left_cliff(rows: Rows) -> tuple[str, str]:
    losses = of(rows, "static 2^-16", "test_loss")
    return f"2^-16 ends at {spread(losses)}: it stands still, it does not diverge", verdict(min(losses) > 10)


def never_steps(rows: Rows) -> tuple[str, str]:
    units = [row for row in rows if row["arm"] == "static 2^24"]
    shares = [len(row["found_inf"]) / len(row["loss"]) for row in units]
    return f"at 2^24 {spread(shares, 3, 100)} % of steps are skipped", verdict(min(shares) == 1)


def resnet_share(rows: Rows) -> tuple[str, str]:
    plain, scaled = (of(rows, f"global {arm}", "test_loss") for arm in ("unscaled", "dynamic"))
    return f"unscaled {spread(plain)}, dynamic {spread(scaled)}", verdict(min(plain) > 3 * max(scaled))


def sigmoid_unscaled(rows: Rows) -> tuple[str, str]:
    stuck = [sum(loss > 2.2 for loss in of(rows, arm, "train_loss")) for arm in ("unscaled", "static 2^4")]
    seeds = len(of(rows, "unscaled", "train_loss"))
    now = f"stuck at ln 10: unscaled {stuck[0]} of {seeds}, 2^4 {stuck[1]} of {seeds}"
    return now, verdict(stuck[0] == seeds, stuck[1] == seeds)


def sigmoid_dynamic(rows: Rows) -> tuple[str, str]:
    scaled, true = of(rows, "dynamic G=2000", "train_loss"), of(rows, "fp32", "train_loss")
    return f"G=2000 {spread(scaled)}, fp32 {spread(true)}", verdict(np.mean(scaled) <= np.mean(true))


def crashes(rows: Rows) -> tuple[str, str]:
    counts = {
        lr: sum(row["crash_step"] is not None for row in rows if row["arm"] == f"fp16 lr={lr}")
        for lr in ("0.02", "0.03", "0.035", "0.05")
    }
    now = ", ".join(f"lr {lr}: {count} of 5" for lr, count in counts.items())
    return now, verdict(counts["0.02"] == 0, counts["0.03"] == 2, counts["0.05"] == 5)


def ten_against_2000(rows: Rows) -> tuple[str, str]:
    ten, long = (of(rows, f"closed backoff G={interval}", "skip_rate") for interval in (10, 2000))
    losses = [of(rows, f"closed backoff G={interval}", "test_loss") for interval in (10, 2000)]
    now = (
        f"G=10 skips {spread(ten, 3, 100)} %, G=2000 {spread(long, 2, 100)} % of a run; "
        f"test loss {spread(losses[0])} and {spread(losses[1])}"
    )
    return now, verdict(min(ten) > 0.06, max(long) < 0.01)


def foretold(rows: Rows) -> tuple[str, str]:
    shares = {}
    for row in rows:
        if row["arm"] != "fp32":
            steps = sum(count for _, count in row["scales"])
            shares[row["arm"]] = row["skipped"] / steps
    return ", ".join(f"{arm} {share:.4f}" for arm, share in shares.items()), verdict(shares["G=5"] > 0.13)


def drift(rows: Rows) -> tuple[str, str]:
    moved = {
        rate: [np.log2(row["scale_changes"][-1][1]) - 16 for row in rows if row["arm"] == f"storm {rate}"]
        for rate in ("0.5", "0.8", "1.25", "2")
    }
    now = "; ".join(f"{rate} of it: {spread(bits, 2)} bits" for rate, bits in moved.items())
    return now, verdict(min(moved["0.5"]) > -8, max(moved["2"]) < -20)


def delay(rows: Rows) -> tuple[str, str]:
    losses = {k: of(rows, f"cumulative k={k}", "final_loss") for k in (0, 4)}
    now = f"k=0 {spread(losses[0])}, k=4 {spread(losses[4])}, SGD"
    return now, verdict(abs(np.mean(losses[0]) - np.mean(losses[4])) < 0.02)


CLAIMS: tuple[Claim, ...] = (
    Claim("gpt_fp16", "A transformer with a mean loss needs no loss scale", "2.2619 against 2.2616 in fp32", mean_loss),
    Claim("gpt_fp16", "As a share of a global batch, unscaled fails", "3.80 against 2.36 in fp32, 2.357 dynamic",
          global_batch),
    Claim("gpt_fp16", "A summed loss drives the scale down from 2^16", "to 2^8 in 8 skips", summed_loss),
    Claim("gradient_histogram", "A real fp16 backward pass loses far more than rounding the fp32 gradient, S = 2^-14",
          "26 % by rounding, 99 %", backward_against_rounding),
    Claim("resnet_fp16", "Images, loss as a share of a large batch: unscaled fails", "share 2^-14: .280, dynamic .0230",
          resnet_share),
    Claim("static_sweep", "A plateau between two cliffs", "2^-12 to 2^16", plateau),
    Claim("static_sweep", "Below the plateau Adam diverges", "loss 50.8 at 2^-16", left_cliff),
    Claim("static_sweep", "Above it no step is made", "2^22 never steps", never_steps),
    Claim("sigmoid_underflow", "Unscaled, a deep sigmoid network stays at ln 10, and so at 2^4", "5 of 5 and 5 of 5",
          sigmoid_unscaled),
    Claim("sigmoid_underflow", "A dynamic scale trains it no worse than fp32", ".306 (G=2000), fp32 .513",
          sigmoid_dynamic),
    Claim("scale_crash", "Too high a learning rate crashes the scale", "lr .02: 0 of 5, .03: 2, .05: 5", crashes),
    Claim("overflow_storm", "Bad batches at a rate above ln2/G drive the scale down without end",
          "simulated only", drift),
    Claim("theory_real", "T3 foretells the skips of a real run", ".1434 (G=5), .0762, .0390, .0154, .0080 (100)",
          foretold),
    Claim("policies", "An interval of 10 wastes steps that 2000 does not", "9 % skipped", ten_against_2000),
    Claim("staleness", "A late scale does not change the final loss", "no effect", delay),
)  # fmt: skip


def table() -> str:
    """The table, in Markdown; a claim whose data is not there is left out."""
    lines = [
        "## What trials had said, and what the data says\n",
        "Now: the mean over the seeds of the data file (lowest to highest).\n",
        "| claim | trial | now | verdict | data |",
        "|---|---|---|---|---|",
    ]
    for claim in CLAIMS:
        now, said = claim.judge(list(results.load(claim.stem).records))
        lines.append(f"| {claim.text} | {claim.trial} | {now} | **{said}** | `{claim.stem}` |")
    return "\n".join(lines) + "\n"

"""The corpus, and the rule of each of its programs."""

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ampsim.core import dialects
from ampsim.core.machine import Rule

INPUT = Path(__file__).parent.parent / "inputs" / "cuda_runs.jsonl.gz"
Run = Mapping[str, Any]


@cache
def load() -> list[Run]:
    """Return the runs of the corpus."""
    with gzip.open(INPUT, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@dataclass(frozen=True)
class Program:
    """What its logs leave out.

    Attributes:
        dialect: Name of its scaler.
        interval: Growth interval that its own configuration sets; None for the scaler's default.
        counts_skips: Whether a skipped step has a number.
    """

    dialect: str
    interval: int | None = None
    counts_skips: bool = True


PROGRAMS = {
    "arcface": Program(
        "torch.amp.GradScaler", 100
    ),  # insightface arcface_torch/train_v2.py
    "deepspeed": Program("deepspeed.DynamicLossScaler[0.17.0]"),
    "fairseq": Program("fairseq.DynamicLossScaler", counts_skips=False),
    "megatron": Program("megatron.core.DynamicGradScaler"),
    "swin": Program("torch.amp.GradScaler"),  # Swin-Transformer utils.py: GradScaler()
}
# Settings that a log leaves out, by repository and path, from files beside the logs.
CONFIGURED: tuple[tuple[str, dict[str, Any]], ...] = (
    # DeepSpeedExamples: dschat/utils/ds_utils.py
    (r"DeepSpeedExamples.*training_log_output", {"interval": 100, "hysteresis": 2}),
    # Megatron-DeepSpeed: --loss-scale-window of the jobs
    (r"bigscience/train/", {"interval": 500, "hysteresis": 2, "program": "deepspeed"}),
    # MLPerf: fairseq/fp16_trainer.py. With distributed_weight_update, as in all logs of v0.7, a
    # finite step updates the scaler twice: in _all_reduce_and_rescale and in _opt.
    (r"training_results_v0\.[56]/.*transformer", {"interval": 2000}),
    (r"training_results_v0\.7/.*transformer", {"interval": 1000}),
    # insightface before 2022: MaxClipGradScaler(cfg.batch_size, 128 * cfg.batch_size), with 128
    (r"insightface_arcface_log/.*_fp16", {"max_scale": 2.0**14}),
)


def rule_of(run: Run) -> Rule | None:
    """Return the rule of a run; None if its program's scaler is not of factors 2 and 1/2, or not
    known.
    """
    known = dict(run)
    for place, configured in CONFIGURED:
        if re.search(place, f"{run['repository']}/{run['path']}"):
            known |= configured
    program = PROGRAMS.get(known["program"])
    if program is None:
        return None
    rule = dialects.get(program.dialect)
    if known["program"] == "deepspeed" and known["zero"] == 0:
        rule = dialects.get("deepspeed.FP16_Optimizer")  # has no hysteresis
    elif known["hysteresis"] and known["program"] in ("deepspeed", "megatron"):
        rule = rule.replace(hysteresis=known["hysteresis"])
    interval = known["interval"] or program.interval or default_interval(known)
    return rule.replace(
        growth_interval=interval or rule.growth_interval,
        max_scale=known.get("max_scale", rule.max_scale),
    )


def default_interval(run: Run) -> int | None:
    """Return the interval that fairseq's trainer sets by the number of ranks; None for others."""
    if run["program"] != "fairseq" or not run["gpus"]:
        return None
    batches = int(run["gpus"]) * int(run["update_freq"] or 1)
    return max(1, 2**14 // batches)


def counts_skips(run: Run) -> bool:
    """Return whether a skipped step of a run has a number."""
    return PROGRAMS[run["program"]].counts_skips


def unfit(run: Run) -> str | None:
    """Return why a run cannot be followed; None if it can."""
    scales = [row for row in run["rows"] if len(row) > 3]
    shows_steps = all(
        row[0] is not None for row in (scales or run["rows"]) if len(row) != 3
    )
    if not shows_steps or not any(len(row) != 3 for row in run["rows"][1:]):
        return "no steps"
    numbers = [bits for row in run["rows"] for bits in row[1:2] if bits is not None]
    return "means" if any(bits != int(bits) for bits in numbers) else None

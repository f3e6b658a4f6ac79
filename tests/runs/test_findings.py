"""Each finding is made of a run that has the fault, with its place and values, and of no healthy
run.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampsim import Rule, replay
from ampsim.runs import explain
from ampsim.runs.explain_log import Explanation
from ampsim.runs.findings.find import FINDINGS
from ampsim.runs.findings.finding import table
from ampsim.runs.record.run_file import RunFile

NAN, INF = math.nan, math.inf
RULE = Rule(growth_interval=150)
SLOW = Rule(growth_interval=2000)


def recorded(path: Path, **columns: Any) -> Explanation:
    """Record a run as `watch` does, a value of each column per step; return its diagnosis."""
    with RunFile(path / "run.jsonl", {}) as file:
        for step, values in enumerate(zip(*columns.values(), strict=True)):
            file.append({"step": step, **dict(zip(columns, values, strict=True))})
    return explain(path / "run.jsonl")


def trained(
    skips: Any, rule: Rule = RULE, steps: int = 400, **changed: Any
) -> dict[str, Any]:
    """Return the columns of a run that skipped these steps, and is healthy apart from that."""
    random = np.random.default_rng(0)
    skipped = [step in skips for step in range(steps)]
    after = replay(rule, skipped).tolist()
    norm = np.where(skipped, INF, random.lognormal(0.0, 0.1, steps)).tolist()
    loss = (np.linspace(4, 2, steps) + random.normal(0, 0.05, steps)).tolist()
    scales = [rule.init_scale, *after[:-1]]
    return {
        "loss_scale": scales,
        "skipped": skipped,
        "grad_norm": norm,
        "loss": loss,
    } | changed


HEALTHY = {
    "clean": [],
    "a search from the start": range(9),
    "a skip after each growth": range(150, 400, 151),
    "one skip": [200],
    "a burst": [200, 201, 202],
}


@pytest.mark.parametrize("skips", HEALTHY.values(), ids=list(HEALTHY))
def test_healthy_run_has_no_problems(tmp_path: Path, skips: Any) -> None:
    columns = trained(skips)
    found = recorded(tmp_path, **columns)
    assert (found.verdict, found.problems) == ("no problem found", [])
    assert sum(count for _, _, count, *_ in found.skips) == len(skips)
    assert [first for first, *_ in found.skips] == list(skips)
    lines = [
        f"step: {step}, loss_scale: {columns['loss_scale'][step]}, loss: {columns['loss'][step]}"
        for step in range(0, 400, 10)
    ]
    assert explain(lines).problems == []


LEAPS = np.tile([2.0**16, 2.0**16, 2.0**17, 2.0**17], 10)
FLAT = np.random.default_rng(0).normal(2.3, 0.02, 400).tolist()
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a collapse": (trained(range(360, 400), SLOW), "scale-collapse"),
    "its minimum": (
        trained(range(100, 400), Rule(growth_interval=2000, min_scale=256.0)),
        "scale-at-minimum",
    ),
    "each step skipped": (
        {"loss_scale": [8.0] * 9, "skipped": [True] * 9},
        "never-stepped",
    ),
    "a lost loss": (
        trained([], SLOW, loss=[3.0] * 300 + [NAN] * 100),
        "loss-not-finite",
    ),
    "a loss lost from the start": (
        trained([], SLOW, loss=[NAN] * 400),
        "loss-never-finite",
    ),
    "a norm that carries the scale": (
        {
            "loss_scale": LEAPS.tolist(),
            "grad_norm": (LEAPS / 2**8).tolist(),
            "loss": FLAT[:40],
        },
        "scaled-norm",
    ),
    "a clip of scaled gradients": (
        {
            "loss_scale": LEAPS.tolist(),
            "grad_norm": (1 / LEAPS).tolist(),
            "loss": FLAT[:40],
        },
        "clip-of-scaled-gradients",
    ),
    "growth without an end": (
        trained([], Rule(growth_interval=2), 100, grad_norm=[0.0] * 100),
        "scale-endless-growth",
    ),
    "underflow": (
        {"loss_scale": [1.0] * 20, "grad_norm": [0.0] * 20, "loss": [2.0] * 20},
        "norm-underflows",
    ),
    "many skips": (
        trained(range(0, 400, 6), Rule(growth_interval=5)),
        "skips-too-often",
    ),
    "a divergence": (
        trained([], SLOW, loss=[*np.linspace(4, 2, 300), *np.linspace(2, 30, 100)]),
        "loss-diverged",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found_first(tmp_path: Path, fault: str) -> None:
    columns, identifier = FAULTS[fault]
    found = recorded(tmp_path, **columns)
    assert found.verdict == "problem"
    assert found.problems[0].id == identifier


def test_first_lost_loss_has_its_place(tmp_path: Path) -> None:
    columns, _ = FAULTS["a lost loss"]
    [finding] = recorded(tmp_path, **columns).problems
    assert (finding.step, finding.lines[0], finding.values["records"]) == (
        300,
        302,
        100,
    )
    assert finding.level == "proved"


def test_last_finite_loss_is_quoted() -> None:
    values = [3.0] * 20 + [97.0, 250.0, 130.0] + [NAN] * 5
    found = explain([f"step {n} loss {value}" for n, value in enumerate(values)])
    assert "before that, it was 130" in found.headline


@pytest.mark.parametrize(("rise", "place"), [([], 40), ([60.0, 90.0, 5e4, 3e4], 39)])
def test_restart_is_before_the_rise(rise: list[float], place: int) -> None:
    values = [*np.linspace(36, 12, 40), *rise, *[INF] * 5]
    [problem] = explain(
        [f"step {n} loss {value}" for n, value in enumerate(values)]
    ).problems
    assert f"before step {place}:" in problem.actions[0]


def test_one_message_tells_nothing_of_earlier() -> None:
    ids = {each.id for each in explain(["Loss is nan, stopping training"]).problems}
    assert "loss-never-finite" not in ids


def test_loss_that_carries_scale_is_no_divergence(tmp_path: Path) -> None:
    scales = [2.0 ** (10 + step // 50) for step in range(200)]
    loss = [scale * 2.3 for scale in scales]
    ids = {
        each.id for each in recorded(tmp_path, loss_scale=scales, loss=loss).findings
    }
    assert "scaled-loss" in ids
    assert "loss-diverged" not in ids


def test_nan_norm_is_no_zero() -> None:
    well = ["loss 2.3 scale 65536 grad_norm 1.5"] * 100
    lost = [f"loss nan scale {2.0 ** (16 - n)} grad_norm nan" for n in range(40)]
    ids = {each.id for each in explain([*well, *lost]).findings}
    assert not ids & {"norm-zero", "norm-underflows"}


def test_flat_loss_is_not_cleared(tmp_path: Path) -> None:
    # unscale_ and update without step: the scale rises, and no step is taken.
    found = recorded(
        tmp_path, **trained([], Rule(growth_interval=20), 120, loss=FLAT[:120])
    )
    assert found.verdict == "too little to tell"
    assert "loss-flat" in {each.id for each in found.findings}


def test_trainer_zero_hides_nan() -> None:
    lines = [
        f"{{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': {n}}}"
        for n in range(5)
    ]
    assert explain(lines).problems[0].id == "loss-zero-hides-nan"


def test_zero_rate_shows_no_step() -> None:
    lines = [
        f"{{'loss': 4.{n}, 'grad_norm': nan, 'learning_rate': 0.0, 'epoch': {n}}}"
        for n in range(5)
    ]
    assert explain(lines).problems[0].id == "never-stepped"


def test_two_runs_are_told_apart() -> None:
    lost = [f"step {n} loss nan scale 8" for n in range(10, 40)]
    well = [f"step {n} loss {4 - n / 20} scale 8" for n in range(30)]
    found = explain([*lost, *well])
    assert found.problems[0].message.startswith("In run 1 of 2")


def test_unguarded_overflow_is_found() -> None:
    lines = [
        line
        for n in range(9)
        for line in (
            f"step {n}, loss: 0.2{n}",
            "overflow, still update, loss scale adjust to 1024.0",
        )
    ]
    assert explain(lines).problems[0].id == "overflow-not-skipped"


def test_causes_in_log_come_first() -> None:
    warning = (
        "UserWarning: cuDNN SDPA backward got grad_output.strides() != output.strides()"
    )
    found = explain([warning, *(f"step {n} loss nan scale 8" for n in range(5))])
    assert "enable_cudnn_sdp(False)" in found.problems[0].actions[0]


def test_recorded_warning_is_a_problem(tmp_path: Path) -> None:
    columns = trained(
        [], warning=[None] * 300 + ["no parameter changed in 100 steps"] + [None] * 99
    )
    assert recorded(tmp_path, **columns).problems[0].id == "recorded-warning"


def test_last_loss_of_zero_is_not_cleared() -> None:
    lines = [f"step {n} loss {0.9 - n / 10:.1f} grad_norm 1.{n}" for n in range(10)]
    assert explain(lines).verdict == "too little to tell"
    assert explain(lines[:9]).verdict == "no problem found"


def test_counts_since_the_last_line_add_up() -> None:
    lines = [
        f"step {10 * n} loss 2 skipped_steps {count}"
        for n, count in enumerate([0, 2, 0, 3, 0])
    ]
    assert sum(count for _, _, count, *_ in explain(lines).skips) == 5


def test_each_problem_has_advice() -> None:
    for identifier in set(table()) - {"groups", "shared", "hints"}:
        row = table()[identifier]
        if row.get("severity") != "info":
            assert row["cause"], identifier
            assert row["actions"], identifier
    assert len(FINDINGS) <= 30


def test_explained_findings_exist() -> None:
    explained = {
        name
        for row in table().values()
        if isinstance(row, dict)
        for name in row.get("explains", ())
    } - {*table()["groups"]}
    explained = explained.union(*table()["groups"].values())
    assert {name for name in explained if not name.startswith("error-")} <= set(table())


def test_leap_of_loss_is_not_cleared() -> None:
    well = np.linspace(0.8, 0.7, 40).tolist()
    for end, verdict in ((0.79, "problem"), (0.4, "too little to tell")):
        values = [*well, 1191.0, 300.0, 5.0, *np.linspace(0.7, end, 30)]
        lines = [f"step {n} loss {value:.4f}" for n, value in enumerate(values)]
        found = explain(lines)
        assert found.verdict == verdict
        assert found.findings[0].id == "loss-leaped"
        assert found.findings[0].step == 40


def test_counted_skips_are_not_missing() -> None:
    scales = [2.0**16, 2.0**15, 2.0**14, 2.0**14, 2.0**14]
    lines = [f"step {n} loss {3 - n / 9} scale {s}" for n, s in enumerate(scales)]
    found = explain(lines)
    assert "at least 2" in found.headline
    assert not any("skipped" in text for text in found.missing)


def test_lost_part_of_sum_is_found() -> None:
    parts = ("f0_loss", "energy_loss", "pitch_loss", "mel_loss")
    values = ("0.07", "0.05", "0.3", "nan")
    lines = [
        f"(Step: 95400) train_{n} = {v}" for n, v in zip(parts, values, strict=True)
    ]
    assert explain(lines).problems[0].id == "loss-not-finite"


def test_short_run_with_finite_norms_is_cleared() -> None:
    losses = [0.092, 0.101, 0.091, 0.094, 0.088, 0.101, 0.093, 0.097, 0.098]
    lines = [f"loss {loss} grad_norm {10 * loss}" for loss in losses]
    assert explain(lines).verdict == "no problem found"
    assert explain(lines[:5]).verdict == "too little to tell"


def test_last_number_may_be_lost() -> None:
    lines = [f"step {n} ce 2 l {value}" for n, value in enumerate((3.0, 2.5, NAN))]
    [shown] = explain(lines).looked_at
    assert "'l'" in shown
    assert "first 3, last NaN, lowest 2.5" in shown


def test_number_beside_evaluations_is_no_loss() -> None:
    settings = ["SmoothL1Loss: 0"] * 2
    lines = [f"val_loss {4 - n / 50}" for n in range(120)]
    assert explain([*settings, *lines]).verdict == "no problem found"


def test_printed_digits_freeze_no_loss() -> None:
    falling = np.round(np.linspace(3, 2, 6000), 2)
    frozen = np.append(np.linspace(3, 2, 100), [2.0] * 30)
    ids = [
        {
            finding.id
            for finding in explain(f"loss {value}" for value in values).findings
        }
        for values in (falling, frozen)
    ]
    assert "loss-constant" not in ids[0]
    assert "loss-constant" in ids[1]


@pytest.mark.parametrize(
    "log",
    [
        ["Epoch 1", "Training Error = nan", "Epoch 2", "Training Error = nan"] * 2,
        ["err   nan", "size: 64x291"] * 3 + ["LOSS: 0.000000"],
        [f"{5000 * n} (0m {n}s) {v} Ko" for n, v in enumerate((2.4, 2.3, *[NAN] * 3))],
        ["loss: nan, cls: nan", *["x=1.0 l=0.2367 h=0.16"] * 4],
        ["step loss: 0.19", "eval_epoch_loss=nan", "train_perplexity=nan"],
        [
            *[f"[loss={n}.5, avg_loss=0.08]" for n in range(6)],
            "[loss=nan, avg_loss=nan]",
        ],
    ],
)
def test_log_of_lost_numbers_is_sick(log: list[str]) -> None:
    assert explain(log).verdict == "problem"


def test_lost_number_alone_is_no_problem() -> None:
    falling = [f"loss={3 - n / 4}, lr=1" for n in range(7)]
    for log in (
        [*falling, "loss=nan, lr=1"],
        [*falling, "val_loss=nan", "test_loss=nan"],
        [
            *[f"loss_scale {2.0**16}, {line}" for line in falling],
            "loss=nan, avg_loss=nan",
        ],
        ["class 3: iou nan, acc nan"] * 4,
        ["Training Error = nan", "Test Error = nan", *falling],
    ):
        assert not explain(log).problems


def test_lasting_nan_of_mean_is_sick() -> None:
    losses = [f"iter {n} loss: {2 - n / 9}" for n in range(9)]

    def log(*means: float) -> list[str]:
        pairs = zip(losses, means, strict=True)
        return [line for loss, mean in pairs for line in (loss, f"mean_loss: {mean}")]

    assert explain(log(2, 2, NAN, NAN, NAN, 2, 1, 1, 1)).verdict == "problem"
    assert not explain(log(NAN, NAN, NAN, 2, 2, 2, 1, NAN, 1)).problems


def test_divergence_begins_at_last_usual_loss() -> None:
    losses = [36.4 * max(math.exp(-step / 20), 0.3) for step in range(400)]
    losses[340:] = [min(11 * 1.6 ** (step - 339), 4e4) for step in range(340, 400)]
    lines = [f"step {step} loss {loss:.4f}\n" for step, loss in enumerate(losses)]
    found = [each for each in explain(lines).findings if each.id == "loss-diverged"]
    assert [each.place for each in found] == ["step 341"]

"""The one reader of data files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from figures import derived_numbers, results

ROWS: tuple[dict[str, Any], ...] = tuple(
    {
        "arm": f"G={g}",
        "seed": seed,
        "settings": {"growth_interval": g, "spans": [1, 2]},
        "loss": [1.0, 3.0, g],
    }
    for g in (5, 50)
    for seed in (0, 1)
)
RUN = results.Result(
    "x", Path("x.jsonl"), {"seeds": [0, 1], "config": {"steps": 3}}, ROWS
)


def test_find_arms_by_name_or_settings() -> None:
    assert list(RUN.arms) == ["G=5", "G=50"]
    assert RUN.one(growth_interval=50) == RUN.arm("G=50")
    assert RUN.where(spans=(1, 2)) == tuple(RUN.arms.values())
    assert RUN.where(depth=None) == ()


def test_missing_arm_or_file_is_named() -> None:
    with pytest.raises(KeyError, match="arm 'G=6': expected one of G=5, G=50"):
        RUN.arm("G=6")
    with pytest.raises(KeyError, match="expected one arm, 2 have these settings"):
        RUN.one(spans=(1, 2))
    with pytest.raises(
        FileNotFoundError, match=r"run `python -m experiments.nowhere` to create it"
    ):
        results.load("nowhere")


def test_scale_column_is_expanded_from_changes() -> None:
    record: dict[str, Any] = {"loss": [0.0] * 5, "scale_changes": [[0, 4.0], [3, 2.0]]}
    assert results.ArmRecords("x", (record,)).scales().tolist() == [
        [4.0, 4.0, 4.0, 2.0, 2.0]
    ]


def test_derived_numbers_are_correct() -> None:
    def row(
        arm: str, loss: float, skips: list[int], *changes: list[float]
    ) -> dict[str, Any]:
        levels = {"thresholds": [[3, len(skips)], [2, 1]]}
        columns = {"test_loss": loss, "found_inf": skips, "scale_changes": changes}
        return {"arm": arm, **columns, **levels}

    rows = row("fp32", 1.0, [], [0, 1.0]), row("fp32", 3.0, [], [0, 1.0])
    rows += (row("all", 2.0, [0, 1, 3], [0, 8.0], [1, 4.0], [2, 2.0], [4, 4.0]),)
    rows += (row("all", 1.5, [0], [0, 16.0]),)
    run = results.Result("x", Path("x"), {}, rows)
    arm = run.arm("all")
    assert derived_numbers.apart(run, ["fp32", "all"], "fp32") == 0.25  # 1.75 from 2
    assert derived_numbers.total(run, "a", "test_loss") == 3.5
    with pytest.raises(KeyError, match="among fp32, all"):
        derived_numbers.total(run, "b", "test_loss")
    assert derived_numbers.last_scales(arm) == [4.0, 16.0]
    assert derived_numbers.per_seed(arm, "thresholds") == [{2: 1, 3: 3}, {2: 1, 3: 1}]
    assert derived_numbers.counted(arm, "thresholds") == {2: 2, 3: 4}
    assert derived_numbers.half_width(np.array([1.0, 2.0, 3.0])) == pytest.approx(
        4.303 / 3**0.5
    )
    assert (arm.skips(), arm.min("test_loss"), arm.max("test_loss")) == (
        [3, 1],
        1.5,
        2.0,
    )
    assert results.log2(np.array([0.0, 8.0]), -9.0).tolist() == [-9.0, 3.0]

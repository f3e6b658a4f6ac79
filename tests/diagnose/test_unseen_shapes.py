"""Shapes of logs that no program in the table prints: what is not understood of them is not said."""

from pathlib import Path

import pytest

from ampsim.diagnose.explain import explain, in_words
from ampsim.diagnose.readers.sniff import read_history
from ampsim.diagnose.readers.text import read_text


def words(lines: list[str]) -> str:
    """Return what is said of a log, and how many rows were read of it."""
    history = read_text("-", [f"{line}\n" for line in lines])
    return f"{in_words(explain(history))}\n{history.rows} rows" if len(history.step) else "0 rows"


WRITTEN = """
65,536 | 65 536 | 65'536 | 65.536,0 | 2**16 | 2^16 | 1/1024 | 65536 -> 32768 | 65536->32768 | 65536 => 32768
65536 → 32768 | 65536 から 32768 | 65536 变为 32768 | 65536 to 32768 | 1e6 -> 5e5 -> 2.5e5 | 65536..32768 | 65536...
65536-32768 | 65536~32768 | 65536/32768 | 65536 32768 16384 | True | [65536, 32768] | 64K | 0x10000 | 12 % | 12%
"""


@pytest.mark.parametrize("written", WRITTEN.replace("\n", " | ").strip(" |").split(" | "))
@pytest.mark.parametrize("form", ["step: {}, loss: 2.5, loss_scale: {}", "step {} loss 2.5 loss_scale {}"])
def test_a_scale_that_is_written_in_another_way_is_not_read_in_part(written: str, form: str) -> None:
    said = words([form.format(at, written) for at in range(1, 6)])
    assert "5 rows" in said
    assert "The printed loss scale" not in said
    assert "Skipped" not in said


SEVERAL = {
    "two runs side by side": [
        f"step {at} | A: loss 2.5 scale 65536 | B: loss 3.5 scale {2 ** (16 - at)}" for at in range(6)
    ],
    "several records in a line": [
        "; ".join(f"step {at} loss 2.5 scale {2 ** (16 - at)}" for at in range(k, k + 3)) for k in (0, 3)
    ],
    "lines with one key that were picked out": [
        *(f'      "grad_norm": {1 + at},' for at in range(4)),
        *(f'      "grad_scale": {2.0 ** (15 + at)},' for at in range(4)),
    ],
    "two runs by turns": [
        f"{'AB'[at % 2]} at step {at // 2} loss: 2.5 scale: {(65536, 32768)[at % 2]}" for at in range(20)
    ],
}


@pytest.mark.parametrize("shape", SEVERAL)
def test_of_several_values_none_is_taken_for_the_only_one(shape: str) -> None:
    said = words(SEVERAL[shape])
    assert "32768 at first and 32768 at last" not in said
    assert "65536 at first and 65536 at last" not in said
    assert "Skipped" not in said


def test_files_and_ranks_whose_names_stand_before_their_lines_are_told_apart() -> None:
    for name in ("run{}/out.txt:7:", "rank {} ", "train{}.log:", "worker-{} | ", "(Trainer pid={}) ", "[Fold {}] "):
        said = words(
            [f"{name.format(at % 2)}step {at // 2}, loss: 2.5, loss_scale: {(8, 4096)[at % 2]}" for at in range(20)]
        )
        assert "The printed loss scales of the lines that are told apart lie between 8 and 4096." in said
        assert "Skipped" not in said


NO_RUN = {
    "arguments": "Arguments: loss_scale=128, steps=1000, lr=0.1, loss=ce",
    "a table of results": "| lr | loss_scale | final loss |\n|---|---|---|\n| 1e-3 | 65536 | 2.1 |\n| 1e-2 | 1 | nan |",
    "a validation that is named behind": "epoch 1: loss: nan (val)",
    "a validation among the keys": "phase=val epoch=1 loss=nan",
    "a line of source": '    print("OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768")',
    "a rule in words": "If gradients overflow, the loss scale is reduced from 65536 to 32768",
    "a note": "Overflow handling: reduce scale to: 1 at least",
    "a guard that is announced": "Gradients with nan will be skipped",
    "a loss that is feared": "Will raise when loss becomes NaN at any step",
    "what was mended": "Fixed bug where loss was nan at step 5",
    "what was not found": "step: 3, no nan found in loss, loss: 1.9",
    "an answer": "step: 3: NaN loss detected: False, loss: 2.0",
    "the environment": "LOSS_SCALE=65536\nMAX_STEPS=100",
    "an inverse": "step: 3, loss: 2.5, inverse loss scale: 1.52587890625e-05",
    "fractions": "step: 3, loss: 2.5, scale: 0.25\nstep: 9, loss: 2.5, scale: 0.125",
    "the next one": "step: 3, loss: 2.5, next scale: 1024",
    "a product": "step: 3, loss: 2.5, loss * scale: 131072",
    "a count that stands": "step: 3, loss: 2.5, skip: 8",
    "a validation with its step": "eval step 1: loss: nan, acc: 0.1",
    "a share of the steps": "step: 3, loss: 2.5, skipped: 5 %",
    "an overflow that is no count": "step: 3, loss: 2.5, overflow: 0.75",
    "the scale of an image": "step: 3, loss: 2.5, scale: 0.5",
}


@pytest.mark.parametrize("shape", NO_RUN)
def test_what_is_no_record_of_a_scaler_is_none(shape: str) -> None:
    said = words([line for at in range(5) for line in NO_RUN[shape].replace("step: 3", f"step: {at}").split("\n")])
    for part in ("The printed loss scale", "Skipped", "NOT FINITE", "NO STEP", "128"):
        assert part not in said


def test_a_range_of_steps_is_no_step() -> None:
    for steps in ("steps {}-{}", "step {}..{}", "step {}~{}", "step {}.5{}"):
        said = words([f"{steps.format(at, at + 100)}: loss 2.5, loss_scale 1024" for at in (1, 101, 201)])
        assert "read in lines 1 to 3" in said


def test_rows_of_a_table_are_steps_where_a_column_numbers_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("lr,loss_scale,loss\n0.1,65536,2.5\n0.01,1024,2.6\n0.001,1,2.7\n")
    said = in_words(explain(read_history(tmp_path / "a.csv")))
    assert "65536 at first" in said
    assert "LOW SCALE" not in said
    assert "Skipped" not in said


def test_a_row_whose_text_names_another_data_set_is_none_of_the_training(tmp_path: Path) -> None:
    rows = '{{"split": "val", "step": {0}, "loss": NaN}}\n{{"split": "train", "step": {0}, "loss": 2.5}}\n'
    (tmp_path / "a.jsonl").write_text("".join(rows.format(at) for at in range(5)))
    assert read_history(tmp_path / "a.jsonl").loss.tolist() == [2.5] * 5


@pytest.mark.parametrize("name", ["skipped_steps", "total_skipped"])
def test_a_count_that_may_be_of_the_whole_run_and_is_less_than_its_steps_is_no_alarm(name: str) -> None:
    lines = [f"step: {10 * at}, loss: 2.5, {name}: {2 + at // 2}, loss_scale: 65536\n" for at in range(1, 12)]
    assert explain(read_text("-", lines)).verdict == "cannot tell"


def test_a_count_of_more_than_the_steps_that_falls_again_is_of_something_else() -> None:
    lines = [f"step: {at}, loss: 2.5, skipped: {at * 7 % 5}, loss_scale: 65536\n" for at in range(1, 12)]
    assert "Skipped" not in in_words(explain(read_text("-", lines)))


def test_an_epoch_that_goes_back_is_of_another_start() -> None:
    lines = [f"Epoch {at % 4}: loss: 2.5, loss_scale: {2 ** (16 - at // 4)}\n" for at in range(12)]
    assert "Skipped" not in in_words(explain(read_text("-", lines)))


def test_the_smallest_of_several_losses_that_fall_by_turns_is_no_sign_of_health() -> None:
    lines = [
        f"{'AB'[at % 2]} at step {at // 2} loss: {9 - at / 9} scale: {(65536, 32768)[at % 2]}\n" for at in range(40)
    ]
    assert explain(read_text("-", lines)).verdict == "cannot tell"


@pytest.mark.parametrize("scales", [(65536, 1024), (65536, 8192, 1024), (65536, 32768)])
def test_scales_that_leap_by_turns_are_of_several_runs(scales: tuple[int, ...]) -> None:
    names = [f"model {'ABC'[at]}" for at in range(len(scales))]
    said = words(
        [f"{name}: loss 2.5, loss scale {scale}" for _ in range(9) for name, scale in zip(names, scales, strict=True)]
    )
    for part in ("Healthy", "also falls", "Skipped", "Something is wrong"):
        assert part not in said


def test_a_second_table_has_columns_of_its_own() -> None:
    rows = ["| step | loss | scale |", "|---|---|---|", "| 1 | 2.5 | 65536 |", "| 2 | 2.4 | 65536 |"]
    said = words([*rows, "| layer | size | dtype |", "| 1 | 1024 | 16 |"])
    assert "65536 at first and 65536 at last, lowest 65536" in said
    assert "steps 1 to 2" in said


def test_short_lines_of_two_kinds_by_turns_are_not_cut() -> None:
    lines = [
        f"{name} update: step {at}, loss: 2.5, loss_scale: 65536" for at in range(9) for name in ("before", "after")
    ]
    assert "a terminal had cut" not in words(lines)

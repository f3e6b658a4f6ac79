"""What the committed machine code says of the kernels: eight words per element by 16 bytes at once, and none spills."""

import pytest

from ampsim.torch.gradients import kernels
from experiments.compiled_kernels import TORCHS, Line, way_through, words
from figures import results

DATA = results.load("compiled_kernels").records
SIZES = {"float32": 1.0, "float16": 0.5, "bfloat16": 0.5}  # of a gradient, in words
# of whole tiles, in gradients' and other words: what is read, what is written
MOVED = {
    "_check": ((1, 0), (0, 0)),
    "adam": ((1, 3), (0, 3)),
    "_multiply": ((1, 0), (1, 0)),
    "_count": ((1, 1 / 16), (0, 0)),  # searches a table of 256 tensors
    TORCHS: ((1, 3), (1, 3)),
}
ids = pytest.mark.parametrize("row", DATA, ids=lambda row: row["arm"])


@ids
def test_none_spills_and_the_words_are_those_of_the_docstrings(row) -> None:
    kernel, size = row["settings"]["kernel"], SIZES[row["settings"]["dtype"]]
    assert not row["spilled"]
    loads, stores = (grads * size + others for grads, others in MOVED[kernel])
    assert row["words"] == {"loads": loads, "stores": stores}


def test_the_programs_of_the_check_run_at_once_on_every_gpu() -> None:
    """A multiprocessor has 65,536 registers; a warp takes them in blocks of 256."""
    for row in DATA:
        if row["settings"]["kernel"] == "_check":
            programs = kernels.PROGRAMS if row["settings"]["capability"] >= 90 else kernels.OLDER
            assert programs * row["warps"] * 32 * -(-row["registers"] // 8) * 8 <= 2**16
            assert row["occupancy"] >= programs * row["warps"] / 64


@ids
def test_half_of_a_multiprocessor_is_busy_where_gradients_are_written(row) -> None:
    if row["settings"]["kernel"] in ("adam", "_multiply", TORCHS):
        assert row["occupancy"] >= 0.5 - 1 / 8 * (row["settings"]["kernel"] == "adam")  # of half gradients 72 registers


CODE = """
00 - LDC R1
10 @P0 BRA 0x50
20 - LDG.E R2
30 - STG.E R2
40 - BRA 0x90
50 - LDG.E.128 R4
60 @!P1 BRA 0x80
70 - CALL.REL.NOINC 0xb0
80 - STG.E.128 R4
90 @P2 BRA 0x10
a0 - EXIT
b0 - RET.REL.NODEC 0x0
"""
LINES = [Line(a, "" if guard == "-" else f"{guard} ", name, " ".join(rest))
         for a, guard, name, *rest in map(str.split, CODE.strip().splitlines())]  # fmt: skip


def test_the_way_is_once_round_the_loop_and_leaves_out_what_is_rare() -> None:
    assert {line.address for line in way_through(LINES)} == {"10", "50", "60", "80", "90"}


def test_the_way_of_straight_code_is_from_end_to_end() -> None:
    straight = [line._replace(guard="", name="MOV", rest="") if line.address == "90" else line for line in LINES]
    assert [line.address for line in way_through(straight)] == ["00", "10", "50", "60", "80", "90", "a0"]


def test_of_opposite_predicates_one_is_run() -> None:
    accesses = [Line("0", guard, "STG.E.128", "") for guard in ("", "@P1 ", "@!P1 ", "@!P2 ")]
    assert words(accesses, 4) == 3


def test_a_branch_to_an_instruction_that_was_left_out_goes_on_behind_it() -> None:
    """Triton 3.9 has branches meet at a NOP."""
    meets = [line._replace(rest="0x78") if line.rest == "0x80" else line for line in LINES]
    assert way_through(meets) == [
        line._replace(rest="0x78") if line.rest == "0x80" else line for line in way_through(LINES)
    ]

"""What the committed machine code says of the kernels: eight words per element by 16 bytes at once, and none spills."""

import pytest

from ampsim.torch.gradients import adam
from figures import results

DATA = results.load("compiled_kernels").records
SIZES = {"float32": 1.0, "float16": 0.5, "bfloat16": 0.5}  # of a gradient, in words
# of whole tiles, in gradients' and other words: what is read, what is written
MOVED = {
    "check": ((1, 0), (0, 0)),
    "adam": ((1, 3), (0, 3)),
    "_read": ((1, 0), (0, 0)),
    "_multiply": ((1, 0), (1, 0)),
    "_count": ((1, 1 / 16), (0, 0)),  # searches a table of 256 tensors
}


@pytest.mark.parametrize("row", DATA, ids=lambda row: row["arm"])
def test_none_spills_and_the_words_are_those_of_the_docstrings(row) -> None:
    kernel, size = row["settings"]["kernel"], SIZES[row["settings"]["dtype"]]
    assert not row["spilled"]
    if kernel in MOVED:
        loads, stores = (grads * size + others for grads, others in MOVED[kernel])
        assert row["words"] == {"loads": loads, "stores": stores}


def test_two_programs_of_the_check_run_at_once_on_every_gpu() -> None:
    """A multiprocessor has 65,536 registers; a warp takes them in blocks of 256."""
    for row in DATA:
        if row["settings"]["kernel"] == "check":
            assert adam.PROGRAMS * row["warps"] * 32 * -(-row["registers"] // 8) * 8 <= 2**16


@pytest.mark.parametrize("row", DATA, ids=lambda row: row["arm"])
def test_half_of_a_multiprocessor_is_busy_where_gradients_are_written(row) -> None:
    if row["settings"]["kernel"] in ("check", "adam", "_multiply", "_read"):
        assert row["occupancy"] >= 0.5 - 1 / 8 * (row["settings"]["kernel"] == "adam")  # of half gradients 72 registers

"""What two ranks do is the same on both with ours, and what is known of torch's with its scaler for shards."""

from ampsim.records import Record
from figures import results

RECORD: Record = results.load("ranks").records[0]
CLEAN, SKIP = [True, True, 1024.0, ""], [False, True, 512.0, ""]


def seen(scaler: str) -> dict[tuple[str, str, str], Record]:
    rows = [row for row in RECORD["outcomes"] if row["scaler"] == scaler]
    return {(row["gradients"], row["way"], row["overflow"]): row["ranks"] for row in rows}


def test_with_ours_both_ranks_do_the_same_and_skip_what_any_found() -> None:
    for (_, _, overflow), ranks in seen("ours").items():
        assert ranks == [CLEAN if overflow == "none" else SKIP] * 2


def test_torchs_adds_flags_and_does_not_reduce_a_fused_step() -> None:
    torchs = seen("torch")
    assert torchs["shards", "unscale_", "both"] == [[True, False, 512.0, ""]] * 2  # stepped with inf
    assert torchs["shards", "step", "rank 0"] == [SKIP, CLEAN]  # scales drift apart
    assert torchs["shards", "step", "rank 1"] == [CLEAN, SKIP]
    assert all("broadcast" in rank[3] for rank in torchs["FSDP2", "unscale_", "none"])  # a flag of shape (1,)
    assert torchs["FSDP2", "step", "rank 0"] == [SKIP] * 2  # DTensor reduces it


def test_the_times_are_of_every_round() -> None:
    for times in RECORD["microseconds"]:
        assert {len(rounds) for rounds in times.values()} == {results.load("ranks").config["steps"]}

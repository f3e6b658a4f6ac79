"""What a real run records of its scales and thresholds."""

from experiments import theory_real


def test_record_counts_match_steps() -> None:
    log = [
        (2.0**16, 1.0, False, 0.5),
        (2.0**15, 1.0, True, 0.5),
        (2.0**16, 0.99, True, 0.5),
        (2.0**15, 3.0, True, 2),
    ]
    row = theory_real.record(log, 1)
    assert row["scales"] == [[15, 2], [16, 2]]
    assert row["thresholds"] == [[15, 2], [16, 1], [14, 1]]
    assert row["skipped"] == 1
    assert row["unforeseen"] == 1  # the last: 3 x 2^15 overflows
    assert row["mean_loss"] == 0.875
    assert row["later_skipped"] == 0

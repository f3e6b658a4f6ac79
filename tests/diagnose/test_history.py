"""A history keeps what was added, in bounded memory."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ampsim.diagnose import history
from ampsim.diagnose.history import HistoryBuilder, Sample

SCALES = st.lists(st.sampled_from([math.nan, 1.0, 2.0, 4.0]), max_size=40)


@given(SCALES, st.sampled_from([2, 4, 8, 64]))
@example([1.0, 2.0, 1.0, 1.0], 2)
def test_merging_keeps_every_skip_and_the_largest_norm(scales, entries):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "ENTRIES", entries)
        builder = HistoryBuilder("-", "test")
        for step, scale in enumerate(scales):
            builder.add(step, scale=scale, skipped=step % 2, norm=float(step))
        merged = builder.finish()
    assert len(merged.step) < entries + 1
    assert merged.skipped.sum() == len(scales) // 2
    parts = [scales[before + 1 : last + 1] for before, last in itertools.pairwise([-1, *merged.step.astype(int)])]
    lasts = [next((scale for scale in reversed(part) if not math.isnan(scale)), math.nan) for part in parts]
    np.testing.assert_equal(merged.scale, lasts)
    assert np.all(np.diff(merged.step) > 0)
    if scales:
        assert merged.step[-1] == len(scales) - 1
        assert np.nanmax(merged.norm) == len(scales) - 1


def test_a_run_that_went_back_keeps_what_was_printed_and_draws_its_steps_once():
    builder = HistoryBuilder("-", "test")
    for step, scale in [(0, 4.0), (1, 4.0), (2, 2.0), (3, 1.0), (2, 4.0), (3, 8.0)]:
        builder.add(step, scale=scale, skipped=0)
        builder.samples.append(Sample(step, {}))
        builder.alarms.append((step, "alarm"))
    found = builder.finish()
    assert found.segment.tolist() == [0, 0, 0, 0, 1, 1]
    assert found.step[found.last].tolist() == [sample.step for sample in found.samples] == [0, 1, 2, 3]
    assert found.scale[found.last].tolist() == [4.0, 4.0, 4.0, 8.0]
    assert [step for step, _ in found.alarms] == [0, 1, 2, 3]


def test_nobodys_scale_is_negative():
    builder = HistoryBuilder("-", "test")
    builder.add(0, scale=-1.0)
    assert np.isnan(builder.finish().scale[0])

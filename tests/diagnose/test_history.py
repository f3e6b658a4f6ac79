"""A history keeps what was added, in bounded memory."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim import dialects, init, update
from ampsim.diagnose import history
from ampsim.diagnose.evidence import Evidence
from ampsim.diagnose.explain import explain
from ampsim.diagnose.gradients import _flushed, of_a_search, scaled_norm
from ampsim.diagnose.history import SKIPPED, TOLD, TOTAL, WIDTH, HistoryBuilder, Sample, _halved
from ampsim.diagnose.readers.fields import as_number
from ampsim.diagnose.readers.text import read_text
from ampsim.diagnose.reconstruct import _prints
from ampsim.diagnose.report import skip_rows
from ampsim.diagnose.wording import sparkline
from tests.diagnose.drawn_runs import Drawn, Step, deepspeed
from tests.examples import examples

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


@settings(max_examples=examples(ms=30))
@given(
    interval=st.integers(5, 60), level=st.integers(3, 12), every=st.sampled_from([1, 5, 10]), begin=st.integers(10, 16)
)
def test_growths_that_are_not_printed_are_reconstructed(interval: int, level: int, every: int, begin: int) -> None:
    """Of a run that probes its level, printed as DeepSpeed does: the growths, and bounds on the growth interval."""
    rule = dialects.get(
        "deepspeed.DynamicLossScaler", init=2.0**begin, interval=interval, raise_error_at_min_scale=False
    )
    state, steps = init(rule), []
    for _ in range(12 * interval + 40):
        scale, bad = state.scale, state.scale > 2.0**level
        state = update(rule, state, bad)
        steps.append(Step(scale, state.scale, bad, 1.0, 1.0))
    lines = [text for text, _, _ in deepspeed(Drawn("healthy", tuple(steps), 0), every)]
    found = [each for each in explain(read_text("-", lines)).statements if each.kind == "reconstructed"]
    first, *_, last = (at for at, step in enumerate(steps) if step.skipped)
    if every == 1:
        assert found
    for each in found:
        assert each.numbers["growths"][0] == sum(step.after > step.scale for step in steps[first:last])
        least, most = each.numbers["least"][0], each.numbers["most"][0]
        assert least <= interval <= most


def test_a_step_that_is_said_again_with_another_scale_may_be_of_another_start():
    builder = HistoryBuilder("-", "test")
    for step, scale in [(1, 4.0), (1, 2.0), (2, 2.0)]:
        builder.add(step, scale=scale)
    assert builder.finish().segment.tolist() == [0, 1, 1]


def test_a_skip_that_two_ranks_tell_of_one_step_is_one():
    builder = HistoryBuilder("-", "test")
    for skipped, loss in ((1, 3.0), (1, 2.0)):
        builder.add(5, scale=4.0, skipped=skipped, loss=loss)
    found = builder.finish()
    assert (found.skipped.tolist(), found.loss.tolist()) == ([1.0], [3.0])


@pytest.mark.parametrize(
    ("scales", "kept"),
    [([512.0, 256.0], True), ([512.0, 512.0], False), ([2048.0, 2048.0], True), ([0.5, 0.25], False),
     ([2048.0, 3000.0], False)],
)  # fmt: skip
def test_what_is_called_a_mere_scale_is_one_if_it_moves_by_powers_of_two_or_is_large(scales, kept):
    builder = HistoryBuilder("-", "test", settings={"bare": True})
    for step, scale in enumerate(scales):
        builder.add(step, scale=scale)
    assert np.isfinite(builder.finish().scale).all() == kept


@pytest.mark.parametrize(
    ("counts", "skipped", "total"),
    [
        ([1, 1, 1], [1, 1, 1], [np.nan] * 3), ([2, 2, 2], [np.nan] * 3, [np.nan] * 3),
        ([5, 9, 12], [np.nan] * 3, [5, 9, 12]), ([5, 9, 2], [np.nan] * 3, [np.nan] * 3),
        ([0, 1, 1], [0, 1, 1], [np.nan] * 3),
    ],
)  # fmt: skip
def test_counts_of_which_nothing_is_said_are_totals_where_they_can_be_nothing_else(counts, skipped, total):
    builder = HistoryBuilder("-", "test", settings={"count": "unsaid"})
    for step, count in enumerate(counts):
        builder.add(step, skipped=count)
    found = builder.finish()
    np.testing.assert_equal([found.skipped.tolist(), found.total.tolist()], [skipped, total])


def test_each_start_of_which_no_step_tells_is_a_segment():
    builder = HistoryBuilder("-", "test")
    for _ in range(3):
        builder.add(norm=1.0)
        builder.begin()
    assert builder.finish().segment.tolist() == [0, 1, 2]


def test_a_note_says_how_many_neighbours_are_one(monkeypatch):
    monkeypatch.setattr(history, "ENTRIES", 32)
    builder = HistoryBuilder("-", "test")
    for step in range(200):
        builder.add(step, norm=1.0)
    assert builder.finish().notes == ["The log has more than 32 lines of a run: 8 neighbours each are one."]


def test_norms_of_a_run_that_begins_late_are_of_no_search():
    late = evidence(step=list(range(100, 111)), norm=[np.inf] * 11)
    assert [of_a_search(run, np.arange(11), 11) for run in (late, evidence(norm=[np.inf] * 11))] == [False, True]


def test_names_of_a_step_that_comes_again_are_forgotten():
    builder = HistoryBuilder("-", "test", bad={step: {"w": "has inf"} for step in (2, 3, 4)})
    for step in (2, 3, 4, 3):
        builder.add(step)
    assert builder.bad.keys() == {2}


def test_of_a_sentence_that_comes_often_the_first_lines_are_kept(monkeypatch):
    monkeypatch.setattr(history, "EVENTS", 2)
    builder = HistoryBuilder("-", "test")
    for line in (3, 5, 8):
        builder.say("guard off", line)
    assert builder.says == {"guard off": [3, 5]}


def test_merging_keeps_the_largest_loss(monkeypatch):
    monkeypatch.setattr(history, "ENTRIES", 4)
    builder = HistoryBuilder("-", "test")
    for step, loss in enumerate([1.0, 9.0, 8.0, 2.0, 3.0]):
        builder.add(step, loss=loss)
    assert builder.finish().loss.tolist() == [9.0, 8.0, 3.0]


def a_history(program="test", **columns):
    builder = HistoryBuilder("-", program)
    names, lengths = list(columns), {len(values) for values in columns.values()}
    for row in range(*lengths):
        given = {name: columns[name][row] for name in names}
        builder.add(given.pop("step", row), **given)
    return builder.finish()


def test_one_halving_is_one_skip_also_where_few_digits_are_printed():
    evidence = Evidence(**vars(a_history("DeepSpeed", scale=[65536.0, 32767.0, 8192.0])))
    assert [evidence.proved(k + 1) for k in range(2)] == [1, 2]


def test_of_a_total_that_begins_again_only_what_it_grows_by_counts():
    assert Evidence(**vars(a_history(step=[10, 20, 5, 10], total=[3, 5, 2, 4]))).counted.tolist() == [3, 2, 0, 2]


def test_a_skip_and_its_norm_are_one_step():
    evidence = Evidence(**vars(a_history(skipped=[1, 0, 1], norm=[math.inf, 1.0, 2.0])))
    assert evidence.weight(np.arange(3)) == 2


def test_of_the_first_rows_skips_no_step_is_known():
    assert skip_rows(a_history(step=[10, 11, 3], skipped=[2, 0, 0], scale=[4.0, 4.0, 4.0])) == []


def test_a_count_is_of_all_the_steps_since_the_last_count():
    rows = skip_rows(a_history(step=[10, 20, 30], skipped=[2, np.nan, 5], scale=[4.0, 4.0, 4.0]))
    assert rows == [(11.0, 30.0, 5, None)]


def test_a_sentence_of_no_skip_hides_no_count():
    rows = skip_rows(a_history(step=[10, 11, 20], told=[np.nan, 0, np.nan], skipped=[0, np.nan, 3], scale=[4.0] * 3))
    assert rows == [(11.0, 20.0, 3, None)]


def test_the_skips_of_some_rows_are_those_of_falls_that_begin_and_end_there():
    run = Evidence(**vars(a_history(scale=[8.0, 4.0, 2.0])))
    assert [run.least(), run.least(0, 2), run.least(1), run.least(1, 2)] == [2, 1, 1, 0]


def test_a_count_of_0_beside_a_sentence_of_a_skip_proves_no_step():
    rows = {"scale": [4.0] * 3, "skipped": [0, np.nan, 0]}
    for told in (np.nan, 1.0):
        run = Evidence(**vars(a_history("Megatron", told=[np.nan, told, np.nan], **rows)))
        assert run.trusted == np.isnan(told)


def evidence(program="test", **columns):
    return Evidence(**vars(a_history(program, **columns)))


@pytest.mark.parametrize(("sentence", "status"), [(np.nan, 1), (1.0, -1)])
def test_megatrons_norm_is_of_the_last_step_where_its_counts_are_trusted(sentence, status):
    told = [np.nan, np.nan, sentence]
    run = evidence("Megatron", skipped=[0, 2, np.nan], norm=[1.0, 1.5, np.nan], told=told)
    assert run.status.tolist()[:2] == [1, status]


@pytest.mark.parametrize(
    ("losses", "rises"),
    [
        ([2.0, 1.0, 1.9], False), ([2.0, 1.0, 2.4], True), ([2.0, 1.0, 2.2], False), ([2.0], False), ([], False),
        ([2.0, 0.0, 9.0], False), ([9.0, 5.0, 1.0, 8.0], True), ([9.0, 5.0, 7.0, 6.0], False),
        ([9, 9, 3, 3, 1, 1, 2, 2], True), ([9, 9, 3, 3, 1, 1, 1.2, 1.2], False),
        ([9, 9, 9, 9, 9, 9, 9, 11], False), ([9, 9, 9, 9, 9, 9, 11], True), ([2.0, np.nan, 2.4], True),
    ],
)  # fmt: skip
def test_a_loss_is_higher_at_the_end_than_before(losses, rises):
    assert evidence(loss=[*losses, np.nan]).rises == rises


def test_more_lines_follow_some_skips_than_stand_between_any_two():
    run = evidence(scale=[1.0] * 11)
    assert [run.goes_on(np.array(rows)) for rows in ([0, 1, 6], [0, 1, 5], [8], [7])] == [False, True, False, True]


def test_updates_are_counted_from_the_last_start_on():
    steps = {"step": [100, 200, 10, 15], "norm": [1.0] * 4}
    assert [evidence(program, **steps).updates for program in ("fairseq", "test")] == [5.0, 0.0]


def test_a_total_that_falls_proves_no_skip_and_one_that_grows_with_the_steps_no_step():
    assert evidence(step=[1, 2], total=[3, 2]).counts.tolist() == [3.0, 0.0]
    assert evidence("DeepSpeed", step=[10, 20, 30], total=[0, 10, 15]).progress.tolist() == [True, False, True]


@pytest.mark.parametrize(("turns", "mixed"), [(3, True), (2, False)])
def test_scales_that_leap_down_and_up_by_turns_are_of_several_runs(turns, mixed):
    assert evidence(scale=[64.0, 8.0] * turns + [64.0] * 7).mixed == mixed


def test_where_engines_are_told_apart_by_nothing_a_sentence_has_its_own_two_scales_alone():
    told = {"scale": [8.0, 4.0], "left": [4.0, 2.0], "told": [1.0, 1.0]}
    assert evidence(**told).before.tolist() == [-1, 0, 1, 2]
    run = evidence(**told)
    run.settings["engines"] = True
    assert run.before.tolist() == [-1, 0, -1, 2]


def test_the_falls_are_those_of_the_series_that_falls_most():
    told = {"scale": [16.0, 16.0, 1024.0, 16.0], "left": [8.0, 8.0, np.nan, np.nan], "told": [1, 1, np.nan, np.nan]}
    assert evidence(**told).descents == [(4, 5)]


def test_a_scale_stands_on_rows_with_a_number_of_their_own():
    run = evidence(step=[0, 50, np.nan, 100, 103], scale=[4.0, 8.0, 8.0, 8.0, 8.0])
    assert run.stands.tolist() == [False, False, False, True, False]


def test_a_scale_that_fell_below_where_its_last_rise_began_has_not_held():
    assert [evidence(scale=[1.0, 2.0, 8.0, last]).holds for last in (1.0, 2.0)] == [False, True]


@pytest.mark.parametrize("late", [False, True])
def test_a_norm_with_the_scale_in_it_is_told_whether_the_scale_is_the_steps_or_the_next_ones(late):
    scales = [2.0 ** (8 + number % 5) for number in range(21)]
    norms = [1000.0 * scale for scale in scales]
    told = a_history(scale=scales[late:], norm=norms[: 21 - late])
    assert [each.kind for each in scaled_norm(Evidence(**vars(told)))] == ["scaled norm"]


def test_what_is_not_finite_learns_nothing():
    counts = np.zeros(280, np.int64)
    counts[0], counts[-1], counts[-2] = 1, 50, 49
    assert _flushed(counts, 1.0) == 1.0


def test_a_number_may_have_commas_and_be_beyond_all_floats():
    numbers = [as_number(each) for each in (" 65,536 ", "1,234,567", "1,23", 10**400)]
    assert numbers == [65536.0, 1234567.0, None, math.inf]


def test_a_fall_to_what_few_digits_print_is_the_fewest_halvings_that_it_may_be():
    assert evidence("Megatron", scale=[1.0, 0.1]).proved(1) == 3


def test_a_scale_that_hardly_moves_is_drawn_so():
    assert sparkline(a_history(scale=[1.0, 1.0, 1.25]), 10)[0] == "▁▁▃"


def test_rows_that_do_not_all_say_whether_they_were_skipped_tell_not_of_each_step() -> None:
    for said in (10, 5):
        builder = HistoryBuilder("run.jsonl", "ampsim.watch")
        for step in range(10):
            builder.add(
                step, {"line": step + 2, "scale": 1024.0} | ({"skipped": float(step == 2)} if step < said else {})
            )
        history = builder.finish()
        assert history.every_step == (said == 10)
        assert Evidence(**vars(history)).skips == (1, 1 if said == 10 else None)


def test_neighbours_that_are_merged_keep_the_skips_of_both() -> None:
    rows = np.full((2, WIDTH), np.nan)
    rows[:, TOLD], rows[:, SKIPPED], rows[:, TOTAL] = 1.0, 3.0, (4.0, 5.0)
    ((told, skipped, total),) = _halved(rows)[:, [TOLD, SKIPPED, TOTAL]]
    assert (told, skipped, total) == (2.0, 6.0, 5.0)


def test_an_interval_that_does_not_print_the_last_overflow_is_none() -> None:
    for left, fits in ((256.0, True), (128.0, False)):
        assert _prints([3, 8], np.array([1024.0, 512.0]), np.array([512.0, left]), 1000) == fits

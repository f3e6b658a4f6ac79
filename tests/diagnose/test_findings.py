"""What went wrong is found, and nothing is found where nothing is wrong."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ampsim import Rule, replay
from ampsim.diagnose.explain import Explanation, explain, findings, in_words
from ampsim.diagnose.formats import error_in, spelled
from ampsim.diagnose.history import HistoryBuilder, Sample
from ampsim.diagnose.readers.text import read_text
from ampsim.diagnose.statements import Statement


def history(found_inf, rule=Rule(growth_interval=150), every=1, log_skips=True, norm=None, loss=None, settings=()):  # noqa: B008
    """Return the history of a run that overflowed where `found_inf` says, as a log with a line every few steps."""
    after = replay(rule, found_inf)
    scale = [rule.init_scale, *after[:-1].tolist()]
    rng = np.random.default_rng(0)
    norms = np.where(found_inf, math.inf, rng.lognormal(0.0, 0.1, len(scale))) if norm is None else norm
    losses = np.linspace(4, 2, len(scale)) + rng.normal(0, 0.05, len(scale)) if loss is None else loss
    builder, last = HistoryBuilder("-", "ampsim.watch" if every == 1 else "test", settings=dict(settings)), 0
    for step in range(0, len(scale), every):
        skips = float(sum(found_inf[last : step + 1])) if log_skips else math.nan
        last = step + 1
        builder.add(step, scale=scale[step], skipped=skips, norm=float(norms[step]), loss=float(losses[step]))
    return builder.finish()


def kinds(run):
    return [finding.kind for finding in findings(run)]


def at(*steps, n=400):
    return [step in steps for step in range(n)]


HEALTHY_RUNS = {
    "clean": at(),
    "a search from the start": at(*range(9)),
    "a skip after each growth": at(*range(150, 400, 151)),
    "one lonely skip": at(200),
    "a burst": at(200, 201, 202),
}


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("name", HEALTHY_RUNS)
def test_a_healthy_run_is_not_accused(name, every):
    run = history(HEALTHY_RUNS[name], every=every)
    assert kinds(run) == []
    assert explain(run).verdict == "healthy"


@pytest.mark.parametrize(("name", "kind"), [("a search from the start", "spared"), ("a burst", "burst")])
def test_the_search_for_the_first_scale_is_no_burst(name, kind):
    assert {each.kind for each in explain(history(HEALTHY_RUNS[name])).statements} & {"spared", "burst"} == {kind}


def test_of_two_ranks_the_one_that_leaves_a_doubt_decides():
    norms = [*map(str, range(1, 99)), "inf"]
    lines = [f"{rank}: step: {at}, loss: 2.0, loss_scale: 1024.0, grad_norm: {norm if rank else at + 1}\n"
             for at, norm in enumerate(norms) for rank in (0, 1)]  # fmt: skip
    assert explain(read_text("-", lines[::2])).verdict == "healthy"
    assert explain(read_text("-", lines)).verdict == explain(read_text("-", lines[1::2])).verdict == "cannot tell"


@pytest.mark.parametrize("begin", [0, 150, 250, 330])
@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize(("rule", "bad"), [
    (Rule(growth_interval=2000), range(100, 400)), (Rule(growth_interval=2000, min_scale=1.0), range(100, 400)),
    (Rule(growth_interval=2000, backoff_factor=1.0), range(400)), (Rule(growth_interval=1), range(0, 400, 2)),
    (Rule(growth_interval=2), range(0, 400, 3)),
])  # fmt: skip
def test_no_suffix_of_a_sick_run_is_healthy(rule, bad, begin, norms):
    whole = history(at(*bad), rule=rule)
    builder = HistoryBuilder("-", "ampsim.watch")
    for row in range(begin, 400):
        norm = {"norm": float(whole.norm[row])} if norms else {}
        builder.add(row, scale=float(whole.scale[row]), skipped=float(whole.skipped[row]), **norm)
    assert explain(builder.finish()).verdict != "healthy"


def plain(scale, **columns):
    builder = HistoryBuilder("-", "ampsim.watch")
    for step, value in enumerate(scale):
        builder.add(step, scale=value, **{name: values[step] for name, values in columns.items()})
    return builder.finish()


ALTERNATING = np.where(np.arange(12) // 2 % 2, 2.0**17, 2.0**16)
SLOW = {"rule": Rule(growth_interval=2000)}


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (history(at(*range(300, 400)), **SLOW), ["collapse"]),
        (history(at(*range(100, 103)), rule=Rule(min_scale=2.0**15, growth_interval=2000)), []),
        (history(at(*range(100, 400)), rule=Rule(min_scale=256.0, growth_interval=2000)),
         ["floor reached"]),
        (plain([8.0] * 6, skipped=[0] * 6, loss=[1, 1, math.inf, 1, 1, 1]), []),
        (plain([8.0] * 6, skipped=[0, 1, 0, 0, 0, 0], norm=[1, math.inf, 1, 1, 1, 1]), []),
        (plain([8.0] * 9, skipped=[1] * 9), ["no step seen"]),
        (plain([0.0] * 4, skipped=[0] * 4, norm=[math.nan] * 4), ["scale 0"]),
        (plain(np.tile(ALTERNATING, 2), norm=np.tile(ALTERNATING, 2) / 2.0**8), ["scaled norm"]),
        (history(at(), norm=np.full(400, 1e-5), **SLOW), ["scaled clip"]),
        (history(at(), norm=np.ones(400), **SLOW), []),
        (history(at(n=100), norm=np.zeros(100), rule=Rule(growth_interval=2)), ["endless growth"]),
        (history(at(n=100), rule=Rule(growth_interval=2)), []),
    ],
)  # fmt: skip
def test_what_is_near_a_finding_and_what_is_one(run, expected):
    assert kinds(run) == expected


def test_a_loss_that_is_not_finite_to_the_end_is_no_matter_of_the_scale():
    run = history(at(*range(300, 400)), loss=np.where(np.arange(400) >= 300, math.nan, 2.0))
    assert kinds(run)[0] == "forward overflow"
    assert "; nothing that was found shows that the loss scale is the cause" in explain(run).why


def test_a_layer_without_gradients():
    run = history(at(), rule=Rule(growth_interval=2000))
    alive, dead = np.zeros(280, np.int64), np.zeros(280, np.int64)
    alive[140], dead[0], dead[150 - 50] = 100, 98, 2
    for step in (0, 100, 200):
        run.samples.append(Sample(step, {"head.weight": alive, "block.0.weight": dead}))
    [finding] = findings(run)
    assert finding.kind == "dead layer"
    assert "block.0.weight" in finding.what
    assert "head" not in finding.what
    for most, others in ((3, ""), (4, " and 1 other"), (5, " and 2 others")):
        for sample in run.samples:
            sample.counts.update({f"block.{number}.weight": dead for number in range(1, most + 1)})
        [finding] = findings(run)
        assert f"{most + 1} of {most + 2} parameters: block.0.weight, " in finding.what
        assert finding.numbers["names"] == ", ".join(f"block.{number}.weight" for number in range(4)) + others
    run.samples[:] = [Sample(step, {"a.weight": dead, "b.weight": dead}) for step in (0, 100, 200)]
    assert kinds(run) == []


def test_skips_that_are_counted_have_both_bounds_and_others_one():
    [exact] = [each for each in explain(history(at(7, 200))).statements if each.kind == "skips"]
    assert exact.numbers["skips"] == (2, 2)
    [least] = [
        each for each in explain(history(at(7, 200), every=10, log_skips=False)).statements if each.kind == "skips"
    ]
    assert least.numbers["skips"] == (2, None)
    assert "at least 2 steps" in least.what


def ranks(*rows):
    """Return a history whose other ranks are the later of these."""
    main, *others = [HistoryBuilder("-", "ampsim.watch") for _ in rows]
    for builder, columns in zip((main, *others), rows, strict=True):
        for step, values in enumerate(zip(*columns.values(), strict=True)):
            builder.add(step, {"line": step + 1} | dict(zip(columns, values, strict=True)))
    return main.finish(tuple(each.finish() for each in others))


WELL = {"scale": [8.0] * 9, "skipped": [0.0] * 9, "norm": [1.0] * 9, "loss": [2.0] * 9}


def test_each_of_several_ranks_may_be_wrong():
    assert explain(ranks(WELL, WELL, WELL)).verdict == "healthy"
    sick = {**WELL, "loss": [math.inf] * 9}
    assert [explain(ranks(*rows)).verdict for rows in ((sick, WELL, WELL), (WELL, WELL, sick))] == ["wrong"] * 2


def test_a_step_that_one_rank_shows_was_seen():
    skips = {"scale": [8.0] * 9, "skipped": [1.0] * 9}
    assert [each.kind for each in explain(ranks(skips)).wrong] == ["no step seen"]
    assert explain(ranks(skips, WELL)).wrong == []


def test_what_the_program_says_and_what_is_of_the_scale_are_no_two_causes():
    builder = HistoryBuilder("-", "ampsim.watch", says={"at minimum": [2]})
    for step, scale in enumerate([8.0, 0.0, 0.0]):
        builder.add(step, scale=scale, line=step + 1)
    why = explain(builder.finish()).why
    assert "Something is wrong" in why
    assert "some of what was found" not in why


def test_few_skips_of_few_steps_leave_a_doubt():
    assert [explain(history(at(*range(9, 48, 48 // n), n=48))).verdict for n in (2, 3)] == ["healthy", "cannot tell"]


def test_of_a_short_log_the_last_two_rows_are_late():
    builder = HistoryBuilder("-", "test")
    for step, norm in enumerate([1.0, 2.0, 1.5, None]):
        builder.add(step, loss=2.0, norm=norm)
    assert explain(builder.finish()).verdict == "healthy"


def test_losses_that_fell_and_end_in_one_that_is_not_finite_acquit_nobody():
    for last, verdict in ((0.5, "healthy"), (math.inf, "cannot tell")):
        builder = HistoryBuilder("-", "test")
        for step, loss in enumerate([*np.linspace(9.0, 1.0, 30), last]):
            builder.add(step, loss=float(loss), scale=8.0)
        assert explain(builder.finish()).verdict == verdict


def test_places_that_nobody_knows_are_null():
    told = Statement("told", -math.inf, math.inf, {"count": (1, None)}, ()).to_json()
    assert (told["first"], told["last"]) == (None, None)


def said(run):
    """Return the statements of a run by kind."""
    return {each.kind: each for each in explain(run).statements}


def test_some_norms_are_told_of_a_log_whose_rows_are_no_flags():
    norms = [1.0, math.inf, 1.0, 2.0, 1.5, 1.25]
    builder = HistoryBuilder("-", "test")
    for step, norm in enumerate(norms):
        builder.add(step, scale=8.0, norm=norm, loss=2.0)
    assert "some norms" in said(builder.finish())
    assert "some norms" not in said(plain([8.0] * 6, norm=norms, loss=[2.0] * 6))


def test_a_few_norms_of_another_size_hide_no_clip():
    norms = np.full(400, 1e-5)
    norms[[7, 70]] = 1.0, 1e-9
    assert kinds(history(at(), norm=norms, **SLOW)) == ["scaled clip"]


def test_a_loss_rose_from_the_median_of_the_twenty_before():
    losses = [1.9] * 30 + [2.0] * 20 + [9.0] * 6
    assert said(plain([math.nan] * 56, loss=losses))["loss rose"].numbers["from"] == "2"


def test_lines_of_several_ranks_are_those_of_the_first_to_the_last():
    first, second = ({**WELL, "line": [float(at + begin) for at in range(9)]} for begin in (5, 2))
    read = said(ranks(first, second))["read"]
    assert (read.first, read.last, read.unit) == (2, 13, "line")


def test_a_scale_is_told_with_its_ends_and_extremes():
    scale = said(ranks({"scale": [4.0, 4.0, 16.0, 8.0, 1.0, 2.0], "norm": [1.0] * 6}))["scale"]
    assert {name: value for name, (value, _) in scale.numbers.items()} == {"from": 4, "to": 2, "low": 1, "high": 16}
    assert scale.lines == (1, 3, 5, 6)


def test_of_a_log_that_proves_no_skip_none_is_told():
    assert "skips" not in said(history(at(), every=10, log_skips=False))


def test_the_scale_before_0_is_the_last_one():
    assert said(plain([8.0, 4.0, 0.0, 0.0]))["scale 0"].numbers["from"] == (4.0, 4.0)


def test_a_scale_that_falls_again_grows_not_without_end():
    way = [2.0**k for k in range(30, 44)]
    assert ("endless growth" in said(plain(way)), "endless growth" in said(plain([*way, 2.0**42]))) == (True, False)


def test_each_burst_is_told():
    bursts = [step for begin in (100, 300, 500) for step in range(begin, begin + 4)]
    run = history(at(*bursts, n=700), rule=Rule(growth_interval=20))
    assert [each.first for each in explain(run).statements if each.kind == "burst"] == [100, 300, 500]


def test_an_alarm_is_of_its_step_and_a_restart_of_the_first_step_that_went_back():
    builder = HistoryBuilder("-", "test", alarms=[(5, "stands")])
    for line, step in enumerate([0, 5, 6, 1, 4, 2], 1):
        builder.add(step, line=line, norm=1.0 + line)
    found = said(builder.finish())
    assert found["restarted"].lines == (3, 4)
    found = said(ranks(WELL))
    run = plain([8.0] * 9)
    run.alarms.append((5, "stands"))
    assert said(run)["alarm"].step == 5


def test_a_layer_is_dead_if_it_is_so_in_most_samples():
    run = history(at(), rule=Rule(growth_interval=2000))
    alive, dead = np.zeros(280, np.int64), np.zeros(280, np.int64)
    alive[140], dead[0] = 100, 100
    run.samples[:] = [Sample(step, {"a.weight": dead if step else alive, "b.weight": alive}) for step in (0, 0, 9)]
    assert kinds(run) == []


def test_a_cure_is_told_once_and_of_many_lines_the_first_twelve():
    few = Statement("norm not finite", 1.0, 2.0, {"count": (2, None)}, tuple(range(1, 13)))
    text = in_words(Explanation("wrong", "", [few, replace(few, lines=tuple(range(1, 14)))], []), lines=True)
    said = "NORM NOT FINITE: The gradient norm is not finite on at least 2 records, steps 1 to 2. [lines "
    assert text.splitlines()[1:3] == [f"{said}{', '.join(map(str, range(1, 13)))}{more}]" for more in ("", ", ...")]
    assert text.count(few.cure) == 1


def test_of_two_errors_in_one_text_the_one_of_its_program_is_told():
    text = "ZeroDivisionError: float division by zero\nMinimum loss scale reached"
    assert [error_in(text, program)["pattern"].pattern[:7] for program in ("", "apex")] == ["Minimum", "ZeroDiv"]
    assert error_in("ZeroDivisionError: float division by zero") is None


def test_each_number_of_a_line_is_spelled_plainly():
    assert spelled("loss: tensor(1.0) norm: tensor([2.0])") == "loss: 1.0 norm: 2.0"


@pytest.mark.parametrize("scale", [5e-324, 1e308, math.inf, 0.0])
def test_numbers_that_no_run_has_are_explained_too(scale):
    builder = HistoryBuilder("-", "test")
    for step in range(4):
        builder.add(step, scale=scale, skipped=math.inf if step else 1.0, norm=-math.inf, loss=math.nan)
        builder.add(10 + step, scale=65536.0, skipped=1.0)
    assert in_words(explain(builder.finish()))

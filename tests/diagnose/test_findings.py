"""What went wrong is found, and nothing is found where nothing is wrong."""

import math

import numpy as np
import pytest

from ampsim import Rule, replay
from ampsim.diagnose.explain import HEALTHY, explain, facts
from ampsim.diagnose.findings import findings
from ampsim.diagnose.history import HistoryBuilder, Sample
from ampsim.diagnose.infer import backoffs, fitting_dialects, infer
from ampsim.diagnose.what_if import ceilings_of, other_rules


def history(found_inf, rule=Rule(growth_interval=50), every=1, log_skips=True, norm=None, loss=None, settings=()):  # noqa: B008
    """Return the history of a run that overflowed where `found_inf` says, as a log with a line every few steps."""
    after = replay(rule, found_inf)
    scale = [rule.init_scale, *after[:-1].tolist()]
    rng = np.random.default_rng(0)
    norms = rng.lognormal(0.0, 0.1, len(scale)) if norm is None else norm
    losses = np.linspace(4, 2, len(scale)) + rng.normal(0, 0.05, len(scale)) if loss is None else loss
    builder, last = HistoryBuilder("-", "test", settings=dict(settings)), 0
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
    "a skip after each growth": at(*range(100, 400, 51)),
    "one lonely skip": at(200),
}


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("name", HEALTHY_RUNS)
def test_a_healthy_run_is_not_accused(name, every):
    run = history(HEALTHY_RUNS[name], every=every)
    assert kinds(run) == []
    assert HEALTHY in explain(run)[0]


@pytest.mark.parametrize("every", [1, 10])
def test_a_collapse_says_when_it_could_be_seen(every):
    run = history(at(*range(300, 400)), every=every, log_skips=every == 1)
    [finding] = findings(run)
    assert finding.kind == "collapse"
    assert finding.step == (303 if every == 1 else 310)  # at the third halving


def test_the_scale_that_jumped_from_131072_to_5e_23_is_91_backoffs():
    builder = HistoryBuilder("-", "test")
    for step, scale in enumerate([131072.0, 131072.0, 5.29e-23, 5.29e-23]):
        builder.add(100 * step, scale=scale)
    run = builder.finish()
    assert infer(run).least_skips == 91
    assert "91 backoffs" in explain(run)[0]
    assert kinds(run) == ["collapse"]


def plain(scale, **columns):
    builder = HistoryBuilder("-", "test")
    for step, value in enumerate(scale):
        builder.add(step, scale=value, **{name: values[step] for name, values in columns.items()})
    return builder.finish()


SLOW, QUICK = {"rule": Rule(growth_interval=2000)}, {"rule": Rule(growth_interval=20)}
ALTERNATING = np.where(np.arange(12) // 2 % 2, 2.0**17, 2.0**16)


def burst(*steps, to):
    norm = np.ones(400)
    norm[list(steps)] = to
    return norm


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (history(at(*range(100, 120)), **SLOW), ["collapse"]),  # it stays below 1, for however long
        (history(at(*range(100, 103)), rule=Rule(min_scale=2.0**15, growth_interval=2000)), []),  # 2 skips at the floor
        (history(at(*range(100, 104)), rule=Rule(min_scale=2.0**15, growth_interval=2000)), ["floor reached"]),
        (plain([8.0] * 6, skipped=[0, 1, 1, 1, 0, 0]), []),  # a scale that never falls has no floor
        (history(at(*range(100, 400)), rule=Rule(min_scale=0.0625), settings={"printed_as_zero": 0.0625}),
         ["collapse"]),
        (plain([8.0] * 6, skipped=[0] * 6, loss=[1, 1, math.inf, 1, 1, 1]), []),  # the step was taken
        (history(at(*range(300, 400)), loss=np.where(np.arange(400) >= 310, math.nan, 2.0)), ["forward overflow"]),
        (history(at(*range(100, 104), n=116), **SLOW), []),  # it ends too soon to tell
        (history(at(*range(5, 13)), **QUICK), []),  # a search for the scale, a few steps late
        (history(at(200, 201), norm=burst(*range(199, 203), to=3.0), **QUICK), []),
        (history(at(200, 201), norm=burst(*range(199, 203), to=5.0), **QUICK), ["data spike"]),
        (history(at(100, 101, 300, 301), norm=burst(*range(99, 103), *range(299, 303), to=9.0), **SLOW),
         ["data spike", "data spike"]),
        (plain([2.0] * 3 + [4.0] * 3, skipped=[0] * 6, norm=[200.0] * 3 + [400.0] * 3), []),  # it moved once only
        (plain(ALTERNATING, norm=[200.0, *ALTERNATING[:-1] * 200 / 2**16]), ["scaled norm"]),  # the norm is a line late
        (plain([2.0**16, 2.0**17, 2.0**16], norm=[2.0**15] * 3), ["scaled norm"]),
        (plain([2.0**40] * 3, skipped=[0] * 3, norm=[2e4] * 3), []),
        (plain([math.nan] * 3, norm=[2.0**50] * 3, loss=[1.0] * 3), []),
        (plain([65536.0, math.nan] * 3, norm=[45000.0] * 6), ["scaled norm"]),  # by the scale that was last
        (history(at(), norm=np.ones(400), **SLOW), []),  # clipped, as it should be
        (history(at(), norm=np.full(400, 1e-5), **SLOW), ["scaled clip"]),
        (history(at(n=10), norm=np.full(10, 1e-5), **SLOW), []),
    ],
)  # fmt: skip
def test_what_is_near_a_finding_and_what_is_one(run, expected):
    assert kinds(run) == expected


def test_layers_that_are_all_dead_are_none():
    run = history(at(), **SLOW)
    dead = np.zeros(280, np.int64)
    dead[0] = 9
    run.samples.extend(Sample(step, {"a.weight": dead, "b.weight": dead}) for step in (0, 100, 200))
    assert kinds(run) == []


def test_a_step_is_taken_to_be_finite_up_to_half_of_the_nearest_scale_that_overflowed():
    run = plain([64.0, 8.0, 8.0, 8.0, 8.0, 4.0], skipped=[1, 0, 0, 0, 1, 0])
    assert ceilings_of(run).tolist() == [32, 32, 32, 8, 4, 4]
    assert ceilings_of(plain([2.0, 4.0], skipped=[0, 0])).tolist() == [4, 4]


def test_growths_that_fail_are_no_way_back_from_a_collapse():
    found_inf = at(*range(200, 230), *range(245, 248), *range(262, 265), n=270)
    assert kinds(history(found_inf, rule=Rule(growth_interval=6))) == ["collapse"]


def test_what_a_backoff_is():
    def of(every, *scales):
        builder = HistoryBuilder("-", "test")
        for step, scale in enumerate(scales):
            builder.add(every * step, scale=scale, skipped=float(step == 1))
        return infer(builder.finish())

    assert of(1, 1024.0, 256.0).backoff_factor == 0.25  # steps that follow on each other
    assert of(10, 1024.0, 256.0).backoff_factor is None  # two skips, rather
    assert of(1, 100.0, 99.5, 49.75).backoff_factor == 0.5  # digits of a number that was printed
    assert not infer(history(at(*range(100, 400)), rule=Rule(min_scale=256.0))).hysteresis  # a floor is none


def test_a_log_that_hides_its_skips_is_told():
    builder = HistoryBuilder("-", "Megatron")
    for step, scale, loss in [(29030, 65536.0, 2.77), (29040, 8192.0, 7.34), (29050, 4096.0, 8.72)]:
        builder.add(step, scale=scale, skipped=0, loss=loss)
    run = builder.finish()
    assert [(each.least, each.hidden) for each in infer(run).skips] == [(3, True), (1, True)]
    assert kinds(run) == ["hidden skips"]
    assert "reports 0 skipped steps where the falls of the scale take at least 4" in explain(run)[0]


def test_a_spike_that_the_run_comes_back_from():
    bad = range(200, 204)
    norm = np.ones(400)
    norm[199:205] = 50.0
    run = history(at(*bad), norm=norm, rule=Rule(growth_interval=20))
    assert kinds(run) == ["data spike"]


def test_a_collapse_begins_after_the_standstill_and_not_with_the_search_for_the_first_scale():
    [finding] = findings(history(at(0, 1, 4, *range(300, 400)), **SLOW))
    assert finding.kind == "collapse"
    assert finding.step == 303
    assert "fell from 8192 to" in finding.what
    assert "before step 300," in finding.cure


def test_a_slow_collapse_is_told_whole():
    [finding] = findings(history(at(*range(100, 380, 20)), **SLOW))
    assert "fell from 65536 to 4 " in finding.what


def test_weights_from_which_no_loss_is_finite_are_told():
    lost, found_inf = np.where(np.arange(400) >= 300, math.nan, 2.0), at(*range(300, 400))
    assert "back to a checkpoint before step 300" in findings(history(found_inf, loss=lost))[0].cure
    lost[399] = 2.0
    assert "checkpoint" not in findings(history(found_inf, loss=lost))[0].cure


def test_what_the_program_says_of_the_end_is_no_advice_of_its_own():
    run = history(at(*range(300, 400)))
    run.alarms.append((399, "it ends"))
    text, found = explain(run)
    assert [each.kind for each in found] == ["collapse", "alarm"]
    assert text.count("\n- No scale") == 1
    assert "Look at the steps before" not in text


def test_a_scale_that_grows_beyond_all_gradients():
    run = history(at(n=100), rule=Rule(growth_interval=2))
    [finding] = findings(run)
    assert (finding.kind, finding.step) == ("endless growth", 48)
    assert "each true gradient is below 1.8e-15," in finding.what
    assert kinds(history(at(98, n=100), rule=Rule(growth_interval=2))) == []


def test_an_interval_that_is_too_long():
    run = history(at(*range(100, 106)), rule=Rule(growth_interval=2000), settings={"growth_interval": 2000})
    assert kinds(run) == ["interval too long"]
    assert "growth interval of 2000" in findings(run)[0].what
    assert "growth_interval to about 12:" in findings(run)[0].cure  # 6 doublings in a quarter of 293 steps


def test_a_floor_that_is_reached():
    assert kinds(history(at(*range(100, 400)), rule=Rule(min_scale=256.0, growth_interval=2000))) == ["floor reached"]


def test_a_loss_that_is_not_finite():
    loss = np.where(np.arange(400) >= 300, math.nan, 2.0)
    run = history(at(*range(300, 400)), loss=loss)
    assert kinds(run) == ["forward overflow"]
    assert findings(run)[0].step == 300


def test_a_loss_that_is_not_finite_long_after_the_scale_fell_is_not_the_cause():
    loss = np.where(np.arange(400) >= 380, math.nan, 2.0)
    run = history(at(*range(300, 400)), loss=loss)
    assert kinds(run) == ["collapse", "forward overflow"]


def test_a_norm_that_was_logged_scaled():
    found = at(*range(100, 400, 51))
    run = history(found)
    scaled = history(found, norm=run.norm * run.scale)
    assert kinds(scaled) == ["scaled norm"]
    quiet = history(at(), norm=np.full(400, 0.69 * 65536), rule=Rule(growth_interval=2000))
    assert kinds(quiet) == ["scaled norm"]


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
    for sample in run.samples:
        sample.counts.update({f"block.{number}.weight": dead for number in range(1, 6)})
    [finding] = findings(run)
    assert "6 of 7 parameters: block.0.weight, " in finding.what
    assert "block.3.weight and 2 others." in finding.what


def test_the_dialect_that_fits_is_named():
    run = history(at(*range(100, 400, 37)), rule=Rule(2.0**15, growth_interval=13))
    fitting = fitting_dialects(run)
    assert fitting[0] == "torch.amp.GradScaler"
    assert f"{', '.join(fitting[:3])} would have made this very trajectory, and so would {len(fitting) - 3} more." in (
        "\n".join(facts(run))
    )
    assert infer(run).growth_interval == 13
    run.scale[350] *= 1.5
    assert fitting_dialects(run) == []
    off_by_one = at(*range(100, 400, 37))
    off_by_one[99] = True
    wrong = history(off_by_one, rule=Rule(2.0**15, growth_interval=13))
    object.__setattr__(wrong, "skipped", run.skipped)
    assert fitting_dialects(wrong) == []


def test_other_rules_are_replayed_on_the_same_gradients():
    run = history(at(*range(100, 400, 51)))
    by_name = {each.name: each for each in other_rules(run)}
    assert by_name["growth interval 2000"].skipped < by_name["growth interval 20"].skipped


@pytest.mark.parametrize(("old", "new", "count"), [(2.0**17, 5.29e-23, 91), (2.0**16, 2.0**15, 1), (2.0**16, 0.0, 166)])
def test_backoffs(old, new, count):
    assert backoffs(old, new) == count


def test_a_framework_that_ends_the_run_at_its_minimum_says_so():
    run = history(at(*range(20, 400)))
    assert not any("deepspeed" in name for name in fitting_dialects(run))
    ended = {each.name: each.ended for each in other_rules(run) if each.skipped is None}
    assert "already at minimum" in ended["DeepSpeed's"]
    assert "DeepSpeed's: ends the run: Current loss scale already at minimum" in explain(run)[0]


def test_a_run_without_a_scale_is_explained():
    builder = HistoryBuilder("-", "ampsim.watch")
    for step in range(5):
        builder.add(step, skipped=float(step == 3), norm=1.0)
    assert "No loss scale is in it" in explain(builder.finish())[0]


@pytest.mark.parametrize("scale", [5e-324, 1e308, math.inf, 0.0])
def test_numbers_that_no_run_has_are_explained_too(scale):
    builder = HistoryBuilder("-", "test")
    for step in range(4):
        builder.add(step, scale=scale, skipped=math.inf if step else 1.0, norm=-math.inf, loss=math.nan)
        builder.add(10 + step, scale=65536.0, skipped=1.0)
    assert explain(builder.finish())[0]

"""What went wrong is found, and nothing is found where nothing is wrong."""

import math

import numpy as np
import pytest

from ampsim import Rule, replay
from ampsim.diagnose.explain import HEALTHY, explain
from ampsim.diagnose.findings import findings
from ampsim.diagnose.history import HistoryBuilder, Sample
from ampsim.diagnose.infer import backoffs, fitting_dialects, infer
from ampsim.diagnose.what_if import other_rules


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
    assert 300 <= finding.step <= 302 + every


def test_the_scale_that_jumped_from_131072_to_5e_23_is_91_backoffs():
    builder = HistoryBuilder("-", "test")
    for step, scale in enumerate([131072.0, 131072.0, 5.29e-23, 5.29e-23]):
        builder.add(100 * step, scale=scale)
    run = builder.finish()
    assert infer(run).least_skips == 91
    assert "91 backoffs" in explain(run)[0]
    assert kinds(run) == ["collapse"]


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


def test_an_interval_that_is_too_long():
    run = history(at(*range(100, 106)), rule=Rule(growth_interval=2000), settings={"growth_interval": 2000})
    assert kinds(run) == ["interval too long"]
    assert "growth interval of 2000" in findings(run)[0].what


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


def test_the_dialect_that_fits_is_named():
    run = history(at(*range(100, 400, 37)), rule=Rule(2.0**15, growth_interval=13))
    assert "torch.amp.GradScaler" in fitting_dialects(run)
    assert infer(run).growth_interval == 13
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

"""The policy benchmark: its scores, its entries, and the rule that it chooses in hindsight."""

from dataclasses import dataclass

import numpy as np
import pytest

from ampsim import Rule, init, update
from ampsim.core import policies, theory
from ampsim.core.policies import Policy
from experiments import policy_benchmark, runner
from experiments.policy_benchmark import OURS, score


@dataclass(frozen=True, kw_only=True)
class Fixed(Policy):
    """A policy that never changes its scale."""

    def decide(self, xp, used, newest, memory, seen):  # type: ignore[no-untyped-def]
        return newest, memory


def test_scores_match_theory() -> None:
    rule = Rule(growth_interval=50)
    row = score(rule, np.full(4080, 2.0**20.5))  # 80 periods of 51 steps
    assert row["skips"] == pytest.approx(100 * theory.skip_rate(rule), abs=1e-4)
    assert row["unused"] == theory.headroom(rule)
    assert row["burst"] == 1
    assert row["recovery"] == theory.recovery(rule, 10, 10).steps - 10


def test_longest_burst_is_counted() -> None:
    thresholds = np.full(60, 2.0**20.5)
    thresholds[[5, 6, 7, 20]] = 2.0**-100
    assert score(Fixed(), thresholds)["burst"] == 3


def test_no_recovery_is_none() -> None:
    assert (
        score(Rule(growth_interval=2000), np.full(600, 2.0**20.5))["recovery"] is None
    )


def test_every_core_policy_is_entered() -> None:
    entered = {type(entry.make()) for entry in OURS.values()}
    public = {
        found
        for found in vars(policies).values()
        if isinstance(found, type)
        and issubclass(found, Policy)
        and "decide" in vars(found)
    }
    assert entered == (public - {Policy}) | {Rule}


def test_own_policy_enters_by_path() -> None:
    path = f"{__name__}:Fixed"
    config = policy_benchmark.Config(policy=path)
    machine = policy_benchmark.arms(config)[path].make()
    assert machine == Fixed()


@pytest.mark.parametrize(
    "path", ["Fixed", "ampsim:Nothing", "math:pi", "math:floor", "no_such:A"]
)
def test_other_paths_raise(path: str) -> None:
    with pytest.raises(runner.UsageError, match="module:Class"):
        policy_benchmark.arms(policy_benchmark.Config(policy=path))


def test_grid_has_ten_thousand_rules() -> None:
    assert len(set(policy_benchmark.grid())) == 10_000


def test_best_rule_has_least_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    thresholds = 2.0 ** generator.normal(18.5, 1, 400)
    rules = [Rule(2.0**18, growth_interval=interval) for interval in (1, 3, 10, 100)]
    costs = []
    for rule in rules:
        state, skips, after = init(rule), 0, []
        for threshold in thresholds:
            found_inf = state.scale > threshold
            skips += found_inf
            state = update(rule, state, found_inf)
            after.append(np.log2(state.scale))
        unused = np.mean(np.log2(thresholds)) - np.mean(after)
        costs.append(skips / 400 + 0.2 * unused)
    assert 0 < np.argmin(costs) < 3  # both terms count
    monkeypatch.setattr(policy_benchmark, "PRICE", 0.2)
    monkeypatch.setattr(policy_benchmark, "grid", lambda: iter(rules))
    monkeypatch.setattr(policy_benchmark, "recorded", lambda: {0: {"one": thresholds}})
    assert policy_benchmark.best_rule.__wrapped__() == rules[int(np.argmin(costs))]

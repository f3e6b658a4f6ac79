"""Run the checks of ranks: run each scenario on all ranks and check the records.

>>> import torch
>>> from ampsim.testing import check_ranks
>>> def make(group):  # torch's scaler does not synchronize across ranks
...     return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
>>> check_ranks(make, checks=["ranks_agree_on_skips"], processes=False)  # doctest: +ELLIPSIS
Traceback (most recent call last):
    ...
AssertionError: ranks_agree_on_skips: rank 0 skipped, rank 1 stepped optimizer 0 (iteration 1)
  property Each optimizer is stepped on every rank or skipped on every rank.
  ranks    2, each with 1 optimizer; step, update
  history  clean, inf on rank 0, clean, clean, clean
  seen on  threads
...
"""

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ampsim.core.validation import as_int
from ampsim.testing import scheduler
from ampsim.testing.check import (
    Result,
    chosen,
    described,
    raise_findings,
    require_known,
    settled,
)
from ampsim.testing.load import load
from ampsim.testing.ranks.checks import CHECKS, Case, Records, failure
from ampsim.testing.ranks.gradients import Gradients, owner_of
from ampsim.testing.ranks.processes import play_all
from ampsim.testing.ranks.scenario import (
    FUSED,
    FUSED_ON_DTENSORS,
    Make,
    Scenario,
    scenarios,
)
from ampsim.testing.ranks.threads import late, play_on_threads
from ampsim.testing.scaler_checks.traits import Traits

GROUPS = ("process_group", "group")  # what a constructor may call it


def check_ranks(
    make: Make,
    ranks: int = 2,
    *,
    gradients: Gradients = "sharded",
    unsupported: Iterable[str] = (),
    checks: Sequence[str] | None = None,
    expected_failures: Mapping[str, str] | None = None,
    processes: bool = True,
    wait: float = 30.0,
) -> list[Result]:
    """Run the checks of ranks on a scaler and raise if one fails.

    Args:
        make: ``make(group)`` returns a fresh scaler with torch's methods, on the CPU, that
            synchronizes over the process group. Use a short growth interval, e.g. 2, to test growth
            too. Each rank calls it in its own thread or process.
        ranks: Number of ranks; at least 2.
        gradients: "sharded" if each rank has its own gradients, as under FSDP; "DDP" or "FSDP2" for
            the gradients of torch's wrapper; or your own ``wrap(model, group)``, which returns the
            model so wrapped that its backward pass reduces the gradients. Wrappers need processes.
        unsupported: Features, from `scaler_checks.traits.FEATURES`, that the scaler does not
            support. These checks use "fused", "optimizers", "state_dict", and "unscale_".
        checks: names in `ampsim.testing.ranks.checks.CHECKS`; None for all.
        expected_failures: name of a check -> reason, with a link. Strict: an xpass is a finding.
        processes: Whether to also run every scenario in processes, with gloo.
        wait: Seconds that a rank waits in a collective, in processes.

    Returns:
        list[Result]: One result per check.

    Raises:
        AssertionError: A check failed, or an expected failure passed.
        ValueError: There are fewer than 2 ranks, or no such check.
    """
    __tracebackhide__ = True  # for pytest
    results = judge_ranks(
        make,
        ranks,
        gradients,
        unsupported=unsupported,
        checks=checks,
        expected=expected_failures,
        processes=processes,
        wait=wait,
    )
    return raise_findings(results)


def judge_ranks(
    make: Make,
    ranks: int = 2,
    gradients: Gradients = "sharded",
    *,
    unsupported: Iterable[str] = (),
    checks: Sequence[str] | None = None,
    expected: Mapping[str, str] | None = None,
    processes: bool = True,
    wait: float = 30.0,
) -> Iterator[Result]:
    """Yield the result of each check, as `check_ranks` returns it, without raising for a failure."""
    if not __debug__:
        raise RuntimeError("checks use assert, which python -O removes: run without -O")
    as_int("ranks", ranks, 2, "a single rank has nothing to agree on")
    owner_of(gradients)  # raises for an unknown name
    if gradients != "sharded" and not processes:
        raise ValueError(
            f"gradients={gradients!r} with processes=False: expected processes=True, because threads do not support it"
        )
    selected = chosen(CHECKS, checks)
    expected = expected or {}
    require_known(CHECKS, expected)
    lacks = Traits(unsupported=frozenset(unsupported)).unsupported
    fused = FUSED_ON_DTENSORS if gradients == "FSDP2" else FUSED
    ways = [] if "fused" in lacks else fused
    todo = [
        each for each in scenarios(ranks, ways) if _can_play(each, gradients, lacks)
    ]
    failures: dict[str, str] = {}
    limit = wait if processes else 0.0
    for case, where in _plays(make, todo, ranks, gradients, limit):
        story = [*case.scenario.story(ranks), ("seen on", where)]
        for check in selected:
            seen = check.name not in failures and failure(check, case)
            if seen:
                failures[check.name] = described(check, seen, story)
        if len(failures) == len(selected):
            break
    name = getattr(make, "__qualname__", "scaler")
    for check in selected:
        failed = failures.get(check.name)
        reason = expected.get(check.name)
        yield Result(check, name, *settled(check, failed, reason))


def _can_play(scenario: Scenario, gradients: Gradients, lacks: Collection[str]) -> bool:
    """Return whether the scaler supports a scenario; a desynchronized rank needs sharded gradients."""
    needs = {
        "unscale_": scenario.unscales,
        "state_dict": scenario.resumes,
        "optimizers": scenario.optimizers > 1,
    }
    if scenario.parts and gradients != "sharded":
        return False  # the wrapper's collectives would meet the scaler's
    return not any(needed and name in lacks for name, needed in needs.items())


def _plays(
    make: Make, todo: Sequence[Scenario], ranks: int, gradients: Gradients, wait: float
) -> Iterator[tuple[Case, str]]:
    """Yield each scenario with the records of all ranks, and where it was played.

    Each scenario runs once among threads, simple ones also with each rank late; then with gloo
    unless the wait is 0.
    """
    played: dict[Scenario, Records] = {}
    if gradients == "sharded":
        with scheduler.one_core():
            for scenario in todo:
                played[scenario] = play_on_threads(make, scenario, ranks)
                yield Case(scenario, played[scenario], played), "threads"
            for scenario in filter(lambda each: each.is_simple, todo):
                for rank in range(ranks):
                    records = play_on_threads(make, scenario, ranks, late(rank))
                    where = f"threads, rank {rank} late"
                    yield Case(scenario, records, played), where
    if wait:
        apart = play_all(make, todo, ranks, gradients, wait)
        for scenario, records in apart.items():
            yield Case(scenario, records, apart), "processes with gloo"


def find(target: str) -> Make:
    """Return what makes a rank's scaler, given its group.

    Args:
        target: ``module:attribute`` of ``make(group)``, or of a class with torch's constructor; it
            is given the group if it has a place for one.
    """
    found: Any = load(target)
    names = inspect.signature(found).parameters
    if not {"init_scale", "growth_interval"} <= {*names}:
        return found  # type: ignore[no-any-return]
    values = {"device": "cpu", "init_scale": 1024.0, "growth_interval": 2}

    def make(group: Any) -> Any:
        given = values | dict.fromkeys(GROUPS, group)
        return found(**{name: given[name] for name in given if name in names})

    return make

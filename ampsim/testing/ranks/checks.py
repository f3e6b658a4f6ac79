"""Checks of ranks that train together. Each check compares the records of all ranks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps

from ampsim.testing.check import Check, stating
from ampsim.testing.ranks.scenario import RankRecord, Scenario, Seen

Records = Sequence[RankRecord]  # by rank
Played = dict[Scenario, Records]
Function = Callable[[Scenario, Records, Played], str | None]


CHECKS: dict[str, Check] = {}


def check(issue: str = "", *, of_parting: bool = False) -> Callable[[Function], Check]:
    """Register a check of ranks, whose function returns the failure in a scenario, or None.

    Args:
        issue: as `stating` takes it.
        of_parting: whether the check runs only in scenarios with a desynchronized rank, or only in
            the others.
    """
    state = stating(Check, CHECKS, issue=issue, group="ranks")

    def register(function: Function) -> Check:
        @wraps(function)
        def ask(scenario: Scenario, records: Records, played: Played) -> str | None:
            return (
                function(scenario, records, played)
                if bool(scenario.parts) == of_parting
                else None
            )

        return state(ask)

    return register


def _iterations(records: Records) -> Iterator[tuple[int, Sequence[Seen]]]:
    """Yield each iteration that every rank has finished, with the records of all ranks."""
    yield from enumerate(zip(*(record.seen for record in records), strict=False))


def _moved(seen: Sequence[Seen], i: int) -> dict[int, bool]:
    """Return which ranks with gradients stepped optimizer i."""
    return {
        rank: moved
        for rank, each in enumerate(seen)
        if (moved := each.moved[i]) is not None
    }


@check("hpcaitech/ColossalAI#5003")
def no_deadlock(scenario: Scenario, records: Records, _: Played) -> str | None:
    """Every rank joins each collective that another rank joins."""
    waiting = [
        f"rank {rank} waits in {record.waits}"
        for rank, record in enumerate(records)
        if record.waits
    ]
    if not waiting or _raised(records):
        return None
    missing = [
        f"rank {rank} ended iteration {len(record.seen)}"
        for rank, record in enumerate(records)
        if not record.waits
    ]
    return "; ".join([*waiting, *missing])


@check("pytorch/pytorch#140514")
def no_rank_raises(scenario: Scenario, records: Records, _: Played) -> str | None:
    """No rank raises if every rank has gradients."""
    return None if scenario.empty else _raised(records)


@check("facebookresearch/fairscale#179")
def rank_without_gradients_participates(
    scenario: Scenario, records: Records, played: Played
) -> str | None:
    """A rank without gradients, such as one without a shard, steps and updates like the others."""
    everywhere = played.get(replace(scenario, empty=frozenset()), ())
    return _raised(records) if scenario.empty and not _raised(everywhere) else None


def _raised(records: Records) -> str | None:
    raised = [
        f"rank {rank} raised {record.error}"
        for rank, record in enumerate(records)
        if record.error
    ]
    return raised[0] if raised else None


@check("facebookresearch/fairseq2#1346")
def no_rank_steps_on_overflow(
    scenario: Scenario, records: Records, _: Played
) -> str | None:
    """An overflow on one rank, or on all, skips the step of that optimizer on every rank."""
    for number, seen in _iterations(records):
        for i in sorted({i for _, i in scenario.overflows[number]}):
            if stepped := [rank for rank, moved in _moved(seen, i).items() if moved]:
                return f"rank {stepped[0]} stepped optimizer {i} (iteration {number})"
    return None


@check(of_parting=True)
def desynchronized_rank_is_detected(
    scenario: Scenario, records: Records, _: Played
) -> str | None:
    """If a rank skips step(), steps in another order, or exits, no rank steps on an overflow."""
    for rank, record in enumerate(records):
        for number, (seen, overflows) in enumerate(
            zip(record.seen, scenario.overflows, strict=False)
        ):
            for i in sorted({i for _, i in overflows}):
                if seen.moved[i]:
                    return f"rank {rank} stepped optimizer {i} (iteration {number})"
    return None


@check()
def parameters_stay_finite(
    scenario: Scenario, records: Records, _: Played
) -> str | None:
    """No parameter becomes inf or NaN, for any number of ranks that overflow at once."""
    for number, seen in _iterations(records):
        for rank, each in enumerate(seen):
            if not each.finite:
                return f"a parameter on rank {rank} is inf or NaN (iteration {number})"
    return None


@check("deepspeedai/DeepSpeed#7568")
def ranks_agree_on_skips(scenario: Scenario, records: Records, _: Played) -> str | None:
    """Each optimizer is stepped on every rank or skipped on every rank."""
    for number, seen in _iterations(records):
        for i in range(scenario.optimizers):
            moved = _moved(seen, i)
            if len({*moved.values()}) > 1:
                told = ", ".join(
                    f"rank {rank} {'stepped' if it else 'skipped'}"
                    for rank, it in moved.items()
                )
                return f"{told} optimizer {i} (iteration {number})"
    return None


@check()
def finite_steps_are_taken(
    scenario: Scenario, records: Records, _: Played
) -> str | None:
    """Every rank steps if no gradient overflows on any rank."""
    for number, seen in _iterations(records):
        for i in range(
            0 if scenario.overflows[number] or scenario.equal else scenario.optimizers
        ):
            for rank, moved in _moved(seen, i).items():
                if not moved:
                    return f"rank {rank} skipped optimizer {i} (iteration {number})"
    return None


@check("NVIDIA-NeMo/Megatron-Bridge#5591")
def ranks_agree_on_scale(scenario: Scenario, records: Records, _: Played) -> str | None:
    """All ranks multiply the loss by the same scale and have the same scale and state dict after
    each update.
    """
    for number, seen in _iterations(records):
        for name in ("used", "after", "state"):
            values = [getattr(each, name) for each in seen]
            if len({*values}) > 1:
                told = ", ".join(
                    f"{value} on rank {rank}" for rank, value in enumerate(values)
                )
                return f"{_NAMES[name]} is {told} (iteration {number})"
    return None


_NAMES = {
    "used": "the scale of the loss",
    "after": "the scale",
    "state": "the state dict",
}


@check()
def ranks_agree_on_step_counts(
    scenario: Scenario, records: Records, _: Played
) -> str | None:
    """Every rank with gradients counts exactly the optimizer steps."""
    taken: dict[tuple[int, int], int] = {}
    for number, seen in _iterations(records):
        for i in range(scenario.optimizers):
            for rank, moved in _moved(seen, i).items():
                taken[rank, i] = taken.get((rank, i), 0) + moved
                if (counted := seen[rank].steps[i]) not in (None, taken[rank, i]):
                    return f"rank {rank} counted {counted} steps, took {taken[rank, i]} (iteration {number})"
    return None


@check()
def scale_does_not_depend_on_ranks(
    scenario: Scenario, records: Records, _: Played
) -> str | None:
    """Ranks with equal gradients take each step that one rank would take."""
    # A sum over N ranks that is divided after it overflows up to log2 N bits early:
    # `theory.bits_lost_to_ranks`
    if not scenario.equal:
        return None
    for number, seen in _iterations(records):
        for i in range(scenario.optimizers):
            for rank, moved in _moved(seen, i).items():
                if not moved:
                    return (
                        f"rank {rank} skipped optimizer {i}: the gradient of each rank is {scenario.equal:g}, which "
                        f"float16 holds, and the reduction over {len(records)} ranks overflowed (iteration {number})"
                    )
    return None


@check("NVIDIA/Megatron-LM#5331")
def simultaneous_overflows_count_once(
    scenario: Scenario, records: Records, played: Played
) -> str | None:
    """The scale does not depend on how many ranks and optimizers overflow at once or have
    gradients.
    """
    return _same_scales(records, played.get(scenario.joined(len(records))), "where all overflow") if any(
        scenario.overflows
    ) and not scenario.resumes else None  # fmt: skip


@check("huggingface/accelerate#4289")
def resume_from_one_rank_is_exact(
    scenario: Scenario, records: Records, played: Played
) -> str | None:
    """All ranks resume exactly from the state dict of one rank."""
    return (
        _same_scales(records, played.get(replace(scenario, resumes=0)), "without it")
        if scenario.resumes
        else None
    )


def _same_scales(records: Records, others: Records | None, where: str) -> str | None:
    for rank, (record, other) in enumerate(zip(records, others or (), strict=False)):
        for number, (mine, theirs) in enumerate(
            zip(record.seen, other.seen, strict=False)
        ):
            if mine.after != theirs.after:
                return f"the scale on rank {rank} is {mine.after}, {where} {theirs.after} (iteration {number})"
    return None

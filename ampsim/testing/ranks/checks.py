"""Checks of ranks that train together. Each check compares the records of all ranks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ampsim.testing.check import Check, stating
from ampsim.testing.ranks.scenario import RankRecord, Scenario, Seen

Records = Sequence[RankRecord]  # by rank
Played = dict[Scenario, Records]
CHECKS: dict[str, Check] = {}


def failure(
    check: Check, scenario: Scenario, records: Records, played: Played
) -> str | None:
    """Return how a check fails in a scenario, or None. With a desynchronized rank one check runs."""
    is_of_parting = check.name == "desynchronized_rank_is_detected"
    if is_of_parting != bool(scenario.parts):
        return None
    return check.function(scenario, records, played)  # type: ignore[no-any-return]


def check(issue: str = "") -> Callable[..., Check]:
    """Register a check of ranks, whose function returns the failure in a scenario, or None.

    Args:
        issue: as `stating` takes it.
    """
    return stating(Check, CHECKS, issue=issue, group="ranks")


def _iterations(records: Records) -> Iterator[tuple[int, Sequence[Seen]]]:
    """Yield each iteration that every rank has finished, with the records of all ranks."""
    yield from enumerate(zip(*(record.seen for record in records), strict=False))


def _steps(
    scenario: Scenario, records: Records
) -> Iterator[tuple[int, int, dict[int, bool]]]:
    """Yield each iteration and optimizer, with which ranks that have gradients stepped it."""
    for number, seen in _iterations(records):
        for i in range(scenario.optimizers):
            moved = {rank: each.moved[i] for rank, each in enumerate(seen)}
            yield number, i, {rank: it for rank, it in moved.items() if it is not None}


@check("hpcaitech/ColossalAI#5003")
def no_deadlock(scenario: Scenario, records: Records, _: Played) -> str | None:
    """Every rank joins each collective that another rank joins."""
    waiting, ended = list[str](), list[str]()
    for rank, record in enumerate(records):
        if record.waits:
            waiting.append(f"rank {rank} waits in {record.waits}")
        else:
            ended.append(f"rank {rank} ended iteration {len(record.seen)}")
    return "; ".join([*waiting, *ended]) if waiting and not _raised(records) else None


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
    for rank, record in enumerate(records):
        if record.error:
            return f"rank {rank} raised {record.error}"
    return None


@check("facebookresearch/fairseq2#1346")
def no_rank_steps_on_overflow(
    scenario: Scenario, records: Records, _: Played
) -> str | None:
    """An overflow on one rank, or on all, skips the step of that optimizer on every rank."""
    for number, i, moved in _steps(scenario, records):
        for rank, has_stepped in moved.items():
            if has_stepped and scenario.overflows_in(number, i):
                return f"rank {rank} stepped optimizer {i} (iteration {number})"
    return None


@check()
def desynchronized_rank_is_detected(
    scenario: Scenario, records: Records, _: Played
) -> str | None:
    """If a rank skips step(), steps in another order, or exits, no rank steps on an overflow."""
    for rank, record in enumerate(records):
        for number, seen in enumerate(record.seen):
            for i, has_stepped in enumerate(seen.moved):
                if has_stepped and scenario.overflows_in(number, i):
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
    for number, i, moved in _steps(scenario, records):
        if len({*moved.values()}) > 1:
            words = {True: "stepped", False: "skipped"}
            did = ", ".join(f"rank {rank} {words[it]}" for rank, it in moved.items())
            return f"{did} optimizer {i} (iteration {number})"
    return None


@check()
def finite_steps_are_taken(
    scenario: Scenario, records: Records, _: Played
) -> str | None:
    """Every rank steps if no gradient overflows on any rank."""
    return None if scenario.equal else _skipped(scenario, records)


@check()
def scale_does_not_depend_on_ranks(
    scenario: Scenario, records: Records, _: Played
) -> str | None:
    """Ranks with equal gradients take each step that one rank would take."""
    # A sum over N ranks that is divided after it overflows up to log2 N bits early:
    # `theory.bits_lost_to_ranks`
    skipped = _skipped(scenario, records) if scenario.equal else None
    return skipped and (
        f"{skipped}: the gradient of each rank is {scenario.equal:g}, which float16 holds, and the "
        f"reduction over {len(records)} ranks overflowed"
    )


def _skipped(scenario: Scenario, records: Records) -> str | None:
    for number, i, moved in _steps(scenario, records):
        for rank, has_stepped in moved.items():
            if not has_stepped and not scenario.overflows[number]:
                return f"rank {rank} skipped optimizer {i} (iteration {number})"
    return None


@check("NVIDIA-NeMo/Megatron-Bridge#5591")
def ranks_agree_on_scale(scenario: Scenario, records: Records, _: Played) -> str | None:
    """All ranks multiply the loss by the same scale and have the same scale and state dict after
    each update.
    """
    names = {"used": "scale of the loss", "after": "scale", "state": "state dict"}
    for number, seen in _iterations(records):
        for field, name in names.items():
            values = [getattr(each, field) for each in seen]
            if len({*values}) > 1:
                shown = (f"{value} on rank {rank}" for rank, value in enumerate(values))
                return f"the {name} is {', '.join(shown)} (iteration {number})"
    return None


@check()
def ranks_agree_on_step_counts(
    scenario: Scenario, records: Records, _: Played
) -> str | None:
    """Every rank with gradients counts exactly the optimizer steps."""
    taken: dict[tuple[int, int], int] = {}
    for number, i, moved in _steps(scenario, records):
        for rank, has_stepped in moved.items():
            due = taken[rank, i] = taken.get((rank, i), 0) + has_stepped
            counted = records[rank].seen[number].steps[i]
            if counted not in (None, due):
                return f"rank {rank} counted {counted} steps, took {due} (iteration {number})"
    return None


@check("NVIDIA/Megatron-LM#5331")
def simultaneous_overflows_count_once(
    scenario: Scenario, records: Records, played: Played
) -> str | None:
    """The scale does not depend on how many ranks and optimizers overflow at once or have
    gradients.
    """
    if scenario.resumes or not any(scenario.overflows):
        return None
    everywhere = played.get(scenario.joined(len(records)), ())
    return _same_scales(records, everywhere, "where all overflow")


@check("huggingface/accelerate#4289")
def resume_from_one_rank_is_exact(
    scenario: Scenario, records: Records, played: Played
) -> str | None:
    """All ranks resume exactly from the state dict of one rank."""
    uninterrupted = played.get(replace(scenario, resumes=0), ())
    return (
        _same_scales(records, uninterrupted, "without it") if scenario.resumes else None
    )


def _same_scales(records: Records, others: Records, where: str) -> str | None:
    for rank, (record, other) in enumerate(zip(records, others, strict=False)):
        for number, both in enumerate(zip(record.seen, other.seen, strict=False)):
            scale, expected = (each.after for each in both)
            if scale != expected:
                return f"the scale on rank {rank} is {scale}, {where} {expected} (iteration {number})"
    return None

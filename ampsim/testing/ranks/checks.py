"""Checks of ranks that train together: plain asserts on the records of all ranks in a scenario."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from ampsim.testing.check import Check, stating
from ampsim.testing.ranks.scenario import RankRecord, Scenario, Seen

Records = Sequence[RankRecord]  # by rank
CHECKS: dict[str, Check] = {}


class Step(NamedTuple):
    """One call of step() on a rank that has gradients."""

    number: int  # of the iteration
    optimizer: int
    rank: int
    is_taken: bool

    def that(self, did: str) -> str:
        """Write that the rank did something with the optimizer."""
        return f"rank {self.rank} {did} optimizer {self.optimizer} (iteration {self.number})"


@dataclass(frozen=True)
class Case:
    """A scenario that all ranks went through.

    Attributes:
        scenario: What every rank did.
        records: What was seen, by rank.
        played: The records of this scenario and of those before it.
    """

    scenario: Scenario
    records: Records
    played: Mapping[Scenario, Records]

    def iterations(self) -> Iterator[tuple[int, Sequence[Seen]]]:
        """Yield the number of each iteration that every rank has finished, and what each saw."""
        seen = [record.seen for record in self.records]
        yield from enumerate(zip(*seen, strict=False))

    def steps(self, last: int | None = None) -> list[Step]:
        """Return the steps of the first iterations; None for those that every rank has finished."""
        if last is None:
            last = min(len(record.seen) for record in self.records)
        steps = list[Step]()
        for rank, record in enumerate(self.records):
            for number, seen in enumerate(record.seen[:last]):
                for i, moved in enumerate(seen.moved):
                    if moved is not None:
                        steps.append(Step(number, i, rank, moved))
        return sorted(steps)

    def assert_overflows_skip(self, steps: Sequence[Step]) -> None:
        """Check that no rank steps an optimizer that overflows on any rank."""
        for step in steps:
            overflows = self.scenario.overflows_in(step.number, step.optimizer)
            assert not (step.is_taken and overflows), step.that("stepped")

    def first_error(self, records: Records | None = None) -> str:
        """Return what the first rank raised that raised; "" if none did."""
        for rank, record in enumerate(self.records if records is None else records):
            if record.error:
                return f"rank {rank} raised {record.error}"
        return ""

    def assert_same_scales(self, other: Scenario, where: str) -> None:
        """Check that the scales are those of another scenario, if that was played."""
        pairs = zip(self.records, self.played.get(other, ()), strict=False)
        for rank, (record, theirs) in enumerate(pairs):
            for number, both in enumerate(zip(record.seen, theirs.seen, strict=False)):
                scale, expected = (each.after for each in both)
                text = f"the scale on rank {rank} is {scale}, {where} {expected}"
                assert scale == expected, f"{text} (iteration {number})"

    def assert_finite_steps_are_taken(self, more: str = "") -> None:
        """Check that every rank steps where no gradient overflows."""
        for step in self.steps():
            is_right = step.is_taken or self.scenario.overflows[step.number]
            assert is_right, step.that("skipped") + more


def failure(check: Check, case: Case) -> str | None:
    """Return how a check fails, or None. With a desynchronized rank only its own check runs."""
    is_of_parting = check.name == "desynchronized_rank_is_detected"
    if is_of_parting != bool(case.scenario.parts):
        return None
    try:
        check.function(case)
    except AssertionError as error:
        return str(error)
    return None


def check(issue: str = "") -> Callable[..., Check]:
    """Register a check of ranks: a function of a `Case`.

    Args:
        issue: as `stating` takes it.
    """
    return stating(Check, CHECKS, issue=issue, group="ranks")


@check("hpcaitech/ColossalAI#5003")
def no_deadlock(case: Case) -> None:
    """Every rank joins each collective that another rank joins."""
    waiting = list[str]()
    ended = list[str]()
    for rank, record in enumerate(case.records):
        if record.waits:
            waiting.append(f"rank {rank} waits in {record.waits}")
        else:
            ended.append(f"rank {rank} ended iteration {len(record.seen)}")
    assert not waiting or case.first_error(), "; ".join([*waiting, *ended])


@check("pytorch/pytorch#140514")
def no_rank_raises(case: Case) -> None:
    """No rank raises if every rank has gradients."""
    raised = case.first_error()
    assert case.scenario.empty or not raised, raised


@check("facebookresearch/fairscale#179")
def rank_without_gradients_participates(case: Case) -> None:
    """A rank without gradients, such as one without a shard, steps and updates like the others."""
    everywhere = replace(case.scenario, empty=frozenset())
    raises_anyway = case.first_error(case.played.get(everywhere, ()))
    raised = case.first_error()
    assert not case.scenario.empty or raises_anyway or not raised, raised


@check("facebookresearch/fairseq2#1346")
def no_rank_steps_on_overflow(case: Case) -> None:
    """An overflow on one rank, or on all, skips the step of that optimizer on every rank."""
    case.assert_overflows_skip(case.steps())


@check()
def desynchronized_rank_is_detected(case: Case) -> None:
    """If a rank skips step(), steps in another order, or exits, no rank steps on an overflow."""
    # Iterations count that only some ranks finish, too.
    case.assert_overflows_skip(case.steps(last=len(case.scenario.overflows)))


@check()
def parameters_stay_finite(case: Case) -> None:
    """No parameter becomes inf or NaN, for any number of ranks that overflow at once."""
    for number, seen in case.iterations():
        for rank, each in enumerate(seen):
            text = f"a parameter on rank {rank} is inf or NaN (iteration {number})"
            assert each.finite, text


@check("deepspeedai/DeepSpeed#7568")
def ranks_agree_on_skips(case: Case) -> None:
    """Each optimizer is stepped on every rank or skipped on every rank."""
    for _, steps in groupby(case.steps(), lambda step: (step.number, step.optimizer)):
        *others, last = steps
        did = {
            step.rank: "stepped" if step.is_taken else "skipped"
            for step in (*others, last)
        }
        text = ", ".join(f"rank {rank} {what}" for rank, what in did.items())
        where = f"optimizer {last.optimizer} (iteration {last.number})"
        assert len({*did.values()}) == 1, f"{text} {where}"


@check()
def finite_steps_are_taken(case: Case) -> None:
    """Every rank steps if no gradient overflows on any rank."""
    if not case.scenario.equal:
        case.assert_finite_steps_are_taken()


@check()
def scale_does_not_depend_on_ranks(case: Case) -> None:
    """Ranks with equal gradients take each step that one rank would take."""
    # A sum over N ranks that is divided after it overflows up to log2 N bits early:
    # `theory.bits_lost_to_ranks`
    if case.scenario.equal:
        gradient = f"the gradient of each rank is {case.scenario.equal:g}"
        reduction = f"the reduction over {len(case.records)} ranks overflowed"
        case.assert_finite_steps_are_taken(
            f": {gradient}, which float16 holds, and {reduction}"
        )


@check("NVIDIA-NeMo/Megatron-Bridge#5591")
def ranks_agree_on_scale(case: Case) -> None:
    """All ranks multiply the loss by the same scale and have the same scale and state dict after
    each update.
    """
    names = {"used": "scale of the loss", "after": "scale", "state": "state dict"}
    for number, seen in case.iterations():
        for field, name in names.items():
            values = [getattr(each, field) for each in seen]
            shown = [f"{value} on rank {rank}" for rank, value in enumerate(values)]
            text = f"the {name} is {', '.join(shown)} (iteration {number})"
            assert len({*values}) == 1, text


@check()
def ranks_agree_on_step_counts(case: Case) -> None:
    """Every rank with gradients counts exactly the optimizer steps."""
    taken = Counter[tuple[int, int]]()
    for step in case.steps():
        taken[step.rank, step.optimizer] += step.is_taken
        due = taken[step.rank, step.optimizer]
        seen = case.records[step.rank].seen[step.number]
        counted = seen.steps[step.optimizer]
        text = f"rank {step.rank} counted {counted} steps, took {due}"
        assert counted in (None, due), f"{text} (iteration {step.number})"


@check("NVIDIA/Megatron-LM#5331")
def simultaneous_overflows_count_once(case: Case) -> None:
    """The scale does not depend on how many ranks and optimizers overflow at once or have
    gradients.
    """
    if any(case.scenario.overflows) and not case.scenario.resumes:
        everywhere = case.scenario.joined(len(case.records))
        case.assert_same_scales(everywhere, "where all overflow")


@check("huggingface/accelerate#4289")
def resume_from_one_rank_is_exact(case: Case) -> None:
    """All ranks resume exactly from the state dict of one rank."""
    if case.scenario.resumes:
        case.assert_same_scales(replace(case.scenario, resumes=0), "without it")

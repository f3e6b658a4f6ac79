"""Checks of ranks that train together: plain asserts on the records of all ranks in a scenario."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import NamedTuple

from ampsim.testing.check import Check, own_text, stating
from ampsim.testing.ranks.scenario import RankRecord, Scenario, Seen

Records = Sequence[RankRecord]  # by rank
CHECKS: dict[str, Check] = {}


class Iteration(NamedTuple):
    """What ranks were seen to do in one iteration.

    Attributes:
        scenario: What every rank did.
        number: Number of the iteration.
        seen: Each rank that finished the iteration, and what was seen of it.
    """

    scenario: Scenario
    number: int
    seen: dict[int, Seen]

    def steps(self) -> Iterator[tuple[int, int, bool]]:
        """Yield each rank with gradients, each optimizer, and whether the rank stepped it."""
        for rank, seen in self.seen.items():
            for i, is_taken in enumerate(seen.moved):
                if is_taken is not None:
                    yield rank, i, is_taken

    def assert_overflows_skip(self) -> None:
        """Check that no rank steps an optimizer that overflows on any rank."""
        for rank, i, is_taken in self.steps():
            overflows = self.scenario.overflows_in(self.number, i)
            assert not (is_taken and overflows), f"rank {rank} stepped optimizer {i}"

    def assert_finite_steps_are_taken(self, why: str = "") -> None:
        """Check that every rank steps where no gradient overflows."""
        overflows = self.scenario.overflows[self.number]
        for rank, i, is_taken in self.steps():
            assert is_taken or overflows, f"rank {rank} skipped optimizer {i}{why}"


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

    def iterations(self) -> Iterator[Iteration]:
        """Yield the iterations that every rank has finished; if one parts, those of any rank."""
        for number in range(len(self.scenario.overflows)):
            seen = dict[int, Seen]()
            for rank, record in enumerate(self.records):
                if number < len(record.seen):
                    seen[rank] = record.seen[number]
            if len(seen) == len(self.records) or self.scenario.parts:
                yield Iteration(self.scenario, number, seen)

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


def failure(check: Check, case: Case) -> str | None:
    """Return how a check fails, or None. With a desynchronized rank only its own check runs."""
    is_of_parting = check.name == "desynchronized_rank_is_detected"
    if is_of_parting != bool(case.scenario.parts):
        return None
    try:
        check.function(case)
    except AssertionError as error:
        return own_text(error)
    return None


def check(issue: str = "") -> Callable[..., Check]:
    """Register a check of ranks: a function of a `Case`.

    Args:
        issue: as `stating` takes it.
    """
    return stating(Check, CHECKS, issue=issue, label="ranks")


def check_each(issue: str = "") -> Callable[..., Check]:
    """Register a check of ranks that is a function of each `Iteration`; see `check`."""

    def register(function: Callable[[Iteration], None]) -> Check:
        @wraps(function)
        def of_case(case: Case) -> None:
            for iteration in case.iterations():
                try:
                    function(iteration)
                except AssertionError as error:
                    text = f"{own_text(error)} (iteration {iteration.number})"
                    raise AssertionError(text) from None

        return check(issue)(of_case)

    return register


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


@check_each("facebookresearch/fairseq2#1346")
def no_rank_steps_on_overflow(iteration: Iteration) -> None:
    """An overflow on one rank, or on all, skips the step of that optimizer on every rank."""
    iteration.assert_overflows_skip()


@check_each()
def desynchronized_rank_is_detected(iteration: Iteration) -> None:
    """If a rank skips step(), steps in another order, or exits, no rank steps on an overflow."""
    iteration.assert_overflows_skip()


@check_each()
def parameters_stay_finite(iteration: Iteration) -> None:
    """No parameter becomes inf or NaN, for any number of ranks that overflow at once."""
    for rank, seen in iteration.seen.items():
        assert seen.finite, f"a parameter on rank {rank} is inf or NaN"


@check_each("deepspeedai/DeepSpeed#7568")
def ranks_agree_on_skips(iteration: Iteration) -> None:
    """Each optimizer is stepped on every rank or skipped on every rank."""
    for optimizer in range(iteration.scenario.optimizers):
        did = dict[str, str]()
        for rank, i, is_taken in iteration.steps():
            if i == optimizer:
                did[f"rank {rank}"] = "stepped" if is_taken else "skipped"
        text = ", ".join(map(" ".join, did.items()))
        assert len({*did.values()}) < 2, f"{text} optimizer {optimizer}"


@check_each()
def finite_steps_are_taken(iteration: Iteration) -> None:
    """Every rank steps if no gradient overflows on any rank."""
    if not iteration.scenario.equal:
        iteration.assert_finite_steps_are_taken()


@check_each()
def scale_does_not_depend_on_ranks(iteration: Iteration) -> None:
    """Ranks with equal gradients take each step that one rank would take."""
    # A sum over N ranks that is divided after it overflows up to log2 N bits early:
    # `theory.bits_lost_to_ranks`
    if iteration.scenario.equal:
        gradient = f"the gradient of each rank is {iteration.scenario.equal:g}"
        reduction = f"the reduction over {len(iteration.seen)} ranks overflowed"
        why = f": {gradient}, which float16 holds, and {reduction}"
        iteration.assert_finite_steps_are_taken(why)


@check_each("NVIDIA-NeMo/Megatron-Bridge#5591")
def ranks_agree_on_scale(iteration: Iteration) -> None:
    """All ranks multiply the loss by the same scale and have the same scale and state dict after
    each update.
    """
    names = {"used": "scale of the loss", "after": "scale", "state": "state dict"}
    for field, name in names.items():
        by_rank = {rank: getattr(seen, field) for rank, seen in iteration.seen.items()}
        shown = [f"{value} on rank {rank}" for rank, value in by_rank.items()]
        is_same = len({*by_rank.values()}) < 2
        assert is_same, f"the {name} is {', '.join(shown)}"


@check()
def ranks_agree_on_step_counts(case: Case) -> None:
    """Every rank with gradients counts exactly the optimizer steps."""
    taken = Counter[tuple[int, int]]()
    for iteration in case.iterations():
        for rank, i, is_taken in iteration.steps():
            taken[rank, i] += is_taken
            due = taken[rank, i]
            counted = iteration.seen[rank].steps[i]
            text = f"rank {rank} counted {counted} steps, took {due}"
            assert counted in (None, due), f"{text} (iteration {iteration.number})"


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

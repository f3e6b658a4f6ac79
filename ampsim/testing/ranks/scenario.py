"""What every rank does, and what is seen of it on one rank."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch

from ampsim.testing.ranks.gradients import (
    Gradients,
    Optimizer,
    Sharded,
    World,
    kind_of,
    local,
)

Make = Callable[[Any], Any]  # make(group) -> a scaler with torch's methods, on the CPU
Overflows = frozenset[tuple[int, int]]  # rank and optimizer
Way = tuple[
    Literal["", "SGD", "AdamW"], bool
]  # a Scenario's kernel, and whether it unscales
Parts = Literal[
    "", "does not step optimizer 0", "steps in another order", "exits before it steps"
]
NONE: Overflows = frozenset()
LARGE = 49152.0  # 1.5 * 2^15: float16 holds it, and no power of two times it
KINDS: dict[str, Optimizer] = {
    "": partial(
        torch.optim.SGD, lr=0.125, momentum=0.9, foreach=False
    ),  # so that a step of zeros is seen too
    "SGD": partial(torch.optim.SGD, lr=0.125, momentum=0.9, fused=True),
    "AdamW": partial(torch.optim.AdamW, lr=0.125, fused=True),
}


@dataclass(frozen=True)
class Scenario:
    """Iterations that every rank goes through.

    Attributes:
        overflows: per iteration who overflows.
        optimizers: per rank.
        kernel: the fused optimizer, which divides and skips in its own kernel; "" for a plain one.
        unscales: whether `unscale_` is called before `step`.
        empty: ranks whose parameters get no gradients.
        resumes: iterations after which every rank goes on with a new scaler, from what rank 0
            saved; 0 is never.
        parts: how the last rank desynchronizes in iteration 1.
        equal: what each element of each rank's scaled gradient is; 0.0 for the loss scale.
    """

    overflows: tuple[Overflows, ...]
    optimizers: int = 1
    kernel: Literal["", "SGD", "AdamW"] = ""
    unscales: bool = False
    empty: frozenset[int] = frozenset()
    resumes: int = 0
    parts: Parts = ""
    equal: float = 0.0

    def overflows_in(self, number: int, optimizer: int) -> bool:
        """Return whether an optimizer's gradients overflow on a rank in this iteration."""
        return any(i == optimizer for _, i in self.overflows[number])

    @property
    def is_simple(self) -> bool:
        """Whether every rank does the same with one ordinary optimizer, from begin to end."""
        return self == Scenario(self.overflows, unscales=self.unscales)

    def joined(self, ranks: int) -> "Scenario":
        """Return the same in which an overflow is on every rank and in every optimizer, and nothing
        is resumed.
        """
        everywhere = frozenset(
            (rank, i) for rank in range(ranks) for i in range(self.optimizers)
        )
        overflows = tuple(everywhere if each else NONE for each in self.overflows)
        return replace(self, overflows=overflows, resumes=0, empty=frozenset())

    def story(self, ranks: int) -> Iterator[tuple[str, str]]:
        """Yield lines of (label, text)."""
        kind = f" fused {self.kernel}" if self.kernel else ""
        does = ("unscale_, " if self.unscales else "") + "step, update"
        yield (
            "ranks",
            f"{ranks}, each with {self.optimizers}{kind} optimizer{'s' * (self.optimizers > 1)}; {does}",
        )
        if self.empty:
            empty = " and ".join(map(str, sorted(self.empty)))
            yield "empty", f"no gradients on rank {empty}"
        events = [_event(each, self.optimizers) for each in self.overflows]
        if self.resumes:
            events.insert(self.resumes, "all ranks resume from rank 0's state dict")
        if self.parts:
            yield "desync", f"rank {ranks - 1} {self.parts} (iteration 1)"
        yield "history", ", ".join(events)
        if self.equal:
            yield (
                "gradient",
                f"each element is {self.equal:g} on every rank, times the loss scale included",
            )


def _event(overflows: Overflows, optimizers: int) -> str:
    if not overflows:
        return "clean"
    where = [
        f"{rank}" + f" optimizer {i}" * (optimizers > 1)
        for rank, i in sorted(overflows)
    ]
    return "inf on rank " + " and ".join(where)


class Seen(NamedTuple):
    """A record of what one iteration did on one rank.

    Attributes:
        used: what the loss was multiplied by.
        after: the scale after the update.
        state: the state dict after it, as text.
        moved: per optimizer, whether parameters or its state changed; None on a rank without
            gradients or parameters.
        finite: whether every parameter is finite.
        steps: per optimizer, steps counted so far; None where its kernel skips and counts nothing.
    """

    used: float
    after: float
    state: str
    moved: tuple[bool | None, ...]
    finite: bool
    steps: tuple[int | None, ...]


@dataclass
class RankRecord:
    """A record of one rank.

    Attributes:
        seen: one per iteration that came to its end.
        error: what was raised, '' if nothing.
        waits: where it waited for ranks that do not come, '' if it did not.
    """

    seen: list[Seen] = field(default_factory=list)
    error: str = ""
    waits: str = ""


FAST: list[Way] = [("SGD", False), ("SGD", True), ("AdamW", True)]
FAST_ON_DTENSORS: list[Way] = [
    ("AdamW", False),
    ("AdamW", True),
]  # which a fused SGD of torch 2.13 does not take


def scenarios(ranks: int, fast: Sequence[Way] = FAST) -> Iterator[Scenario]:
    """Yield what is to be played, an overflow on all ranks, on each alone and so on; others'
    standard first.
    """
    alone = [frozenset({(rank, 0)}) for rank in range(ranks)]
    everywhere = frozenset((rank, 0) for rank in range(ranks))
    plain: list[Way] = [("", False), ("", True)]
    for kernel, unscales in [*plain, *fast]:
        make = partial(Scenario, kernel=kernel, unscales=unscales)
        for which in (everywhere, *alone):
            yield make(_around(which))
        yield make(_around(frozenset({(0, 0)})), optimizers=2).joined(ranks)
        for which in (frozenset({(ranks - 1, 1)}), frozenset({(0, 0), (ranks - 1, 1)})):
            yield make(_around(which), optimizers=2)
        yield make(_around(alone[0]), empty=frozenset({ranks - 1}))
    yield Scenario((NONE,), equal=LARGE)
    once = Scenario(_around(alone[0]))
    yield from (
        replace(once, resumes=resumes) for resumes in range(1, len(once.overflows))
    )
    parting: dict[Parts, tuple[int, int]] = {  # and who overflows
        "does not step optimizer 0": (0, 1), "steps in another order": (0, 0), "exits before it steps": (ranks - 1, 0),
    }  # fmt: skip
    for parts, who in parting.items():
        yield Scenario(_around(frozenset({who})), optimizers=2, parts=parts)


def _around(which: Overflows) -> tuple[Overflows, ...]:
    return NONE, which, NONE, NONE, NONE


def play(
    make: Make,
    world: World,
    scenario: Scenario,
    gradients: Gradients,
    record: RankRecord,
) -> None:
    """Go through a scenario on one rank, and add what is seen to its record."""
    kind, empty = (
        partial(kind_of(gradients), KINDS[scenario.kernel], world),
        bool(scenario.empty),
    )
    owners = [kind(empty=empty) for _ in range(scenario.optimizers)]
    scaler = make(world.group)
    for number, overflows in enumerate(scenario.overflows):
        if number and number == scenario.resumes:
            saved = world.first(scaler.state_dict())
            scaler = make(world.group)
            scaler.load_state_dict(saved)
        parts = scenario.parts if (number, world.rank) == (1, world.size - 1) else ""
        used, empty = float(scaler.scale(torch.ones(()))), world.rank in scenario.empty
        for i, owner in enumerate(owners):
            bad = (world.rank, i) in overflows
            owner.give(scenario.equal or used, bad=bad, empty=empty)
        if parts == "exits before it steps":
            return
        order = {
            "does not step optimizer 0": owners[1:],
            "steps in another order": owners[::-1],
        }.get(parts, owners)
        record.seen.append(_step(scaler, owners, order, scenario, used, empty=empty))


def _step(
    scaler: Any,
    owners: list[Sharded],
    order: list[Sharded],
    scenario: Scenario,
    used: float,
    *,
    empty: bool,
) -> Seen:
    """Step and update, and return what was seen of it."""
    before = [owner.held() for owner in owners]
    for owner in order:
        if scenario.unscales:
            scaler.unscale_(owner.optimizer)
        scaler.step(owner.optimizer)
    scaler.update()
    moved = tuple(
        None if empty or not owner.elements() else owner.held() != held
        for owner, held in zip(owners, before, strict=True)
    )
    state = repr(scaler.state_dict()) if hasattr(scaler, "state_dict") else ""
    finite = all(owner.finite() for owner in owners)
    return Seen(
        used,
        float(scaler.get_scale()),
        state,
        moved,
        finite,
        tuple(_steps(each, scenario) for each in owners),
    )


def _steps(owner: Sharded, scenario: Scenario) -> int | None:
    if scenario.kernel != "AdamW":
        return None if scenario.kernel else owner.calls
    counted = [int(local(state["step"])) for state in owner.optimizer.state.values()]
    return counted[0] if counted else 0

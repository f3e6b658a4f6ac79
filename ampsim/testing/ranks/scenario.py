"""What every rank does in a scenario, and what is seen of it on one rank."""

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
    owner_of,
)

Make = Callable[[Any], Any]  # make(group) -> a scaler with torch's methods, on the CPU
Overflows = frozenset[tuple[int, int]]  # rank and optimizer
Kernel = Literal["", "SGD", "AdamW"]  # a fused optimizer's; "" for a plain one
Way = tuple[Kernel, bool]  # to step: the kernel, and whether `unscale_` comes before
Parts = Literal[
    "", "does not step optimizer 0", "steps in another order", "exits before it steps"
]
NONE: Overflows = frozenset()
LARGE = 49152.0  # 1.5 * 2^15: float16 holds it, and no power of two times it
KINDS: dict[Kernel, Optimizer] = {
    # With momentum a step of zeros is seen too.
    "": partial(torch.optim.SGD, lr=0.125, momentum=0.9, foreach=False),
    "SGD": partial(torch.optim.SGD, lr=0.125, momentum=0.9, fused=True),
    "AdamW": partial(torch.optim.AdamW, lr=0.125, fused=True),
}


@dataclass(frozen=True)
class Scenario:
    """Iterations that every rank goes through.

    Attributes:
        overflows: Per iteration, who overflows.
        optimizers: Number per rank.
        kernel: The fused optimizer, which divides and skips in its own kernel.
        unscales: Whether `unscale_` is called before `step`.
        empty: Ranks whose parameters get no gradients.
        resumes: Number of iterations after which every rank goes on with a new scaler, from what
            rank 0 saved; 0 for never.
        parts: How the last rank desynchronizes in iteration 1.
        equal: Value of each element of each rank's scaled gradient; 0.0 for the loss scale.
    """

    overflows: tuple[Overflows, ...]
    optimizers: int = 1
    kernel: Kernel = ""
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
        """Whether every rank does the same with one plain optimizer, from begin to end."""
        return self == Scenario(self.overflows, unscales=self.unscales)

    def joined(self, ranks: int) -> "Scenario":
        """Return the same, not resumed, in which each overflow is on all ranks and optimizers."""
        optimizers = range(self.optimizers)
        everywhere = frozenset((rank, i) for rank in range(ranks) for i in optimizers)
        overflows = tuple(everywhere if each else NONE for each in self.overflows)
        return replace(self, overflows=overflows, resumes=0, empty=frozenset())

    def story(self, ranks: int) -> Iterator[tuple[str, str]]:
        """Yield lines of (label, text)."""
        kind = f" fused {self.kernel}" if self.kernel else ""
        plural = "s" if self.optimizers > 1 else ""
        calls = ["unscale_"] * self.unscales + ["step", "update"]
        each = f"each with {self.optimizers}{kind} optimizer{plural}"
        yield "ranks", f"{ranks}, {each}; {', '.join(calls)}"
        if self.empty:
            empty = " and ".join(map(str, sorted(self.empty)))
            yield "empty", f"no gradients on rank {empty}"
        if self.parts:
            yield "desync", f"rank {ranks - 1} {self.parts} (iteration 1)"
        events = [self._event(overflows) for overflows in self.overflows]
        if self.resumes:
            events.insert(self.resumes, "all ranks resume from rank 0's state dict")
        yield "history", ", ".join(events)
        if self.equal:
            what = f"each element is {self.equal:g} on every rank"
            yield "gradient", f"{what}, times the loss scale included"

    def _event(self, overflows: Overflows) -> str:
        where = list[str]()
        for rank, i in sorted(overflows):
            optimizer = f" optimizer {i}" if self.optimizers > 1 else ""
            where.append(f"{rank}{optimizer}")
        return f"inf on rank {' and '.join(where)}" if where else "clean"


class Seen(NamedTuple):
    """A record of what one iteration did on one rank.

    Attributes:
        used: Factor by which the loss was multiplied.
        after: Scale after the update.
        state: State dict after the update, as text.
        moved: Per optimizer, whether parameters or its state changed; None on a rank without
            gradients or parameters.
        finite: Whether every parameter is finite.
        steps: Per optimizer, steps counted so far; None where its kernel skips and counts nothing.
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
        seen: One per iteration that came to its end.
        error: What was raised; "" for nothing.
        waits: Where the rank waited for ranks that do not come; "" if it did not.
    """

    seen: list[Seen] = field(default_factory=list)
    error: str = ""
    waits: str = ""


PLAIN: list[Way] = [("", False), ("", True)]
FUSED: list[Way] = [("SGD", False), ("SGD", True), ("AdamW", True)]
# torch 2.13 has no fused SGD of DTensors.
FUSED_ON_DTENSORS: list[Way] = [("AdamW", False), ("AdamW", True)]
# How the last rank desynchronizes -> the rank and the optimizer that overflow; -1 is the last rank.
PARTING: dict[Parts, tuple[int, int]] = {
    "does not step optimizer 0": (0, 1),
    "steps in another order": (0, 0),
    "exits before it steps": (-1, 0),
}


def scenarios(ranks: int, fused: Sequence[Way] = FUSED) -> Iterator[Scenario]:
    """Yield what is to be played: overflows on all ranks, on each alone, and so on.

    A scenario to which a check compares another one comes first.
    """
    last = ranks - 1
    alone = [frozenset({(rank, 0)}) for rank in range(ranks)]
    everywhere = frozenset().union(*alone)
    for kernel, unscales in [*PLAIN, *fused]:
        make = partial(Scenario, kernel=kernel, unscales=unscales)
        for which in (everywhere, *alone):
            yield make(_around(which))
        yield make(_around(alone[0]), optimizers=2).joined(ranks)
        for which in (frozenset({(last, 1)}), frozenset({(0, 0), (last, 1)})):
            yield make(_around(which), optimizers=2)
        yield make(_around(alone[0]), empty=frozenset({last}))
    yield Scenario((NONE,), equal=LARGE)
    once = Scenario(_around(alone[0]))
    for resumes in range(1, len(once.overflows)):
        yield replace(once, resumes=resumes)
    for parts, (rank, i) in PARTING.items():
        which = frozenset({(rank % ranks, i)})
        yield Scenario(_around(which), optimizers=2, parts=parts)


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
    make_owner = owner_of(gradients)
    optimizer = KINDS[scenario.kernel]
    owners = [
        make_owner(optimizer, world, scenario.empty) for _ in range(scenario.optimizers)
    ]
    scaler = make(world.group)
    for number, overflows in enumerate(scenario.overflows):
        if number and number == scenario.resumes:
            saved = world.first(scaler.state_dict())
            scaler = make(world.group)
            scaler.load_state_dict(saved)
        used = float(scaler.scale(torch.ones(())))
        for i, owner in enumerate(owners):
            is_bad = (world.rank, i) in overflows
            owner.give(scenario.equal or used, overflows=is_bad)
        stepped = owners
        if (number, world.rank) == (1, world.size - 1):
            if scenario.parts == "exits before it steps":
                return
            stepped = _parted(owners, scenario.parts)
        before = [owner.held() for owner in owners]
        for owner in stepped:
            if scenario.unscales:
                scaler.unscale_(owner.optimizer)
            scaler.step(owner.optimizer)
        scaler.update()
        record.seen.append(_seen(scaler, used, owners, before))


def _parted(owners: list[Sharded], parts: Parts) -> list[Sharded]:
    """Return what a rank steps that may desynchronize, in its order."""
    if parts == "does not step optimizer 0":
        return owners[1:]
    return owners[::-1] if parts == "steps in another order" else owners


def _seen(scaler: Any, used: float, owners: list[Sharded], before: list[str]) -> Seen:
    pairs = zip(owners, before, strict=True)
    return Seen(
        used=used,
        after=float(scaler.get_scale()),
        state=repr(scaler.state_dict()) if hasattr(scaler, "state_dict") else "",
        moved=tuple(owner.has_moved(held) for owner, held in pairs),
        finite=all(owner.finite() for owner in owners),
        steps=tuple(owner.steps() for owner in owners),
    )

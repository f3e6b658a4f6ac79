"""What happens in a loop, one event after the other, and under which conditions."""

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ampsim.lint.names import has

# Words of a condition that asks whether the step was skipped, or will be.
ASKS = (
    r"get_scale|is_enabled|skip|_step_count|last_step|was_run|found_inf|overflow|finite|isnan|"
    r"isinf|is_nan|has_nan|has_inf|scale_before|"
    r"(prev|old|last|before|initial|current|new)_?(\w+_)?scale|"
    r"scale_?(after|old|new|prev)|_growth_tracker|stepped"
)
_WINDOW = r"accum|sync_grad|update_grad|micro|require_backward_grad_sync|no_sync"
_IS_ONE = r"[>=] ?[01]$"


@dataclass(frozen=True)
class Guard:
    """A condition that must hold, or must not.

    Attributes:
        text: the condition, normalized: `x is not None` and `x` are one.
        holds: whether it must hold.
        words: the words in it, and in what its names were assigned.
        benign: whether it only asks for a setting.
    """

    text: str
    holds: bool = True
    words: frozenset[str] = field(default=frozenset(), compare=False)
    benign: bool = field(default=True, compare=False)

    @cached_property
    def asks(self) -> bool:
        """Whether it asks for a skip."""
        return has((self.text, *self.words), ASKS)

    @cached_property
    def window(self) -> bool:
        """Whether it asks for the end of an accumulation window, and not whether there is one."""
        named = has(self.words, _WINDOW) and not has([self.text], _IS_ONE)
        return "%" in self.words or (named and not self.asks)


@dataclass(frozen=True, eq=False)
class Effect:
    """What a call or a statement does.

    Attributes:
        kind: scale, backward, unscale, clip, step, update, bare (an optimizer's own step), apex,
            schedule, average, zero, grad (a statement with gradients) or autocast.
        on: the name of the scaler, schedule or average.
        of: the name of the optimizer.
        scaled_by: the name of the scaler of the loss that is passed back; None if none is seen.
        is_plain: whether the loss that is passed back is surely not scaled.
    """

    kind: str
    on: str = ""
    of: str = ""
    scaled_by: str | None = None
    is_plain: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Event(Effect):
    """An effect at a place, which a rule looks at.

    Attributes:
        node: where it is.
        guards: the conditions on the way to it.
        loops: the loops around it, but for those over what the event is about, such as parameters.
        words: in its statement.
    """

    node: ast.AST
    guards: tuple[Guard, ...]
    loops: tuple[ast.AST, ...]
    words: frozenset[str]

    def apart(self, other: "Event") -> bool:
        """Return whether no pass through the loop comes through both."""
        opposite = {(guard.text, not guard.holds) for guard in other.guards}
        return any((guard.text, guard.holds) in opposite for guard in self.guards)

    def beyond(self, other: "Event") -> list[Guard]:
        """Return the conditions on this one that are none of the other's."""
        return [guard for guard in self.guards if guard not in other.guards]

    def regardless(self, step: "Event") -> bool:
        """Return whether this happens once per step of a scaler, also on a skip."""
        if self.loops != step.loops or self.apart(step):
            return False
        if any(guard.asks and has(guard.words, "grad|norm") for guard in self.guards):
            return False
        for guard in self.beyond(step):
            # A schedule may step once per epoch then.
            counts = self.kind == "average" and "%" in guard.words
            if not guard.benign and (guard.asks or not counts):
                return False
        return True

    def within(self, step: "Event") -> bool:
        """Return whether a step waits for the end of an accumulation window, and this does not."""
        if self.loops != step.loops:
            return self.loops[: len(step.loops)] == step.loops
        waits = any(guard.window for guard in step.beyond(self))
        own = any(guard.window for guard in self.guards)
        return waits and not own


class Trace(list[Event]):
    """The events of one function and of the functions that it calls, in order.

    Attributes:
        start: the function, or the module.
        entered: the calls that are followed, each with the function of the file.
    """

    def __init__(self, start: ast.AST) -> None:
        super().__init__()
        self.start = start
        self.entered: list[tuple[ast.Call, ast.AST]] = []

    def of(
        self,
        *kinds: str,
        after: Event | None = None,
        before: Event | None = None,
        beside: Event | None = None,
        near: Event | None = None,
    ) -> list[Event]:
        """Return events between two, in one pass with `beside`, and in the loops of `near`."""
        start = self.index(after) + 1 if after else 0
        end = self.index(before) if before else len(self)
        found = [each for each in self[start:end] if each.kind in kinds]
        if near:
            found = [each for each in found if each.loops == near.loops]
        beside = beside or near
        if beside:
            found = [each for each in found if not each.apart(beside)]
        return found

    def skippable(self) -> list[Event]:
        """Return the steps that may be skipped: of scalers, and of optimizers that apex patched."""
        steps = self.of("step")
        for bare in self.of("bare"):
            patches = self.of("apex", beside=bare)
            if any(each.of == bare.of for each in patches):
                steps.append(bare)
        return steps

    def scaled(self, before: Event) -> Event | None:
        """Return the last backward pass of a scaled loss before an event, on the way to it."""
        for each in reversed(self.of("backward", before=before, beside=before)):
            if each.scaled_by is not None:
                return each
        return None

    def still_scaled(self, event: Event) -> Event | None:
        """Return this backward pass, unless its gradients are unscaled or stepped with since."""
        start = self.scaled(event)
        done = self.of(
            "unscale", "step", "bare", after=start, before=event, beside=event
        )
        return None if done else start

    def is_per_micro_batch(self, event: Event, steps: Collection[Event]) -> bool:
        """Return whether an event happens per micro-batch, and some steps once per window."""
        if not (steps and self.of("backward", near=event)):
            return False
        return all(map(event.within, steps))


Traces = Sequence[Trace]

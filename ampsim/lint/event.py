"""What happens in a loop, one thing after the other, and under which conditions."""

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass

# Words of a condition that asks whether the step was skipped, or will be.
ASKS = re.compile(
    r"get_scale|skip|last_step|was_run|found_inf|overflow|finite|isnan|isinf|is_nan|has_nan|has_inf|scale_before|"
    r"(prev|old|last|before|initial|current|new)_?(\w+_)?scale|scale_?(after|old|new|prev)|_growth_tracker|stepped",
    re.I,
)
_OF_GRADIENTS = re.compile(r"grad|norm|found_inf")
WINDOW = re.compile(r"accum|sync_grad|update_grad|micro|require_backward_grad_sync|no_sync", re.I)


@dataclass(frozen=True)
class Guard:
    """A condition under which something happens.

    Attributes:
        text: the condition, normalised: ``x is not None`` and ``x`` are one.
        holds: whether it must hold, or must not.
        words: in it, and in what its names were assigned.
        benign: whether it plainly asks for a setting, and not for what came of the step.
    """

    text: str
    holds: bool
    words: frozenset[str]
    benign: bool

    @property
    def asks(self) -> bool:
        """Whether it asks for a skip."""
        return any(map(ASKS.search, self.words)) or bool(ASKS.search(self.text))

    @property
    def window(self) -> bool:
        """Whether it asks for the end of an accumulation window."""
        return "%" in self.words or any(map(WINDOW.search, self.words))


@dataclass(frozen=True, eq=False)
class Event:
    """A call that a rule looks at.

    Attributes:
        kind: scale, backward, unscale, clip, step, update, bare (an optimizer's own step), apex, schedule, average,
            zero or grad.
        on: the name of the scaler, schedule or average; of a backward pass: scaled, plain or other.
        of: the name of the optimizer.
        node: where it is.
        guards: the conditions on the way to it.
        loops: the loops around it, but for those over optimizers or parameters.
        words: in its statement.
        around: all the loops around it.
    """

    kind: str
    on: str
    of: str
    node: ast.AST
    guards: tuple[Guard, ...]
    loops: tuple[ast.AST, ...]
    words: frozenset[str] = frozenset()
    around: tuple[ast.AST, ...] = ()

    def apart(self, other: "Event") -> bool:
        """Return whether no pass through the loop comes through both."""
        mine = {(guard.text, guard.holds) for guard in self.guards}
        return any((guard.text, not guard.holds) in mine for guard in other.guards)

    def beyond(self, other: "Event") -> list[Guard]:
        """Return the conditions on this one that are none of the other's."""
        shared = {(guard.text, guard.holds) for guard in other.guards}
        return [guard for guard in self.guards if (guard.text, guard.holds) not in shared]


class Trace(list[Event]):
    """The events of one function of a file, with those of the functions that it calls, in order."""

    def of(self, *kinds: str) -> list[Event]:
        """Return the events of some kinds."""
        return [event for event in self if event.kind in kinds]

    def between(self, first: Event | None, last: Event | None, *kinds: str) -> list[Event]:
        """Return the events of some kinds after `first` and before `last`; None is either end."""
        start = self.index(first) + 1 if first else 0
        end = self.index(last) if last else len(self)
        return [event for event in self[start:end] if event.kind in kinds]

    def steps(self) -> list[Event]:
        """Return the steps of scalers."""
        return self.of("step")

    def skippable(self) -> list[Event]:
        """Return the steps that may be skipped: those of scalers, and of optimizers that apex has patched."""
        apex = self.of("apex")
        patched = [each for each in self.of("bare") if any(other.of == each.of for other in apex)]
        return self.steps() + [each for each in patched if not any(other.apart(each) for other in apex)]

    def scaled(self, before: Event) -> Event | None:
        """Return the last backward pass of a scaled loss before an event, on the way to it."""
        passes = [each for each in self.between(None, before, "backward") if not each.apart(before)]
        return next((each for each in reversed(passes) if each.on.startswith("scaled")), None)


def runs_regardless(event: Event, step: Event) -> bool:
    """Return whether an event happens once per step of a scaler, whether that was skipped or not."""
    return (
        event.loops == step.loops
        and not event.apart(step)
        and not any(guard.asks and _OF_GRADIENTS.search(guard.text) for guard in event.guards)
        and all(guard.benign for guard in event.beyond(step))
    )


def windowed(step: Event, other: Event) -> bool:
    """Return whether a step waits for the end of an accumulation window, and the other event does not."""
    inner = other.loops[len(step.loops) :]
    deeper = other.loops[: len(step.loops)] == step.loops and not {*inner} <= {*step.around}
    waits = step.loops == other.loops and any(guard.window for guard in step.beyond(other))
    return deeper or (waits and not any(guard.window for guard in other.guards))


def has(words: Collection[str], pattern: str) -> bool:
    """Return whether a word is like a pattern, in upper or lower case."""
    return any(re.search(pattern, word, re.I) for word in words)

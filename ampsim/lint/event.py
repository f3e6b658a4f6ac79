"""What happens in a loop, one thing after the other, and under which conditions."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

ASKS = re.compile(  # of a condition that asks whether the step was skipped, or will be
    r"get_scale|skip|last_step|was_run|found_inf|overflow|finite|isnan|isinf|is_nan|has_nan|has_inf|scale_before|"
    r"(prev|old|last|before|initial|current|new)_?(\w+_)?scale|scale_?(after|old|new|prev)|_growth_tracker|stepped",
    re.I,
)
_WINDOW = re.compile(r"accum|sync_grad|update_grad|micro|require_backward_grad_sync|no_sync", re.I)
_IS_ONE = re.compile("[>=] ?[01]$")


@dataclass(frozen=True)
class Guard:
    """A condition that must hold, or must not; benign: it plainly asks for a setting, and not what came of the step."""

    text: str  # normalised: `x is not None` and `x` are one
    holds: bool = True
    words: frozenset[str] = frozenset()  # in it, and in what its names were assigned
    benign: bool = True

    @property
    def asks(self) -> bool:
        """Whether it asks for a skip."""
        return any(map(ASKS.search, (*self.words, self.text)))

    @property
    def window(self) -> bool:
        """Whether it asks for the end of an accumulation window, and not whether there is one."""
        return "%" in self.words or (any(map(_WINDOW.search, self.words)) and not _IS_ONE.search(self.text))

    @property
    def no_window(self) -> bool:
        """Whether it says that each window is one micro-batch."""
        asks = any(map(_WINDOW.search, self.words)) and _IS_ONE.search(self.text)
        return bool(asks) and self.holds == ("==" in self.text)


@dataclass(frozen=True, eq=False)
class Event:
    """A call that a rule looks at.

    Attributes:
        kind: scale, backward, unscale, clip, step, update, bare (an optimizer's own step), apex, schedule, rate (a
            learning rate that is set), average, zero or grad.
        on: the name of the scaler, schedule or average; of a backward pass: scaled, plain or other.
        of: the name of the optimizer.
        guards: the conditions on the way to it.
        loops: the loops around it, but for those over optimizers or parameters; `around`: all of them.
        words: in its statement.
    """

    kind: str
    on: str
    of: str
    node: ast.AST
    guards: tuple[Guard, ...]
    loops: tuple[ast.AST, ...]
    words: frozenset[str]
    around: tuple[ast.AST, ...]

    def apart(self, other: "Event") -> bool:
        """Return whether no pass through the loop comes through both."""
        mine = {(guard.text, guard.holds) for guard in self.guards}
        return any((guard.text, not guard.holds) in mine for guard in other.guards)

    def beyond(self, other: "Event") -> list[Guard]:
        """Return the conditions on this one that are none of the other's."""
        shared = {(guard.text, guard.holds) for guard in other.guards}
        return [guard for guard in self.guards if (guard.text, guard.holds) not in shared]

    def regardless(self, step: "Event") -> bool:
        """Return whether this happens once per step of a scaler, whether that was skipped or not."""
        asks = any(guard.asks and re.search(r"grad|norm|found_inf", guard.text) for guard in self.guards)
        plain = all(guard.benign for guard in self.beyond(step))
        return self.loops == step.loops and not self.apart(step) and not asks and plain

    def within(self, step: "Event") -> bool:
        """Return whether a step waits for the end of an accumulation window, and this does not."""
        inner = self.loops[len(step.loops) :]
        deeper = self.loops[: len(step.loops)] == step.loops and not {*inner} <= {*step.around}
        waits = step.loops == self.loops and any(guard.window for guard in step.beyond(self))
        return deeper or (waits and not any(guard.window or guard.no_window for guard in self.guards))


class Trace(list[Event]):
    """The events of one function of a file, with those of the functions that it calls, in order; `start` is it."""

    start: ast.AST | None = None

    def of(self, *kinds: str, with_: Event | None = None) -> list[Event]:
        """Return the events of some kinds; only those that may happen in one pass with another event."""
        return [each for each in self if each.kind in kinds and not (with_ and each.apart(with_))]

    def between(self, first: Event | None, last: Event | None, *kinds: str) -> list[Event]:
        """Return the events of some kinds after `first` and before `last`; None is either end."""
        start = self.index(first) + 1 if first else 0
        return [each for each in self[start : self.index(last) if last else None] if each.kind in kinds]

    def skippable(self) -> list[Event]:
        """Return the steps that may be skipped: those of scalers, and of optimizers that apex has patched."""
        apex = self.of("apex")
        return self.of("step") + [
            each for each in self.of("bare") if any(other.of == each.of and not other.apart(each) for other in apex)
        ]

    def scaled(self, before: Event) -> Event | None:
        """Return the last backward pass of a scaled loss before an event, on the way to it."""
        passes = [each for each in self.between(None, before, "backward") if not each.apart(before)]
        return next((each for each in reversed(passes) if each.on.startswith("scaled")), None)

    def per_window(self, each: Event, steps: Sequence[Event]) -> bool:
        """Return whether an event happens with every micro-batch, and all of some steps once per window."""
        passes = [other for other in self.of("backward", with_=each) if other.loops == each.loops]
        return bool(steps and passes) and all(each.within(step) for step in steps)

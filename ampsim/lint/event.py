"""What happens in a loop, one thing after the other, and under which conditions."""

import ast
import re
from dataclasses import dataclass, field

from ampsim.lint.names import name_of

ASKS = re.compile(  # of a condition that asks whether the step was skipped, or will be
    r"get_scale|skip|_step_count|last_step|was_run|found_inf|overflow|finite|isnan|isinf|is_nan|has_nan|has_inf|scale_before|"
    r"(prev|old|last|before|initial|current|new)_?(\w+_)?scale|scale_?(after|old|new|prev)|_growth_tracker|stepped",
    re.I,
)
PARTLY = "partly scaled"  # among the words of a sum of which one term is scaled, and no other
_OF_GRADIENTS = re.compile(r"grad|norm|found_inf")
_NORM = re.compile(r"(\w*grad\w*_norm|total_norm|g?norm|found_inf)$")
_WINDOW = re.compile(r"accum|sync_grad|update_grad|micro|require_backward_grad_sync|no_sync", re.I)
_IS_ONE = re.compile("[>=] ?[01]$")


@dataclass(frozen=True)
class Guard:
    """A condition that must hold, or must not; `benign` if it only asks for a setting."""

    text: str  # normalised: `x is not None` and `x` are one
    holds: bool = True
    words: frozenset[str] = field(
        default=frozenset(), compare=False
    )  # in it, and in what its names were assigned
    benign: bool = field(default=True, compare=False)

    @property
    def asks(self) -> bool:
        """Whether it asks for a skip."""
        return any(map(ASKS.search, (*self.words, self.text)))

    @property
    def of_gradients(self) -> bool:
        """Whether it is about gradients or their norm."""
        return (
            bool(_OF_GRADIENTS.search(self.text))
            or ".grad" in self.words
            or any(map(_NORM.match, self.words))
        )

    @property
    def window(self) -> bool:
        """Whether it asks for the end of an accumulation window, and not whether there is one."""
        named = any(map(_WINDOW.search, self.words)) and not _IS_ONE.search(self.text)
        verdict = self.asks or any(
            map(_NORM.match, self.words)
        )  # as of a flag that is called update_grads
        return "%" in self.words or (named and not verdict)

    @property
    def counts(self) -> bool:
        """Whether it holds every so many iterations."""
        return "%" in self.words and not self.asks and not self.of_gradients

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
            learning rate that is set), average, zero, grad, penalty (of gradients, by create_graph) or log.
        on: the name of the scaler, schedule or average; of a backward pass: scaled, plain or other.
        of: the name of the optimizer.
        guards: the conditions on the way to it.
        loops: the loops around it, but for those over optimizers or parameters; `around`: all of them.
        words: in its statement; of a penalty, in its function.
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
        return any(
            a.text == b.text and a.holds != b.holds for a in self.guards for b in other.guards
        )

    def beyond(self, other: "Event") -> list[Guard]:
        """Return the conditions on this one that are none of the other's."""
        return [guard for guard in self.guards if guard not in other.guards]

    def regardless(self, step: "Event") -> bool:
        """Return whether this happens once per step of a scaler, also on a skip."""
        asks = any(guard.asks and guard.of_gradients for guard in self.guards)
        counted = self.kind == "average"  # and not a schedule, which may step once per epoch then
        plain = all(guard.benign or (counted and guard.counts) for guard in self.beyond(step))
        off = any(guard.text.endswith(".is_enabled()") and not guard.holds for guard in self.guards)
        inner = self.loops[len(step.loops) :]
        with_it = self.loops[: len(step.loops)] == step.loops and all(
            map(_is_once_per_micro_batch, inner)
        )
        return with_it and not self.apart(step) and not asks and plain and not off

    def within(self, step: "Event") -> bool:
        """Return whether a step waits for the end of an accumulation window, and this does not."""
        inner = self.loops[len(step.loops) :]
        deeper = self.loops[: len(step.loops)] == step.loops and not {*inner} <= {*step.around}
        waits = step.loops == self.loops and any(guard.window for guard in step.beyond(self))
        return deeper or (
            waits and not any(guard.window or guard.no_window for guard in self.guards)
        )


def _is_once_per_micro_batch(loop: ast.AST) -> bool:
    return isinstance(loop, ast.For) and name_of(loop.iter) == "range()" and len(loop.body) == 1

"""The asynchronous loss scaler as a pure model: tickets and depth.

Theory of operation
-------------------
When the optimizer runs behind the forward and backward passes, iteration i + 1 must multiply its loss
before iteration i has been judged. So iterations take *tickets*. Let ``after[j]`` be the scaler's state once
j updates have been applied; ``after[0]`` is the first. With depth k,

    ticket i carries after[max(0, i - k)], for life:

its loss is multiplied and its gradients are divided by that one scale, whatever happens meanwhile. Updates
are applied once each and in ticket order. Hence the scale of every ticket is a function of the outcomes and k
alone; threads and their schedule cannot change it, only delay it. k = 0 is torch's loop and k = 1 RoundPipe's.

A ticket can begin only when the version it carries exists, so at most k + 1 tickets are outstanding: this is
the pipeline's back-pressure. A synchronous update raises `floor`: no ticket that begins after it carries an
older version. Versions never go back.

Every function is pure and either returns a new `Pipeline` or raises and changes nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from ampsim.core.machine import Machine, Rule, S, init, override, update
from ampsim.core.validation import as_int, flags


class WouldBlockError(RuntimeError):
    """The version that the next ticket carries does not exist yet; a real scaler waits here."""


@dataclass(frozen=True)
class Pipeline(Generic[S]):
    """All that is known: which versions exist, and which version each ticket carries."""

    rule: Machine[S]
    depth: int
    versions: tuple[S, ...]  # after[0], after[1], ...; one more than updates applied
    carried: tuple[int, ...] = ()  # of each ticket begun, the version it carries
    floor: int = 0  # no later ticket carries an older version

    @property
    def applied(self) -> int:
        """Updates applied so far; also the only ticket whose update may come next."""
        return len(self.versions) - 1

    @property
    def next_version(self) -> int:
        """The version that the next ticket will carry."""
        return max(0, len(self.carried) - self.depth, self.floor)

    def scale(self, ticket: int) -> float:
        """Return the loss scale of a ticket, from its beginning to its end."""
        return self.versions[self.carried[ticket]].newest


def start(rule: Machine[S], depth: int = 0) -> Pipeline[S]:
    """Return a pipeline before its first ticket.

    A Rule's own ``delay`` must be 0: depth takes its place. A policy's must be `depth`: it needs to know.
    """
    as_int("depth", depth, 0, "to run synchronously pass depth=0")
    if isinstance(rule, Rule) and rule.delay:
        raise ValueError(
            f"delay={rule.delay}: expected a rule with delay=0; pass depth={rule.delay} instead"
        )
    if not isinstance(rule, Rule) and rule.delay != depth:
        raise ValueError(f"delay={rule.delay}: expected a policy with delay=depth={depth}")
    return Pipeline(rule, depth, (init(rule),))


def begin_iteration(pipe: Pipeline[S]) -> Pipeline[S]:
    """Begin one more ticket, number ``len(pipe.carried)``; WouldBlockError if its version does not exist yet."""
    if pipe.next_version > pipe.applied:
        raise WouldBlockError(
            f"ticket {len(pipe.carried)} carries version {pipe.next_version}, not made yet"
        )
    return replace(pipe, carried=(*pipe.carried, pipe.next_version))


def finish(
    pipe: Pipeline[S],
    ticket: int,
    found_inf: object,
    *,
    new_scale: float | None = None,
    synchronous: bool = False,
) -> Pipeline[S]:
    """Apply the update of a ticket: it makes version ``ticket + 1``. `found_inf` by its truth; policies
    read more of an `Observation`.

    With `new_scale` the scale is set to it and `found_inf` is not looked at. Raises RuntimeError, and
    changes nothing, for a ticket that never began, was updated already, or is not the next in order.
    """
    check_turn(ticket, pipe.applied, len(pipe.carried))
    newest = pipe.versions[-1]
    if new_scale is None:
        made = update(pipe.rule, newest, found_inf, synchronous=synchronous)
    else:
        made = override(pipe.rule, newest, new_scale, synchronous=synchronous)
    floor = ticket + 1 if synchronous else pipe.floor
    return replace(pipe, versions=(*pipe.versions, made), floor=floor)


def check_turn(ticket: int, applied: int, begun: int) -> None:
    """Refuse an update that is not the next one."""
    if ticket < applied:
        raise RuntimeError(
            f"ticket {ticket} was updated already: expected ticket {applied}; update a ticket once"
        )
    if ticket >= begun:
        raise RuntimeError(
            f"ticket {ticket} has not begun: call begin_iteration() and use what it returns"
        )
    if ticket > applied:
        raise RuntimeError(
            f"ticket {ticket} is not next: updates are applied in ticket order; update ticket {applied} first"
        )


def trajectory(
    rule: Machine[S],
    depth: int,
    found_inf: Sequence[object],
    *,
    is_async: Iterable[bool] | None = None,
) -> list[float]:
    """Return the scale of ticket 0, 1, ... when each begins as soon as it may and updates come as late as they may.

    ``len(found_inf) + 1`` scales. Any other order of events gives the same: see the theory of operation.
    """
    pipe, modes = begin_iteration(start(rule, depth)), list(is_async or [True] * len(found_inf))
    for ticket, flag in enumerate(flags("found_inf", found_inf)):
        pipe = begin_iteration(finish(pipe, ticket, flag, synchronous=not modes[ticket]))
    return [pipe.scale(ticket) for ticket in range(len(pipe.carried))]

"""Model of the asynchronous loss scaler: tickets and depth.

Theory of operation
-------------------
When the optimizer runs behind the forward and backward passes, iteration i + 1 must multiply its loss
before the outcome of iteration i is known. So each iteration takes a *ticket*. Let ``after[j]`` be the scaler's state
after j updates; ``after[0]`` is the first. With depth k,

    ticket i uses after[max(0, i - k)] from beginning to end:

its loss is multiplied and its gradients are divided by that one scale. Each update is applied once,
in ticket order. So the scale of a ticket depends only on the outcomes and on k; the schedule of
threads can delay it, but not change it. k = 0 is torch's loop and k = 1 is RoundPipe's.

A ticket can begin only when its version exists, so at most k + 1 tickets are outstanding: this is
the pipeline's back-pressure. A synchronous update raises `floor`: no ticket that begins after it
uses an older version.

The functions are pure. Each one returns a new `Pipeline`, or raises and changes nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from ampsim.core.machine import Machine, Rule, S, init, override, update
from ampsim.core.validation import as_int, flags


class WouldBlockError(RuntimeError):
    """Raised by a pure function for what is not possible yet: its caller waits and tries again."""


@dataclass(frozen=True)
class Pipeline(Generic[S]):
    """State of the pipeline: the versions, and the version of each ticket."""

    rule: Machine[S]
    depth: int
    versions: tuple[
        S, ...
    ]  # after[0], after[1], ...; one more than the updates applied
    carried: tuple[int, ...] = ()  # the version of each ticket that began
    floor: int = 0  # later tickets use no older version

    @property
    def applied(self) -> int:
        """Number of updates applied; also the ticket whose update comes next."""
        return len(self.versions) - 1

    @property
    def next_version(self) -> int:
        """The version of the next ticket."""
        return max(0, len(self.carried) - self.depth, self.floor)

    def scale(self, ticket: int) -> float:
        """Return the loss scale of a ticket."""
        return self.versions[self.carried[ticket]].newest


def start(rule: Machine[S], depth: int = 0) -> Pipeline[S]:
    """Return a pipeline before its first ticket.

    Args:
        rule: A `Rule` with ``delay=0``, or a policy with ``delay=depth``.
        depth: Number of iterations by which the updates may lag; at least 0.

    Returns:
        Pipeline: The pipeline.

    Raises:
        ValueError: If `depth` is negative, or does not fit the delay of `rule`.
    """
    as_int("depth", depth, 0, "to run synchronously pass depth=0")
    if isinstance(rule, Rule) and rule.delay:
        raise ValueError(
            f"delay={rule.delay}: expected a rule with delay=0; pass depth={rule.delay} instead"
        )
    if not isinstance(rule, Rule) and rule.delay != depth:
        raise ValueError(
            f"delay={rule.delay}: expected a policy with delay=depth={depth}"
        )
    return Pipeline(rule, depth, (init(rule),))


def begin_iteration(pipe: Pipeline[S]) -> Pipeline[S]:
    """Begin ticket ``len(pipe.carried)``; raise WouldBlockError if its version does not exist."""
    if pipe.next_version > pipe.applied:
        raise WouldBlockError(
            f"ticket {len(pipe.carried)} needs version {pipe.next_version}, which does not exist yet"
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
    """Apply the update of a ticket, which creates version ``ticket + 1``.

    Args:
        pipe: The pipeline.
        ticket: The ticket; its update must be the next one.
        found_inf: Whether any gradient was not finite; a policy may need an `Observation`.
        new_scale: Scale to set; `found_inf` is then ignored.
        synchronous: Whether all later tickets use this version or a newer one.

    Returns:
        Pipeline: The pipeline after the update.

    Raises:
        RuntimeError: If the ticket did not begin, was already updated, or is not the next one.
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
    """Raise RuntimeError for an update that is not the next one."""
    if ticket < applied:
        raise RuntimeError(
            f"ticket {ticket} was already updated: expected ticket {applied}; update each ticket once"
        )
    if ticket >= begun:
        raise RuntimeError(
            f"ticket {ticket} has not begun: call begin_iteration() and use the iteration it returns"
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
    """Return the scales of tickets 0, 1, ..., ``len(found_inf)``.

    Each ticket begins as early as possible, and each update comes as late as possible. Any other
    order of events gives the same scales.
    """
    pipe = begin_iteration(start(rule, depth))
    modes = list(is_async or [True] * len(found_inf))
    for ticket, flag in enumerate(flags("found_inf", found_inf)):
        pipe = begin_iteration(
            finish(pipe, ticket, flag, synchronous=not modes[ticket])
        )
    return [pipe.scale(ticket) for ticket in range(len(pipe.carried))]

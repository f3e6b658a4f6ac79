"""Owners of gradients: unscaling gradients of one ticket by another ticket raises.

With depth > 0 backward passes of several tickets may run at once: each tags the ``.grad`` that it writes with the
ticket of its scaled output, by a hook that autograd calls after it wrote one. The tag stays on the tensor when it is
handed over. At depth 0 tickets follow one another, so it suffices to record the gradients that an update finds
unstepped, without a hook.
"""

import operator
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef, WeakIdRef, WeakTensorKeyDictionary

from ampsim.torch.state.version import AnyVersion
from ampsim.torch.step.records import Record, Stage
from ampsim.torch.threads.register import Ticket

ScaleTicket = Ticket[AnyVersion]
_TAG = "_ampsim_ticket"  # the attribute of a gradient that has its tag


@dataclass(frozen=True, eq=False, slots=True)
class _Tag:
    """The ticket that a gradient belongs to, as long as nothing writes the gradient.

    In a pickle or a deep copy it is an empty OrderedDict, which ``torch.load(weights_only=True)`` takes.
    """

    ticket: ScaleTicket
    version: int  # the gradient's _version when it was tagged

    def __reduce__(self) -> tuple[type[OrderedDict[str, Any]], tuple[()]]:
        """Return what an empty dict is made of: a tag is for this process."""
        return OrderedDict, ()


def _tag_on(grad: Tensor) -> _Tag | None:
    """Return the tag that this process left on a gradient."""
    tag = vars(grad).get(_TAG)
    return tag if type(tag) is _Tag else None


class Owners:
    """Tracks owners of gradients. This base class tracks nothing and never raises, as torch."""

    may_refuse = False  # whether `check_owner` has anything to look at

    def watch(self, scaled: Tensor, ticket: ScaleTicket) -> None:
        """Note an output that a ticket has scaled, before its backward pass."""

    def check_owner(self, optimizer: Optimizer, ticket: ScaleTicket) -> None:
        """Raise if gradients of another ticket would be unscaled by this one."""

    def release(self, optimizer: Optimizer) -> None:
        """Release the gradients of an optimizer that stepped or skipped."""

    def leave(self, ticket: ScaleTicket, records: list[Record]) -> None:
        """Note that a ticket with these records ends."""

    def swap(self, ticket: ScaleTicket, records: list[Record]) -> None:
        """Note that another scale comes in the place of a ticket's, which has these records."""


class GradientOwners(Owners):
    """The tickets that gradients belong to, as tags on the gradients.

    The parameters it looks at are the leaves of the first scaled output's graph and those of optimizers seen.
    """

    may_refuse = True

    def __init__(self, is_outstanding: Callable[[ScaleTicket], bool]) -> None:
        self._is_outstanding = is_outstanding
        self._hooked = (
            WeakTensorKeyDictionary()
        )  # param -> its hook's handle; a WeakSet would compare elements
        self._seen = (
            WeakTensorKeyDictionary()
        )  # an optimizer's first param -> weak references to all, once hooked
        self._running: dict[
            int, ScaleTicket
        ] = {}  # backward passes now: autograd's number of it -> ticket
        weakref.finalize(self, _unhook, self._hooked).atexit = False

    def watch(self, scaled: Tensor, ticket: ScaleTicket) -> None:
        """Tag the gradients that the backward pass from `scaled` writes."""
        if not self._hooked:
            self._hook(_leaves_of(scaled))
        scaled.register_hook(partial(_begin, weakref.ref(self), ticket))  # type: ignore[no-untyped-call]

    def _hook(self, params: Iterable[Tensor]) -> None:
        for param in params:
            if param.requires_grad and param.is_leaf and param not in self._hooked:
                hook = partial(_written, weakref.ref(self))
                self._hooked[param] = param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def begin(self, ticket: ScaleTicket) -> None:
        """Note that a backward pass reached an output that was scaled by `ticket`."""
        number = torch._C._current_graph_task_id()  # noqa: SLF001 - the only name a backward pass has
        other = self._running.setdefault(number, ticket)
        if other is not ticket:
            raise RuntimeError(_mixed(other, ticket))
        engine = torch.autograd.Variable._execution_engine  # noqa: SLF001 - the way to run code at its end
        engine.queue_callback(partial(self._end, number))

    def _end(self, number: int) -> None:
        self._running.pop(number, None)

    def written(self, grad: Tensor | None) -> None:
        """Note that a backward pass has just written this gradient."""
        ticket = self._running.get(torch._C._current_graph_task_id())  # noqa: SLF001
        if ticket is None or grad is None:
            return
        tag = _tag_on(grad)
        if tag is not None and tag.ticket is not ticket and self._is_outstanding(tag.ticket):
            raise RuntimeError(_mixed(tag.ticket, ticket))
        vars(grad)[_TAG] = _Tag(ticket, grad._version)  # noqa: SLF001

    def check_owner(self, optimizer: Optimizer, ticket: ScaleTicket) -> None:
        """Raise if gradients of another ticket's backward pass would be unscaled by this one."""
        params = list(_parameters_of(optimizer).values())
        seen = self._seen.get(params[0], []) if params else []  # type: ignore[no-untyped-call]
        if len(seen) != len(params) or not all(
            ref() is param for ref, param in zip(seen, params, strict=True)
        ):
            self._hook(params)
            self._seen[params[0]] = [weakref.ref(param) for param in params]
        for grad in (param.grad for param in params):
            if grad is None:
                continue
            tag = _tag_on(grad)
            if tag is not None and tag.ticket is not ticket and tag.version == grad._version:  # noqa: SLF001
                raise RuntimeError(
                    f"gradients of ticket {tag.ticket.index} would be unscaled by ticket {ticket.index}: expected "
                    "the ticket their loss was scaled with; pass it as ticket="
                )

    def release(self, optimizer: Optimizer) -> None:
        """Take the tags off: after a step the gradients may be zeroed and reused."""
        for param in _parameters_of(optimizer).values():
            if (grad := param.grad) is not None:
                vars(grad).pop(_TAG, None)


@dataclass(frozen=True, eq=False)
class _Left:
    """A gradient that an update found unstepped, or that was stepped before another output was scaled."""

    grad: TensorWeakRef
    version: int  # the gradient's _version then
    ticket: ScaleTicket | None  # whose scale its loss was multiplied by; None if it was stepped
    divided: bool  # by `unscale_`

    @classmethod
    def of(cls, grad: Tensor, ticket: ScaleTicket | None, *, divided: bool) -> "_Left":
        return cls(TensorWeakRef(grad), grad._version, ticket, divided)  # noqa: SLF001

    def is_still(self, grad: Tensor) -> bool:
        return self.grad() is grad and self.version == grad._version  # noqa: SLF001

    def check_divisor(self, ticket: ScaleTicket, grad: Tensor) -> None:
        """Raise if a nonzero gradient would be divided by another scale than its own; waits."""
        if self.ticket is None or not self.is_still(grad):
            return
        held, divisor = 1.0 if self.divided else self.ticket.value.number(), ticket.value.number()
        if held != divisor and grad.any():
            raise RuntimeError(
                f"gradients from before an update() would be divided by the scale {divisor}: expected {held}, which "
                "they are multiplied by; step every optimizer before update(), or zero these gradients"
            )


class _Seen:
    """The parameters that no optimizer had stepped, and what they were found among."""

    def __init__(self, lists: list[list[Tensor]], known: int, unstepped: set[int]) -> None:
        self.unstepped = unstepped  # ids
        self._lists, self._sizes, self._known = lists, list(map(operator.length_hint, lists)), known

    def is_of(self, lists: list[list[Tensor]], known: int) -> bool:
        """Return whether groups and count are unchanged, without reading each parameter."""
        same = len(lists) == len(self._lists) and all(map(operator.is_, lists, self._lists))
        return (
            same and known == self._known and self._sizes == list(map(operator.length_hint, lists))
        )


class LeftGradients(Owners):
    """The gradients that updates found unstepped, of a scaler with depth 0.

    Looked for among the leaves of what was scaled before the first update and the parameters of optimizers seen, but
    for those of optimizers that stepped after the last output was scaled: in most loops, nowhere. What was stepped
    between two outputs of one iteration is detected by its version.
    """

    def __init__(self) -> None:
        self._known: dict[
            int, WeakIdRef
        ] = {}  # parameters by id, which is theirs until their reference goes
        self._left: dict[int, _Left] = {}  # by id of the parameter
        self._has_left = False  # whether any ticket has ended
        self._stepped: dict[
            int, Optimizer
        ] = {}  # since the last output was scaled, which may be long ago; by id
        self._before = _Seen([], 0, set())
        self._ticket: ScaleTicket | None = None  # of the last output

    def watch(self, scaled: Tensor, ticket: ScaleTicket) -> None:
        for key, grad in (
            _gradients_of(_parameters_of(*self._stepped.values())) if ticket is self._ticket else ()
        ):
            self._left[key] = _Left.of(grad, None, divided=True)
        self._stepped, self._ticket = {}, ticket
        if not self._has_left:
            self._know(_by_id(_leaves_of(scaled)))

    def _know(self, params: dict[int, Tensor]) -> None:
        known = self._known
        for key in params.keys() - known.keys():
            known[key] = WeakIdRef(params[key], lambda _, key=key: known.pop(key, None))

    def check_owner(self, optimizer: Optimizer, ticket: ScaleTicket) -> None:
        for key, param in _parameters_of(optimizer).items():
            left = self._left.get(key)
            if left is not None and left.ticket is not ticket and (grad := param.grad) is not None:
                left.check_divisor(ticket, grad)

    def release(self, optimizer: Optimizer) -> None:
        self._stepped[id(optimizer)] = optimizer

    def leave(self, ticket: ScaleTicket, records: list[Record]) -> None:
        self._has_left = True
        if len(records) != len(self._stepped):
            self._know(
                _parameters_of(*(record.optimizer for record in records if record.is_used))
            )  # not what raised
        left: dict[int, _Left] = {}
        if unstepped := self._unstepped():
            unscaled = _parameters_of(
                *(r.optimizer for r in records if r.stage is Stage.UNSCALED and r.folded is None)
            )
        known = {
            key: param
            for key in unstepped
            if key in self._known and (param := self._known[key]()) is not None
        }
        for key, grad in _gradients_of(known):
            before = self._left.get(key)
            if before is None or key in unscaled or not before.is_still(grad):
                before = _Left.of(grad, ticket, divided=key in unscaled)
            left[key] = before
        self._left, self.may_refuse = left, bool(left)

    def swap(self, ticket: ScaleTicket, records: list[Record]) -> None:
        self.leave(ticket, records)
        done = _parameters_of(
            *(record.optimizer for record in records if record.stage is not Stage.READY)
        )
        self._left = {key: left for key, left in self._left.items() if key not in done}
        self.may_refuse = bool(self._left)

    def _unstepped(self) -> set[int]:
        """Return the parameters whose optimizer has not stepped; if the others are as before, so are these."""
        lists = [
            group["params"]
            for optimizer in self._stepped.values()
            for group in optimizer.param_groups
        ]
        if not self._before.is_of(lists, len(self._known)):
            params = _by_id(chain.from_iterable(lists))
            self._know(params)
            self._before = _Seen(lists, len(self._known), self._known.keys() - params.keys())
        return self._before.unstepped


def _parameters_of(*optimizers: Optimizer) -> dict[int, Tensor]:
    groups = (group["params"] for optimizer in optimizers for group in optimizer.param_groups)
    return _by_id(chain.from_iterable(groups))


def _gradients_of(params: dict[int, Tensor]) -> Iterator[tuple[int, Tensor]]:
    """Iterate over the gradients of parameters that count their versions, as tensors of inference mode do not."""
    for key, param in params.items():
        if (grad := param.grad) is not None and not grad.is_inference():
            yield key, grad


def _by_id(params: Iterable[Tensor]) -> dict[int, Tensor]:
    return {id(param): param for param in params}


def _mixed(owner: ScaleTicket, ticket: ScaleTicket) -> str:
    return (
        f"the gradients of tickets {owner.index} and {ticket.index} were added into one .grad: expected "
        "each ticket's own; hand gradients over (and set .grad to None) before the next backward pass"
    )


# Hooks hold scalers weakly, and go with them.


def _unhook(hooked: WeakTensorKeyDictionary) -> None:
    for handle in list(hooked.values()):  # type: ignore[no-untyped-call]
        handle.remove()


def _begin(owners: "weakref.ref[GradientOwners]", ticket: ScaleTicket, _: Tensor) -> None:
    if (alive := owners()) is not None:
        alive.begin(ticket)


def _written(owners: "weakref.ref[GradientOwners]", param: Tensor) -> None:
    if (alive := owners()) is not None:
        alive.written(param.grad)


def _leaves_of(output: Tensor) -> list[Tensor]:
    """List the leaf tensors that a backward pass from `output` writes gradients of."""
    leaves, seen, waiting = [], set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        waiting += [after for after, _ in node.next_functions]
    return leaves

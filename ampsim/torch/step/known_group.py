"""A parameter group whose tensors were found right once: from then on, only what may have changed is looked at."""

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from ampsim.torch.gradients.collect import Numbers, are_plain, numbers

if TYPE_CHECKING:
    from ampsim.torch.gradients.adam import Addresses, Tensors


class Read(NamedTuple):
    """Gradients as a kernel has read them: of one device and dtype, no subclasses, and contiguous."""

    grads: Sequence[Tensor]
    sizes: Numbers
    places: Numbers  # their addresses
    is_new: bool = False  # these are the gradients of all parameters, and no code of a client's has run since

    def part(self, begin: int, end: int) -> "Read":
        """Return some of them."""
        sizes, places = self.sizes[8 * begin : 8 * end], self.places[8 * begin : 8 * end]
        return Read(self.grads[begin:end], sizes, places, self.is_new)


_VERSION = attrgetter("_version")
_END = object()  # behind the last of what is held, so that one less is seen


class KnownGroup:
    """The tensors of a group that a kernel has stepped, all of whose parameters had gradients, without gaps.

    What per step is new are gradients; the rest is what it was if the group and the optimizer's state hold the same
    tensors at the same addresses, without gaps still. To see that takes a tenth of torch's own look at the group.
    """

    def __init__(self, optimizer: Any, group: dict[str, Any], tensors: "Tensors", addresses: "Addresses") -> None:
        self.group = group
        self._tensors = tensors
        self._states = [optimizer.state[param] for param in tensors.params]
        self._values = [state.values() for state in self._states]  # at any time those of then
        self._held = [*tensors.params, *chain.from_iterable(self._values), _END]
        self._all = [*chain(*tensors[1:])]
        self._places = [*map(Tensor.data_ptr, self._all)]
        self._addresses = addresses
        self._counts: Tensor | None = None  # of all tensors in one
        self._writes = -1  # to all of the tensors that they are of
        self._kind = tensors.grads[0].dtype, tensors.grads[0].device

    def step(self, launch: Callable[[Tensor | None], Tensor | None]) -> bool:
        """Call `launch` with the counts that it last returned, None if others wrote one since; tell if it stepped."""
        steps = self._tensors.steps
        first, writes = steps[0]._version, sum(map(_VERSION, steps))  # noqa: SLF001
        counts = launch(self._counts if writes == self._writes else None)
        if counts is not None:  # and has written each as often
            self._counts, self._writes = counts, writes + (steps[0]._version - first) * len(steps)  # noqa: SLF001
        return counts is not None

    @staticmethod
    def fits(group: dict[str, Any], tensors: "Tensors") -> bool:
        """Tell whether all parameters of a group were stepped, and none has gaps."""
        return len(tensors.params) == len(group["params"]) and all(
            all(map(Tensor.is_contiguous, each)) for each in tensors
        )

    def again(self, optimizer: Any, read: Read | None = None) -> "tuple[Tensors, Addresses] | None":
        """Return the tensors with the gradients of now, and their addresses; None if another look is needed.

        Gradients that lie where they were `read` are not looked at again.
        """
        params = self.group["params"]
        if not self._holds(optimizer, params):
            return None
        if read is None or not read.is_new:
            read = _look(params, read)
        tensors, at = self._tensors, self._addresses
        if read is None or read.sizes != at.sizes or (read.grads[0].dtype, read.grads[0].device) != self._kind:
            return None
        return type(tensors)(read.grads, *tensors[1:]), type(at)(at.sizes, read.places, at.state)  # `_replace` is slow

    def _holds(self, optimizer: Any, params: list[Tensor]) -> bool:
        state = optimizer.state  # of a single group in its order: a parameter's hash is Python code
        states = state.values() if len(state) == len(params) else map(state.get, params)
        now = chain(params, chain.from_iterable(self._values), (_END,))
        return (
            all(map(is_, states, self._states))
            and all(map(is_, now, self._held))
            and all(map(Tensor.is_contiguous, params))
            and self._places == [*map(Tensor.data_ptr, self._all)]
        )


def _look(params: list[Tensor], read: Read | None) -> Read | None:
    """Return the gradients of parameters, as they were `read` if they lie there still; None of what is not plain."""
    grads: list[Any] = [param.grad for param in params]
    same = read is not None and len(grads) == len(read.grads) and all(map(is_, grads, read.grads))
    if read is not None and same and read.places == numbers(Tensor.data_ptr, grads):
        return read
    if not are_plain(grads):
        return None
    return Read(grads, numbers(Tensor.numel, grads), numbers(Tensor.data_ptr, grads))

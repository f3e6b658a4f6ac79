"""A parameter group whose tensors were found right once: from then on, only what may have changed is looked at."""

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from ampsim.torch.gradients.adam import Addresses, Tensors


class Read(NamedTuple):
    """Gradients as a kernel has read them: of one device and dtype, no subclasses, and contiguous."""

    grads: Sequence[Tensor]
    places: tuple[int, ...]  # their addresses

    def part(self, begin: int, end: int) -> "Read":
        """Return some of them."""
        return self if begin == 0 and end == len(self.grads) else Read(self.grads[begin:end], self.places[begin:end])


_STATE: Callable[[Any], tuple[Tensor, ...]] = itemgetter("exp_avg", "exp_avg_sq", "step")
_VERSION = attrgetter("_version")


class KnownGroup:
    """The tensors of a group that a kernel has stepped, all of whose parameters had gradients, without gaps.

    What per step is new are gradients; the rest is what it was if the group and the optimizer's state hold the same
    tensors at the same addresses, without gaps still. To see that takes a tenth of torch's own look at the group.
    """

    def __init__(self, optimizer: Any, group: dict[str, Any], tensors: "Tensors", addresses: "Addresses") -> None:
        self.group = group
        self._tensors = tensors
        self._states = [optimizer.state[param] for param in tensors.params]
        self._all = [*tensors.params, *chain.from_iterable(map(_STATE, self._states))]
        self._places = [*map(Tensor.data_ptr, self._all)]
        self._addresses = addresses
        self._counts: Tensor | None = None  # of all tensors in one, see `counted`
        self._dtype, self._device = tensors.grads[0].dtype, tensors.grads[0].get_device()

    def counted(self, counts: Tensor) -> None:
        """Note what the counts of steps are, gathered, as long as nobody else writes them."""
        self._counts, self._versions = counts, [*map(_VERSION, self._tensors.steps)]

    @property
    def counts(self) -> Tensor | None:
        """The counts that were noted, if they are still that."""
        same = self._counts is not None and self._versions == [*map(_VERSION, self._tensors.steps)]
        return self._counts if same else None

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
        params, grads = self.group["params"], [param.grad for param in self.group["params"]]
        if len(params) != len(self._states) or not self._holds(optimizer, params):
            return None
        same = read is not None and len(grads) == len(read.grads) and all(map(is_, grads, read.grads))
        if not (self._takes(grads[:1]) if same else self._takes(grads)):
            return None
        places = tuple(map(Tensor.data_ptr, grads))
        if same and read is not None and places != read.places and not self._takes(grads):
            return None
        return self._tensors._replace(grads=grads), self._addresses._replace(grads=places)

    def _holds(self, optimizer: Any, params: list[Tensor]) -> bool:
        state = optimizer.state  # of a single group in its order: a parameter's hash is Python code
        states = state.values() if len(state) == len(params) else map(state.get, params)
        same = all(map(is_, params, self._tensors.params)) and all(map(is_, states, self._states))
        now = chain.from_iterable(map(_STATE, self._states))
        return (
            same
            and all(map(is_, now, self._all[len(params) :]))
            and self._places == [*map(Tensor.data_ptr, self._all)]
            and all(map(Tensor.is_contiguous, params))
        )

    def _takes(self, grads: list[Tensor]) -> bool:
        return (
            {*map(type, grads)} == {Tensor}
            and {*map(attrgetter("dtype"), grads)} == {self._dtype}
            and {*map(Tensor.get_device, grads)} == {self._device}
            and all(map(Tensor.is_contiguous, grads))
        )

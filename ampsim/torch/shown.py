"""Live views of a scaler's state under torch's private names: a write reaches the scaler, or raises."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from enum import Enum
from typing import Any, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState
from torch.utils._pytree import tree_map_only

from ampsim.torch.gradients.unscale import FoundInf
from ampsim.torch.step.records import Record, Stage, StepRecords

K = TypeVar("K")
V = TypeVar("V")


class ShownTensor(Tensor):
    """A live tensor of a scaler's number: a read returns the current value, and a write changes the scaler.

    Views of it are live too. Other results are plain tensors; numpy arrays are read-only.
    """

    number: "_Number"

    @classmethod
    def of(
        cls,
        read: Callable[[], Tensor | None],
        written: Callable[[Tensor], None],
        updated: Callable[[], None],
    ) -> "ShownTensor | None":
        """Return a live tensor of the result of `read`; None if that is None."""
        seen = read()
        return None if seen is None else _Number(read, written, updated, seen).shown()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        uses: list[_Use] = []

        def plain(tensor: ShownTensor) -> Tensor:
            uses.append(_Use(tensor))
            return uses[-1].tensor

        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - the way that torch documents
            args, kwargs = tree_map_only(cls, plain, (args, kwargs or {}))
            result = func(*args, **kwargs)
            updates = getattr(func, "__name__", "") == _UNCOUNTED
            for use in uses:
                use.end(writes=updates or getattr(func, "__module__", "") == _COLLECTIVES)
                if isinstance(result, Tensor) and use.number.has(result):
                    result = use.number.shown(result)
            if updates:
                uses[-1].number.updated()
            if isinstance(result, np.ndarray):
                result.flags.writeable = False
            return result


class _Number:
    """A number, and the memory that its live tensors share."""

    def __init__(
        self,
        read: Callable[[], Tensor | None],
        written: Callable[[Tensor], None],
        updated: Callable[[], None],  # by torch's kernel
        seen: Tensor,
    ) -> None:
        self.read, self.written, self.updated = read, written, updated
        self.seen: Tensor | None = seen  # what `read` returned last
        with torch.inference_mode(mode=False):  # in which writes are not counted
            self.tensor = seen.clone()

    def shown(self, view: Tensor | None = None) -> ShownTensor:
        """Return a view, by default of the whole number, as a live tensor."""
        shown = (self.tensor if view is None else view).as_subclass(ShownTensor)
        shown.number = self
        return shown

    def has(self, tensor: Tensor) -> bool:
        """Return whether a tensor shares this memory; False for the memory itself, as Dynamo needs."""
        storages = [each.untyped_storage()._cdata for each in (tensor, self.tensor)]  # noqa: SLF001
        return tensor is not self.tensor and storages[0] == storages[1]


class _Use:
    """A live tensor during a call of a torch function, which receives the plain `tensor`."""

    def __init__(self, shown: ShownTensor) -> None:
        self.number, self.tensor = shown.number, shown.as_subclass(Tensor)
        now = self.number.read()
        if now is not None and now is not self.number.seen:
            self.number.tensor.copy_(now)
            self.number.seen = now
        self._version = self.tensor._version  # noqa: SLF001 - counts what is written in place

    def end(self, *, writes: bool) -> None:
        """Notify the scaler if the function has written the number."""
        elsewhere = not self.number.has(self.tensor)  # as after ``.data = ``
        if elsewhere:
            self.number.tensor.copy_(self.tensor)
        if writes or elsewhere or self.tensor._version != self._version:  # noqa: SLF001
            self.number.seen = None  # what is refused is not what is read next
            self.number.written(self.number.tensor)


_TORCHS = ("stage", "found_inf_per_device")  # the names in a state that torch reads
_UNCOUNTED = "_amp_update_scale_"  # torch counts no write of the tracker in it
_COLLECTIVES = "torch.distributed.distributed_c10d"


def refusal_of_states(what: str) -> RuntimeError:
    """Return the error for a write into ``_per_optimizer_states`` that has no effect."""
    return RuntimeError(
        f"_per_optimizer_states {what}: expected a stage of torch's OptState and flags by device, and with group= "
        "the stage alone; where ranks must agree pass group= to the scaler, in place of flags of your own"
    )


class _Shown(MutableMapping[K, V]):
    """A mapping that is also an empty dict, for isinstance; C code for dicts sees it as empty."""

    def copy(self) -> Any:
        """Return a plain dict of the current contents."""
        kind, args = cast("tuple[Callable[..., Any], tuple[Any, ...]]", self.__reduce__())
        return kind(*args)

    __copy__ = copy

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __ior__(self, other: Any) -> Self:
        self.update(other)
        return self

    def __repr__(self) -> str:
        return repr(dict(self))


class OptimizerState(_Shown[str, Any], dict[str, Any]):
    """The state of one optimizer in one iteration as torch keeps it: its record, under torch's names.

    ``stage`` and ``found_inf_per_device`` are read from the record and written to it, before `unscale_` and after
    `step`. After the iteration they keep their values. A stage may be a member of a client's copy of torch's enum; it
    is read back as such. The integers 1 and 2 are accepted; 0 is not, as torch's `step` then divides nothing. Clients
    may store values under other keys.
    """

    def __init__(self, states: "OptimizerStates", record: Record) -> None:
        self._states, self._record = states, record

    def __getitem__(self, key: str) -> Any:
        if key == "stage":
            record = self._record
            return (
                record.shown
                if record.shown and record.shown.name == record.stage.name
                else OptState(record.stage.value)
            )
        return self._record.found_inf if key == "found_inf_per_device" else self._record.notes[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "stage" and type(value) is int and value in (1, 2):
            value = OptState(value)
        if key == "stage" and isinstance(value, Enum) and value.name in Stage.__members__:
            self._states.move(self._record, Stage[value.name])
            self._record.shown = value
        elif (
            key == "found_inf_per_device" and isinstance(value, dict) and not self._states.by_ranks
        ):
            self._record.found_inf = FoundInf(value)
        elif key in _TORCHS:
            raise refusal_of_states(f"of an optimizer got {key!r}: {value!r}")
        else:
            self._record.notes[key] = value

    def __delitem__(self, key: str) -> None:
        if key in _TORCHS:
            raise refusal_of_states(f"of an optimizer lost {key!r}")
        del self._record.notes[key]

    def __iter__(self) -> Iterator[str]:
        return iter((*_TORCHS, *self._record.notes))

    def __len__(self) -> int:
        return len(_TORCHS) + len(self._record.notes)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a copy is a plain one


class OptimizerStates(_Shown[int, OptimizerState], defaultdict[int, OptimizerState]):
    """States of all optimizers in this iteration, by id; a default dict, as torch's."""

    def __init__(
        self,
        records: StepRecords,
        stepped: Callable[[int, Record], None],
        end: Callable[[], None],
        *,
        by_ranks: bool,
    ) -> None:
        defaultdict.__init__(self, records.factory)
        self._records, self._stepped, self._end, self.by_ranks = records, stepped, end, by_ranks

    def move(self, record: Record, stage: Stage) -> None:
        """Set the stage of a record; STEPPED is reported as a step, unless a step is running."""
        ticket = self._records.ticket_of(record)
        if ticket is not None and stage is Stage.STEPPED and not record.is_held:
            if record.folded is not None:
                raise RuntimeError(
                    "a step of your own after unscale_and_clip_, which left the division to step(): expected "
                    "scaler.step(optimizer); call that, or unscale_ and clip_grad_norm_ before your own"
                )
            self._stepped(ticket, record)
        record.move(stage)

    def __getitem__(self, key: int) -> OptimizerState:
        is_new = key not in self
        state = OptimizerState(self, self._records.looked_at(key))
        if is_new:
            for name, value in self._records.factory().items():
                if value or name not in _TORCHS:
                    state[name] = value
        return state

    def __setitem__(self, key: int, value: Mapping[str, Any]) -> None:
        if not isinstance(value, Mapping):
            raise refusal_of_states(f"of {key!r} set to {value!r}")
        for name in sorted(value):  # flags before the stage: with ranks they are refused
            self[key][name] = value[name]

    def __delitem__(self, key: int) -> None:
        if self.by_ranks:
            raise refusal_of_states(f"of {key!r} deleted")
        self._records.drop(key)

    def clear(self) -> None:
        """Clear the states of this iteration; if a scale or tracker was written in it, end it with these.

        An `update` that was copied from torch's ends with this call. Without states, the call does nothing.
        """
        if self.by_ranks and any(record.is_used for record in self._records.by_id().values()):
            raise refusal_of_states("cleared")
        self._end()
        for key in [*self]:
            self._records.drop(key)

    def pop(self, key: int, *default: Any) -> Any:
        """Remove an optimizer and return its state, or the default; creates no state."""
        if key in self:
            return super().pop(key)
        if not default:
            raise KeyError(key)
        return default[0]

    def get(self, key: int, default: Any = None) -> Any:
        """Return the state of an optimizer if it exists, else the default."""
        return self[key] if key in self._records.by_id() else default

    def __contains__(self, key: object) -> bool:
        return key in self._records.by_id()

    def __iter__(self) -> Iterator[int]:
        return iter(self._records.by_id())

    def __len__(self) -> int:
        return len(self._records.by_id())

    def __reduce__(self) -> tuple[Any, ...]:
        return defaultdict, (self._records.factory, dict(self))

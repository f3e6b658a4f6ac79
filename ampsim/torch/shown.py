"""What a scaler shows under torch's private names, alive: what is written into it reaches the scaler, or is refused."""

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Never

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState
from torch.utils._pytree import tree_map_only

from ampsim.torch.gradients.unscale import FoundInf
from ampsim.torch.step.records import Record, Stage, StepRecords


class ShownTensor(Tensor):
    """A copy of a number that a scaler holds; what is written into it goes to `written`. Results are plain tensors.

    Writing through ``.data`` or ``.numpy()`` changes the copy only.
    """

    written: Callable[[Tensor], None]

    @classmethod
    def of(cls, tensor: Tensor, written: Callable[[Tensor], None]) -> "ShownTensor":
        """Copy a tensor."""
        shown = tensor.clone().as_subclass(cls)
        shown.written = written
        return shown

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shown: list[tuple[ShownTensor, int]] = []

        def plain(tensor: ShownTensor) -> Tensor:
            shown.append((tensor, tensor._version))  # counts what is written in place
            return tensor.as_subclass(Tensor)

        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - the way that torch documents
            args, kwargs = tree_map_only(cls, plain, (args, kwargs or {}))
            result = func(*args, **kwargs)
            for tensor, version in shown:
                if tensor._version != version:  # noqa: SLF001
                    tensor.written(tensor.as_subclass(Tensor))
        return result


def refusal_of_states(what: str) -> RuntimeError:
    """Return the error for a write into ``_per_optimizer_states`` that would not count."""
    return RuntimeError(
        f"_per_optimizer_states {what}: expected the stage, or the flags of one rank's gradients; update() and "
        "load_state_dict() clear it, and where ranks must agree pass group= to the scaler, in place of an update() "
        "or flags of your own"
    )


class OptimizerState(MutableMapping[str, Any]):
    """The state of one optimizer in one iteration as torch keeps it: its record, under torch's names.

    ``stage`` and ``found_inf_per_device`` are read off the record and written to it, before `unscale_` and after
    `step`; of an iteration that has ended it is what it was.
    """

    def __init__(self, states: "OptimizerStates", record: Record) -> None:
        self._states, self._record = states, record

    def __getitem__(self, key: str) -> Any:
        if key == "stage":
            return OptState(self._record.stage.value)
        if key == "found_inf_per_device":
            return self._record.found_inf
        raise KeyError(key)

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "stage" and isinstance(value, OptState):
            self._states.move(self._record, Stage(value.value))
        elif key == "found_inf_per_device" and isinstance(value, dict) and not self._states.by_ranks:
            self._record.found_inf = FoundInf(value)
        else:
            raise refusal_of_states(f"of an optimizer got {key!r}: {value!r}")

    def __delitem__(self, key: str) -> Never:
        raise refusal_of_states(f"of an optimizer lost {key!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(("stage", "found_inf_per_device"))

    def __len__(self) -> int:
        return 2

    def __repr__(self) -> str:
        return repr(dict(self))


class OptimizerStates(MutableMapping[int, OptimizerState]):
    """The states of all optimizers in this iteration, by id. As torch's it has one for every id that is asked for."""

    def __init__(self, records: StepRecords, stepped: Callable[[int, Record], None], *, by_ranks: bool) -> None:
        self._records, self._stepped, self.by_ranks = records, stepped, by_ranks

    def move(self, record: Record, stage: Stage) -> None:
        """Put a record into a stage by hand; STEPPED is told as a step is, unless one is on its way."""
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
        return OptimizerState(self, self._records.looked_at(key))

    def __setitem__(self, key: int, value: Any) -> Never:
        raise refusal_of_states(f"of {key!r} set to {value!r}")

    def __delitem__(self, key: int) -> Never:
        raise refusal_of_states(f"of {key!r} deleted")

    def clear(self) -> None:
        """Do nothing where nothing is noted, as right after `update`."""
        if any(record.is_used for record in self._records.by_id().values()):
            raise refusal_of_states("cleared")

    def get(self, key: int, default: Any = None) -> Any:
        """Return the state of an optimizer that was looked at, unscaled or stepped, or the default."""
        return self[key] if key in self._records.by_id() else default

    def __contains__(self, key: object) -> bool:
        return key in self._records.by_id()

    def __iter__(self) -> Iterator[int]:
        return iter(self._records.by_id())

    def __len__(self) -> int:
        return len(self._records.by_id())

    def __repr__(self) -> str:
        return repr(dict(self))

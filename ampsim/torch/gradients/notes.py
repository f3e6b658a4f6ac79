"""What this process notes on a gradient: it goes when the gradient goes, and stays when that is saved or copied."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False, slots=True)
class Note:
    """A value that holds as long as the gradient is not written.

    In a pickle or a deep copy it is an empty OrderedDict, which ``torch.load(weights_only=True)`` takes.
    """

    value: Any
    version: int  # the gradient's _version when it was noted

    def __reduce__(self) -> tuple[type[OrderedDict[str, Any]], tuple[()]]:
        """Return what an empty dict is made of: a note is for this process."""
        return OrderedDict, ()


def note_on(grad: Tensor, name: str) -> Note | None:
    """Return the note that this process left under a name."""
    note = vars(grad).get(name)
    return note if type(note) is Note else None

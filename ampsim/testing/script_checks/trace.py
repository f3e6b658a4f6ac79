"""What a training script does with its loss scaler: events, optimizers, scalers."""

import gc
import sys
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

from torch import Tensor

Kind = Literal[
    "scale", "backward", "unscale_", "clip", "step", "optimizer.step", "update",
    "schedule", "zero_grad", "save",
]  # fmt: skip
# What the gradients of an optimizer are multiplied by. "partly scaled": only some losses were scaled;
# "mixed": scaled gradients were added to unscaled ones; "used": a step has used them.
Stage = Literal["none", "plain", "scaled", "partly scaled", "unscaled", "mixed", "used"]


@dataclass
class Event:
    """One call of the script.

    Attributes:
        kind: What was called.
        where: See `ampsim.testing.lines.where`.
        stages: Of the gradients at the call, by the names of the optimizers that it concerns.
        note: What else a reader needs to know.
        scaler: Name of the scaler.
        value: For a clip, its threshold.
        error: What the scaler raised.
        divided_by: For a division, other optimizers whose division has reached a parameter of this one.
        is_late: Whether the scaler was updated since the first gradient of this step arrived.
        is_used: For a backward pass, whether a step has used its gradients.
    """

    kind: Kind
    where: str
    stages: dict[str, Stage] = field(default_factory=dict)
    note: str = ""
    scaler: str = ""
    value: float | None = None
    error: str = ""
    divided_by: tuple[str, ...] = ()
    is_late: bool = False
    is_used: bool = False

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.where} {self.kind}{note}"


@dataclass(frozen=True)
class Save:
    """A file that torch has saved.

    Attributes:
        event: The call.
        folder: Of the file; for a stream, the place of the call.
        kinds: Whose states it holds, of "optimizer" and "scaler".
        is_part: Whether it holds nothing else than one of these states.
    """

    event: Event
    folder: str
    kinds: set[str]
    is_part: bool


@dataclass
class ScalerTrace:
    """What is known of one enabled scaler.

    Attributes:
        scaler: The scaler itself; None in an observation.
        name: Its class, and its place among the scalers.
        where: Where it was created or first seen.
        updates: Number of calls of `update`.
        losses: Number of calls of `scale`.
        variables: Names under which the script knows it.
    """

    scaler: Any
    name: str
    where: str
    updates: int = 0
    losses: int = 0
    variables: set[str] = field(default_factory=set)

    @property
    def scale(self) -> float:
        """The current loss scale."""
        return float(self.scaler.get_scale())


@dataclass
class OptimizerTrace:
    """What is known of one optimizer.

    Attributes:
        optimizer: The optimizer itself; None in an observation.
        name: Its class, and its place among the optimizers.
        where: Where it was created or first seen.
        stage: Of its gradients.
        scaler: The scaler that scaled its gradients or stepped it last; None in an observation.
        updates: Updates of the scaler when the first gradient of this step arrived.
        attempts: One per step: whether it was taken.
        calls: Number of times the optimizer itself was called with finite gradients.
        pending: Backward passes whose gradients no step has used yet.
        schedules: Number of steps of learning rate schedules.
        used_versions: Of the gradients after the last step.
        first: The parameters when the first gradient arrived; [] in an observation.
        has_moved: Whether a parameter has changed since then; known in an observation.
    """

    optimizer: Any
    name: str
    where: str
    stage: Stage = "none"
    scaler: ScalerTrace | None = None
    updates: int = 0
    attempts: list[bool] = field(default_factory=list)
    calls: int = 0
    pending: list[Event] = field(default_factory=list)
    schedules: int = 0
    used_versions: tuple[tuple[int, int], ...] = ()
    first: list[Tensor] = field(default_factory=list)
    has_moved: bool = False

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of all groups."""
        return [param for group in self.optimizer.param_groups for param in group["params"]]

    @property
    def has_gradients(self) -> bool:
        """Whether a gradient is there that is not zero."""
        grads = [param.grad for param in self.parameters]
        return any(grad is not None and bool(grad.any()) for grad in grads)

    def clear(self) -> None:
        """Forget the gradients, which were set to zero."""
        self.pending, self.stage = [], "none"


def variables(value: object) -> set[str]:
    """Return the names of variables and attributes that hold an object now."""
    names: set[str] = set()
    for holder in gc.get_referrers(value):
        if isinstance(holder, dict):
            names |= {key for key, held in holder.items() if held is value and isinstance(key, str)}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        names |= {key for key, held in frame.f_locals.items() if held is value}
        frame = frame.f_back
    return names

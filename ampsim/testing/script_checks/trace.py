"""What a training script does with its loss scaler: events, optimizers, scalers."""

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from ampsim.testing.lines import Place

Kind = Literal[
    "scale", "backward", "unscale_", "clip", "step", "optimizer.step", "update", "schedule", "save", "load",
]  # fmt: skip


@dataclass
class Event:
    """One call of the script.

    Attributes:
        kind: What was called.
        where: The line of the script.
        optimizers: Names of the optimizers that it concerns.
        note: What else a reader needs to know; no check reads it.
        scaler: Name of the scaler.
        is_scaled: For a backward pass, whether its loss was scaled.
        schedule: Class of a schedule.
        made: For a schedule, the place where it was created.
        passes: For a step, the backward passes whose gradients it uses.
        is_useless: Whether the gradients of a backward pass were cleared before a step, or a step
            had used them before this call, as a clip or a second step.
        adds_to_old: For a step, whether its gradients have those of the last step in them.
    """

    kind: Kind
    where: Place
    optimizers: list[str] = field(default_factory=list)
    note: str = ""
    scaler: str = ""
    is_scaled: bool = False
    schedule: str = ""
    made: Place | None = None
    passes: list["Event"] = field(default_factory=list, repr=False)
    is_useless: bool = False
    adds_to_old: bool = False

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
    """

    scaler: Any
    name: str
    where: Place
    updates: int = 0

    @property
    def scale(self) -> float:
        """The current loss scale."""
        return float(self.scaler.get_scale())


@dataclass
class Frequency:
    """How often a schedule was stepped.

    Attributes:
        calls: Number of calls.
        attempts: Steps of its optimizer before the last call.
    """

    calls: int = 0
    attempts: int = 0


@dataclass
class OptimizerTrace:
    """What is known of one optimizer.

    Attributes:
        optimizer: The optimizer itself; None in an observation.
        name: Its class, and its place among the optimizers.
        where: Where it was created or first seen.
        scaler: The scaler that scaled its gradients or stepped it last; None in an observation.
        attempts: One per step: whether it was taken.
        calls: Number of times the optimizer itself was called with finite gradients.
        passes: Backward passes whose gradients are there and no step has used.
        arrived: The parameters when the last gradient arrived, as `contents` shows them; None once
            the gradients were unscaled or clipped.
        own_gradients: Whether a step was taken with other tensors than those that arrived.
        grads: Ids of the gradients when the last one arrived.
        is_cleared: Whether the gradients of the last step were cleared.
        used: The gradients after the last step, if that was taken.
        schedules: By the class and the place of creation of a learning rate schedule, how often
            it was stepped.
        received: Ids of the parameters that have received gradients.
        first: The parameters when the first gradient arrived; [] in an observation.
        has_moved: Whether a parameter has changed since then; known in an observation.
    """

    optimizer: Any
    name: str
    where: Place
    scaler: ScalerTrace | None = None
    attempts: list[bool] = field(default_factory=list)
    calls: int = 0
    passes: list[Event] = field(default_factory=list)
    arrived: object = None
    own_gradients: bool = False
    grads: set[int] = field(default_factory=set)
    is_cleared: bool = True
    used: object = None
    schedules: dict[tuple[str, Place | None], Frequency] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)
    first: list[Tensor] = field(default_factory=list)
    has_moved: bool = False

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of all groups."""
        return [
            param for group in self.optimizer.param_groups for param in group["params"]
        ]

    @property
    def trained(self) -> list[Tensor]:
        """The parameters that have received gradients; others may be averages of them."""
        return [param for param in self.parameters if id(param) in self.received]

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients that are there."""
        return [param.grad for param in self.parameters if param.grad is not None]

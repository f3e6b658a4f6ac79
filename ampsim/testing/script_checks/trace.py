"""What a training script does with its loss scaler: events, optimizers, scalers."""

import gc
import os
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

START = Path.cwd()  # places are shown relative to it, also after the script changes its folder
OWN = str(Path(__file__).parent)
TORCH = str(Path(torch.__file__).parent)
STANDARD = sysconfig.get_paths()["stdlib"]

Kind = Literal[
    "scale", "backward", "unscale_", "clip", "step", "optimizer.step", "update",
    "schedule", "zero_grad", "save", "load", "read",
]  # fmt: skip
# What the gradients of an optimizer are multiplied by. "partly scaled": only some losses were scaled;
# "mixed": scaled gradients were added to unscaled ones; "used": a step has used them.
Stage = Literal["none", "plain", "scaled", "partly scaled", "unscaled", "mixed", "used"]


@dataclass
class Event:
    """One call of the script.

    Attributes:
        kind: What was called.
        where: See `where`.
        optimizers: Names of the optimizers that the call concerns.
        note: What else a reader needs to know.
        value: For a clip, its threshold.
        is_used: For a backward pass, whether a step has used its gradients.
    """

    kind: Kind
    where: str
    optimizers: tuple[str, ...] = ()
    note: str = ""
    value: float | None = None
    is_used: bool = False

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.where} {self.kind}{note}"


@dataclass
class ScalerTrace:
    """What is known of one enabled scaler.

    Attributes:
        scaler: The scaler itself.
        name: Its class, and its place among the scalers.
        where: Where it was created or first seen.
        updates: Number of calls of `update`.
        losses: Number of calls of `scale`.
        is_loaded: Whether a checkpoint was loaded into it.
        variables: Names under which the script knows it.
    """

    scaler: Any
    name: str
    where: str
    updates: int = 0
    losses: int = 0
    is_loaded: bool = False
    variables: set[str] = field(default_factory=set)

    @property
    def scale(self) -> float:
        """The current loss scale."""
        return float(self.scaler.get_scale())


@dataclass
class OptimizerTrace:
    """What is known of one optimizer.

    Attributes:
        optimizer: The optimizer itself.
        name: Its class, and its place among the optimizers.
        where: Where it was created or first seen.
        stage: Of its gradients.
        scaler: The scaler that scaled its gradients or stepped it last.
        stepped_by: The scaler that stepped it last; None for a direct call of `optimizer.step`.
        updates: Updates of the scaler when the first gradient of this step arrived.
        attempts: One per step: whether it was taken.
        calls: Number of times the optimizer itself was called with finite gradients.
        pending: Backward passes whose gradients no step has used yet.
        clipped: The last backward pass before each clip of this step.
        schedules: Number of steps of learning rate schedules.
        versions: What the gradients were after the last backward pass.
        first: The parameters when the first gradient arrived.
        is_loaded: Whether a checkpoint was loaded into it.
        variables: Names under which the script knows it.
    """

    optimizer: Any
    name: str
    where: str
    stage: Stage = "none"
    scaler: ScalerTrace | None = None
    stepped_by: ScalerTrace | None = None
    updates: int = 0
    attempts: list[bool] = field(default_factory=list)
    calls: int = 0
    pending: list[Event] = field(default_factory=list)
    clipped: list[Event] = field(default_factory=list)
    schedules: int = 0
    versions: tuple[Any, ...] = ()
    first: list[Tensor] | None = None
    is_loaded: bool = False
    variables: set[str] = field(default_factory=set)

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of all groups."""
        return [param for group in self.optimizer.param_groups for param in group["params"]]

    @property
    def has_moved(self) -> bool:
        """Whether a parameter has changed since the first gradient arrived."""
        pairs = zip(self.first or (), self.parameters, strict=False)
        return any(not torch.equal(old, new) for old, new in pairs)

    def clear(self) -> None:
        """Forget the gradients, which were set to zero."""
        self.pending, self.clipped, self.stage, self.versions = [], [], "none", ()


@dataclass(frozen=True)
class Violation:
    """A wrong order of calls.

    Attributes:
        check: Name of the check that reports it.
        seen: What was seen.
        optimizers: Names of the optimizers whose gradients it concerns.
        events: The calls, in their order; the last one is the place of the finding.
    """

    check: str
    seen: str
    optimizers: tuple[str, ...]
    events: tuple[Event, ...]


def where() -> str:
    """Return file:line of the innermost frame of the script, and of the library that it called.

    As "train.py:41", or "train.py:41 in accelerate/optimizer.py:165".
    """
    library = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name, line = frame.f_code.co_filename, frame.f_lineno
        if "-packages" in name and not name.startswith(TORCH):
            library = library or f"{name.rpartition('-packages/')[2]}:{line}"
        elif is_scripts(name):
            return f"{shown(name)}:{line}" + (f" in {library}" if library else "")
        frame = frame.f_back
    return library or "unknown place"


def is_scripts(file: str) -> bool:
    """Return whether a file is of the script, and not of a package, of Python, or of ampsim."""
    return "-packages" not in file and not file.startswith((OWN, TORCH, STANDARD, "<"))


def shown(file: str) -> str:
    """Return a path as reports show it: relative if that is shorter."""
    relative = os.path.relpath(file, START)
    return min(relative, file, key=len)


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

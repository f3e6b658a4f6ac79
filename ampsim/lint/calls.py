"""Which calls of a training loop are events, and of what."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from ampsim.lint.names import AVERAGE, OPTIMIZER, SCALER, SCHEDULE, leaf, name_of, words_of
from ampsim.lint.source import Source

CLIPS = re.compile(r"^clip_grads?(_norm|_value|_with_norm)?_*$")
_AVERAGES = re.compile(
    r"^_?(update|accumulate|step)_(g_|model_)?ema(_model|_params|_weights)?$|(^|_)ema_(update|step)$|^update_averages?$"
)
_OWN_CLIP = re.compile(r"accel|fabric|trainer|strategy|plugin|engine|scaler|optim|^self$|precision", re.I)
_FIXED = re.compile(r"""loss_scale\s*=\s*["']?[\d.]""")  # of apex: it skips nothing
_MAYBE_SCALED = re.compile(r"scal|accel|fabric|amp", re.I)


class Scope(Protocol):
    """A function, and what is known of its names."""

    @property
    def env(self) -> Mapping[str, str]:
        """What a name stands for."""

    @property
    def words(self) -> Mapping[str, frozenset[str]]:
        """The words of what a name was assigned."""

    @property
    def scaled(self) -> Mapping[str, str]:
        """The scalers of scaled losses, by name."""


@dataclass
class Call:
    """A call, and what its names stand for."""

    node: ast.Call
    source: Source
    scope: Scope

    @cached_property
    def base(self) -> str:
        """The name of what a method is called on."""
        func = self.node.func
        return name_of(func.value, self.scope.env) if isinstance(func, ast.Attribute) else ""

    @cached_property
    def kind(self) -> str:
        """The kind of what a method is called on."""
        return self.source.kind(self.base) if self.base else ""

    @property
    def first(self) -> str:
        """The name of the first argument."""
        args = [*self.node.args, *(keyword.value for keyword in self.node.keywords)]
        return name_of(args[0], self.scope.env) if args else ""


def event_of(call: Call) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the subject and the optimizer of the events that a call is."""
    func = call.node.func
    attr = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    if isinstance(func, ast.Attribute):
        yield from (of_scaler if call.kind == SCALER else of_others)(call, attr, func.value)
    if CLIPS.match(attr) and not (call.base and _OWN_CLIP.search(leaf(call.base))):
        yield "clip", "", ""
    if _AVERAGES.search(attr) or (call.kind == AVERAGE and re.match(r"(update\w*|step|accumulate)$", attr)):
        yield from averages(call)
    yield from whole(call)


def of_scaler(call: Call, attr: str, value: ast.expr) -> Iterator[tuple[str, str, str]]:
    """Yield the events that a call of a scaler's method is."""
    given = bool(call.node.args or call.node.keywords)
    match attr:
        case "scale" if given:
            yield "scale", call.base, ""
        case "unscale_" | "step" if given:
            yield attr.rstrip("_"), call.base, call.first
        case "update":
            yield "update", call.base, ""


def of_others(call: Call, attr: str, value: ast.expr) -> Iterator[tuple[str, str, str]]:
    """Yield the events that a call of another method is."""
    given = bool(call.node.args or call.node.keywords)
    match attr:
        case "scale_loss" if len(call.node.args) > 1 and not _FIXED.search(call.source.text):
            yield "apex", "", name_of(call.node.args[1], call.scope.env)  # which apex has patched to skip
        case "unscale_" if given and not call.kind:
            yield "unscale", call.base, call.first
        case "step" if not call.node.args and call.kind == OPTIMIZER:
            yield "bare", "", call.base
        case "step" if not given and call.kind == SCHEDULE:
            yield "schedule", call.base, ""
        case "zero_grad":
            yield "zero", "", call.base
        case "backward":
            yield "backward", passed_back(call, value), ""


def averages(call: Call) -> Iterator[tuple[str, str, str]]:
    """Yield the update of an average of parameters; one of losses is none."""
    said = {word for arg in call.node.args for word in words_of(arg, {})}
    if not any(re.search(r"loss|item|acc|metric|norm|decay_only", word) for word in said):
        yield "average", call.base, ""


def whole(call: Call) -> Iterator[tuple[str, str, str]]:
    """Yield what a scaler does that is called as one, as timm's: ``loss_scaler(loss, optimizer, ...)``."""
    name, args = name_of(call.node.func, call.scope.env), call.node.args
    if len(args) >= 2 and call.source.kind(name) == SCALER and "()" not in name:
        optimizer = name_of(args[1], call.scope.env)
        if call.source.kind(optimizer) == OPTIMIZER:
            for kind in ("backward", "unscale", "step", "update"):
                yield kind, f"scaled {name}" if kind == "backward" else name, optimizer


def passed_back(call: Call, loss: ast.expr) -> str:
    """Return whether a backward pass is of a scaled loss, a plain one, or it is not known."""
    match loss:
        case ast.Call(func=ast.Attribute(attr="scale", value=value)):
            if call.source.kind(scaler := name_of(value, call.scope.env)) == SCALER:
                return f"scaled {scaler}"
    if scaler := call.scope.scaled.get(name_of(loss, call.scope.env), ""):
        return f"scaled {scaler}"
    said = words_of(loss, call.scope.words)
    other = call.node.args or any(map(_MAYBE_SCALED.search, said))
    return "other" if other else "plain"

"""What the names in a loop stand for in the written file: objects, losses, settings, counters."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ampsim.lint.adapt.facts import literals
from ampsim.lint.adapt.text import LOSS, identifier
from ampsim.lint.event import ASKS, Event
from ampsim.lint.frame import CONFIG
from ampsim.lint.names import AVERAGE, SCALER, kind_by_name, leaf, name_of
from ampsim.lint.source import Function, Source, Trace

MODEL = "model"
KEPT = {"scale", "backward", "unscale", "clip", "step", "update", "bare", "schedule", "average", "zero"}
_COUNTS = re.compile(r"^(n?i|idx|it)$|iter(ation)?s?$|^(\w*_)?(step|ind?ex|idx)$|counter", re.I)
_SETS = re.compile(
    r"max|num_|n_iter|total|_per_|every|warm|accum|log|save|start|first|last|begin|update_|grad|eval|val_", re.I
)
_OFF = re.compile(
    r"dist|ddp|debug|profil|speed|apex|tpu|xla|hvd|horovod|bf16|bfloat|cpu|sam$|fsdp|only_|no_|freeze", re.I
)


class UnknownError(Exception):
    """An expression that needs what is not in the file."""


@dataclass
class Scope:
    """A function that is written: its statements, its parameters, what it assigns, and what of that is needed."""

    body: Sequence[ast.stmt]
    params: tuple[str, ...] = ()
    step: bool = False
    assigned: set[str] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)  # of what it assigns: what is not in the file, and no plain value

    def local(self) -> set[str]:
        """Return what it assigns, and its parameters."""
        return self.assigned | {*self.params}


class Names:
    """The loop around one step of a scaler, and what the names in it stand for.

    Attributes:
        todo: what could not be read, one entry per mark.
    """

    def __init__(self, source: Source, trace: Trace, step: Event, path: str) -> None:
        self.modules, self.literals = {"torch": "torch"} | source.imports, literals(source)
        self.source, self.trace, self.step, self.path = source, trace, step, path
        self.place = step.loops[-1] if step.loops else trace.start or source.tree
        self.events: dict[ast.AST, set[str]] = {}
        for event in trace:
            self.events.setdefault(event.node, set()).add(event.kind)
        self.objects: dict[str, str] = {}  # identifier -> kind
        self.settings: dict[str, tuple[str, str]] = {}  # identifier -> value, and where it is from
        self.names: dict[str, str] = {}  # identifier -> the dotted name that it stands for
        self.kept: dict[str, str] = {}  # what outlives an iteration -> its first value
        self.averages: set[str] = {leaf(each.on) for each in trace.of("average") if each.on}
        self.helpers: dict[Function, tuple[str, list[str]]] = {}
        self.refused: set[ast.AST] = set()  # the calls to which torch's scaler answers with an error
        self.notes: list[str] = []
        self.todo: list[str] = []
        self.uses: set[str] = set()
        self.scope = Scope(())
        self.wants: dict[str, object] = {}  # dotted name -> the value with which the step is reached
        self.tests: dict[str, bool] = {}
        self.counting: set[str] = set()  # of iterations
        self.inside = [each for each in trace if each.loops[: len(step.loops)] == step.loops and each.kind in KEPT]
        steps = [step, *(each for each in self.inside if not each.apart(step))]
        for guard in (guard for event in reversed(steps) for guard in event.guards):
            self.want(guard.text, holds=guard.holds)
        for each in ast.walk(self.place):
            match each:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute() as value) if name in self.wants:
                    self.wants[name_of(value)] = self.wants[name]

    def want(self, text: str, *, holds: bool) -> None:
        """Note the value of a setting with which a condition holds, or does not."""
        try:
            test = ast.parse(text, mode="eval").body
        except SyntaxError:
            return
        if not ASKS.search(text) and "%" not in text:
            self.tests[ast.unparse(test)] = holds
        match test:
            case ast.Name() | ast.Attribute() | ast.Subscript():
                self.wants[name_of(test)] = True if holds else None
            case ast.Compare(left=left, ops=[op], comparators=[ast.Constant(value=value)]):
                if isinstance(op, ast.Eq | ast.GtE | ast.LtE) == holds:
                    self.wants[name_of(left)] = value
                elif isinstance(value, int | float):
                    up = isinstance(op, ast.Gt) or isinstance(op, ast.GtE) == holds
                    self.wants[name_of(left)] = value + 1 if up == holds else value - 1

    @cached_property
    def losses(self) -> frozenset[str]:
        """The names of what is scaled, or passed back."""
        calls = [event.node for event in self.trace.of("scale", "backward") if isinstance(event.node, ast.Call)]
        given = [
            *(each.args[0] for each in calls if each.args),
            *(each.func.value for each in calls if isinstance(each.func, ast.Attribute)),
        ]
        return frozenset(
            leaf(name_of(each)) for each in given if isinstance(each, ast.Name | ast.Attribute) and not self.kind(each)
        )

    @cached_property
    def opaque(self) -> frozenset[str]:
        """The names for which no number can stand: of what has elements or attributes, or is a tensor."""
        used: list[ast.AST] = []
        for each in self.source.nodes:
            match each:
                case ast.Attribute(value=value) | ast.Subscript(value=value) | ast.For(iter=value):
                    used.append(value)
                case ast.Call(func=func, args=args) if name_of(func).startswith("torch."):
                    used += args
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if self.is_loss(name):
                    used.append(value)
        return frozenset(each.id for each in used if isinstance(each, ast.Name))

    def is_loss(self, name: str) -> bool:
        """Return whether a name is that of a loss."""
        return name in self.losses or bool(LOSS.search(name))

    def kind(self, node: ast.AST) -> str:
        """Return the kind of an object that a name stands for, or ""."""
        name = name_of(node)
        if "?" in name or "()" in name or (CONFIG.match(name.partition(".")[0]) and "." in name):
            return ""
        last = leaf(name)
        if last in self.averages:
            return AVERAGE
        kind = self.source.kind(name)
        if kind in (SCALER, "") or last in self.used:
            return kind or (MODEL if last in self.models else "")
        return ""

    @cached_property
    def used(self) -> frozenset[str]:
        """The names that are used as optimizers, schedules and averages, and not as settings of them."""
        found = {leaf(name) for event in self.trace for name in (event.on, event.of)}
        return frozenset(found | self.owners("step", "zero_grad", "state_dict", "get_last_lr"))

    @cached_property
    def models(self) -> frozenset[str]:
        """The names of what has parameters."""
        found = self.owners("parameters", "named_parameters", "no_sync", "train") - {"self", "module", "?", ""}
        return frozenset(each for each in found if not kind_by_name(each))

    def owners(self, *methods: str) -> set[str]:
        """Return the names of what has methods that are called."""
        calls = (call.func for call in self.source.calls if isinstance(call.func, ast.Attribute))
        return {leaf(name_of(func.value)) for func in calls if func.attr in methods}

    def stepped(self) -> Iterator[str]:
        """Yield the optimizers that are stepped with."""
        for event in (each for each in self.inside if each.kind in ("step", "bare") and "?" not in each.of):
            name = identifier(event.of)
            yield from [name] * (event.kind == "step" or name in self.objects)

    def helper(self, node: ast.Call) -> Function | None:
        """Return the function of this file that is called, if something that a rule looks at happens in it."""
        function, events = self.trace.entered.get(node, (None, []))
        return function if any(each.kind in KEPT for each in events) else None

    def object(self, node: ast.AST) -> ast.expr:
        """Return the name of an object in the written file."""
        made = identifier(name_of(node))
        self.objects.setdefault(made, self.kind(node))
        return ast.Name(made)

    def setting(self, name: str) -> ast.expr:
        """Return the name of a setting, and note its value."""
        made = identifier(name)
        if made in self.kept:
            return ast.Name(made)
        if made in self.scope.assigned or made in self.objects or self.names.get(made, name) != name:
            made = re.sub(r"\W+", "_", name).strip("_")
        if _COUNTS.search(leaf(name)) and not _SETS.search(leaf(name)):
            self.counting.add(made)
            self.kept.setdefault(made, "-1")
            return ast.Name(made)
        self.names[made] = name
        if made not in self.settings:
            self.settings[made] = self.guess(name)
        return ast.Name(made)

    def guess(self, name: str) -> tuple[str, str]:
        """Return a value for a setting, and where it is from."""
        last, said = leaf(name), self.literals.get(leaf(name))
        if re.search(
            r"accum|micro|window|every|update_freq|grad_steps|num_steps|iters_to", last, re.I
        ) and not last.startswith("is_"):
            return "2", f"{said[0]} in line {said[1]}" if said else ""
        if name in self.wants and not (said and self.wants[name] is True and said[0] not in ("None", "False", "0")):
            return repr(self.wants[name]), ""
        if said and said[0] not in ("None", "True", "False"):
            return said[0], f"line {said[1]}"
        if re.search(r"clip|norm|max_grad", last, re.I):
            return "0.1", ""
        if re.search(r"decay|momentum|beta|ema", last, re.I):
            return "0.9", ""
        if re.search(r"^(total|max|num|n)_?(epochs?|steps|iters?|iterations)$|^epochs$", last, re.I):
            return "2", "guessed"  # of which some may be taken away, and the rest be divided by
        return ("False" if _OFF.search(last) else "1"), "guessed"

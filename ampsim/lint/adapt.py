"""Writes what `ampsim check-loop` needs, from the source of a loop: its own order of calls, and stand-ins around it.

Of the statements of an iteration those are kept that a rule looks at, the conditions on the way to them, and what they
are computed from. A forward pass becomes a small loss of a small model, a setting what the file says or what leads to
the scaler's step; each says in a comment what it stands for. What cannot be read is marked with TODO.
"""

import ast
import builtins
import keyword
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from ampsim.lint.event import ASKS, Event, Trace
from ampsim.lint.frame import CONFIG
from ampsim.lint.names import AVERAGE, OPTIMIZER, SCALER, SCHEDULE, called, has, kind_by_name, leaf, name_of, words_in
from ampsim.lint.rules.scaler import mentions_a_scaler, saved_optimizers
from ampsim.lint.source import Function, Source, UnreadableError, parse
from ampsim.lint.walk import traces_of

MODEL, BATCHES = "model", 6
KEPT = {"scale", "backward", "unscale", "clip", "step", "update", "bare", "schedule", "average", "zero"}
OWN = {"step", "make", "net", "batch", "batches", "draw", "loss_of", "iterate", "save", "load", "checkpoint", "Loop"}
_LOSS = re.compile(r"loss|cost|^(d|g|err)_?(real|fake|err)", re.I)
_MODULES = {"torch", "math", "np", "numpy"}
_FOREIGN = re.compile(r"^torch\.(cuda|distributed|nn\.functional|utils|autograd|jit|save|load)\b")
_METHODS = re.compile(
    r"^(item|detach|float|double|mean|sum|clone|cpu|norm|pow|sqrt|is\w+|any|all|abs|max|min|div_?|mul_?|add_?|copy_|lerp_|"
    r"clamp_?|square|data|get\w*|values|items|keys|(named_)?parameters|buffers|state_dict|zero_|nan_to_num_?)$"
)
_HAS = {
    MODEL: re.compile(r"(named_)?parameters$|buffers$|zero_grad$|training$|state_dict$"),
    OPTIMIZER: re.compile(r"param_groups$|state(_dict)?$|zero_grad$|step$|defaults$"),
    SCHEDULE: re.compile(r"get_(last_)?lr$|last_epoch$|state_dict$|step$"),
    AVERAGE: re.compile(r"parameters$|module$|state_dict$|buffers$"),
}
_OFF = re.compile(r"dist|ddp|debug|profil|speed|apex|tpu|xla|hvd|horovod|bf16|bfloat|cpu|sam$|fsdp|only_|no_|freeze", re.I)
_TORCHS = re.compile(r"^(torch\.)?(optim\.)?(SGD|Adam|AdamW|RMSprop|NAdam|RAdam|Adagrad|Adamax)$")
_REDUCED = {"mean", "sum"}


class Unknown(Exception):  # noqa: N818
    """An expression that needs what is not in the file."""


@dataclass
class Scope:
    """A function that is written: its statements, its parameters, what it assigns, and what of that is needed."""

    body: Sequence[ast.stmt]
    params: tuple[str, ...] = ()
    step: bool = False
    assigned: set[str] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)


class Adapter:
    """The loop around one step of a scaler, as a module with ``make(scaler)``.

    Attributes:
        todo: what could not be read, one entry per mark.
    """

    def __init__(self, source: Source, trace: Trace, step: Event, path: str) -> None:
        self.source, self.trace, self.step, self.path = source, trace, step, path
        self.place = source.place(step.node, step.loops)
        self.events: dict[ast.AST, set[str]] = {}
        for event in trace:
            self.events.setdefault(event.node, set()).add(event.kind)
        self.objects: dict[str, str] = {}  # identifier -> kind
        self.settings: dict[str, tuple[str, str]] = {}  # identifier -> value, and where it is from
        self.names: dict[str, str] = {}  # identifier -> the dotted name that it stands for
        self.kept: dict[str, str] = {}  # what outlives an iteration -> its first value
        self.averages: set[str] = {leaf(each.on) for each in trace.of("average") if each.on}
        self.helpers: dict[Function, tuple[str, list[str]]] = {}
        self.notes: list[str] = []
        self.todo: list[str] = []
        self.uses: set[str] = set()
        self.scope = Scope(())
        self.wants: dict[str, object] = {}
        inside = [each for each in trace if each.loops[: len(step.loops)] == step.loops and each.kind in KEPT]
        steps = [step, *(each for each in inside if not each.apart(step))]
        for guard in (guard for event in reversed(steps) for guard in event.guards):
            self.want(guard.text, holds=guard.holds)

    # ------------------------------------------------------------------------------------------------------- names

    def want(self, text: str, *, holds: bool) -> None:
        """Note the value of a setting with which a condition holds, or does not."""
        try:
            test = ast.parse(text, mode="eval").body
        except SyntaxError:
            return
        match test:
            case ast.Name() | ast.Attribute() | ast.Subscript():
                self.wants[name_of(test)] = True if holds else None
            case ast.Compare(left=left, ops=[op], comparators=[ast.Constant(value=value)]):
                number = isinstance(value, int | float)
                equal = isinstance(op, ast.Eq | ast.GtE | ast.LtE)
                if equal == holds:
                    self.wants[name_of(left)] = value
                elif number:
                    up = isinstance(op, ast.Gt) or isinstance(op, ast.GtE) == holds
                    self.wants[name_of(left)] = value + 1 if up == holds else value - 1

    def kind(self, node: ast.AST) -> str:
        """Return the kind of an object that a name stands for, or ""."""
        name = name_of(node)
        if "?" in name or "()" in name or CONFIG.match(name.partition(".")[0]) and "." in name:
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
        calls = (call.func for call in self.source.calls if isinstance(call.func, ast.Attribute))
        found |= {leaf(name_of(func.value)) for func in calls if func.attr in ("step", "zero_grad", "state_dict", "get_last_lr")}
        return frozenset(found)

    @cached_property
    def models(self) -> frozenset[str]:
        """The names of what has parameters."""
        calls = (call.func for call in self.source.calls if isinstance(call.func, ast.Attribute))
        found = {leaf(name_of(func.value)) for func in calls if func.attr in ("parameters", "named_parameters", "no_sync", "train")}
        return frozenset(each for each in found if not kind_by_name(each) and each not in ("self", "module", "?", ""))

    def object(self, node: ast.AST, kind: str) -> ast.expr:
        """Return the name of an object in the written file."""
        if kind == SCALER:
            return ast.Name("scaler")
        made = identifier(name_of(node))
        self.objects.setdefault(made, kind)
        return ast.Name(made)

    def setting(self, name: str) -> ast.expr:
        """Return the name of a setting, and note its value."""
        made = identifier(name)
        if made in self.kept:
            return ast.Name(made)
        if made in self.scope.assigned or made in self.objects or self.names.get(made, name) != name:
            made = re.sub(r"\W+", "_", name).strip("_")
        self.names[made] = name
        if made not in self.settings:
            self.settings[made] = self.guess(name)
        return ast.Name(made)

    def guess(self, name: str) -> tuple[str, str]:
        """Return a value for a setting, and where it is from."""
        last, said = leaf(name), self.source.literal(leaf(name))
        if re.search(r"accum|micro|every|update_freq|grad_steps|num_steps|iters_to", last, re.I) and not last.startswith("is_"):
            return "2", f"{said[0]} in line {said[1]}" if said else ""
        if name in self.wants and not (said and self.wants[name] is True and said[0] not in ("None", "False", "0")):
            return repr(self.wants[name]), ""
        if said and said[0] not in ("None", "True", "False"):
            return said[0], f"line {said[1]}"
        if re.search(r"clip|norm|max_grad", last, re.I):
            return "0.1", ""
        if re.search(r"decay|momentum|beta|ema", last, re.I):
            return "0.9", ""
        return ("False" if _OFF.search(last) else "1"), ""

    # ------------------------------------------------------------------------------------------------- expressions

    def value(self, node: ast.AST) -> ast.expr:
        """Return an expression in the names of the written file. Unknown: it needs what is not there."""
        match node:
            case ast.Constant():
                return node
            case ast.Call():
                return self.call(node)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self.named(node)
            case ast.Lambda() | ast.Await() | ast.Yield() | ast.YieldFrom():
                raise Unknown(ast.unparse(node))
            case ast.expr() | ast.comprehension():
                fields = {}
                for key, part in ast.iter_fields(node):
                    if isinstance(part, list):
                        part = [self.value(each) if isinstance(each, ast.expr | ast.comprehension) else each for each in part]
                    elif isinstance(part, ast.expr):
                        part = self.value(part)
                    fields[key] = part
                return type(node)(**fields)
        raise Unknown(ast.unparse(node))

    def named(self, node: ast.Name | ast.Attribute | ast.Subscript) -> ast.expr:
        """Return a name, an attribute or an element in the names of the written file."""
        name = name_of(node)
        root = name.partition(".")[0]
        if isinstance(node, ast.Name) and (node.id in self.scope.assigned or node.id in self.scope.params):
            self.scope.needed.add(node.id)
            return ast.Name(node.id)
        if root in self.source.modules and root not in self.scope.assigned:
            if self.source.modules[root].partition(".")[0] not in _MODULES or _FOREIGN.match(self.full(name)):
                raise Unknown(name)
            self.uses.add(root)
            return node
        if kind := self.kind(node):
            return self.object(node, kind)
        if isinstance(node, ast.Attribute) and identifier(name) in self.kept:
            self.scope.needed.add(identifier(name))
            return ast.Name(identifier(name))
        if isinstance(node, ast.Name):
            return node if hasattr(builtins, node.id) else self.setting(name)
        if isinstance(node, ast.Attribute) and node.attr == "module" and self.kind(node.value) == MODEL:
            return self.value(node.value)
        if "?" not in name and "(" not in name and self.is_setting(node):
            return self.setting(name)
        kind = self.kind(node.value)
        if isinstance(node, ast.Attribute) and kind and kind != SCALER and not _HAS[kind].match(node.attr):
            return self.setting(name)
        base = self.value(node.value)
        if isinstance(node, ast.Attribute):
            return ast.Attribute(base, node.attr)
        return ast.Subscript(base, self.value(node.slice))

    def is_setting(self, node: ast.AST) -> bool:
        """Return whether a dotted name begins with what is neither an object nor assigned in the loop."""
        while isinstance(node, ast.Attribute | ast.Subscript):
            if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant):
                return False
            node = node.value
            if self.kind(node) or (isinstance(node, ast.Attribute) and identifier(name_of(node)) in self.kept):
                return False
        return isinstance(node, ast.Name) and node.id not in self.scope.assigned | {*self.scope.params}

    def full(self, name: str) -> str:
        """Return a dotted name with the module that its first part was imported as."""
        root, dot, rest = name.partition(".")
        return self.source.modules.get(root, root) + dot + rest

    def arguments(self, node: ast.Call) -> tuple[list[ast.expr], list[ast.keyword]]:
        """Return the arguments of a call."""
        words = [ast.keyword(each.arg, self.value(each.value)) for each in node.keywords]
        return [self.value(each) for each in node.args], words

    def call(self, node: ast.Call) -> ast.expr:
        """Return a call. Unknown: of what is not in the file."""
        kinds, func = self.events.get(node, set()) & KEPT, node.func
        if {"backward", "step"} <= kinds:
            return self.called_as_one(node)
        if kinds:
            return self.event(node, min(kinds))
        if function := self.helper(node):
            return self.of_file(node, function)
        name = name_of(func)
        if isinstance(func, ast.Name):
            if func.id == "len" and node.args:
                try:
                    return ast.Call(func, [self.value(node.args[0])], []) if self.local(node.args[0]) else _read("len(batches)")
                except Unknown:
                    return _read("len(batches)")
            if func.id in ("isinstance", "hasattr"):
                return ast.Constant(not re.search("list|tuple|dict|Deep|FSDP|Fully", ast.unparse(node)))
            known = hasattr(builtins, func.id) and func.id not in ("print", "open", "super", "next", "iter", "exec", "eval")
            if known and func.id not in self.source.modules:
                return ast.Call(func, *self.arguments(node))
        if name.partition(".")[0] in self.source.modules:
            made = self.named(func) if isinstance(func, ast.Attribute | ast.Name) else func
            return ast.Call(made, *self.arguments(node))
        if isinstance(func, ast.Attribute) and (self.kind(func.value) or self.local(func.value)):
            kind = self.kind(func.value)
            if _HAS[kind].match(func.attr) if kind in _HAS else kind == SCALER or _METHODS.match(func.attr):
                base = self.value(func.value)
                return ast.Call(ast.Attribute(base, func.attr), *self.arguments(node))
        raise Unknown(ast.unparse(node))

    def local(self, node: ast.AST) -> bool:
        """Return whether an expression begins with what the loop computes."""
        while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                return any(map(self.local, node.args))
            if self.kind(node) in (OPTIMIZER, SCALER, SCHEDULE, MODEL, AVERAGE):
                return True
            node = node.func if isinstance(node, ast.Call) else node.value
        if isinstance(node, ast.BinOp):
            return self.local(node.left) or self.local(node.right)
        return isinstance(node, ast.Name) and (node.id in self.scope.assigned or node.id in self.scope.params or bool(self.kind(node)))

    def nets(self, line: int) -> list[str]:
        """Return the optimizers that step next with the gradients of a loss of this line."""
        order = [each for each in self.trace if each.kind in ("backward", "step", "bare") and each.of != "?"]
        starts = [k for k, each in enumerate(order) if each.kind == "backward" and getattr(each.node, "lineno", 0) >= line]
        starts = starts or [0]
        found: list[str] = []
        for each in order[starts[0] :]:
            if each.kind != "backward":
                found.append(identifier(each.of))
            elif found:
                break
        return [*dict.fromkeys(found)] or ["optimizer"]

    def forward(self, node: ast.AST) -> ast.expr:
        """Return a small loss instead of one that the file does not say."""
        self.notes.append(ast.unparse(node))
        self.uses.add("loss_of")
        nets = [self.net(each) for each in self.nets(getattr(node, "lineno", 0))]
        return _read(" + ".join(f"loss_of({each}, batch)" for each in dict.fromkeys(nets)))

    def net(self, optimizer: str) -> str:
        """Return the model whose parameters an optimizer has."""
        self.objects.setdefault(optimizer, OPTIMIZER)
        names = [each for each, kind in self.objects.items() if kind == OPTIMIZER]
        return "net" if len({each.of for each in self.trace.of("step", "bare")}) < 2 else f"net{names.index(optimizer) + 1}"

    def loss(self, node: ast.AST) -> ast.expr:
        """Return a loss: the arithmetic of the source over small losses."""
        match node:
            case ast.Name(id=name) if name in self.scope.assigned or name in self.scope.params:
                self.scope.needed.add(name)
                return ast.Name(name)
            case ast.Attribute() if identifier(name_of(node)) in self.kept:
                return self.named(node)
            case ast.BinOp(left=left, op=ast.Div() | ast.Mult() as op, right=right):
                if not _lossy(left) and _lossy(right):
                    left, right = right, left
                try:
                    return ast.BinOp(self.loss(left), op, self.value(right))
                except Unknown:
                    self.notes.append(ast.unparse(right))
                    return self.loss(left)
            case ast.BinOp(left=left, op=op, right=right) if _lossy(left) and _lossy(right):
                return ast.BinOp(self.loss(left), op, self.loss(right))
            case ast.Call() if "scale" in self.events.get(node, ()):
                return self.value(node)
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if self.helper(node) is None and _lossy(value):
                if attr in ("mean", "sum"):
                    return ast.Call(ast.Attribute(self.loss(value), attr), [], [])
                if attr in ("float", "to", "cuda", "squeeze", "clone"):
                    return self.loss(value)
            case ast.Call() if self.helper(node):
                return self.value(node)
        return self.forward(node)

    # ------------------------------------------------------------------------------------------------------ events

    def event(self, node: ast.Call, kind: str) -> ast.expr:
        """Return a call that a rule looks at."""
        func = node.func
        base = func.value if isinstance(func, ast.Attribute) else func
        match kind:
            case "scale":
                return ast.Call(_read("scaler.scale"), [self.loss(node.args[0])], [])
            case "backward":
                if self.kind(base) or not isinstance(func, ast.Attribute):
                    raise Unknown(ast.unparse(node))
                words = [each for each in node.keywords if isinstance(each.value, ast.Constant)]
                return ast.Call(ast.Attribute(self.loss(base), "backward"), [], words)
            case "clip":
                return self.clip(node)
            case "average":
                event = next(each for each in self.trace if each.node is node and each.kind == kind)
                average = identifier(event.on) if event.on and self.kind(base) == AVERAGE else "average"
                self.objects.setdefault(average, AVERAGE)
                self.notes.append(ast.unparse(node))
                return _read(f"{average}.update_parameters({self.net(self.nets(0)[0])})")
            case "schedule":
                if leaf(name_of(base)) in self.source.foreign:
                    self.notes.append(f"TODO: {name_of(base)} is of another file, and may count the optimizer's steps")
                return ast.Call(ast.Attribute(self.value(base), "step"), [], [])
            case "zero":
                words = [each for each in node.keywords if isinstance(each.value, ast.Constant)]
                return ast.Call(ast.Attribute(self.value(base), "zero_grad"), [], words)
            case "bare":
                return ast.Call(ast.Attribute(self.value(base), "step"), [], [])
        if self.kind(base) != SCALER or not isinstance(func, ast.Attribute):
            raise Unknown(ast.unparse(node))
        args = [self.value(each) for each in node.args if self.kind(each) == OPTIMIZER or self.local(each)]
        return ast.Call(ast.Attribute(ast.Name("scaler"), getattr(func, "attr", "")), args, [])

    def clip(self, node: ast.Call) -> ast.expr:
        """Return a clipping of the parameters that are stepped with next."""
        value = "value" in called(node)
        given = [*node.args[1:2], *(each.value for each in node.keywords if each.arg in ("max_norm", "clip_value"))]
        try:
            most: ast.expr = self.value(given[0]) if given else ast.Constant(0.1)
        except Unknown:
            most = ast.Constant(0.1)
        torchs = self.full(name_of(node.func)).startswith("torch.") or called(node).startswith("clip_grad_")
        if not torchs or not node.args or "parameters()" not in ast.unparse(node.args[0]):
            self.notes.append(ast.unparse(node))
        params = f"{self.net(self.nets(node.lineno)[0])}.parameters()"
        return ast.Call(_read(f"nn.utils.clip_grad_{'value' if value else 'norm'}_"), [_read(params), most], [])

    def called_as_one(self, node: ast.Call) -> ast.expr:
        """Return the call of a scaler that does all at once, as timm's; what it does stands in the written file."""
        self.uses.add("iterate")
        words = []
        for each in node.keywords:
            if each.arg in ("clip_grad", "update_grad", "need_update"):
                words.append(ast.keyword(each.arg, self.value(each.value)))
        params = _read(f"{self.net(self.nets(node.lineno)[0])}.parameters()")
        return ast.Call(ast.Name("iterate"), [ast.Name("scaler"), self.loss(node.args[0]), self.value(node.args[1]), params], words)

    def helper(self, node: ast.Call) -> Function | None:
        """Return the function of this file that is called, if something that a rule looks at happens in it."""
        name = called(node)
        found = [each for each in self.source.functions if each.name == name]
        own = isinstance(node.func, ast.Name) or name_of(node.func).startswith("self.")
        if len(found) != 1 or not own or found[0] is self.place:
            return None
        inside = {*ast.walk(found[0])}
        return found[0] if any(each in inside and self.events[each] & KEPT for each in self.events) else None

    def of_file(self, node: ast.Call, function: Function) -> ast.expr:
        """Return the call of a function of the file, which is written too."""
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
        own = names[1:] if names[:1] in (["self"], ["cls"]) else names
        if function not in self.helpers:
            self.helpers[function] = ("", [])
            outer, notes = self.scope, self.notes
            self.scope = Scope(function.body, tuple(own))
            text = self.written(self.scope)
            params = [each for each in own if each in self.scope.needed]
            self.scope, self.notes = outer, notes
            self.helpers[function] = (text, params)
        params = self.helpers[function][1]
        given = dict(zip(own, node.args, strict=False)) | {each.arg: each.value for each in node.keywords if each.arg}
        words = [ast.keyword("batch", ast.Name("batch"))]
        for each in params:
            if each not in given:
                default = self.source.default(function, each)
                words.append(ast.keyword(each, default or self.setting(each)))
                continue
            try:
                lossy = _LOSS.search(each)
                words.append(ast.keyword(each, self.loss(given[each]) if lossy else self.value(given[each])))
            except Unknown:
                self.notes.append(ast.unparse(given[each]))
                words.append(ast.keyword(each, ast.Constant(None)))
        return ast.Call(ast.Name(function.name), [], words)

    # -------------------------------------------------------------------------------------------------- statements

    def written(self, scope: Scope) -> str:
        """Return the statements of a function that are kept, after those that they need."""
        scope.assigned = {
            each.id for part in scope.body for each in ast.walk(part)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }  # fmt: skip
        while True:
            before, todo = {*scope.needed}, [*self.todo]
            lines = [*self.block(scope.body, inner=not scope.step)]
            if before == scope.needed:
                return "\n".join(lines)
            self.todo = todo

    def block(self, body: Sequence[ast.stmt], *, inner: bool) -> Iterator[str]:
        """Yield the lines of the statements that are kept; `inner`: a function's own, or those of a loop in the step."""
        for statement in body:
            self.notes = []
            try:
                yield from self.statement(statement, inner=inner)
            except Unknown as error:
                self.todo.append(f"line {statement.lineno}")
                yield f"pass  # TODO: line {statement.lineno}, as {_short(str(error))} is not in the file: {_short(ast.unparse(statement))}"

    def statement(self, node: ast.stmt, *, inner: bool) -> Iterator[str]:
        """Yield the lines of a statement, if it is kept."""
        match node:
            case ast.If():
                yield from self.branch(node, inner=inner)
            case ast.For(target=target, iter=iterated, body=body):
                lines = [*self.block(body, inner=True)]
                if "average" in self.events.get(node, ()):
                    yield from self.mixed(node)
                elif _does(lines):
                    yield f"for {self.over(target, iterated)}:"
                    yield from _indented(lines)
            case ast.With(items=items, body=body):
                lines = [*self.block(body, inner=inner)]
                kept = [ast.unparse(each) for each in items if re.search(r"torch\.(no|enable)_grad", ast.unparse(each))]
                if kept and _does(lines):
                    self.uses.add("torch")
                    yield f"with {', '.join(kept)}:"
                    yield from _indented(lines)
                else:
                    yield from lines
            case ast.Try(body=body, orelse=orelse, finalbody=final):
                yield from self.block([*body, *orelse, *final], inner=inner)
            case ast.Continue() | ast.Break():
                yield "return" if not inner else ast.unparse(node)
            case ast.Return(value=value):
                yield "return" if self.scope.step or value is None else f"return {ast.unparse(self.returned(value))}"
            case ast.Assign(targets=[target], value=value):
                yield from self.assign(target, value, node)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from self.assign(target, value, node)
            case ast.AugAssign(target=target, op=op, value=value):
                yield from self.augment(node, target, op, value)
            case ast.Expr(value=value) if self.matters(value):
                yield self.line(self.value(value), node)

    def matters(self, node: ast.AST) -> bool:
        """Return whether something that a rule looks at happens in an expression."""
        inside = [*ast.walk(node)]
        events = any(self.events.get(each, set()) & KEPT for each in inside)
        grad = isinstance(node, ast.Call) and node in self.events or any("grad" in self.events.get(each, ()) for each in inside)
        helped = any(isinstance(each, ast.Call) and self.helper(each) for each in inside)
        return events or helped or (grad and ".grad" in words_in(node))

    def line(self, node: ast.AST, said: ast.stmt) -> str:
        """Return a statement, with a comment on what in it is a stand-in."""
        marks = [each for each in self.notes if each.startswith("TODO")]
        notes = ", ".join(dict.fromkeys(_short(each) for each in self.notes if each not in marks))
        self.todo += marks
        about = f"  # for {notes}, line {said.lineno}" * bool(notes) + "".join(f"  # {each}" for each in dict.fromkeys(marks))
        self.notes = []
        return ast.unparse(ast.fix_missing_locations(node)) + about

    def stored(self, target: ast.expr) -> str:
        """Return the identifier that an assignment sets; attributes and elements outlive the iteration."""
        if isinstance(target, ast.Name):
            return target.id
        return identifier(name_of(target)) if isinstance(target, ast.Attribute) else ""

    def assign(self, target: ast.expr, value: ast.expr, node: ast.stmt) -> Iterator[str]:
        """Yield an assignment whose name is needed, or in which something happens."""
        if isinstance(target, ast.Tuple):
            names = [self.stored(each) for each in target.elts]
            if isinstance(value, ast.Tuple) and len(value.elts) == len(names):
                for pair in zip(target.elts, value.elts, strict=True):
                    yield from self.assign(*pair, node)
                return
            if self.matters(value):
                yield self.line(ast.Assign([ast.Name("_")], self.value(value)), node)
            for name in names:
                if name in self.scope.needed:
                    yield self.line(ast.Assign([ast.Name(name)], self.computed(name, value)), node)
            return
        name = self.stored(target)
        happens = self.matters(value)
        grad = "grad" in self.events.get(node, ()) and ".grad" in words_in(target)
        if grad:
            yield self.line(ast.Assign([self.value(target)], self.value(value)), node)
        elif isinstance(target, ast.Attribute) and (name in self.kept or happens or _LOSS.search(name)) and not self.kind(target):
            self.kept.setdefault(name, "None" if not self.source.literal(name) else self.source.literal(name)[0])  # type: ignore[index]
            yield self.line(ast.Assign([ast.Name(name)], self.computed(name, value)), node)
        elif self.kind(target) and not happens or ast.unparse(value) == ast.unparse(target):
            return  # an object that is made where make() makes it
        elif name in self.scope.needed or happens:
            yield self.line(ast.Assign([ast.Name(name or "_")], self.computed(name, value)), node)

    def computed(self, name: str, value: ast.expr) -> ast.expr:
        """Return what a name is assigned: a loss, a value, or a stand-in for it."""
        if self.matters(value) and not any("scale" in self.events.get(each, ()) for each in ast.walk(value)):
            return self.value(value)
        scaled = any("scale" in self.events.get(each, ()) for each in ast.walk(value))
        if scaled or _LOSS.search(name) and ".item" not in ast.unparse(value) and not isinstance(value, ast.Constant | ast.Dict | ast.List):
            return self.loss(value)
        try:
            return self.value(value)
        except Unknown:
            self.notes.append(ast.unparse(value))
            return _read(self.guess(name)[0])

    def returned(self, value: ast.expr) -> ast.expr:
        """Return what a function of the file returns, as far as it is known."""
        if isinstance(value, ast.Tuple):
            return ast.Tuple([self.returned(each) for each in value.elts])
        try:
            return self.loss(value) if isinstance(value, ast.Name) and _LOSS.search(value.id) else self.value(value)
        except Unknown:
            return ast.Constant(None)

    def augment(self, node: ast.stmt, target: ast.expr, op: ast.operator, value: ast.expr) -> Iterator[str]:
        """Yield ``+=`` and its kin where the name is needed; a counter of iterations outlives one."""
        name = self.stored(target)
        if "grad" in self.events.get(node, ()) and ".grad" in words_in(target):
            yield self.line(ast.AugAssign(self.value(target), op, self.value(value)), node)
        elif name and (name in self.scope.needed or name in self.kept or name in self.settings):
            add = isinstance(op, ast.Add | ast.Sub)
            known = self.loss(value) if add and _LOSS.search(name) and _lossy(value) else self.value(value)
            if isinstance(target, ast.Attribute) or self.scope.step and isinstance(value, ast.Constant):
                self.settings.pop(name, None)
                self.kept.setdefault(name, "0")
            yield self.line(ast.AugAssign(ast.Name(name), op, known), node)

    def branch(self, node: ast.If, *, inner: bool) -> Iterator[str]:
        """Yield a condition with what is kept below it."""
        words = {*words_in(node.test)}
        asks = has(words, ASKS.pattern) or "%" in words or has(words, "accum")
        parts = []
        for body in (node.body, node.orelse):
            lines = [*self.block(body, inner=inner)]
            parts.append(lines if _does(lines) or (asks and lines) else [])
        if not any(parts):
            return
        self.notes = []
        test = self.test(node.test)
        if (known := self.known(test)) is not None:
            yield from parts[not known]
            return
        yield re.sub(r"(  #|$)", r":\1", "if " + self.line(test, node), count=1)
        yield from _indented(parts[0] or ["pass"])
        if parts[1]:
            yield "else:"
            yield from _indented(parts[1])

    def known(self, test: ast.expr) -> bool | None:
        """Return whether a condition holds, where a setting was chosen so that the scaler's step is reached."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                known = self.known(operand)
                return None if known is None else not known
            case ast.Constant(value=bool(value)):
                return value
            case ast.Name(id=name) if name in self.settings and self.settings[name] in (("None", ""), ("False", ""), ("True", "")):
                return self.settings[name][0] == "True"
            case ast.Compare(left=ast.Name(id="scaler"), ops=[op], comparators=[ast.Constant(value=None)]):
                return isinstance(op, ast.IsNot)
        return None

    def test(self, node: ast.expr) -> ast.expr:
        """Return a condition; of what is not in the file, what leads to the step."""
        if isinstance(node, ast.BoolOp):
            return ast.BoolOp(node.op, [self.test(each) for each in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ast.UnaryOp(node.op, self.test(node.operand))
        try:
            return self.value(node)
        except Unknown:
            self.notes.append(ast.unparse(node))
            negative = re.search(r"nan|inf\b|isinf|skip|overflow", ast.unparse(node), re.I)
            return ast.Constant(not negative)

    def over(self, target: ast.expr, iterated: ast.expr) -> str:
        """Return what a loop in the step runs over; twice where that is not known."""
        text = ast.unparse(iterated)
        if re.match(r"range\(|reversed\(range", text) or re.search(r"parameters\(\)|param_groups", text) or self.kind(iterated) == OPTIMIZER:
            with suppress(Unknown):
                return f"{ast.unparse(target)} in {ast.unparse(self.value(iterated))}"
        names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
        return f"{names[0] if 'enumerate' in ast.unparse(iterated) else '_'} in range(2)"

    def mixed(self, node: ast.For) -> Iterator[str]:
        """Yield an average that is written by hand: the model that it moves is one."""
        names, pairs = re.findall(r"\w+", ast.unparse(node.target)), getattr(node.iter, "args", [])
        text = "\n".join(map(ast.unparse, node.body))
        moved = [k for k, each in enumerate(names) if re.search(rf"\b{each}(\.data)?(\.(mul_|lerp_|copy_)|\.data =| = )", text)]
        about = pairs[moved[0]] if moved and moved[0] < len(pairs) else node.iter
        inside = [each for each in ast.walk(about) if isinstance(each, ast.Name | ast.Attribute)]
        average = next((each for each in map(identifier, map(name_of, inside)) if each not in ("parameters", "module", "state_dict", "zip")), "average")
        self.objects[average] = AVERAGE
        yield self.line(_read(f"{average}.update_parameters({self.net(self.nets(0)[0])})"), node) + f"  # for the loop of line {node.lineno}"

    # -------------------------------------------------------------------------------------------------- the module

    def module(self) -> str:
        """Return the whole file."""
        body = getattr(self.place, "body", [])
        self.scope = Scope(body, step=True)
        loop = isinstance(self.place, ast.For | ast.While | ast.AsyncFor)
        counter = ""
        if isinstance(self.place, ast.For) and "enumerate" in ast.unparse(self.place.iter):
            first = self.place.target.elts[0] if isinstance(self.place.target, ast.Tuple) else None
            counter = first.id if isinstance(first, ast.Name) else ""
        elif isinstance(self.place, ast.For) and "range" in ast.unparse(self.place.iter) and isinstance(self.place.target, ast.Name):
            counter = self.place.target.id
        elif isinstance(self.place, Function):
            self.scope.params = ()
        if counter:
            self.kept[counter] = "-1"
        before: dict[str, str] = {}
        while True:
            self.todo, self.helpers, self.settings = [], {}, {}
            step = self.written(self.scope)
            if before == self.kept:
                break
            before = {**self.kept}
        if isinstance(self.place, Function) and "zero_grad(" not in step + "".join(text for text, _ in self.helpers.values()):
            step = "\n".join([f"{each}.zero_grad()  # which is done elsewhere" for each in dict.fromkeys(self.net_names())] + [step])
        step = re.sub(r"\nreturn$", "", step)
        kept = {name: first for name, first in self.kept.items() if re.search(rf"\b{name}\b", step + "".join(t for t, _ in self.helpers.values()))}
        counting = [f"{counter} += 1"] if counter in kept else []
        for name in {*self.net_names()}:
            self.objects.setdefault(name, OPTIMIZER)
        lines = [*self.setup(), *(f"{name} = {first}" for name, first in kept.items())]
        everything = step + "".join(text for text, _ in self.helpers.values())
        for function, (text, params) in reversed(self.helpers.items()):
            outer = [name for name in kept if name not in params and re.search(rf"\b{name}\b [+\-*/]?= ", text)]
            lines += ["", f"def {function.name}({', '.join(['batch', *params])}):", *_indented([f"nonlocal {', '.join(outer)}"] * bool(outer)), *_indented([text or "pass"])]
        mine = [name for name in kept if re.search(rf"\b{name}\b [+\-*/]?= ", step) or name == counter]
        lines += ["", "def step(batch):", *_indented([f"nonlocal {', '.join(mine)}"] * bool(mine)), *_indented([*counting, step or "pass"])]
        state = {**{each: each for each in self.carried()}}
        state |= {f"data.{name}": f"lambda: {name}" for name, first in kept.items() if first != "None"}
        lines += self.checkpoint([*self.carried()], [*kept])
        shown = ", ".join(f'"{key}": {value}' for key, value in state.items())
        last = ", save, load" if self.saves() else ""
        lines += ["", f"return Loop(step, {{{shown}}}{', save=save, load=load' if last else ''})"]
        imports = sorted({self.source.imports[root] for root in self.uses if root in self.source.imports} - {"import torch"})
        imports += ["from torch import nn"] * ("from torch import nn" not in imports)
        averages = AVERAGE in self.objects.values()
        imports += ["from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn"] * averages
        marks = f" TODO marks what could not be read: {len(self.todo)}." if self.todo else ""
        place = f"{self.path}:{getattr(self.place, 'lineno', 1)}"
        text = HEAD.format(place=place, todo=marks, imports="\n".join(imports) + "\n", batches=BATCHES)
        text += LOSS + (ITERATE if "iterate" in self.uses else "")
        return text + "\n\ndef make(scaler):\n" + "\n".join(each.rstrip() for each in _indented(lines)) + "\n"

    def net_names(self) -> Iterator[str]:
        for event in self.trace.of("step", "bare"):
            if "?" not in event.of and (event.kind == "step" or identifier(event.of) in self.objects):
                yield identifier(event.of)

    def carried(self) -> Iterator[str]:
        """Yield the objects that training carries, by their names in the written file."""
        optimizers = [name for name, kind in self.objects.items() if kind == OPTIMIZER]
        yield from dict.fromkeys(self.net(each) for each in optimizers)
        yield from (name for name, kind in self.objects.items() if kind in (OPTIMIZER, SCHEDULE, AVERAGE))

    def setup(self) -> Iterator[str]:
        """Yield the lines that make the objects and the settings."""
        yield "torch.manual_seed(0)"
        optimizers = [name for name, kind in self.objects.items() if kind == OPTIMIZER]
        for net in dict.fromkeys(map(self.net, optimizers)):
            yield f"{net} = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))"
        for name, kind in self.objects.items():
            if kind == MODEL:
                yield f"{name} = {self.net(self.trainer(name, optimizers))}"
        for name in optimizers:
            net = self.net(name)
            made, where, _ = self.source.optimizer(name)
            yield f"{name} = torch.optim.{made}({net}.parameters(), lr=0.01)" + (f"  # line {where}" if where else "")
        for name, kind in self.objects.items():
            if kind == SCHEDULE:
                yield f"{name} = torch.optim.lr_scheduler.StepLR({optimizers[0]}, 1, 0.9)"
            elif kind == AVERAGE:
                yield f"{name} = AveragedModel({self.net(optimizers[0])}, multi_avg_fn=get_ema_multi_avg_fn(0.9))"
        for name, (value, where) in self.settings.items():
            if name not in self.kept:
                said = self.names.get(name, name)
                about = ", ".join(each for each in (said if said != name else "", where) if each)
                yield f"{name} = {value}" + f"  # {about}" * bool(about)

    def trainer(self, model: str, optimizers: list[str]) -> str:
        """Return the optimizer of a model: the one that is made with it, or that is named alike."""
        made = {name: self.source.optimizer(name)[2] for name in optimizers}
        mine = [name for name, text in made.items() if re.search(rf"\b{model}\b", text)]
        alike = [name for name in optimizers if {*re.split("_|opt.*", name.lower())} & {*model.lower().split("_")} - {""}]
        return [*mine, *alike, *optimizers][0]

    def saves(self) -> bool:
        """Return whether the file shows what is in a checkpoint."""
        return any(saved_optimizers(self.source))

    def checkpoint(self, carried: list[str], kept: list[str]) -> Iterator[str]:
        """Yield save() and load() with what the file saves: the scaler only where it is mentioned."""
        if not self.saves():
            return
        names = [*carried, *["scaler"] * mentions_a_scaler(self.source)]
        yield from ("", "def save():", "    return {")
        yield from (f'        "{name}": {name}.state_dict(),' for name in names)
        yield from (f'        "{name}": {name},' for name in kept)
        yield from ("    }", "", "def load(checkpoint):")
        yield from (f"    nonlocal {', '.join(kept)}",) * bool(kept)
        yield from (f'    {name}.load_state_dict(checkpoint["{name}"])' for name in names)
        yield from (f'    {name} = checkpoint["{name}"]' for name in kept)



def _lossy(node: ast.AST) -> bool:
    """Return whether an expression may be a loss, and no setting."""
    if isinstance(node, ast.Constant):
        return False
    if isinstance(node, ast.Name | ast.Attribute):
        return bool(_LOSS.search(leaf(name_of(node)))) and not re.search("weight|coef|scale|lambda", leaf(name_of(node)))
    return any(_LOSS.search(each) for each in words_in(node)) or isinstance(node, ast.Call)


def _does(lines: Sequence[str]) -> bool:
    """Return whether more than leaving happens in some lines."""
    return any(not re.match(r"(return|continue|break|pass)\b", each.strip()) for each in lines)


def _indented(lines: Sequence[str]) -> Iterator[str]:
    return (f"    {each}" for line in lines for each in line.split("\n"))


def _short(text: str) -> str:
    text = re.sub(r"\s+", " ", text)
    return text if len(text) <= 60 else text[:57] + "..."


def _read(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def identifier(name: str) -> str:
    """Return a name for a dotted name: its last part, with a key or number that follows."""
    parts = re.findall(r"\w+", re.sub(r"\[\]|\(\)", "", name)) or ["it"]
    made = "_".join(parts[-2:]) if parts[-1].isdigit() else parts[-1]
    return f"{made}_" if keyword.iskeyword(made) or hasattr(builtins, made) or made in OWN else made


# ---------------------------------------------------------------------------------------------------------- the module

HEAD = '''"""A loop for `ampsim check-loop`, read from {place} by `ampsim adapt`.

The order of calls is the source's. Stand-ins: the models, losses and batches; a comment says what a line is for.{todo}
"""

import torch
{imports}
from ampsim.testing import Loop

draw = torch.Generator().manual_seed(7)
batches = [torch.randn(8, 3, generator=draw) for _ in range({batches})]
'''
LOSS = '''

def loss_of(net, batch):
    return (net(batch) - 1.0).square().mean()
'''
ITERATE = '''

def iterate(scaler, loss, optimizer, parameters, clip_grad=None, update_grad=True, need_update=True):
    """As timm's NativeScaler, which is called instead of a torch scaler."""
    scaler.scale(loss).backward()
    if update_grad and need_update:
        scaler.unscale_(optimizer)
        if clip_grad:
            nn.utils.clip_grad_norm_(parameters, clip_grad)
        scaler.step(optimizer)
        scaler.update()
'''


def adapt(text: str, path: str, line: int | None = None) -> tuple[str, list[str]]:
    """Return a module with ``make(scaler)`` for the loop of a source, and its marks.

    Args:
        text: of the source.
        path: of it, as it is named in the module.
        line: in the loop that is meant; None is the first with a scaler's step.

    Raises:
        UnreadableError: the source is no Python, or no scaler steps in it, or not around this line.
    """
    source = parse(text)
    if source is not None:
        for node in source.nodes:  # names of the module's own
            for name in {"id", "arg", "name"} & {*getattr(node, "_fields", ())}:
                if getattr(node, name) in OWN and not isinstance(node, ast.alias):
                    setattr(node, name, f"{getattr(node, name)}_")
        source.traces += traces_of(source)
    for trace in source.traces if source else ():
        for step in trace.of("step"):
            made = Adapter(source, trace, step, path)  # type: ignore[arg-type]
            place = made.place
            if line is None or getattr(place, "lineno", 0) <= line <= (getattr(place, "end_lineno", 0) or 0):
                return made.module(), made.todo
    where = f" around line {line}" if line else ""
    raise UnreadableError(f"no scaler.step(optimizer) is seen{where}; expected a loop with torch's GradScaler")

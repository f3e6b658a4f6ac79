"""Writes expressions anew, in the names of the written file: values, losses, and the calls that a rule looks at."""

import ast
import builtins
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import cached_property
from typing import cast

from ampsim.lint.adapt.facts import defaults
from ampsim.lint.adapt.names import KEPT, MODEL, Names, Scope, UnknownError
from ampsim.lint.adapt.text import identifier, lossy, names, read
from ampsim.lint.names import AVERAGE, OPTIMIZER, SCALER, SCHEDULE, called, leaf, name_of
from ampsim.lint.source import Function

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


class Expressions(Names, ABC):
    """The expressions of a loop."""

    @abstractmethod
    def written(self, scope: Scope) -> str:
        """Return the statements of a function that are kept."""

    def value(self, node: ast.AST) -> ast.expr:
        """Return an expression in the names of the written file. UnknownError: it needs what is not there."""
        match node:
            case ast.Constant():
                return node
            case ast.Call():
                return self.call(node)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self.named(node)
            case ast.Lambda() | ast.Await() | ast.Yield() | ast.YieldFrom():
                raise UnknownError(ast.unparse(node))
            case ast.Compare(
                ops=[ast.In() | ast.NotIn()], comparators=[ast.Name() | ast.Attribute() | ast.Subscript()]
            ):
                raise UnknownError(ast.unparse(node))
            case ast.expr():
                return cast("ast.expr", self.parts(node))
        raise UnknownError(ast.unparse(node))

    def parts(self, node: ast.AST) -> ast.AST:
        """Return a node with its expressions in the names of the written file."""

        def part(each: object) -> object:
            match each:
                case list():
                    return [part(one) for one in each]
                case ast.expr():
                    return self.value(each)
                case ast.comprehension():
                    return self.parts(each)
            return each

        return type(node)(**{key: part(each) for key, each in ast.iter_fields(node)})

    def named(self, node: ast.Name | ast.Attribute | ast.Subscript) -> ast.expr:
        """Return a name, an attribute or an element in the names of the written file."""
        name, kind = name_of(node), self.kind(node)
        if kind == SCALER:
            return ast.Name("scaler")
        if isinstance(node, ast.Name) and node.id in self.scope.local():
            self.scope.needed.add(node.id)
            return node
        root = name.partition(".")[0]
        if root in self.modules and root not in self.scope.assigned and "(" not in name and not kind:
            if self.modules[root].partition(".")[0] not in _MODULES or _FOREIGN.match(self.full(name)):
                raise UnknownError(name)
            self.uses.add(root)
            return node
        if kind:
            return self.object(node)
        if isinstance(node, ast.Attribute) and identifier(name) in self.kept:
            self.scope.needed.add(identifier(name))
            return ast.Name(identifier(name))
        if isinstance(node, ast.Name):
            return node if hasattr(builtins, node.id) else self.setting(name)
        return self.below(node, name)

    def below(self, node: ast.Attribute | ast.Subscript, name: str) -> ast.expr:
        """Return an attribute or an element of what is known, or a setting."""
        kind = self.kind(node.value)
        if isinstance(node, ast.Subscript) and not kind and ("?" in name or "(" in name or not self.is_setting(node)):
            return ast.Subscript(self.value(node.value), self.value(node.slice))
        if isinstance(node, ast.Attribute) and node.attr == "module" and kind == MODEL:
            return self.value(node.value)
        lacks = kind in _HAS and isinstance(node, ast.Attribute) and not _HAS[kind].match(node.attr)
        if lacks or ("?" not in name and "(" not in name and self.is_setting(node)):
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
        return isinstance(node, ast.Name) and node.id not in self.scope.local()

    def full(self, name: str) -> str:
        """Return a dotted name with the module that its first part was imported as."""
        root, dot, rest = name.partition(".")
        return self.modules.get(root, root) + dot + rest

    def arguments(self, node: ast.Call) -> tuple[list[ast.expr], list[ast.keyword]]:
        """Return the arguments of a call."""
        words = [ast.keyword(each.arg, self.value(each.value)) for each in node.keywords]
        return [self.value(each) for each in node.args], words

    def call(self, node: ast.Call) -> ast.expr:
        """Return a call. UnknownError: of what is not in the file."""
        kinds, func = self.events.get(node, set()) & KEPT, node.func
        if {"backward", "step"} <= kinds:
            return self.called_as_one(node)
        if kinds:
            return self.event(node, min(kinds))
        if function := self.helper(node):
            return self.of_file(node, function)
        if isinstance(func, ast.Name) and func.id not in self.modules and hasattr(builtins, func.id):
            return self.builtin(node, func)
        name = name_of(func)
        if isinstance(func, ast.Attribute | ast.Name) and name.partition(".")[0] in self.modules and "(" not in name:
            return ast.Call(self.named(func), *self.arguments(node))
        if isinstance(func, ast.Attribute) and (self.kind(func.value) or self.local(func.value)):
            kind = self.kind(func.value)
            if _HAS[kind].match(func.attr) if kind in _HAS else kind == SCALER or _METHODS.match(func.attr):
                return ast.Call(ast.Attribute(self.value(func.value), func.attr), *self.arguments(node))
        raise UnknownError(ast.unparse(node))

    def builtin(self, node: ast.Call, func: ast.Name) -> ast.expr:
        """Return the call of one of Python's own functions."""
        if func.id in ("print", "open", "super", "next", "iter", "exec", "eval"):
            raise UnknownError(ast.unparse(node))
        if func.id in ("isinstance", "hasattr"):
            return ast.Constant(not re.search("list|tuple|dict|Deep|FSDP|Fully", ast.unparse(node)))
        if func.id == "len":
            with suppress(UnknownError):
                of = self.value(node.args[0])
                if self.local(node.args[0]) and not self.settings.keys() & names([of], ast.Load):
                    return ast.Call(func, [of], [])
            return read("len(batches)")
        return ast.Call(func, *self.arguments(node))

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
        return isinstance(node, ast.Name) and (node.id in self.scope.local() or bool(self.kind(node)))

    def nets(self, line: int) -> list[str]:
        """Return the optimizers that step next with the gradients of a loss of this line."""
        order = [each for each in self.inside if each.kind in ("backward", "step", "bare") and each.of != "?"]
        starts = [
            k for k, each in enumerate(order) if each.kind == "backward" and getattr(each.node, "lineno", 0) >= line
        ]
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
        return read(" + ".join(f"loss_of({each}, batch)" for each in dict.fromkeys(nets)))

    def net(self, optimizer: str) -> str:
        """Return the model whose parameters an optimizer has."""
        self.objects.setdefault(optimizer, OPTIMIZER)
        names = [each for each, kind in self.objects.items() if kind == OPTIMIZER]
        return (
            "net"
            if len({each.of for each in self.inside if each.kind in ("step", "bare")}) < 2
            else f"net{names.index(optimizer) + 1}"
        )

    def loss(self, node: ast.AST) -> ast.expr:
        """Return a loss: the arithmetic of the source over small losses."""
        match node:
            case ast.Name(id=name) if name in self.scope.local():
                return self.value(node)
            case ast.Attribute() if identifier(name_of(node)) in self.kept:
                return self.value(node)
            case ast.BinOp(op=ast.Div() | ast.Mult()):
                return self.scaled(node)
            case ast.BinOp(left=left, op=op, right=right) if lossy(left) and lossy(right):
                return ast.BinOp(self.loss(left), op, self.loss(right))
            case ast.Call() if "scale" in self.events.get(node, ()) or self.helper(node):
                return self.value(node)
            case ast.Call(func=ast.Attribute(value=value, attr="mean" | "sum" as attr)) if lossy(value):
                return ast.Call(ast.Attribute(self.loss(value), attr), [], [])
            case ast.Call(func=ast.Attribute(value=value, attr="float" | "to" | "cuda" | "squeeze" | "clone")):
                if lossy(value):
                    return self.loss(value)
        return self.forward(node)

    def scaled(self, node: ast.BinOp) -> ast.expr:
        """Return a loss times or divided by a number; without that, where it is not known."""
        left, right = node.left, node.right
        if not lossy(left) and lossy(right):
            left, right = right, left
        try:
            return ast.BinOp(self.loss(left), node.op, self.value(right))
        except UnknownError:
            self.notes.append(ast.unparse(right))
            return self.loss(left)

    def event(self, node: ast.Call, kind: str) -> ast.expr:
        """Return a call that a rule looks at."""
        func = node.func
        base = func.value if isinstance(func, ast.Attribute) else func
        words = [each for each in node.keywords if isinstance(each.value, ast.Constant)]
        match kind:
            case "scale":
                return ast.Call(read("scaler.scale"), [self.loss(node.args[0])], [])
            case "backward" if isinstance(func, ast.Attribute) and not self.kind(base):
                return ast.Call(ast.Attribute(self.loss(base), "backward"), [], words)
            case "clip":
                return self.clip(node)
            case "average":
                return self.average(node, base)
            case "schedule":
                if leaf(name_of(base)) in self.source.foreign:
                    self.notes.append(f"TODO: {name_of(base)} is of another file, and may count the optimizer's steps")
                return ast.Call(ast.Attribute(self.value(base), "step"), [], [])
            case "zero" | "bare":
                return ast.Call(ast.Attribute(self.value(base), called(node)), [], words)
        if self.kind(base) != SCALER or not isinstance(func, ast.Attribute) or (kind == "update" and node.args):
            raise UnknownError(ast.unparse(node))
        return ast.Call(read(f"scaler.{func.attr}"), [self.value(each) for each in node.args[:1]], [])

    def average(self, node: ast.Call, base: ast.expr) -> ast.expr:
        """Return the update of an average."""
        on = next(each.on for each in self.trace if each.node is node and each.kind == "average")
        average = identifier(on) if on and self.kind(base) == AVERAGE else "average"
        self.objects.setdefault(average, AVERAGE)
        self.notes.append(ast.unparse(node))
        return read(f"{average}.update_parameters({self.net(self.nets(0)[0])})")

    def clip(self, node: ast.Call) -> ast.expr:
        """Return a clipping of the parameters that are stepped with next."""
        value = "value" in called(node)
        given = [*node.args[1:2], *(each.value for each in node.keywords if each.arg in ("max_norm", "clip_value"))]
        try:
            most: ast.expr = self.value(given[0]) if given else ast.Constant(0.1)
        except UnknownError:
            most = ast.Constant(0.1)
        if isinstance(most, ast.Constant) and most.value is None:
            raise UnknownError(ast.unparse(node))  # a norm that is taken, by a function of the project
        torchs = self.full(name_of(node.func)).startswith("torch.") or called(node).startswith("clip_grad_")
        if not torchs or not node.args or "parameters()" not in ast.unparse(node.args[0]):
            self.notes.append(ast.unparse(node))
        params = f"{self.net(self.nets(node.lineno)[0])}.parameters()"
        return ast.Call(read(f"nn.utils.clip_grad_{'value' if value else 'norm'}_"), [read(params), most], [])

    def called_as_one(self, node: ast.Call) -> ast.expr:
        """Return the call of a scaler that does all at once, as timm's; what it does stands in the written file."""
        self.uses.add("iterate")
        known = [each for each in node.keywords if each.arg in ("clip_grad", "update_grad", "need_update")]
        words = [ast.keyword(each.arg, self.value(each.value)) for each in known]
        params = read(f"{self.net(self.nets(node.lineno)[0])}.parameters()")
        return ast.Call(
            ast.Name("iterate"), [ast.Name("scaler"), self.loss(node.args[0]), self.value(node.args[1]), params], words
        )

    def helper(self, node: ast.Call) -> Function | None:
        """Return the function of this file that is called, if something that a rule looks at happens in it."""
        return self.happening.get(self.own(node))

    def own(self, node: ast.AST) -> str:
        """Return the name of the function of this file that may be called, or ""."""
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name)):
                return name
            case ast.Call(func=ast.Attribute(value=ast.Name(id=base), attr=name)) if base in self.instances:
                return name
        return ""

    @cached_property
    def instances(self) -> frozenset[str]:
        """The parameters that are said to be of a class of this file."""
        args = (arg for each in self.source.functions for arg in (*each.args.args, *each.args.kwonlyargs))
        return frozenset(a.arg for a in args if a.annotation and leaf(name_of(a.annotation)) in self.source.classes)

    @cached_property
    def happening(self) -> dict[str, Function]:
        """The functions of the file in which something happens that a rule looks at, by name."""
        inside = {each: [*ast.walk(each)] for each in self.source.functions}
        functions = [each for each in self.source.functions if self.place not in inside[each]]
        calls = {each: {*filter(None, map(self.own, inside[each]))} for each in functions}
        found = {each.name: each for each in functions if any(self.events.get(n, set()) & KEPT for n in inside[each])}
        while True:
            touched = (each for each in functions if each.name in self.source.touched and each.name not in found)
            more = {each.name: each for each in touched if calls[each] & found.keys()}
            if not more:
                return found
            found |= more

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
                default = defaults(function).get(each)
                words.append(ast.keyword(each, default if isinstance(default, ast.Constant) else self.setting(each)))
                continue
            try:
                lossy = self.is_loss(each)
                words.append(ast.keyword(each, self.loss(given[each]) if lossy else self.value(given[each])))
            except UnknownError:
                self.notes.append(ast.unparse(given[each]))
                words.append(ast.keyword(each, ast.Constant(None)))
        return ast.Call(ast.Name(function.name), [], words)

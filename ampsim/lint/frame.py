"""What the names of a function stand for, up to the statement that is walked."""

import ast
from dataclasses import dataclass, field
from typing import Self

from ampsim.lint.guards import is_setting
from ampsim.lint.names import SCALER, leaf, name_of, words_of
from ampsim.lint.source import Function, Source


@dataclass
class Frame:
    """A function that is walked, and what its names stand for.

    Attributes:
        source: its file.
        owner: its class.
        env: name -> the name of what it stands for.
        words: name -> the words of what it was assigned.
        scaled: name -> the scaler whose scaled loss it is.
        typed: name -> the class of this file that it is an instance of.
        opaque: names of what was computed, and is no setting.
        nested: name -> the function that is defined in it.
    """

    source: Source
    owner: str = ""
    env: dict[str, str] = field(default_factory=dict)
    words: dict[str, frozenset[str]] = field(default_factory=dict)
    scaled: dict[str, str] = field(default_factory=dict)
    typed: dict[str, str] = field(default_factory=dict)
    opaque: set[str] = field(default_factory=set)
    nested: dict[str, Function] = field(default_factory=dict)

    def name(self, node: ast.AST) -> str:
        """Return the name of what an expression stands for."""
        return name_of(node, self.env)

    def scaler_of(self, node: ast.AST) -> str:
        """Return the scaler by which the value of an expression is scaled, or ""."""
        match node:
            case ast.Call(func=ast.Attribute(attr="scale", value=value)) if (
                self.source.kind(self.name(value)) == SCALER
            ):
                return self.name(value)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self.scaled.get(self.name(node), "")
            case ast.BinOp(left=left, right=right):
                return self.scaler_of(left) or self.scaler_of(right)
            case ast.Call(func=ast.Attribute(attr="sum" | "mean" | "clone" | "squeeze", value=value)):
                return self.scaler_of(value)
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                return next((scaler for each in elts if (scaler := self.scaler_of(each))), "")
        return ""

    def bind(self, target: ast.expr, value: ast.expr) -> None:
        """Note what a name stands for from here on."""
        match target, value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                for pair in zip(targets, values, strict=True):
                    self.bind(*pair)
                return
            case ast.Tuple(elts=targets), _:
                for each in targets:
                    self.bind(each, value)
                return
        scaler, words = self.scaler_of(value), words_of(value, self.words)
        if isinstance(target, ast.Name):
            self.env.pop(target.id, None)
            self.words[target.id] = words
            (self.opaque.discard if is_setting(value, self) else self.opaque.add)(target.id)
            if isinstance(value, ast.Name | ast.Attribute | ast.Subscript) and "?" not in self.name(value):
                self.env[target.id] = self.name(value)
        name = self.name(target)
        self.scaled.pop(name, None)
        if scaler:
            self.scaled[name] = scaler
        if isinstance(value, ast.Call) and (made := leaf(name_of(value.func, {}))) in self.source.methods:
            self.typed[name] = made

    def over(self, target: ast.expr, iterated: ast.expr) -> frozenset[str]:
        """Name the targets of a loop by what it runs over; return the names."""
        match target, iterated:
            case ast.Tuple(elts=targets), ast.Call(func=ast.Name(id="zip"), args=args) if len(targets) == len(args):
                pairs = [*zip(targets, args, strict=True)]
            case ast.Tuple(elts=[_, inner]), ast.Call(func=ast.Name(id="enumerate"), args=[first, *_]):
                return self.over(inner, first)
            case ast.Name(id=name), ast.Name() | ast.Attribute() | ast.Call() | ast.Subscript():
                self.words[name] = words_of(iterated, self.words)
                self.env[name] = f"{self.name(iterated)}[]"
                return frozenset({self.env[name]})
            case _:
                stored = (each for each in ast.walk(target) if isinstance(each, ast.Name))
                names = frozenset(each.id for each in stored if isinstance(each.ctx, ast.Store))
                for name in names:
                    self.env.pop(name, None)
                return names
        return frozenset().union(*(self.over(*pair) for pair in pairs))

    def inner(self, function: Function, node: ast.Call) -> Self:
        """Return the frame of a called function: its parameters stand for the arguments."""
        names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        method = names[:1] in (["self"], ["cls"])
        frame = type(self)(self.source, self.owner if method else "", nested=dict(self.nested))
        if function.name in self.nested:
            frame.env, frame.words, frame.scaled = dict(self.env), dict(self.words), dict(self.scaled)
            frame.owner, frame.typed = self.owner, dict(self.typed)
        if isinstance(node.func, ast.Attribute) and method:
            base = self.name(node.func.value)
            frame.env[names.pop(0)] = base
            frame.owner = self.typed.get(base, self.owner)
        given: list[tuple[str, ast.expr]] = [*zip(names, node.args, strict=False)]
        given += [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg]
        for name, value in given:
            found = self.name(value)
            frame.env.pop(name, None) if "?" in found or "()" in found else frame.env.update({name: found})
            frame.words[name] = words_of(value, self.words)
            if scaler := self.scaler_of(value):
                frame.scaled[name] = scaler
            if not is_setting(value, self):
                frame.opaque.add(name)
            if found in self.typed:
                frame.typed[found] = self.typed[found]
        frame.annotate(function)
        return frame

    def annotate(self, function: Function) -> None:
        """Note the classes of this file that the parameters are said to be of."""
        for arg in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
            if arg.annotation and (said := leaf(name_of(arg.annotation, {}))) in self.source.methods:
                self.typed[self.env.get(arg.arg, arg.arg)] = said

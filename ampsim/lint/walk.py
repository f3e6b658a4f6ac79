"""One pass through a function and the functions of its file that it calls: what happens, in order.

`Walker` goes through statements with three things at hand: what the names stand for (`Bindings`),
the conditions that hold, and the loops around. What a rule may look at becomes an `Event` of a
`Trace`.
"""

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from ampsim.lint.bindings import Bindings
from ampsim.lint.events import Effect, Event, Guard, Trace
from ampsim.lint.names import (
    AVERAGE,
    OPTIMIZER,
    SCALER,
    SCHEDULE,
    arguments_of,
    assigned_in,
    called,
    has,
    is_wrapper,
    leaf,
    parts_of,
)
from ampsim.lint.source import Function, Source

# Calls within calls, and statements per walk: a file is read in milliseconds.
DEEPEST = 6
LONGEST = 4000
_CLIPS = re.compile(r"^clip_grad(ient)?s?(_norm|_value|_with_norm)?_*$")
_OWN_CLIP = re.compile(
    r"(?i)accel|fabric|trainer|strategy|plugin|engine|scaler|optim|^self$|precision"
)
_AVERAGES = re.compile(
    r"^_?(update|accumulate|step)_(?!\w*(loss|acc_|accuracy|met(er|ric)|norm))(\w*_)?ema(_\w+)?$|"
    r"(^|_)ema_(update|step)$|^_?apply_(\w+_)?ema$|^update_(moving_)?averages?$|"
    r"^_?(momentum_)?update_(teacher|momentum_encoder|key_encoder|target_network)s?$|"
    r"^_?momentum_update\w*$"
)
_DECAYS = re.compile(  # parameters that are moved towards others
    r"\.lerp_\(|\.copy_\(.*\.lerp\(|\.mul_\((.|\n)*\.add_\(|\.(data = |copy_\().*\*.*\+|"
    r"\[\w+\] = .*\*.*\+ \(1(\.0)? - .*\*"
)
# The kinds of what a method does, by the kind of its object and its name.
_WITH_ARGUMENTS = {
    SCALER: {
        "scale": "scale",
        "unscale_": "unscale",
        "step": "step",
        "minimize": "step",  # of paddle
        "update": "update",
    },
    OPTIMIZER: {"first_step": "bare", "second_step": "bare"},  # of SAM
}
_WITHOUT_ARGUMENTS = {
    SCALER: {"update": "update"},
    OPTIMIZER: {"step": "bare"},
    SCHEDULE: {"step": "schedule", "dampen": "schedule"},
}
_FUNCTIONS = {  # of anything but a scaler
    "unscale_": "unscale",
    "zero_grad": "zero",
    "clear_grad": "zero",
    "autocast": "autocast",
    "backward": "backward",
    "manual_backward": "backward",
    "scale_loss": "apex",
}
_OF_ACCELERATE = {
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_gradients",
    "unscale_gradients",
}
_MAYBE_SCALED = r"scal|accel|fabric|(^|_)amp(_|$)"  # of a loss
_MOVES = re.compile(r"(update\w*|step|accumulate)$")  # methods of an average
_NO_PARAMETERS = "loss|item|acc|metric|norm|decay_only|buffer"
# Effects of a call that is known by its name alone, unless its function shows them.
_BY_NAME = ("backward", "bare", "schedule", "clip")
_LEAVES = ast.Return | ast.Continue | ast.Break
_SIMPLE = (
    ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return | ast.Assert
)
LIGHTNING = "Lightning"


class Walker:
    """A walk through one function, or through the statements of the module.

    Attributes:
        trace: The events so far.
        names: What the names stand for, in the function that is walked now.
        guards: The conditions around the statement.
        passed: What must hold after branches that leave, up to the end of the loop or function.
        loops: The loops around the statement, each with the names of its items.
        stack: The functions that are entered, from the outermost.
        owner: The class of the method that is walked, or "".
        left: Statements until the walk ends.
    """

    def __init__(self, source: Source, start: ast.Module | Function) -> None:
        self.source = source
        self.trace = Trace(start)
        self.names = Bindings(source)
        self.guards: tuple[Guard, ...] = ()
        self.passed: tuple[Guard, ...] = ()
        self.loops: tuple[tuple[ast.AST, frozenset[str]], ...] = ()
        self.stack: tuple[ast.AST, ...] = (start,)
        self.owner = source.owners.get(start, "")
        self.left = LONGEST

    def block(self, body: Sequence[ast.stmt]) -> None:
        """Walk statements up to one that leaves."""
        for statement in body:
            self.left -= 1
            if self.left < 0:
                break
            self.walk(statement)
            if isinstance(statement, _LEAVES | ast.Raise):
                break

    def guarded(self, guards: Sequence[Guard], body: Sequence[ast.stmt]) -> None:
        """Walk statements under conditions."""
        kept = self.guards
        self.guards = (*self.guards, *guards)
        self.block(body)
        self.guards = kept

    def walk(self, node: ast.AST) -> None:
        """Walk the parts of a statement or an expression, then record what they do."""
        match node:
            case (
                ast.Name()
                | ast.Constant()
                | ast.ClassDef()
                | ast.FunctionDef()
                | ast.AsyncFunctionDef()
            ):
                pass
            case ast.If():
                self.branches(node)
            case ast.For() | ast.AsyncFor() | ast.While():
                self.loop(node)
            case (
                ast.match_case() | ast.ExceptHandler()
            ):  # which happens instead of others
                self.guarded((Guard(f"{id(node)} case", benign=False),), node.body)
            case _:
                for _, part in ast.iter_fields(node):
                    self.visit_parts(part if isinstance(part, list) else [part])
                self.record_effects(node)

    def visit_parts(self, parts: Sequence[object]) -> None:
        """Walk the parts of a node, or the statements of a block."""
        self.block([part for part in parts if isinstance(part, ast.stmt)])
        for part in parts:
            if isinstance(part, ast.AST) and not isinstance(part, ast.stmt):
                self.walk(part)

    def branches(self, node: ast.If) -> None:
        """Walk both ways of a condition; after one that leaves, the other one holds."""
        self.walk(node.test)
        before = self.passed
        branch = f"{id(node)} branch"
        for holds, body in ((True, node.body), (False, node.orelse)):
            own = self.names.guards(node.test, holds=holds)
            self.guarded((*own, Guard(branch, holds)), body)
            if not _leaves(body):
                continue
            if not isinstance(body[-1], ast.Raise | ast.If):
                self.passed += self.names.guards(node.test, holds=not holds)
        if _leaves([node]):  # nothing follows in this block
            self.passed = before

    def loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        """Walk the body of a loop once."""
        kept = self.loops
        passed = self.passed
        targets = frozenset[str]()
        if isinstance(node, ast.While):
            self.walk(node.test)
        else:
            self.walk(node.iter)
            if _mixes(node, self.names.words(node.iter)):
                self.emit(Effect("average", on="this average"), node)
            targets = self.names.bind_loop(node.target, node.iter)
        self.loops = (*self.loops, (node, targets))
        self.block(node.body)
        self.loops = kept
        self.passed = passed
        self.block(node.orelse)

    def record_effects(self, node: ast.AST) -> None:
        """Record what a call or a simple statement does; bind the names that it assigns."""
        if isinstance(node, ast.Call):
            self.visit_call(node)
        for target, value in assigned_in(node):
            self.names.bind(target, value)
        if isinstance(node, _SIMPLE) and ".grad" in self.names.words(node):
            names = map(self.names.name, parts_of(node, ast.Name))
            self.emit(Effect("grad"), node, [*names])

    def visit_call(self, node: ast.Call) -> None:
        """Walk a function of this file; record a call, unless its function was seen to do it."""
        effects = [*self.effects_of(node)]
        before = len(self.trace)
        if all(effect.kind != "average" for effect in effects):
            self.enter(node)
        is_seen = len(self.trace) > before
        owner = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        about = [*map(self.names.name, (owner, *node.args[:1]))]
        for effect in effects:
            if not (is_seen and effect.kind in _BY_NAME):
                self.emit(effect, node, about)

    def enter(self, node: ast.Call) -> None:
        """Walk the function that is called, if it is known."""
        owner, function = self.resolve(node.func)
        if function is None or function in self.stack or len(self.stack) == DEEPEST:
            return
        kept = self.names, self.passed, self.stack, self.owner
        self.names = self.names.of_call(function, node)
        self.owner = owner
        self.stack = (*self.stack, function)
        self.block(function.body)
        self.names, self.passed, self.stack, self.owner = kept
        self.trace.entered.append((node, function))

    def emit(self, effect: Effect, node: ast.AST, about: Collection[str] = ()) -> None:
        """Add an event; a loop over what the event is about is none of its loops."""
        subjects = (effect.on, effect.of, *about)
        loops = list[ast.AST]()
        for loop, targets in self.loops:
            items = tuple(targets)
            if not any(name.startswith(items) for name in subjects):
                loops.append(loop)
        self.trace.append(
            Event(
                **vars(effect),
                node=node,
                guards=self.guards + self.passed,
                loops=tuple(loops),
                words=self.names.words(node),
            )
        )

    def resolve(self, func: ast.expr) -> tuple[str, Function | None]:
        """Return the function of this file that is called, and of a method, its object's class."""
        match func:
            case ast.Name(id=name):
                return self.owner, self.source.function(name)
            case ast.Attribute(value=value, attr=attr) if (
                self.names.kind(value) != SCALER
            ):
                name = self.names.name(value)
                owner = leaf(self.source.makers.get(leaf(name), ""))
                if name == "self":
                    owner = self.owner
                return owner, self.source.method(owner, attr)
        return "", None

    def effects_of(self, node: ast.Call) -> Iterator[Effect]:
        """Yield what a call does."""
        owner: ast.expr = ast.Name("")
        if isinstance(node.func, ast.Attribute):
            owner = node.func.value
        attr = called(node)
        object_kind = self.names.kind(owner)
        base = self.names.name(owner)
        given = arguments_of(node)
        names = [self.names.name(each) for each in given]
        methods = _WITH_ARGUMENTS if given else _WITHOUT_ARGUMENTS
        kind = methods.get(object_kind, {}).get(attr, "")
        if object_kind != SCALER:
            kind = kind or _FUNCTIONS.get(attr, "")
        if self.source.wrapped and is_wrapper(base) and attr in _OF_ACCELERATE:
            kind = "unscale"
        match kind:
            case "bare":
                yield self.own_step(base)
            case "backward" if base:
                yield self.backward(node, owner, base)
            case "apex":
                if names[1:] and not self.source.fixed:
                    yield Effect(kind, on=base, of=names[1])
            case _ if kind:
                yield Effect(kind, on=base, of=names[0] if names else base)
        yield from self.effects_by_name(node, given, base, object_kind)

    def backward(self, node: ast.Call, owner: ast.expr, base: str) -> Effect:
        """Return a backward pass, with the scaler of its loss where one is seen."""
        wrapped = self.source.wrapped
        if called(node) == "manual_backward":
            scaler = LIGHTNING if wrapped == LIGHTNING else None
            return Effect("backward", scaled_by=scaler)
        if wrapped and is_wrapper(base) and node.args:
            return Effect("backward", scaled_by=base)
        scaler = self.names.scaled_by(owner)
        if scaler is not None:
            return Effect("backward", scaled_by=scaler)
        may_be_scaled = node.args or has(self.names.words(owner), _MAYBE_SCALED)
        return Effect("backward", is_plain=not may_be_scaled)

    def own_step(self, optimizer: str) -> Effect:
        """Return an optimizer's own step, which a library may have wrapped."""
        passes = self.trace.of("backward")
        scaler = (passes[-1].scaled_by if passes else None) or ""
        if self.source.wrapped and (is_wrapper(scaler) or scaler == LIGHTNING):
            return Effect("step", on=scaler, of=optimizer)
        return Effect("bare", of=optimizer)

    def effects_by_name(
        self, node: ast.Call, given: Sequence[ast.expr], base: str, kind: str
    ) -> Iterator[Effect]:
        """Yield what a call does by the name of what is called, and by what it is given."""
        attr = called(node)
        name = self.names.name(node.func)
        # timm's scaler is called with the loss and the optimizer, and does all.
        if self.names.kind(node.func) == SCALER and attr[:1].islower():
            for each in given[1:]:
                if self.names.kind(each) == OPTIMIZER:
                    of = self.names.name(each)
                    yield Effect("backward", of=of, scaled_by=name)
                    for done in ("unscale", "step", "update"):
                        yield Effect(done, on=name, of=of)
        # A method of a library's own object unscales before it clips.
        is_own = _OWN_CLIP.search(leaf(base)) and self.source.wrapped != LIGHTNING
        if _CLIPS.match(attr) and not is_own:
            yield Effect("clip")
        if self.is_average(attr, given, kind):
            yield Effect("average", on=base or name)

    def is_average(self, attr: str, given: Sequence[ast.expr], kind: str) -> bool:
        """Return whether a call updates an average of parameters, and not of losses or buffers."""
        moves = kind == AVERAGE and _MOVES.match(attr)
        if not (moves or _AVERAGES.search(attr)):
            return False
        words = [self.source.words(each) for each in given]
        return not any(has(each, _NO_PARAMETERS) for each in words)


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Return whether a block ends in a jump, also where both ways of a condition do."""
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return _leaves(last.body) and _leaves(last.orelse)
    return isinstance(last, _LEAVES | ast.Raise)


def _mixes(node: ast.For | ast.AsyncFor, over: Collection[str]) -> bool:
    """Return whether a loop over parameters moves other ones towards them: an average by hand."""
    if not has(over, "param|state_dict|^ema$"):
        return False
    text = "\n".join(map(ast.unparse, node.body))
    return ".grad" not in text and bool(_DECAYS.search(text))


def traces_of(source: Source) -> Iterator[Trace]:
    """Yield the events of the module, and of the functions that nothing else enters."""
    called_names = {*map(called, source.calls)}

    def order(function: Function) -> tuple[bool, int]:
        # What this file calls comes last: it may have been entered by then.
        return function.name in called_names, function.lineno

    entered = set[ast.AST]()
    for start in (source.tree, *sorted(source.functions, key=order)):
        if start in entered:
            continue
        walker = Walker(source, start)
        walker.block(start.body)
        entered |= {function for _, function in walker.trace.entered}
        if walker.trace.of("scale", "step", "unscale", "apex", "backward"):
            yield walker.trace

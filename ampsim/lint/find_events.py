"""Walks a function, and the functions of its file that it calls, and notes what a rule looks at."""

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ampsim.lint.bindings import Frame, Value
from ampsim.lint.event import Event, Guard
from ampsim.lint.names import (
    AVERAGE,
    OPTIMIZER,
    SCALER,
    SCHEDULE,
    called,
    has,
    is_wrapper,
    leaf,
    mixes,
    name_of,
    words_in,
)
from ampsim.lint.source import Function, Source, Trace

DEEPEST, LONGEST = (
    6,
    4000,
)  # calls within calls, and statements per walk: a file is read in milliseconds
_CLIPS = re.compile(r"^clip_grad(ient)?s?(_norm|_value|_with_norm)?_*$")
_OWN_CLIP = re.compile(
    r"accel|fabric|trainer|strategy|plugin|engine|scaler|optim|^self$|precision", re.I
)
_AVERAGES = re.compile(
    r"^_?(update|accumulate|step)_(?!\w*(loss|acc_|accuracy|met(er|ric)|norm))(\w*_)?ema(_\w+)?$|"
    r"(^|_)ema_(update|step)$|^_?apply_(\w+_)?ema$|^update_(moving_)?averages?$|"
    r"^_?(momentum_)?update_(teacher|momentum_encoder|key_encoder|target_network)s?$|^_?momentum_update\w*$"
)
_BLENDS = re.compile(
    r"accumulate|moving_average|update_average|soft_update|polyak"
)  # an average and a model, both given
_MODEL = re.compile(
    r"(^|_)(model|net|network|module|generator|parameters)$"
)  # which an average is called with
_RATES = re.compile(r"^(adjust|set|update)_(learning_rate|lr)$|^step_(update|batch)$")
_PIPELINE = re.compile(
    r"^(pp|pipeline|pipe)_sched|Schedule(GPipe|1F1B|Interleaved|Looped|DualPipe|ZBV)", re.I
)
_PLACE = r"iter|step|index|idx|progress|updates|^it?$|^n_?i$"  # of where training is
_SCALES = r"scal|accel|fabric|(^|_)amp(_|$)"  # of a loss that something scales
_LEAVES = ast.Return | ast.Continue | ast.Break
_SIMPLE = (
    ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return | ast.Assert | ast.Raise
)
LIGHTNING = "Lightning"
Found = Iterator[tuple[str, str, str]]


class Walker:
    """A walk through one function."""

    def __init__(self, source: Source, start: Function | None = None, owner: str = "") -> None:
        self.source, self.trace = source, Trace(source, start)
        self.frame = Frame(source)
        self.guards: tuple[Guard, ...] = ()
        self.passed: tuple[
            Guard, ...
        ] = ()  # by the branches that leave, up to the end of the loop or function
        self.loops: tuple[tuple[ast.AST, frozenset[str]], ...] = ()
        self.stack: tuple[Function, ...] = (start,) if start else ()
        self.left = LONGEST
        if start:
            self.frame.values |= {
                name: Value(name, made=owner) for name in ("self", "cls") if owner
            }
            given = [arg.arg for arg in start.args.args if arg.arg.endswith("loss")]
            self.frame.values |= {name: Value(name, frozenset({"maybe scaled"})) for name in given}
            self.frame.annotated(start)

    def block(self, body: Sequence[ast.AST]) -> None:
        """Walk statements, with what an early leave says of those after it."""
        kept = self.guards
        for statement in body:
            self.left -= 1
            if self.left < 0:
                break
            self.walk(statement)
            if isinstance(statement, ast.If):
                goes, stays = (
                    isinstance(each[-1], _LEAVES) if each else False
                    for each in (statement.body, statement.orelse)
                )
                self.guards += (
                    self.frame.guards(statement.test, holds=stays) if goes != stays else ()
                )
            if isinstance(statement, _LEAVES | ast.Raise):
                break
        self.guards = kept

    def guarded(self, guards: tuple[Guard, ...], body: Sequence[ast.stmt]) -> None:
        """Walk statements under conditions; the last one fails after they leave."""
        kept, self.guards = self.guards, self.guards + guards
        self.block(body)
        self.guards = kept
        if body and isinstance(body[-1], _LEAVES | ast.Raise):
            asked = (
                [] if isinstance(body[-1], ast.Raise) else [guard for guard in guards if guard.asks]
            )
            words = frozenset[str]().union(*(guard.words for guard in asked))
            others = tuple(each for each in self.passed if each.text != guards[-1].text)
            self.passed = (*others, Guard(guards[-1].text, not guards[-1].holds, words, not asked))

    def walk(self, node: ast.AST) -> None:
        """Walk the parts of a statement or an expression, then note what they amount to."""
        match node:
            case (
                ast.expr_context()
                | ast.Name()
                | ast.Constant()
                | ast.operator()
                | ast.ClassDef()
                | ast.Lambda()
            ):
                pass
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.frame.nested[node.name] = node
            case ast.If(test=test) if (known := self.frame.known(test)) is not None:
                self.block(node.body if known else node.orelse)
            case ast.If():
                self.branches(node)
            case ast.For() | ast.AsyncFor() | ast.While():
                self.loop(node)
            case ast.ListComp(generators=[each, *_]):
                self.frame.over(each.target, each.iter)
                self.parts(node)
            case ast.match_case() | ast.ExceptHandler():  # which happens instead of others
                self.guarded((Guard(f"{id(node)} case", benign=False),), node.body)
            case _:
                self.parts(node)
                self.amounts(node)

    def branches(self, node: ast.If) -> None:
        """Walk both ways of a condition; what both call happens regardless of it."""
        self.walk(node.test)
        starts = list[int]()
        for holds, body in ((True, node.body), (False, node.orelse)):
            starts.append(len(self.trace))
            own = (*self.frame.guards(node.test, holds=holds), Guard(f"{id(node)} branch", holds))
            self.guarded(own, body)
        self.frame.decided(node)
        first = {each.node for each in self.trace[starts[0] : starts[1]]}
        for index, each in enumerate(self.trace[starts[1] :], starts[1]):
            if each.node in first:
                self.trace[index] = replace(
                    each, guards=tuple(guard for guard in each.guards if guard not in own)
                )

    def parts(self, node: ast.AST) -> None:
        """Walk the parts of a node in their order."""
        for _, part in ast.iter_fields(node):
            each = part if isinstance(part, list) else [part]
            if each and isinstance(each[0], ast.stmt):
                self.block(each)
            else:
                for inner in (inner for inner in each if isinstance(inner, ast.AST)):
                    self.walk(inner)

    def loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        """Walk the body of a loop once."""
        kept, passed, targets = self.loops, self.passed, frozenset[str]()
        if isinstance(node, ast.While):
            self.walk(node.test)
        else:
            self.walk(node.iter)
            if mixes(node, self.frame.words(node.iter)):
                self.note("average", node)
            targets = self.frame.over(node.target, node.iter)
        self.loops = (*self.loops, (node, targets))
        self.block(node.body)
        self.loops, self.passed = kept, passed
        self.block(node.orelse)

    def amounts(self, node: ast.AST) -> None:
        """Note what a call or a simple statement does; bind the names that it assigns."""
        match node:
            case ast.Call():
                self.call(node)
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                self.frame.bind(target, value)
            case ast.Assign(targets=targets, value=value):
                self.element(targets[0], value, node)
                for target in targets:
                    self.frame.bind(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.frame.bind(target, value)
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                old = self.frame.values.get(name, Value(name))
                scaler = self.frame.scaler(ast.BinOp(target, op, value))
                self.frame.values[name] = replace(
                    old, words=old.words | self.frame.words(value), scaler=scaler
                )
        if (
            self.source.has_gradients
            and isinstance(node, _SIMPLE)
            and ".grad" in (words := self.frame.words(node))
        ):
            names = [self.frame.name(each) for each in ast.walk(node) if isinstance(each, ast.Name)]
            self.note("grad", node, words=words, about=names)

    def element(self, target: ast.expr, value: ast.expr, node: ast.stmt) -> None:
        """Note a learning rate that follows the iteration, and a loss that is stored."""
        match target:
            case ast.Subscript(value=group, slice=ast.Constant(value="lr")):
                if has({*words_in(group)}, "group|^pg$") and has(self.frame.words(value), _PLACE):
                    self.note("rate", node)
            case ast.Subscript() if has({*words_in(target)}, "loss"):
                self.logged(value, node)

    def call(self, node: ast.Call) -> None:
        """Walk a function of this file; note a call, unless its function was seen to do it."""
        events, function = [*self.kinds(node)], self.resolve(node.func)
        whole = any(kind in ("average", "rate") for kind, *_ in events)
        inside = self.enter(function, node) if function and not whole else set()
        base = self.frame.name(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        given, kept = [self.frame.name(each) for each in node.args[:1]], self.guards
        # A scaler that is called as a whole, as timm's, may be told whether to step.
        asked = [word.value for word in node.keywords if word.arg in ("update_grad", "need_update")]
        for kind, on, of in events:
            if kind in ("unscale", "step", "update"):
                self.guards += tuple(guard for each in asked for guard in self.frame.guards(each))
            seen = {kind, "grad", "unscale"} if kind == "clip" else {kind, "step"}
            if kind not in ("backward", "bare", "schedule", "clip") or not inside & seen:
                said = self.stack[-1] if kind == "penalty" and self.stack else node
                self.note(kind, node, on, of, self.frame.words(said), {on, of, base, *given})
            self.guards = kept

    def enter(self, function: Function, node: ast.Call) -> set[str]:
        """Walk a function that is called; return the kinds of what happens in it."""
        again = function in self.stack or len(self.stack) == DEEPEST
        if again or function.name not in self.source.touched:
            return set()
        outer, passed, self.stack = self.frame, self.passed, (*self.stack, function)
        self.frame, before = self.frame.inner(function, node), len(self.trace)
        self.block(function.body)
        self.frame, self.passed, self.stack = outer, passed, self.stack[:-1]
        self.trace.entered[node] = function, self.trace[before:]
        return {each.kind for each in self.trace[before:]}

    def note(
        self,
        kind: str,
        node: ast.AST,
        on: str = "",
        of: str = "",
        words: frozenset[str] = frozenset(),
        about: Collection[str] = (),
    ) -> None:
        """Add an event; a loop over what the event is about is none of its loops."""
        own = [
            loop
            for loop, targets in self.loops
            if not any(name.startswith(t) for t in targets for name in about)
        ]
        around, guards = tuple(loop for loop, _ in self.loops), self.guards + self.passed
        self.trace.append(Event(kind, on, of, node, guards, tuple(own), words, around))

    def logged(self, value: ast.expr, node: ast.AST) -> None:
        """Note that the value of a scaled loss is kept as it is."""
        direct = any(self.source.calls_of("scale", scope=value))  # which asks for the scale
        if isinstance(value, ast.Name | ast.Call) and self.frame.scaler(value) and not direct:
            self.note("log", node)

    def resolve(self, func: ast.expr) -> Function | None:
        """Return the function of this file that is called, if it is known which one."""
        match func:
            case ast.Name(id=name):
                return self.frame.nested.get(name) or self.source.function(name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=attr):
                owner = self.source.owners.get(self.stack[-1], "") if self.stack else ""
                return self.source.method(self.source.lineage(owner)[1:], attr)
            case ast.Attribute(value=value, attr=attr) if self.frame.kind(value) != SCALER:
                return self.source.method(self.source.lineage(self.frame.made(value)), attr)
        return None

    def kinds(self, node: ast.Call) -> Found:
        """Yield the kind, the subject and the optimizer of the events that a call is."""
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        kind, base = (self.frame.kind(owner), self.frame.name(owner)) if owner else ("", "")
        given = [*node.args, *(word.value for word in node.keywords)]
        if owner and kind in (SCALER, ""):
            yield from self.of_scaler(node, base, given, known=kind == SCALER)
        match kind, called(node), given:
            case ("optimizer", "step", []) | ("optimizer", "first_step" | "second_step", _):
                yield from self.step(base)
            case "schedule", "step", _ if self.is_pipeline(base):  # whose step passes losses back
                yield "backward", "pipeline", ""
            case "schedule", "step" | "dampen", []:
                yield "schedule", base, ""
            case kind, "zero_grad" | "clear_grad", _ if kind != SCALER:
                yield "zero", "", base
            case _, "autocast", _:
                yield "autocast", "", ""
        if owner and kind != SCALER:
            yield from self.of_losses(node, owner)
        yield from self.by_name(node, given, base, kind)

    def of_scaler(
        self, node: ast.Call, base: str, given: Sequence[ast.expr], *, known: bool
    ) -> Found:
        """Yield the events of a scaler's methods; `unscale_` is one under any name."""
        match called(node), [self.frame.name(each) for each in given[:1]]:
            case "unscale_", [of]:
                yield "unscale", base, of
            case "scale", [_] if known:
                yield "scale", base, ""
            case "step", [of] if known:
                yield "step", base, of
            case "update", _ if known:
                yield "update", base, ""
            case "minimize", [of] if known:  # paddle's
                yield "step", base, of
                yield "update", base, ""

    def step(self, optimizer: str) -> Found:
        """Yield the events of an optimizer's own step, which an accelerator may have wrapped."""
        passes = (each.on for each in reversed(self.trace) if each.kind == "backward")
        on = next(passes, "").removeprefix("scaled ")
        held = self.source.wrapped and (is_wrapper(on) or on == LIGHTNING)
        yield ("step", on, optimizer) if held else ("bare", "", optimizer)
        if held and on == LIGHTNING:  # which updates its scaler with each step
            yield "update", on, ""

    def is_pipeline(self, name: str) -> bool:
        """Return whether a schedule is one of torch.distributed.pipelining."""
        made = self.source.made.get(leaf(name))
        return bool(_PIPELINE.search(f"{leaf(name)} {called(made) if made else ''}"))

    def of_losses(self, node: ast.Call, owner: ast.expr) -> Found:
        """Yield the events of losses: passed back, patched by apex, differentiated, logged."""
        base = self.frame.name(owner)
        within = self.source.wrapped and is_wrapper(base)
        match called(node), node.args:
            case "backward", [_, *_] if within:
                yield "backward", f"scaled {base}", ""
            case "manual_backward", [_, *_] if self.source.wrapped == LIGHTNING:
                yield "backward", f"scaled {LIGHTNING}", ""
            case attr, _ if within and re.match("clip_grad|unscale_grad", attr):
                yield "unscale", base, ""
            case "backward", args:
                plain = not args and not has(self.frame.words(owner), _SCALES)
                scaler, otherwise = self.frame.scaler(owner), "plain" if plain else "other"
                yield "backward", f"scaled {scaler}" if scaler else otherwise, ""
            case "scale_loss", [_, of, *_] if not self.source.fixed:
                yield "apex", "", self.frame.name(of)  # which apex has patched to skip
            case "grad", args if any(map(self.frame.scaler, args)):
                if any(word.arg == "create_graph" for word in node.keywords):
                    yield "penalty", "", ""
            case "item", []:
                self.logged(owner, node)

    def by_name(self, node: ast.Call, given: Sequence[ast.expr], base: str, kind: str) -> Found:
        """Yield the events that the name of what is called says, and what it is given."""
        attr, name = called(node), self.frame.name(node.func)
        if self.frame.kind(node.func) == SCALER and attr[:1].islower():  # as timm's
            optimizers = [each for each in given[1:] if self.frame.kind(each) == OPTIMIZER]
            for of in map(self.frame.name, optimizers):
                yield "backward", f"scaled {name}", of
                yield from ((kind, name, of) for kind in ("unscale", "step", "update"))
        if attr == "float" and node.args:
            self.logged(node.args[0], node)
        own = _OWN_CLIP.search(leaf(base)) and self.source.wrapped != LIGHTNING
        if _CLIPS.match(attr) and not own:
            yield "clip", "", ""
        sets = (kind, attr) == (SCHEDULE, "step") or self.source.kind(attr) == SCHEDULE
        if (sets or _RATES.match(attr)) and self.is_place(given):
            yield "rate", "", ""
        if self.is_average(attr, given, kind):
            yield "average", base or name, ""

    def is_average(self, attr: str, given: Sequence[ast.expr], kind: str) -> bool:
        """Return whether a call updates an average of parameters, and not of losses or buffers."""
        moves = kind == AVERAGE and re.match(r"(update\w*|step|accumulate)$", attr)
        updates = self.source.made_kind(attr) == AVERAGE or attr == "update_parameters"
        whole = updates and given and _MODEL.search(leaf(name_of(given[0])))
        blends = _BLENDS.match(attr) and {"", AVERAGE} <= {self.frame.kind(each) for each in given}
        said = {word for each in given for word in words_in(each)}
        of_others = has(said, "loss|item|acc|metric|norm|decay_only|buffer")
        return bool(_AVERAGES.search(attr) or moves or whole or blends) and not of_others

    def is_place(self, given: Sequence[ast.expr]) -> bool:
        """Return whether an argument says where training is."""
        places = (
            each for each in given if not self.frame.kind(each) and "loss" not in name_of(each)
        )
        return any(has(self.frame.words(each), _PLACE) for each in places)


def traces_of(source: Source) -> Iterator[Trace]:
    """Yield the events of the module, and of the functions that nothing else enters."""
    names = {called(each) for each in source.calls}
    entered = set[Function]()
    functions = sorted(source.functions, key=lambda each: (each.name in names, each.lineno))
    for start in (None, *functions):
        if start and (start in entered or start.name not in source.touched):
            continue
        own = source.owners.get(start, "") if start else ""
        for owner in source.heirs(own) if own else [""]:
            walker = Walker(source, start, owner)
            walker.block(start.body if start else source.tree.body)
            entered |= {function for function, _ in walker.trace.entered.values()}
            if walker.trace.of("scale", "step", "unscale", "apex", "backward"):
                yield walker.trace

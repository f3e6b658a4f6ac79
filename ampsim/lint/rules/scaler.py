"""The scaler itself: where it is made, updated and saved."""

import ast
import re
from collections.abc import Iterator, Mapping

from ampsim.lint.event import Event
from ampsim.lint.names import OPTIMIZER, SCALER, called, leaf, name_of, words_in
from ampsim.lint.source import Function, Source, Trace

_SAVES = re.compile(r"_?save_?(checkpoint|ckpt|state|model)s?$|epoch_saving$|Checkpointer$", re.I)
_BFLOAT16 = re.compile(r"bf16|bfloat16", re.I)
_OWN = re.compile(r"(^|\.)amp$|accelerator$|fabric$")  # what saves its own scaler
_NO_STATE = re.compile(r"scaler[_.-](conf|cfg|step|kwargs|args|enable|update|time)", re.I)


def missing_update(trace: Trace, step: Event) -> bool:
    """Return whether a scaler steps that the file makes, scales with and never updates."""
    source, made = trace.source, trace.source.made.get(leaf(step.on))
    torchs = made is not None and called(made) in ("GradScaler", "ShardedGradScaler")
    scales = any(each.on == step.on for each in trace.of("scale"))
    owners = [name_of(each.func).rpartition(".")[0] for each in source.calls_of("update")]
    return torchs and scales and not trace.of("update") and SCALER not in map(source.kind, owners)


def update_before_step(trace: Trace, update: Event) -> bool:
    """Return whether an update stands between gradients and the step with them, or in every micro-batch."""
    steps = [step for step in trace.of("step") if step.on == update.on]
    later = [step for step in trace.of("step", after=update, near=update) if step.on == update.on]
    before = trace.scaled(update)
    same = before and before.loops == update.loops and before.on == f"scaled {update.on}"
    if (
        later
        and same
        and not trace.of("backward", "scale", "unscale", after=update, before=later[0])
    ):
        return True
    return trace.per_window(update, steps) and all(
        each.within(steps[0]) for each in trace.of("unscale")
    )


def update_twice(trace: Trace, update: Event) -> bool:
    """Return whether a scaler that two optimizers share is updated for the second time in an iteration."""
    for first in trace.of("update", before=update, near=update):
        stepped = {step.of for step in trace.of("step", before=first) if step.loops == first.loops}
        later = {
            s.of for s in trace.of("step", after=first, before=update) if s.loops == first.loops
        }
        again = trace.of("backward", "scale", after=first, before=update)
        if (
            first.on == update.on
            and not update.beyond(first)
            and stepped
            and again
            and later - stepped
        ):
            return True
    return False


def scaler_not_saved(source: Source) -> Iterator[ast.AST]:
    """Yield an optimizer's state per block that saves some, in a file that has a scaler and nowhere saves that.

    A scaler that is recreated for each epoch has nothing to save.
    """
    given = any(source.kind(name_of(arg)) == SCALER for call in source.calls for arg in call.args)
    used = any(source.events("step")) or (given and "GradScaler(" in source.text)
    if not mentions_a_scaler(source) and not any(scaler_recreated_in_loop(source)):
        saved = [*saved_optimizers(source)] if used or any(source.events("apex")) else []
        saved = [
            each for each in saved if used or "state_dict" in words_in(each)
        ]  # what saves may ask apex
        parents = {
            child: each for each in source.nodes if saved for child in ast.iter_child_nodes(each)
        }
        told = set[tuple[ast.AST, bool]]()
        for each in saved:
            blocks = [*_blocks(each, parents)]
            if not told & {*blocks}:
                yield each
            told |= {*blocks[:1]}


def mentions_a_scaler(source: Source) -> bool:
    """Return whether a scaler is saved, or handed to what may save it, or apex or an accelerator saves its own."""
    for node in source.nodes:
        match node:
            case ast.Constant(value=str(text)) if len(text) < 40 and not _NO_STATE.search(text):
                said = text
            case ast.Attribute(attr="save_state" | "state_dict", value=value) if _OWN.search(
                name_of(value)
            ):
                return True
            case ast.Attribute(attr="state_dict" | "load_state_dict", value=value):
                said = name_of(value)
            case ast.Dict(values=values):
                said = " ".join(
                    leaf(name_of(each)) for each in values
                )  # as ignite's Checkpoint is given it
            case ast.Call(func=func) if re.search("(^|_)save|checkpoint", name_of(func), re.I):
                said = " ".join(map(ast.unparse, (*node.args, *node.keywords)))
            case _:
                continue
        if "scaler" in said.lower():
            return True
    return False


def saved_optimizers(source: Source) -> Iterator[ast.AST]:
    """Yield the states of optimizers that are kept, and the optimizers that are given to what saves."""
    aside, given = set[ast.AST](), list[ast.AST]()  # what is read and not kept, and what is given
    for node in source.nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(values=parts)) if (
                "save" in name
            ):
                yield from (part for part in parts if _is_optimizer(source, part))
            case ast.Assign(targets=[ast.Name()], value=ast.Call(args=args) as value):
                aside |= {value} if re.search("checkpoint", called(value), re.I) else {value, *args}
            case ast.For(iter=value) | ast.Attribute(value=value) | ast.Subscript(value=value):
                aside.add(value)
            case ast.Return(value=ast.Call() as value):
                aside.add(value)
            case ast.Call(
                func=ast.Attribute(attr="state_dict", value=ast.Subscript(value=value) | value)
            ) if node not in aside:
                yield from [node] * _is_optimizer(source, value)
            case ast.ListComp(generators=[each]) | ast.DictComp(generators=[each]) if _runs_over(
                source, each.iter
            ):
                own = {part.id for part in ast.walk(each.target) if isinstance(part, ast.Name)}
                yield from (
                    call
                    for call in source.calls_of("state_dict", node)
                    if name_of(call.func).split(".")[0] in own
                )
            case ast.Call(args=args, keywords=words) if _SAVES.match(called(node)):
                parts = [*args, *(word.value for word in words)]
                seen = called(node) in source.classes or any(
                    each.name == called(node) for each in source.functions
                )
                given += [node] * any(_is_optimizer(source, part) for part in parts if not seen)
            case ast.Call(args=args) if called(node) in ("print", "load_state_dict", "store"):
                aside |= {*args}
    yield from given


def _blocks(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the blocks around a node up to its function, the innermost first."""
    while node in parents and not isinstance(node, Function):
        if isinstance(node, ast.stmt):
            yield parents[node], node in getattr(parents[node], "orelse", ())
        node = parents[node]


def _runs_over(source: Source, node: ast.expr) -> bool:
    """Return whether a loop over something, or over its items, is one over optimizers."""
    match node:
        case ast.Call(func=ast.Name(id="enumerate"), args=[first]):
            return _runs_over(source, first)
        case ast.Call(func=ast.Attribute(attr="items" | "values", value=value), args=[]):
            return _is_optimizer(source, value)
    return _is_optimizer(source, node)


def _is_optimizer(source: Source, node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and source.kind(name_of(node)) == OPTIMIZER


def unused_scaler(source: Source) -> Iterator[ast.AST]:
    """Yield the scalers that a function makes, and neither calls nor hands on, and that passes losses back itself."""
    own = [
        trace.start for trace in source.traces if trace.of("bare") and not trace.of("scale", "apex")
    ]
    kept = {
        each.value
        for each in source.nodes
        if isinstance(each, ast.Attribute) and "state_dict" in each.attr
    }
    for function in own if "GradScaler(" in source.text else ():
        for node in ast.walk(function or source.tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as made) if (
                    called(made) == "GradScaler"
                ):
                    named = (
                        each
                        for each in source.nodes
                        if isinstance(each, ast.Name) and each.id == name
                    )
                    if kept.issuperset(each for each in named if isinstance(each.ctx, ast.Load)):
                        yield made


def scaler_with_bfloat16(source: Source) -> Iterator[ast.AST]:
    """Yield the scalers that are on where training is in bfloat16, and off where it is in float16."""
    for made in source.calls_of("GradScaler") if _BFLOAT16.search(source.text) else ():
        for word in (each.value for each in made.keywords if each.arg == "enabled"):
            said = " ".join(words_in(word))
            alone = not re.search(r"(?<!b)(fp16|float16|half)", said, re.I) and not isinstance(
                word, ast.BoolOp
            )
            denied = any(
                isinstance(each, ast.Not | ast.NotEq | ast.IsNot | ast.NotIn)
                for each in ast.walk(word)
            )
            if _BFLOAT16.search(said) and alone and not denied:
                yield made


def scaler_recreated_in_loop(source: Source) -> Iterator[ast.AST]:
    """Yield the scalers that are made in the body of a loop that trains with an optimizer of outside."""
    stepped = {loop for _, step in source.events("step") for loop in step.loops}
    loops = [{*ast.walk(loop)} for loop in stepped]
    repeated = list[set[ast.AST]]()
    calls = [
        (call, function) for trace in source.traces for call, (function, _) in trace.entered.items()
    ]
    for function in source.functions:
        given = any(
            "optim" in arg.arg or arg.arg == "self"
            for arg in (*function.args.args, *function.args.kwonlyargs)
        )
        if given and stepped & {*function.body}:
            own = {part for each in function.body if each not in stepped for part in ast.walk(each)}
            repeated += [
                own | nodes
                for nodes in loops
                if any(call in nodes for call, of in calls if of is function)
            ]
            repeated += [own] * bool(
                re.search("epoch(?!s)", function.name)
            )  # which another file calls
    for nodes in (*loops, *repeated):
        names = (each for each in nodes if isinstance(each, ast.Name | ast.Attribute))
        if OPTIMIZER not in (
            source.kind(name_of(each)) for each in names if isinstance(each.ctx, ast.Store)
        ):
            yield from (
                each
                for each in nodes
                if isinstance(each, ast.Call) and "GradScaler" in called(each)
            )


def deprecated_amp_names(source: Source) -> Iterator[ast.AST]:
    """Yield the uses and imports of ``torch.cuda.amp``, but where a torch without ``torch.amp`` is asked for."""
    older = set[ast.AST]()
    for node in source.nodes:
        match node:
            case ast.If(test=test) | ast.IfExp(test=test) if re.search(
                "version|hasattr", ast.unparse(test)
            ):
                older |= {*ast.walk(node)}
            case ast.Try(body=body, handlers=handlers) if any(
                "torch.amp" in ast.unparse(each) for each in body
            ):
                older |= {part for each in handlers for part in ast.walk(each)}
    for node in (each for each in source.nodes if each not in older):
        match node:
            case ast.Attribute(attr="GradScaler" | "autocast") if (
                name_of(node.value) == "torch.cuda.amp"
            ):
                yield node
            case ast.ImportFrom(module=module, names=names):
                yield from [node] * any(
                    f"{module}.{each.name}".startswith("torch.cuda.amp") for each in names
                )
            case ast.Import(names=names):
                yield from [node] * any(
                    each.name.startswith("torch.cuda.amp") and each.asname for each in names
                )

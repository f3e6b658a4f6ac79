"""Checkpoints: what is saved with an optimizer, and what is loaded on resume."""

import ast
import re
from collections.abc import Iterator, Mapping

from ampsim.lint.names import OPTIMIZER, SCALER, called, leaf, name_of, words_in
from ampsim.lint.rules.scaler import scaler_recreated_in_loop
from ampsim.lint.source import Function, Source

_SAVES = re.compile(
    r"(^|\.)_?save_?(checkpoint|ckpt|state|model)s?$|(^|\.)epoch_saving$|(^|\.)Checkpointer$|"
    r"checkpointer\.save$",
    re.I,
)
_LOADS = re.compile(r"load|resume|restore|checkpoint|ckpt", re.I)
_OWN = re.compile(r"(^|\.)amp$|accelerator$|fabric$")  # what saves its own scaler
_NO_STATE = re.compile(r"scaler[_.-](conf|cfg|step|kwargs|args|enable|update|time)", re.I)


def scaler_not_saved(source: Source) -> Iterator[ast.AST]:
    """Yield an optimizer's state per block that saves some, where no scaler is saved.

    A scaler that is recreated for each epoch has nothing to save.
    """
    given = any(source.kind(name_of(arg)) == SCALER for call in source.calls for arg in call.args)
    used = any(source.events("step", "unscale")) or (given and "GradScaler(" in source.text)
    if not (used or any(source.events("apex"))) or mentions_a_scaler(source):
        return
    if any(scaler_recreated_in_loop(source)):
        return
    parents = {child: node for node in source.nodes for child in ast.iter_child_nodes(node)}
    told = set[tuple[ast.AST, bool]]()
    for node in saved_optimizers(source):
        # Code that saves without a state_dict() may ask apex itself.
        if used or "state_dict" in words_in(node):
            blocks = [*_blocks(node, parents)]
            if not told & {*blocks}:
                yield node
            told |= {*blocks[:1]}


def scaler_not_loaded(source: Source) -> Iterator[ast.AST]:
    """Yield the optimizers that are loaded in a file that saves a scaler and does not load it."""
    saved = {source.kind(name_of(owner)) for owner in _owners(source, "state_dict")}
    loaded = [*_owners(source, "load_state_dict")]
    kinds = [source.kind(name_of(owner)) for owner in loaded]
    unclear = any(_is_any_state(source, owner) for owner in loaded)
    if SCALER not in saved or SCALER in kinds or unclear or _hands_a_scaler_to_a_loader(source):
        return
    yield from [owner for owner in loaded if source.kind(name_of(owner)) == OPTIMIZER][:1]


def _owners(source: Source, method: str) -> Iterator[ast.expr]:
    """Yield the objects on which a method is called."""
    functions = (call.func for call in source.calls_of(method))
    return (each.value for each in functions if isinstance(each, ast.Attribute))


def _is_any_state(source: Source, owner: ast.expr) -> bool:
    """Return whether ``owner.load_state_dict()`` may load a scaler among others."""
    loops = (node.target for node in source.nodes if isinstance(node, ast.For | ast.comprehension))
    names = {part.id for target in loops for part in ast.walk(target) if isinstance(part, ast.Name)}
    return not isinstance(owner, ast.Name | ast.Attribute) or name_of(owner) in names


def _hands_a_scaler_to_a_loader(source: Source) -> bool:
    calls = (call for call in source.calls if _LOADS.search(called(call)))
    given = (
        part for call in calls for part in (*call.args, *(word.value for word in call.keywords))
    )
    return any("scaler" in ast.unparse(part).lower() for part in given)


def mentions_a_scaler(source: Source) -> bool:
    """Return whether a scaler may be saved: by itself, by a function, or within apex or accelerate."""
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
                said = " ".join(leaf(name_of(each)) for each in values)
            case ast.Call(func=func) if re.search("(^|_)save|checkpoint", name_of(func), re.I):
                said = " ".join(map(ast.unparse, (*node.args, *node.keywords)))
            case _:
                continue
        if "scaler" in said.lower():
            return True
    return False


def saved_optimizers(source: Source) -> Iterator[ast.AST]:
    """Yield the states of optimizers that are kept, and optimizers that a save takes."""
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
                    for call in source.calls_of("state_dict", scope=node)
                    if name_of(call.func).split(".")[0] in own
                )
            case ast.Call(args=args, keywords=words) if _SAVES.search(name_of(node.func)):
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

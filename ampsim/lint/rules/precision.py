"""Rules about the precision of a file: whether a scaler belongs there, and whether it is used.

A precision is read where it is written: as a dtype, as a string, through a name or a dictionary.
`dtypes_of` returns the precisions that an expression may stand for, and `UNKNOWN` among them where
the file does not show one.
"""

import ast
import re
from collections.abc import Iterator, Sequence

from ampsim.lint.events import Event, Trace
from ampsim.lint.names import leaf, name_of
from ampsim.lint.source import Source

FP16, BF16, FP32, UNKNOWN = "float16", "bfloat16", "float32", "unknown"
_SPELLINGS = {
    FP16: re.compile(r"(torch\.)?(float16|half)|fp16|16|16-mixed|16-true|FP16", re.I),
    BF16: re.compile(r"(torch\.)?bfloat16|bf16|bf16-mixed|bf16-true", re.I),
    FP32: re.compile(r"(torch\.)?(float32|float|double|float64)|fp32|tf32|32|32-true|no", re.I),
}
_SETTINGS = {"precision", "mixed_precision"}  # of Trainer, Fabric, and Accelerator
_HAS_SCALER = re.compile(
    r"Scaler\(|scaler[.(]|scale_loss|loss_scale|deepspeed|colossalai|accelerat|fabric|lightning|"
    r"apex",
    re.I,
)
_REBINDS = re.compile(r"\b(exec|globals)\(")  # what may bind a name that is assigned once
_TURNS = ast.Not | ast.NotEq | ast.IsNot | ast.NotIn | ast.And | ast.IfExp  # a condition around
MOST_VALUES = 4  # of one name, which are followed


def dtypes_of(source: Source, node: ast.AST | None, depth: int = 3) -> frozenset[str]:
    """Return the precisions that an expression may stand for."""
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            parts = [body, orelse]
        case ast.Subscript(value=ast.Dict(keys=keys, values=values), slice=key):
            asked, pairs = constant(source, key), zip(keys, values, strict=True)
            parts = [value for k, value in pairs if asked in (None, getattr(k, "value", k))]
        case ast.Call(func=ast.Attribute(attr="get", value=ast.Dict(values=parts))):
            pass
        case ast.Constant(value=str() | int() as value):
            return _dtypes_named(str(value))
        case ast.Name() | ast.Attribute():
            parts = source.assigned.get(leaf(name_of(node)), [])
            if len(parts) > 1:
                never = excluded(source)
                parts = [each for each in parts if each not in never]
            if not 0 < len(parts) <= MOST_VALUES or not depth:
                return _dtypes_named(name_of(node))
            depth -= 1
        case _:
            return frozenset({UNKNOWN})
    return frozenset().union(*(dtypes_of(source, each, depth) for each in parts))


def _dtypes_named(text: str) -> frozenset[str]:
    named = {dtype for dtype, spelling in _SPELLINGS.items() if spelling.fullmatch(text)}
    return frozenset(named or {UNKNOWN})


def constant(source: Source, node: ast.AST) -> object:
    """Return the value of a constant, or of a name that is assigned one only once; or None."""
    values = source.assigned.get(name_of(node), [])
    value = values[0] if len(values) == 1 else node
    return value.value if isinstance(value, ast.Constant) else None


def excluded(source: Source) -> frozenset[ast.AST]:
    """Return the nodes in branches of the module that a constant of the module excludes."""
    found, tests = set[ast.AST](), [*source.tree.body]
    while tests and not _REBINDS.search(source.text):
        match tests.pop():
            case (
                ast.If(
                    test=ast.Compare(ast.Name() as name, [ast.Eq()], [ast.Constant(value=value)])
                ) as branch
            ) if known := constant(source, name):
                never = branch.orelse if known == value else branch.body
                found |= {part for each in never for part in ast.walk(each)}
                tests += branch.orelse
    return frozenset(found)


def autocast_dtypes(source: Source, call: ast.Call) -> frozenset[str]:
    """Return the precisions of an autocast; none where it is off or is not seen to be on a GPU."""
    given = {word.arg: word.value for word in call.keywords}
    off = given.get("enabled")
    if isinstance(off, ast.Constant) and off.value is False:
        return frozenset()
    if "dtype" in given:
        return dtypes_of(source, given["dtype"])
    for dtypes in (dtypes_of(source, each) for each in call.args):
        if dtypes != {UNKNOWN}:
            return dtypes
    names = (leaf(name_of(part)) for part in ast.walk(call) if isinstance(part, ast.Name))
    values = (value for name in names for value in source.assigned.get(name, ()))
    on_gpu = any("cuda" in source.words(part) for part in (call, *values))
    return frozenset({FP16 if on_gpu else UNKNOWN})


def scaler_with_bfloat16(source: Source, traces: Sequence[Trace]) -> Iterator[ast.AST]:
    """Yield the scalers that are enabled where a file computes in bfloat16."""
    if not any(source.scalers()):
        return
    words = [word for call in source.calls for word in call.keywords if word.arg in _SETTINGS]
    found = [dtypes_of(source, word.value) for word in words]
    found += [autocast_dtypes(source, call) for call in source.calls_of("autocast")]
    used = frozenset().union(*found)
    for made, _ in source.scalers():
        given = {word.arg: word.value for word in made.keywords}
        enabled = given.get("enabled", ast.Constant(value=True))
        always = isinstance(enabled, ast.Constant) and enabled.value is True
        chosen = any(isinstance(node, ast.If | ast.IfExp) for node in source.around(made))
        if (always and used == {BF16} and not chosen) or _asks_for_bfloat16(source, enabled):
            yield made


def _asks_for_bfloat16(source: Source, enabled: ast.expr) -> bool:
    """Return whether a condition holds under bfloat16, as ``dtype == "bfloat16"`` does."""
    tests = list[ast.expr]()
    for value in source.assigned.get(leaf(name_of(enabled)), ()):
        parts = value.values if isinstance(value, ast.BoolOp) else [value]
        # Only a comparison is certain: a device that supports bfloat16 need not compute in it.
        tests += [part for part in parts if isinstance(part, ast.Compare)]
    told = [test for test in tests if _says_bfloat16(source, test)] or [enabled]
    turned = any(isinstance(part, _TURNS) for part in ast.walk(told[0]))
    return len(told) == 1 and _says_bfloat16(source, told[0]) and not turned


def _says_bfloat16(source: Source, node: ast.AST) -> bool:
    return any(_SPELLINGS[BF16].search(word) for word in source.words(node))


def autocast_without_scaler(source: Source, trace: Trace, autocast: Event) -> bool:
    """Return whether a loss under fp16 autocast is passed back and stepped with, unscaled."""
    if _HAS_SCALER.search(source.text) or not isinstance(autocast.node, ast.Call):
        return False
    around, heads = [*source.around(autocast.node)], list[ast.expr]()
    for node in around:
        if isinstance(node, ast.With):
            heads += [item.context_expr for item in node.items]
        elif isinstance(node, ast.FunctionDef):
            heads += node.decorator_list
    if any(re.search("no_grad|inference_mode", ast.unparse(head)) for head in heads):
        return False
    passes = trace.of("backward", after=autocast, beside=autocast)
    named = any(isinstance(node, ast.Assign) for node in around)  # and used further inside
    inside = [each for each in passes if named or each.loops == autocast.loops]
    plain = [each for each in inside if each.on == "plain"]
    stepped = plain and trace.of("bare", after=plain[0], beside=plain[0])
    return bool(stepped) and FP16 in autocast_dtypes(source, autocast.node)


def unused_scaler(source: Source, traces: Sequence[Trace]) -> Iterator[ast.AST]:
    """Yield the scalers that nothing uses in a file that passes its losses back unscaled."""
    kinds = {event.kind for trace in traces for event in trace}
    passes = [event.on for trace in traces for event in trace.of("backward")]
    if "plain" not in passes or "bare" not in kinds or "apex" in kinds:
        return
    states = {*source.owners_of("state_dict"), *source.owners_of("load_state_dict")}
    names = [part for part in source.nodes if isinstance(part, ast.Name | ast.Attribute)]
    for made, name in source.scalers():
        own = [part for part in names if leaf(name_of(part)) == name and part not in states]
        only_stored = own and all(isinstance(part.ctx, ast.Store) for part in own)
        # Another file may use the attribute of an object, unless this one is a script.
        local = all(isinstance(part, ast.Name) for part in own)
        if only_stored and (local or "__main__" in source.text):
            yield made

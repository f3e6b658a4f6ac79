"""The precision of a file: what autocast and the parameters are in, and whether a scaler belongs there.

A precision is read where it is written: as a dtype, as a string, through a name or a dictionary. `dtypes_of` returns
the precisions that an expression may stand for, and `UNKNOWN` among them where the file does not show one.
"""

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

from ampsim.lint.event import Event
from ampsim.lint.names import OPTIMIZER, kind_by_class, leaf, name_of, words_in
from ampsim.lint.source import Source, Trace

FP16, BF16, FP32, UNKNOWN = "float16", "bfloat16", "float32", "unknown"
_SPELLINGS = {
    FP16: re.compile(r"(torch\.)?(float16|half)|fp16|16|16-mixed|16-true|FP16", re.I),
    BF16: re.compile(r"(torch\.)?bfloat16|bf16|bf16-mixed|bf16-true", re.I),
    FP32: re.compile(r"(torch\.)?(float32|float|double|float64)|fp32|tf32|32|32-true|no", re.I),
}
_SETTINGS = {"precision", "mixed_precision"}  # of Trainer, Fabric, and Accelerator
_HAS_SCALER = re.compile(
    r"Scaler\(|scaler[.(]|scale_loss|loss_scale|deepspeed|colossalai|accelerat|fabric|lightning|apex",
    re.I,
)


_REBINDS = re.compile(r"\b(exec|globals)\(")  # what may bind a name that is assigned once
MOST_VALUES = 4  # of one name, which are followed


def dtypes_of(source: Source, node: ast.AST | None, depth: int = 3) -> frozenset[str]:
    """Return the precisions that an expression may stand for."""
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            return dtypes_of(source, body, depth) | dtypes_of(source, orelse, depth)
        case ast.Subscript(value=ast.Dict(keys=keys, values=values), slice=key):
            asked, pairs = constants_of(source, key), zip(keys, values, strict=True)
            chosen = [value for k, value in pairs if not asked or getattr(k, "value", k) in asked]
            return frozenset().union(*(dtypes_of(source, value, depth) for value in chosen))
        case ast.Call(func=ast.Attribute(attr="get", value=ast.Dict() as table)):
            return dtypes_of(source, ast.Subscript(table, ast.Name("?")), depth)
        case ast.Constant(value=str() | int() as value):
            text = str(value)
        case ast.Name() | ast.Attribute():
            text = name_of(node)
            never = excluded(source)
            bound = [each for each in source.assigned.get(leaf(text), []) if each not in never]
            if 0 < len(bound) <= MOST_VALUES and depth:
                return frozenset().union(*(dtypes_of(source, each, depth - 1) for each in bound))
        case _:
            return frozenset({UNKNOWN})
    named = {dtype for dtype, spelling in _SPELLINGS.items() if spelling.fullmatch(text)}
    return frozenset(named or {UNKNOWN})


def constants_of(source: Source, node: ast.AST, depth: int = 2) -> frozenset[object]:
    """Return the constants that an expression may be; none where the file does not show them."""
    match node:
        case ast.Constant(value=value):
            return frozenset({value})
        case ast.IfExp(body=body, orelse=orelse):
            parts = [constants_of(source, body, depth), constants_of(source, orelse, depth)]
            return parts[0] | parts[1] if all(parts) else frozenset()
        case ast.Name(id=name) if depth and len(source.assigned.get(name, ())) == 1:
            return constants_of(source, source.assigned[name][0], depth - 1)
    return frozenset()


def excluded(source: Source) -> frozenset[ast.AST]:
    """Return the nodes in branches of the module that a constant of the module excludes."""
    found, tests = set[ast.AST](), [*source.tree.body]
    while tests:
        match tests.pop():
            case ast.If(
                test=ast.Compare(ast.Name() as name, [ast.Eq()], [ast.Constant(value=value)]),
                body=body,
                orelse=orelse,
            ) if (known := constants_of(source, name)) and not _REBINDS.search(source.text):
                never = body if value not in known else orelse if known == {value} else []
                found |= {part for each in never for part in ast.walk(each)}
                tests += orelse
    return frozenset(found)


def autocast_dtypes(source: Source, call: ast.Call) -> frozenset[str]:
    """Return the precisions of an autocast; none where it is off or is not seen to be on a GPU."""
    given = {word.arg: word.value for word in call.keywords}
    off = given.get("enabled")
    if isinstance(off, ast.Constant) and off.value is False:
        return frozenset()
    positions = [each for each in call.args if dtypes_of(source, each) != {UNKNOWN}]
    dtype = given.get("dtype", positions[0] if positions else None)
    if dtype is not None:
        return dtypes_of(source, dtype)
    on_gpu = "cuda" in name_of(call.func) or "cuda" in words_in(call)
    return frozenset({FP16 if on_gpu else UNKNOWN})


def precisions(source: Source) -> frozenset[str]:
    """Return the precisions of all autocasts in a file, and of the settings of its trainers."""
    found = [autocast_dtypes(source, call) for call in source.calls_of("autocast")]
    found += [
        dtypes_of(source, word.value)
        for call in source.calls
        for word in call.keywords
        if word.arg in _SETTINGS
    ]
    return frozenset().union(*found)


def scaler_with_bfloat16(source: Source) -> Iterator[ast.AST]:
    """Yield the scalers that are enabled where a file computes in bfloat16."""
    scalers = [made for made, _ in source.scalers()]
    used = precisions(source) if scalers else frozenset()
    used |= {dtype for _, dtype in cast_parameters(source) if scalers}
    for made in scalers:
        enabled = next((word.value for word in made.keywords if word.arg == "enabled"), None)
        chosen = source.is_chosen(made)
        always = enabled is None or (isinstance(enabled, ast.Constant) and enabled.value is True)
        if (always and used == {BF16} and not chosen) or _asks_for_bfloat16(source, enabled):
            yield made


def _asks_for_bfloat16(source: Source, enabled: ast.expr | None) -> bool:
    """Return whether a condition holds under bfloat16, as ``dtype == "bfloat16"`` does."""
    if enabled is None:
        return False
    values = source.assigned.get(leaf(name_of(enabled)), [])
    if len(values) == 1 and isinstance(values[0], ast.BoolOp):
        values = values[0].values
    # Of what a name was assigned, only a comparison is certain: a device that supports bfloat16
    # need not compute in it.
    told = [each for each in values if _says_bfloat16(each)]
    compared = len(told) == 1 and isinstance(told[0], ast.Compare) and _is_plain(told[0])
    return compared or (_is_plain(enabled) and _says_bfloat16(enabled))


def _says_bfloat16(node: ast.AST) -> bool:
    return any(_SPELLINGS[BF16].search(word) for word in words_in(node))


def _is_plain(test: ast.expr) -> bool:
    """Return whether a condition has no part that may turn it around or take it away."""
    negations = ast.Not | ast.NotEq | ast.IsNot | ast.NotIn | ast.And | ast.IfExp
    return not any(isinstance(each, negations) for each in ast.walk(test))


def autocast_without_scaler(trace: Trace, autocast: Event) -> bool:
    """Return whether a loss under fp16 autocast is passed back and stepped with, unscaled."""
    call, source = autocast.node, trace.source
    if _HAS_SCALER.search(source.text) or not isinstance(call, ast.Call):
        return False
    passes = trace.of("backward", after=autocast, beside=autocast)
    values = (node.value for node in source.nodes if isinstance(node, ast.Assign))
    named = any(call in ast.walk(value) for value in values)  # and used further inside
    plain = [
        each for each in passes if each.on == "plain" and (named or each.loops == autocast.loops)
    ]
    if not plain or not trace.of("bare", after=plain[0], beside=plain[0]):
        return False
    return FP16 in autocast_dtypes(source, call) and not _is_without_gradients(source, call)


def _is_without_gradients(source: Source, call: ast.Call) -> bool:
    """Return whether a call is under ``torch.no_grad()``: of a teacher, of an evaluation."""
    for node in source.nodes:
        match node:
            case ast.With(items=items):
                heads = [item.context_expr for item in items]
            case ast.FunctionDef(decorator_list=decorators):
                heads = decorators
            case _:
                continue
        off = any(re.search("no_grad|inference_mode", ast.unparse(head)) for head in heads)
        if off and call in ast.walk(node):
            return True
    return False


def cast_parameters(source: Source) -> Iterator[tuple[ast.Call, str]]:
    """Yield the casts of models that an optimizer of the file trains, each with its dtype."""
    trained, restored = _models(source, "parameters"), _models(source, "float")
    for node in source.nodes if trained else ():
        match node:
            case ast.Assign(targets=[target], value=ast.Call() as call):
                model = name_of(target)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=value)) as call):
                model = name_of(value)
            case _:
                continue
        dtype = _cast_to(source, call) if model in trained - restored else ""
        if dtype:
            yield call, dtype


def _models(source: Source, method: str) -> set[str]:
    """Return the names on which a method is called; `parameters` only for an optimizer."""
    calls = source.calls_of(method)
    names = {name_of(call.func).removesuffix(f".{method}") for call in calls}
    makers = (call for call in source.calls if kind_by_class(name_of(call.func)) == OPTIMIZER)
    given = " ".join(ast.unparse(arg) for call in makers for arg in call.args[:1])
    return {name for name in names if method != "parameters" or f"{name}.parameters()" in given}


def _cast_to(source: Source, call: ast.Call) -> str:
    """Return the 16-bit dtype to which a call casts a whole model, or ""."""
    match call:
        case ast.Call(func=ast.Attribute(attr="half")):
            return FP16
        case ast.Call(func=ast.Attribute(attr="bfloat16")):
            return BF16
        case ast.Call(
            func=ast.Attribute(attr="cuda" | "train" | "eval", value=ast.Call() as inner)
        ):
            return _cast_to(source, inner)
        case ast.Call(func=ast.Attribute(attr="to" | "from_pretrained", value=value)):
            named = [word.value for word in call.keywords if word.arg in ("dtype", "torch_dtype")]
            found = [dtypes_of(source, each) for each in (*call.args, *named)]
            exact = [min(each) for each in found if each in ({FP16}, {BF16})]
            if exact or not isinstance(value, ast.Call):
                return exact[0] if exact else ""
            return _cast_to(source, value)
    return ""


_ADAPTED = re.compile(r"peft|lora|adapter|requires_grad|float32|fp32|cast_training", re.I)


def fp16_parameters(source: Source) -> Iterator[ast.AST]:
    """Yield the casts to float16 of models that an optimizer trains with a scaler."""
    scaled = any(source.events("step")) and (source.wrapped or "GradScaler" in source.text)
    # An adapter beside a frozen half model may be in float32.
    if scaled and not _ADAPTED.search(source.text):
        yield from (call for call, dtype in cast_parameters(source) if dtype == FP16)


def unused_scaler(source: Source) -> Iterator[ast.AST]:
    """Yield the scalers that nothing uses in a file that passes its losses back unscaled."""
    plain = any(event.on == "plain" for _, event in source.events("backward"))
    bare = any(source.events("bare")) and not any(source.events("apex"))
    aside = {part.value for part in source.nodes if _is_state(part)}
    names = [part for part in source.nodes if isinstance(part, ast.Name | ast.Attribute)]
    for made, name in source.scalers() if plain and bare else ():
        own = [part for part in names if leaf(name_of(part)) == name and part not in aside]
        only_stored = own and all(isinstance(part.ctx, ast.Store) for part in own)
        local = all(isinstance(part, ast.Name) for part in own)
        # Another file may use the attribute of an object, unless this one is a script.
        if only_stored and (local or "__main__" in source.text):
            yield made


def _is_state(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and "state_dict" in node.attr

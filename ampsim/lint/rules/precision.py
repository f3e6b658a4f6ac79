"""Rules about the precision of a file: whether a scaler belongs there, and whether it is used.

A precision is read where it is written: as a dtype, as a string, through a name or a dictionary.
`dtypes_of` returns the precisions that an expression may stand for, and `UNKNOWN` among them where
the file does not show one.
"""

import ast
import re
from collections.abc import Iterator, Sequence

from ampsim.lint.events import Event, Trace
from ampsim.lint.names import has, keywords_of, leaf, name_of, parts_of
from ampsim.lint.source import Function, Source

FP16 = "float16"
BF16 = "bfloat16"
FP32 = "float32"
UNKNOWN = "unknown"
_SPELLINGS = {
    FP16: re.compile(r"(torch\.)?(float16|half)|fp16|16|16-mixed|16-true|FP16", re.I),
    BF16: re.compile(r"(torch\.)?bfloat16|bf16|bf16-mixed|bf16-true", re.I),
    FP32: re.compile(
        r"(torch\.)?(float32|float|double|float64)|fp32|tf32|32|32-true|no", re.I
    ),
}
_OTHER_SCALERS = re.compile(
    r"scale_loss|loss_scale|"
    r"(import|from) (deepspeed|colossalai|accelerate|(pytorch_)?lightning|apex)\b"
)
_ASKS_PRECISION = "amp|fp16|half|scaler|precision|dtype|autocast"
_TURNS = (
    ast.Not | ast.NotEq | ast.IsNot | ast.NotIn | ast.IfExp | ast.Call
)  # in a condition
_NO_GRADIENTS = re.compile("no_grad|inference_mode")


def dtypes_of(source: Source, node: ast.AST | None, depth: int = 3) -> frozenset[str]:
    """Return the precisions that an expression may stand for."""
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            parts = [body, orelse]
        case ast.Subscript(value=ast.Dict(values=parts)):
            pass
        case ast.Constant(value=str() | int() as value):
            return _dtypes_named(str(value))
        case ast.Name() | ast.Attribute():
            parts = source.assigned.get(leaf(name_of(node)), [])
            if not parts or not depth:
                return _dtypes_named(name_of(node))
            depth -= 1
        case _:
            return frozenset({UNKNOWN})
    return frozenset().union(*(dtypes_of(source, each, depth) for each in parts))


def _dtypes_named(text: str) -> frozenset[str]:
    named = {
        dtype for dtype, spelling in _SPELLINGS.items() if spelling.fullmatch(text)
    }
    return frozenset(named or {UNKNOWN})


def autocast_dtypes(source: Source, call: ast.Call) -> frozenset[str]:
    """Return the precisions of an autocast; none where it is off or is not seen to be on a GPU."""
    given = keywords_of(call)
    off = given.get("enabled")
    if isinstance(off, ast.Constant) and off.value is False:
        return frozenset()
    for each in (given["dtype"],) if "dtype" in given else call.args[1:]:
        return dtypes_of(source, each)
    on_gpu = "cuda" in source.text and "cpu" not in source.words(call)
    return frozenset({FP16 if on_gpu else UNKNOWN})


def scaler_with_bfloat16(source: Source, traces: Sequence[Trace]) -> Iterator[ast.AST]:
    """Yield the scalers that are enabled where a file computes in bfloat16.

    Of a scaler that another file makes, the first loss that it scales is the place.
    """
    dtypes = [autocast_dtypes(source, call) for call in source.calls_of("autocast")]
    only_bfloat16 = frozenset().union(*dtypes) == {BF16}
    scalers = [made for made, _ in source.scalers()]
    for made in scalers:
        given = keywords_of(made)
        enabled = given.get("enabled", ast.Constant(value=True))
        always = isinstance(enabled, ast.Constant) and enabled.value is True
        chosen = any(source.around(made, ast.If | ast.IfExp))
        if (always and only_bfloat16 and not chosen) or _asks_for_bfloat16(
            source, enabled
        ):
            yield made
    if only_bfloat16 and not scalers:
        for trace in traces:
            yield from [event.node for event in trace.of("scale")][:1]


def _asks_for_bfloat16(source: Source, enabled: ast.expr) -> bool:
    """Return whether a condition holds under bfloat16, as ``dtype == "bfloat16"`` does."""
    parts = [enabled, *source.assigned.get(leaf(name_of(enabled)), ())]
    asks = [
        each for each in parts if any(map(_SPELLINGS[BF16].search, source.words(each)))
    ]
    # A device that supports bfloat16 need not compute in it, so a call is not certain.
    turned = any(isinstance(part, _TURNS) for each in asks for part in ast.walk(each))
    return len(asks) == 1 and not turned


def autocast_without_scaler(source: Source, trace: Trace, each: Event) -> bool:
    """Return whether the loss of an fp16 autocast is passed back and stepped with, unscaled."""
    if each.on != "plain" or _OTHER_SCALERS.search(source.text):
        return False
    # A branch that asks for the precision may be the one without an autocast.
    if any(has((guard.text, *guard.words), _ASKS_PRECISION) for guard in each.guards):
        return False
    before = trace.of("autocast", "scale", "backward", before=each, beside=each)
    autocast = before[-1].node if before else None
    if not isinstance(autocast, ast.Call) or before[-1].kind != "autocast":
        return False
    blocks = map(ast.unparse, source.around(autocast, ast.With | ast.FunctionDef))
    heads = [block.partition(":\n")[0] for block in blocks]
    if any(map(_NO_GRADIENTS.search, heads)):
        return False
    # One that is assigned is entered further inside.
    named = any(source.around(autocast, ast.Assign))
    within = named or each.loops == before[-1].loops
    stepped = trace.of("bare", after=each, beside=each)
    return bool(within and stepped) and FP16 in autocast_dtypes(source, autocast)


def unused_scaler(source: Source, traces: Sequence[Trace]) -> Iterator[ast.AST]:
    """Yield the scalers that nothing uses: a test for one, or its kept state, is no use.

    Another file may use a name of a module, or the attribute of an object, unless the file is a
    script.
    """
    names = [*parts_of(source.tree, ast.Name | ast.Attribute)]
    no_uses = {*source.owners_of("state_dict"), *source.owners_of("load_state_dict")}
    no_uses |= {each.test for each in parts_of(source.tree, ast.If)}
    for made, name in source.scalers():
        own = [part for part in names if leaf(name_of(part)) == name]
        inside = any(source.around(made, Function))
        local = inside and all(isinstance(part, ast.Name) for part in own)
        if not own or not (local or "__main__" in source.text):
            continue
        used = {part for part in own if isinstance(part.ctx, ast.Load)}
        if used <= no_uses:
            yield made

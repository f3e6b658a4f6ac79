"""Rules about the precision of a file: whether a scaler belongs there, and whether it is used.

A precision is read where it is written: as a dtype, as a string, through a name or a dictionary.
`dtypes_of` returns the precisions that an expression may stand for, and `UNKNOWN` among them where
the file does not show one.
"""

import ast
import re
from collections.abc import Iterator

from ampsim.lint.events import Event, Trace, Traces
from ampsim.lint.names import has, keywords_of, leaf, name_of, parts_of
from ampsim.lint.source import Function, Source

FP16 = "float16"
BF16 = "bfloat16"
FP32 = "float32"
UNKNOWN = "unknown"
_SPELLINGS = {
    FP16: re.compile(r"(?i)(torch\.)?(float16|half)|fp16|16|16-mixed|16-true|FP16"),
    BF16: re.compile(r"(?i)(torch\.)?bfloat16|bf16|bf16-mixed|bf16-true"),
    FP32: re.compile(
        r"(?i)(torch\.)?(float32|float|double|float64)|fp32|tf32|32|32-true|no"
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
    """Return the precisions that an expression may stand for.

    Names are followed to what they are assigned, `depth` times.
    """
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            parts = [body, orelse]
        case ast.Subscript(value=ast.Dict(values=parts)):
            pass
        case ast.Constant(value=str() | int() as value):
            return _dtypes_named(str(value))
        case ast.Name() | ast.Attribute():
            name = name_of(node)
            parts = source.assigned.get(leaf(name), [])
            if not parts or not depth:
                return _dtypes_named(name)
            depth -= 1
        case _:
            return frozenset({UNKNOWN})
    dtypes = [dtypes_of(source, part, depth) for part in parts]
    return frozenset().union(*dtypes)


def _dtypes_named(text: str) -> frozenset[str]:
    for dtype, spelling in _SPELLINGS.items():
        if spelling.fullmatch(text):
            return frozenset({dtype})
    return frozenset({UNKNOWN})


def autocast_dtypes(source: Source, call: ast.Call) -> frozenset[str]:
    """Return the precisions of an autocast; none where it is off or is not seen to be on a GPU."""
    given = keywords_of(call)
    enabled = given.get("enabled")
    if isinstance(enabled, ast.Constant) and enabled.value is False:
        return frozenset()
    dtypes = [given["dtype"]] if "dtype" in given else call.args[1:2]
    for dtype in dtypes:
        return dtypes_of(source, dtype)
    # torch's default is float16 on a GPU, and bfloat16 on the CPU.
    is_on_gpu = "cuda" in source.text and "cpu" not in source.words(call)
    return frozenset({FP16 if is_on_gpu else UNKNOWN})


def scaler_with_bfloat16(source: Source, traces: Traces) -> Iterator[ast.AST]:
    """Yield the scalers that are enabled where a file computes in bfloat16.

    Of a scaler that another file makes, the first loss that it scales is the place.
    """
    dtypes = set[str]()
    for call in source.calls_of("autocast"):
        dtypes |= autocast_dtypes(source, call)
    is_bfloat16 = dtypes == {BF16}
    scalers = [made for made, _ in source.scalers()]
    for made in scalers:
        enabled = keywords_of(made).get("enabled", ast.Constant(value=True))
        is_always_on = isinstance(enabled, ast.Constant) and enabled.value is True
        is_chosen = any(source.around(made, ast.If | ast.IfExp))
        is_on = is_bfloat16 and is_always_on and not is_chosen
        if is_on or _asks_for_bfloat16(source, enabled):
            yield made
    if scalers or not is_bfloat16:
        return
    for trace in traces:
        for event in trace.of("scale")[:1]:
            yield event.node


def _asks_for_bfloat16(source: Source, enabled: ast.expr) -> bool:
    """Return whether a condition holds under bfloat16, as ``dtype == "bfloat16"`` does."""
    assigned = source.assigned.get(leaf(name_of(enabled)), ())
    names_bfloat16 = _SPELLINGS[BF16].search
    parts = [enabled, *assigned]
    asks = [part for part in parts if any(map(names_bfloat16, source.words(part)))]
    if len(asks) != 1:
        return False
    # A device that supports bfloat16 need not compute in it, so a call is not certain.
    return not any(isinstance(part, _TURNS) for part in ast.walk(asks[0]))


def autocast_without_scaler(source: Source, trace: Trace, each: Event) -> bool:
    """Return whether the loss of an fp16 autocast is passed back and stepped with, unscaled."""
    if not each.is_plain or _OTHER_SCALERS.search(source.text):
        return False
    # A branch that asks for the precision may be the one without an autocast.
    for guard in each.guards:
        if has((guard.text, *guard.words), _ASKS_PRECISION):
            return False
    before = trace.of("autocast", "scale", "backward", before=each, beside=each)
    if not before or before[-1].kind != "autocast":
        return False
    autocast = before[-1].node
    if not isinstance(autocast, ast.Call) or _is_without_gradients(source, autocast):
        return False
    # One that is assigned is entered further inside.
    is_assigned = any(source.around(autocast, ast.Assign))
    if not is_assigned and each.loops != before[-1].loops:
        return False
    is_stepped = bool(trace.of("bare", after=each, beside=each))
    return is_stepped and FP16 in autocast_dtypes(source, autocast)


def _is_without_gradients(source: Source, autocast: ast.Call) -> bool:
    """Return whether an autocast is within a block or a function that records no gradients."""
    for block in source.around(autocast, ast.With | ast.FunctionDef):
        head, _, _ = ast.unparse(block).partition(":\n")
        if _NO_GRADIENTS.search(head):
            return True
    return False


def unused_scaler(source: Source, traces: Traces) -> Iterator[ast.AST]:
    """Yield the scalers that nothing uses: a test for one, or its kept state, is no use.

    Another file may use a name of a module, or the attribute of an object, unless the file is a
    script.
    """
    names = [*parts_of(source.tree, ast.Name | ast.Attribute)]
    no_uses = {*source.owners_of("state_dict"), *source.owners_of("load_state_dict")}
    no_uses |= {each.test for each in parts_of(source.tree, ast.If)}
    is_script = "__main__" in source.text
    for made, name in source.scalers():
        own = [part for part in names if leaf(name_of(part)) == name]
        is_inside = any(source.around(made, Function))
        is_local = is_inside and all(isinstance(part, ast.Name) for part in own)
        if not own or not (is_local or is_script):
            continue
        read = {part for part in own if isinstance(part.ctx, ast.Load)}
        if read <= no_uses:
            yield made

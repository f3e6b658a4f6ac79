"""Gradients and losses that are still multiplied by the loss scale, or are divided by it twice."""

import ast
import re
from collections.abc import Iterator

from ampsim.lint.event import PARTLY, Event
from ampsim.lint.names import OPTIMIZER, called, has, kind_by_class, words_in
from ampsim.lint.source import Source, Trace

_MEASURES = re.compile(r"^(norm|vector_norm|get_total_norm|clamp_?|clip_|square|histogram|histc)$")
_TO_HALF = r"\.(half\(\)|to\(([^(),]+, )?(dtype=)?torch\.(half|float16)\))"
_HALF = re.compile(  # a model by its name, or one that is made there
    rf"(?:[\w.]+ = )?(?P<name>[\w.]+){_TO_HALF}|(?P<new>[\w.]+) = "
    rf"(?:[\w.]+\(.*\){_TO_HALF}|[\w.]+\.from_pretrained\(.*dtype=torch\.(half|float16)\b.*\))"
)
_DTYPE = re.compile(
    r"^ *(\w+) = (.*\btorch\.(?:half|float16)\b.*)", re.M
)  # which a name stands for, or may
_ENABLED = re.compile(r"GradScaler\(.*?enabled=(.*)\)")
_ADDED = re.compile(r"peft|lora|adapter|requires_grad|cast_training|\.float\(\)", re.I)
_UNSURE = re.compile(
    r"peft|lora|adapter|requires_grad|float32|fp32|enabled=(?!True)", re.I
)  # which are half


def clip_before_unscale(trace: Trace, clip: Event) -> bool:
    """Return whether gradients are clipped between the backward pass of a scaled loss and the step, as they are."""
    start = trace.scaled(clip)
    if not trace.of("step", after=clip, near=clip) or has(clip.words, "get_scale|scaler|inv_scale"):
        return False
    if start:
        done = trace.of("unscale", "step", "grad", "bare", after=start, before=clip, beside=clip)
        return all(each.kind == "unscale" and _of_another(trace, each, clip) for each in done)
    return not (
        "unscale" in trace.source.text or trace.of("backward") or trace.of("step", before=clip)
    )


def _of_another(trace: Trace, unscale: Event, clip: Event) -> bool:
    """Return whether an optimizer was unscaled that takes its steps elsewhere, and not with what is clipped."""
    first = next(iter(trace.of("update", "backward", after=clip, near=clip)), None)
    stepped = {step.of for step in trace.of("step", after=unscale, before=first, near=clip)}
    own = {step.of for _, step in trace.source.events("step")}
    return (
        unscale.of in own - stepped
        and bool(stepped)
        and all(re.fullmatch(r"[\w.]+", each) for each in own)
    )


def unscale_after_step(trace: Trace, late: Event) -> bool:
    """Return whether gradients are unscaled or clipped between the step that used them and the update."""
    return any(
        (late.kind == "clip" or (step.of, step.on) == (late.of, late.on))
        and (late.kind == "unscale" or not trace.of("step", "bare", after=late))
        and not trace.of("update", "backward", "scale", after=step, before=late)
        for step in trace.of("step", before=late, near=late)
    )


def unscale_twice(trace: Trace, each: Event) -> bool:
    """Return whether gradients are unscaled for the second time before their step."""
    if each.kind == "grad":
        step = next(iter(trace.of("step", after=each, beside=each)), None)
        own = step and trace.scaled(each) and _divides_by_the_scale(each)
        return bool(own and not trace.of("update", "scale", "backward", after=each, before=step))
    steps = [
        step for step in trace.of("step", beside=each) if (step.of, step.on) == (each.of, each.on)
    ]
    return trace.per_window(each, steps) or any(
        (first.of, first.on) == (each.of, each.on)
        and first.node is not each.node
        and re.fullmatch(r"\w+|self\.\S+", each.of)
        and all(guard.benign for guard in each.beyond(first))
        and not trace.of("update", "step", after=first, before=each)
        for first in trace.of("unscale", before=each, near=each)
    )


def _divides_by_the_scale(event: Event) -> bool:
    text = ast.unparse(event.node)
    return bool(
        event.words & {"get_scale", "_scale"}
        and re.search(r"\.grad(\.data)?( [/*]=|\.(div|mul)_\()", text)
    )


def scaled_gradients_read(trace: Trace, each: Event) -> bool:
    """Return whether gradients are measured, cut or penalised between the backward pass and their unscaling."""
    if each.kind == "penalty":
        return not has(each.words, "get_scale|inv_scale|_scale$")
    start, later = trace.scaled(each), trace.of("step", "unscale", after=each)
    asked = has(each.words, "scale") or any(
        guard.asks and not has(guard.words, "loss") for guard in each.guards
    )
    calls = (
        call
        for call in ast.walk(each.node)
        if isinstance(call, ast.Call) and _MEASURES.match(called(call))
    )
    measured = any(
        ".grad" in words_in(call) for call in calls
    )  # and what was taken is no multiple of them
    if not start or not later or later[0].apart(each) or asked or not measured:
        return False
    if any(_allows_for_it(each, next_) for next_ in trace.of("grad", after=each, before=later[0])):
        return False
    return not trace.of("unscale", "step", "bare", after=start, before=each, beside=each)


def _allows_for_it(measured: Event, event: Event) -> bool:
    """Return whether gradients are changed by a number with the scale in it, or divided by what was measured."""
    names = (
        "|".join(re.escape(ast.unparse(each)) for each in getattr(measured.node, "targets", ()))
        or "$^"
    )
    divided = re.search(rf"\.grad(\.\w+\(\))? / [^,]*\b({names})\b", ast.unparse(event.node))
    return bool(divided) or has(event.words, "^(get_scale|inv_scale)$")


def loss_not_scaled(trace: Trace, plain: Event) -> bool:
    """Return whether a backward pass is of a loss, or of a term of it, that a scaler unscales and none scaled."""
    steps = trace.of("step", after=plain, near=plain)
    if plain.on.startswith("scaled") and PARTLY in plain.words:
        return bool(steps)
    if plain.on != "plain" or not steps:
        return False
    scaled = [each for each in trace.of("backward", near=plain) if each.on.startswith("scaled")]
    with_it = [each for each in scaled if not each.apart(steps[0])]
    first, second = sorted((with_it[0], plain), key=trace.index) if with_it else (plain, plain)
    if with_it and trace.index(second) < trace.index(steps[0]):
        return not trace.of("zero", "update", "bare", "step", after=first, before=steps[0])
    return ".scale(" not in trace.source.text and not trace.of(
        "bare", "zero", "step", after=plain, before=steps[0]
    )


def fp16_parameters(source: Source) -> Iterator[ast.AST]:
    """Yield what makes models half whose parameters an optimizer in the same function has, with a scaler."""
    for scope in (source.tree, *source.functions) if any(source.events("step")) else ():
        calls = [
            each
            for each in scope.body
            if isinstance(each, ast.Assign | ast.Expr) and isinstance(each.value, ast.Call)
        ]
        whole = (
            ast.unparse(scope) if calls and (source.wrapped or "GradScaler" in source.text) else ""
        )
        dtypes = (
            "|".join(
                name for name, value in _DTYPE.findall(whole) if _scales_with(name, value, whole)
            )
            or "$^"
        )
        for node in calls if source.wrapped or "GradScaler" in whole else ():
            text = re.sub(
                rf"(\.to\((?:.*, )?(?:dtype=)?|dtype=)(?:{dtypes})\b",
                r"\1torch.half",
                ast.unparse(node),
            )
            made = _HALF.fullmatch(text)
            model = made["name"] or made["new"] if made else ""
            given = (
                re.findall(rf"([\w.]+)\([^\n]*\b{re.escape(model)}\.parameters\(\)", whole)
                if made
                else ()
            )
            unsure = made and made["new"] and text == ast.unparse(node) and _UNSURE.search(whole)
            if made and f"{model}.float()" not in whole and not unsure:
                yield from [node.value] * (OPTIMIZER in map(kind_by_class, given))


def _scales_with(dtype: str, value: str, whole: str) -> bool:
    """Return whether a scaler scales where a name is float16, and all of a model may be cast to it."""
    asked = _ENABLED.search(whole)
    words = [
        re.findall(r"\w+\b(?!\.)", text)
        for text in (f"{dtype} {value}", asked[1] if asked else dtype)
    ]
    same = {*words[0]} & {*words[1]} - {"if", "else"} and "not" not in words[1]
    return bool(same) and not _ADDED.search(whole)


def scaled_loss_logged(trace: Trace, each: Event) -> bool:
    """Return whether a scaled loss is logged: ``.item()``, ``float()``, or an entry that is called a loss."""
    return True

"""Gradients and losses that are still multiplied by the loss scale, or are divided by it twice."""

import ast
import re

from ampsim.lint.event import Event, Trace
from ampsim.lint.names import OPTIMIZER, SCALER, called, has, kind_by_class, name_of, words_in
from ampsim.lint.rule import Found, finds
from ampsim.lint.source import Source

_MEASURES = re.compile(r"^(norm|vector_norm|get_total_norm|clamp_?|clip_|square|histogram|histc)$")


@finds("AMP103")
def clip_scaled(source: Source) -> Found:
    """Yield the clippings between the backward pass of a scaled loss and the step, with no unscaling before."""
    for trace, clip in source.events("clip"):
        later = [step for step in trace.between(clip, None, "step") if step.loops == clip.loops]
        if all(step.apart(clip) for step in later) or has(clip.words, "get_scale|scaler|inv_scale"):
            continue
        start = trace.scaled(clip)
        between = trace.between(start, clip, "unscale", "step", "grad", "bare")
        known = start or not ("unscale" in source.text or trace.of("backward") or trace.between(None, clip, "step"))
        if known and all(each.apart(clip) for each in between if start):
            yield clip.node, "gradients are clipped while they are scaled: no scaler.unscale_() comes before"


@finds("AMP104")
def unscale_after_step(source: Source) -> Found:
    """Yield what is unscaled or clipped between the step and the update, of gradients that were stepped with."""
    for trace, late in source.events("unscale", "clip"):
        for step in trace.between(None, late, "step"):
            same = step.loops == late.loops and (late.kind == "clip" or (step.of, step.on) == (late.of, late.on))
            unused = late.kind == "unscale" or not trace.between(late, None, "step", "bare")
            again = trace.between(step, late, "update", "backward", "scale")
            if same and unused and not again and not step.apart(late):
                yield late.node, "gradients are unscaled or clipped after the step that used them"


@finds("AMP105")
def unscaled_twice(source: Source) -> Found:
    """Yield the second unscaling of gradients before their step."""
    for trace, step in source.events("step"):
        start = trace.scaled(step)
        before = [each for each in trace.between(start, step, "unscale", "grad") if not each.apart(step)]
        if start and not trace.between(before[0] if before else None, step, "update", "scale", "backward"):
            for each in before:
                if each.kind == "grad" and _divides_by_the_scale(each):
                    yield each.node, "gradients are divided by the scale here, and again by scaler.step()"
    for trace, each in source.events("unscale"):
        steps = [step for step in trace.of("step", with_=each) if (each.of, each.on) == (step.of, step.on)]
        if trace.per_window(each, steps):
            yield each.node, "unscale_() runs in every micro-batch, and scaler.step() once per window"
        if any(_is_second(trace, first, each) for first in trace.between(None, each, "unscale")):
            yield each.node, f"unscale_({each.of}) for the second time since the last update()"


def _divides_by_the_scale(event: Event) -> bool:
    if not event.words & {"get_scale", "_scale"}:
        return False
    match event.node:
        case ast.AugAssign(op=ast.Div() | ast.Mult(), target=target):
            return ".grad" in words_in(target)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="div_" | "mul_", value=value))):
            return ".grad" in words_in(value)
    return False


def _is_second(trace: Trace, first: Event, second: Event) -> bool:
    same = (first.of, first.on, first.loops) == (second.of, second.on, second.loops) and first.node is not second.node
    known = re.fullmatch(r"\w+|self\.\S+", second.of) and all(guard.benign for guard in second.beyond(first))
    return bool(same and known) and not first.apart(second) and not trace.between(first, second, "update", "step")


@finds("AMP106")
def scaled_gradients_read(source: Source) -> Found:
    """Yield what measures, cuts or penalises gradients between the backward pass and their unscaling."""
    for trace, each in source.events("grad"):
        start, later = trace.scaled(each), trace.between(each, None, "step", "unscale")
        if start and later and not later[0].apart(each) and _measures(each) and not has(each.words, "scale"):
            asked = any(guard.asks for guard in each.guards)
            if not asked and not trace.between(start, each, "unscale", "step", "bare"):
                yield each.node, "gradients are measured or cut while they are scaled"
    for function in source.functions if "create_graph" in source.text else ():
        if not has({*words_in(function)}, "get_scale|inv_scale|_scale$"):
            for call in source.calls_of("grad", function):
                graph = "create_graph" in {word.arg for word in call.keywords} and name_of(call.func).endswith("d.grad")
                scales = (c for arg in call.args for c in source.calls_of("scale", arg))
                if graph and any(SCALER in name_of(each.func) for each in scales):
                    yield call, "the penalty is of gradients that are still scaled: divide them by scaler.get_scale()"


def _measures(event: Event) -> bool:
    """Return whether a statement takes from gradients what is no multiple of them."""
    calls = [each for each in ast.walk(event.node) if isinstance(each, ast.Call) and _MEASURES.match(called(each))]
    return any(".grad" in words_in(call) for call in calls)


@finds("AMP107")
def loss_not_scaled(source: Source) -> Found:
    """Yield the backward passes of plain losses whose gradients a scaler's step unscales."""
    for trace, plain in source.events("backward"):
        steps = [s for s in trace.between(plain, None, "step") if s.loops == plain.loops and not s.apart(plain)]
        if plain.on != "plain" or not steps:
            continue
        others = [each for each in trace.of("backward", with_=plain) if each.on.startswith("scaled")]
        with_it = [each for each in others if each.loops == plain.loops and not each.apart(steps[0])]
        first, second = sorted((with_it[0], plain), key=trace.index) if with_it else (plain, plain)
        mixed = with_it and trace.index(second) < trace.index(steps[0])
        if mixed and not trace.between(first, steps[0], "zero", "update", "bare", "step"):
            yield plain.node, "this loss is not scaled, and its gradients are added to scaled ones"
        elif ".scale(" not in source.text and not trace.between(plain, steps[0], "bare", "zero", "step"):
            yield plain.node, "scaler.step() unscales gradients of a loss that was never scaled"


@finds("AMP114")
def half_model(source: Source) -> Found:
    """Yield the models of half precision whose parameters an optimizer in the same function has, with a scaler."""
    for scope in (source.tree, *source.functions) if any(source.events("step")) else ():
        for node in (getattr(each, "value", None) for each in scope.body):
            match node:
                case ast.Call(func=ast.Attribute(attr="half", value=model), args=[]):
                    name = name_of(model)
                case ast.Call(
                    func=ast.Attribute(attr="to", value=model), args=[ast.Attribute(attr="float16" | "half")]
                ):
                    name = name_of(model)
                case _:
                    continue
            made = [each for each in ast.walk(scope) if isinstance(each, ast.Call) and each.args]
            of = {ast.unparse(each.args[0]) for each in made if kind_by_class(name_of(each.func)) == OPTIMIZER}
            whole = ast.unparse(scope)
            trained = any(f"{name}.parameters()" in each for each in of) and f"{name}.float()" not in whole
            if trained and "GradScaler" in whole:
                yield node, f"{name} is in half precision: torch's scaler refuses to unscale float16 gradients"


@finds("AMP121")
def scaled_loss_logged(source: Source) -> Found:
    """Yield what a file logs of scaled losses: ``.item()``, ``float()``, or an entry that is called a loss."""
    for _, each in source.events("log"):
        yield each.node, "this is the loss times the loss scale"

"""What goes on in a skipped step, or lets a step that should be skipped through."""

import ast
import re
from collections.abc import Iterator, Sequence

from ampsim.lint.event import Event, Guard
from ampsim.lint.names import called, has, leaf, name_of, words_in
from ampsim.lint.source import Function, Source, Trace

_NO_STEP = {
    "get_scale",
    "zero_grad",
    "print",
}  # calls between two reads of a scale that leave it as it is
_STEPS = r"apply_(gradients|updates)|\.update\(|optim|params \- "


def scheduler_steps_on_skip(trace: Trace, each: Event) -> bool:
    """Return whether a schedule steps whether or not the scaler did; a foreign one may follow the optimizer's count."""
    of_a_decay = re.search("(^|_)ema", leaf(each.on), re.I)  # of an average
    waits = of_a_decay or trace.source.prepared or leaf(each.on) in trace.source.foreign
    made = trace.source.made.get(leaf(each.on))
    given = (
        [*made.args[:1], *(word.value for word in made.keywords if word.arg == "optimizer")]
        if made
        else []
    )
    own = {leaf(name_of(arg)) for arg in given}
    steps = trace.skippable()
    mine = [step for step in steps if leaf(step.of) in own]
    others = any(leaf(bare.of) in own and bare not in steps for bare in trace.of("bare"))
    return not waits and any(map(each.regardless, mine if mine or others else steps))


def average_updates_on_skip(trace: Trace, each: Event) -> bool:
    """Return whether an average is updated whether or not the scaler stepped."""
    return any(map(each.regardless, trace.skippable()))


decay_on_skip = average_updates_on_skip  # parameters that are made smaller are asked the same


def schedule_by_iteration(trace: Trace, each: Event) -> bool:
    """Return whether the learning rate is set in every iteration, whether or not the scaler stepped in it."""
    steps = [
        step
        for step in trace.skippable()
        if step.loops and step.loops == each.loops[: len(step.loops)]
    ]
    return any(not each.apart(step) for step in steps) and all(
        g.benign or g.window for g in each.guards
    )


def conditional_update(trace: Trace, update: Event) -> bool:
    """Return whether a guard leaves an update out after gradients were unscaled, or by their norm."""
    start = trace.scaled(update)
    if start is None or start.loops != update.loops:
        return False
    unscaled = trace.of("unscale", after=start, before=update, beside=update)
    return any(
        _is_verdict(guard)
        and (unscaled or has(guard.words, "grad"))
        and all(guard in other.guards for other in trace.of("update"))
        for guard in update.beyond(unscaled[-1] if unscaled else start)
    )


def _is_verdict(guard: Guard) -> bool:
    finite = has(
        guard.words, r"isfinite|isnan|isinf|is_finite|nonfinite|non_finite|is_nan|has_nan|found_inf"
    )
    clipped = has(guard.words, r"clip_grad_norm|get_total_norm") and not guard.benign
    return (finite or clipped) and "%" not in guard.words


def optimizer_bypasses_scaler(trace: Trace, bare: Event) -> bool:
    """Return whether an optimizer steps by itself with gradients of a scaled loss."""
    start = trace.scaled(bare)
    if (
        start is None
        or start.loops[: len(bare.loops)] != bare.loops
        or any(each.asks for each in bare.guards)
    ):
        return False
    plain = any(
        not each.on.startswith("scaled") for each in trace.of("backward", before=bare, beside=bare)
    )
    instead = any(each.apart(bare) for each in trace.of("step", "update"))
    known = all(guard.benign or guard.window for guard in bare.beyond(start))
    return (
        known
        and not plain
        and not instead
        and not trace.of("zero", after=start, before=bare, beside=bare)
    )


def isinf_misses_nan(source: Source) -> Iterator[ast.AST]:
    """Yield the checks of gradients for inf in functions that never look for NaN."""
    module = ast.Module(
        [each for each in source.tree.body if not isinstance(each, Function | ast.ClassDef)], []
    )
    for scope in (*source.functions, module) if "isinf" in source.text else ():
        checked = {
            part
            for each in ast.walk(scope)
            if isinstance(each, ast.Assert)
            for part in ast.walk(each)
        }
        calls = [
            each for each in ast.walk(scope) if isinstance(each, ast.Call) and each not in checked
        ]
        if not any(re.search(r"nan|finite|inf_or|!=", called(each), re.I) for each in calls):
            yield from (
                each for each in calls if called(each) == "isinf" and has({*words_in(each)}, "grad")
            )


def hidden_overflow(trace: Trace, each: Event) -> bool:
    """Return whether inf and NaN are replaced in gradients after the backward pass and before the scaler looks."""
    start = trace.scaled(each)
    calls = {called(call) for call in ast.walk(each.node) if isinstance(call, ast.Call)}
    written = [*getattr(each.node, "targets", ())]
    kept = "copy_" in calls or any(
        isinstance(to, ast.Attribute) and to.attr in ("grad", "data") for to in written
    )
    hides = "nan_to_num_" in calls or ("nan_to_num" in calls and kept)
    looked = trace.of("unscale", "step", after=start, before=each)
    return bool(start and hides and not looked and trace.of("step", "bare", after=each))


def zero_grad_only_after_step(trace: Trace, zero: Event) -> bool:
    """Return whether gradients are cleared only where the step was not skipped."""
    steps = [step for step in trace.of("step", before=zero) if step.loops == zero.loops]
    asked = [
        g
        for g in (zero.beyond(steps[-1]) if steps else [])
        if g.asks or g.text.endswith("update()")
    ]
    return bool(asked and len(trace.of("zero")) == 1 and trace.scaled(zero))


def skip_detected_by_equality(source: Source) -> Iterator[ast.AST]:
    """Yield the comparisons of two scales for which a schedule or an average waits, and which tell no skip.

    Scales that differ may have grown; and where nothing happens between the two reads, they never differ.
    """
    waits = [
        guard
        for _, each in source.events("schedule", "average")
        for guard in each.guards
        if guard.asks
    ]
    for scope in (*source.functions, source.tree) if waits and "get_scale()" in source.text else ():
        nodes = [*ast.walk(scope)]
        assigned = [
            each for each in nodes if isinstance(each, ast.Assign) and len(each.targets) == 1
        ]
        calls = [
            call.lineno
            for call in nodes
            if isinstance(call, ast.Call) and called(call) not in _NO_STEP
        ]
        for node in nodes:
            if (
                isinstance(node, ast.Compare)
                and len(node.ops) == 1
                and _awaited(node, assigned, waits)
            ):
                lines = [
                    _read_at(each, assigned, node.lineno)
                    for each in (node.left, node.comparators[0])
                ]
                late = not any(min(lines) < line <= max(lines) for line in calls)
                if min(lines) and (late or isinstance(node.ops[0], ast.Eq | ast.NotEq)):
                    yield node


def _awaited(node: ast.Compare, assigned: Sequence[ast.Assign], waits: Sequence[Guard]) -> bool:
    """Return whether what waits for one of some guards waits for a comparison, or a name that it is assigned to."""
    flipped = (
        ast.Compare(node.left, [ast.Eq()], node.comparators)
        if isinstance(node.ops[0], ast.NotEq)
        else node
    )
    spans = ((each, each.value.lineno, each.value.end_lineno or 0) for each in assigned)
    names = {ast.unparse(e.targets[0]) for e, first, last in spans if first <= node.lineno <= last}
    texts = {ast.unparse(node), ast.unparse(flipped)} | names
    return any(guard.text in texts or guard.words & names for guard in waits)


def _read_at(node: ast.expr, assigned: Sequence[ast.Assign], line: int) -> int:
    """Return the line at which a scale was read that stands in a comparison; 0 if it is none."""
    if isinstance(node, ast.Call):
        return line if called(node) == "get_scale" else 0
    reads = (
        each
        for each in assigned
        if isinstance(each.value, ast.Call) and called(each.value) == "get_scale"
    )
    names = (each.lineno for each in reads if ast.unparse(each.targets[0]) == ast.unparse(node))
    return max((each for each in names if each < line), default=0)


def _verdicts(source: Source) -> Iterator[tuple[Function, list[ast.expr]]]:
    """Yield the functions that step with gradients of a dynamic scale, and the names of the four values it returns."""
    for function in source.functions if re.search("(?i)dynamic_?scale", source.text) else ():
        makers = set()
        for node in ast.walk(function) if re.search(_STEPS, ast.unparse(function)) else ():
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(func=ast.Attribute(attr=attr, value=of)),
                ):
                    if (
                        attr in ("value_and_grad", "grad")
                        and "scale" in name_of(of).rpartition(".")[2].lower()
                    ):
                        makers.add(name)
                case ast.Assign(
                    targets=[ast.Tuple(elts=[_, ast.Name(), _, _] as four)], value=ast.Call(func=by)
                ):
                    if name_of(by) in makers or re.search(
                        r"(?i)scale\w*('\])?(\(\))?\.(value_and_)?grad\(\)$", name_of(by)
                    ):
                        yield function, four


def is_finite_ignored(source: Source) -> Iterator[ast.AST]:
    """Yield the verdicts of dynamic scales that are never read in their function, and what selects among equals."""
    for function, (_, verdict, *_) in _verdicts(source):
        if ast.unparse(verdict) not in {ast.unparse(each) for each in _loads(function)}:
            yield verdict
        for call in (
            each
            for each in ast.walk(function)
            if isinstance(each, ast.Call) and len(each.args) == 3
        ):
            if (
                called(call) in ("map", "tree_map", "tree_multimap")
                and len({*map(ast.unparse, call.args)}) < 3
            ):
                yield call


def new_scale_ignored(source: Source) -> Iterator[ast.AST]:
    """Yield the new dynamic scales that are read for their number alone, so that the next step has the old one."""
    for function, (scale, *_) in _verdicts(source):
        loops = (each for each in ast.walk(function) if isinstance(each, ast.For | ast.While))
        aside = {each.value for each in ast.walk(function) if isinstance(each, ast.Attribute)}
        aside |= {each.test for each in ast.walk(function) if isinstance(each, ast.If | ast.IfExp)}
        later = {
            each.id for each in _loads(function) if each not in aside and each.lineno > scale.lineno
        }
        kept = not isinstance(scale, ast.Name) or scale.id in later
        if not kept and not any(scale in ast.walk(loop) for loop in loops):
            yield scale


def _loads(function: Function) -> list[ast.Name]:
    """Return what a function reads by name."""
    return [
        each
        for each in ast.walk(function)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    ]


def state_not_selected(source: Source) -> Iterator[ast.AST]:
    """Yield the states of which a verdict selects the parameters alone."""
    for function, _ in _verdicts(source):
        calls = (
            source.calls_of("replace", function) if "opt_state" not in ast.unparse(function) else ()
        )
        yield from (
            each for each in calls if "params" in {keyword.arg for keyword in each.keywords}
        )

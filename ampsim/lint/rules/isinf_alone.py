"""AMP117: a check for inf that lets NaN through."""

import ast
import re
from collections.abc import Iterator, Sequence

from ampsim.lint.event import Trace
from ampsim.lint.names import leaf, name_of, words_of
from ampsim.lint.rule import SKIP, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.unscale_(optimizer)
    if not any(torch.isinf(param.grad).any() for param in model.parameters()):
        optimizer.step()
    scaler.update()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    scaler.unscale_(optimizer)
    if all(torch.isfinite(param.grad).all() for param in model.parameters()):
        optimizer.step()
    scaler.update()
"""
CHECKS = re.compile(r"nan|finite|inf_or|!=", re.I)


def checks(source: Source) -> Iterator[ast.Call]:
    """Yield the checks of gradients or norms for inf, in functions that never look for NaN."""
    for scope in (*source.all_functions, ast.Module([_ for _ in source.tree.body if not _is_scope(_)], [])):
        said = {leaf(name_of(each.func, {})) for each in ast.walk(scope) if isinstance(each, ast.Call)}
        if not any(map(CHECKS.search, said)):
            for call in (each for each in ast.walk(scope) if isinstance(each, ast.Call)):
                words = words_of(call, {})
                if leaf(name_of(call.func, {})) == "isinf" and (".grad" in words or any("grad" in w for w in words)):
                    yield call


def _is_scope(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the checks for inf that let NaN through."""
    for call in checks(source) if "isinf" in source.text else ():
        yield call, "isinf() is false for NaN, which an overflow also leaves: isfinite() sees both"


RULE = Rule(
    code="AMP117",
    name="isinf-alone",
    sentence="Gradients are looked at for inf and not for NaN. An overflow leaves either, as inf - inf is NaN; ask "
    "torch.isfinite.",
    law=SKIP,
    thread="",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)

"""AMP119: parameters that a skip keeps, and an optimizer's state that it does not."""

import ast
from collections.abc import Sequence

from ampsim.lint.event import Trace
from ampsim.lint.names import leaf, name_of, words_of
from ampsim.lint.rule import SKIP, Found, Rule
from ampsim.lint.rules.verdict_dropped import verdicts
from ampsim.lint.source import Source

WRONG = """\
def train_step(state, dynamic_scale, batch):
    dynamic_scale, is_finite, loss, grads = dynamic_scale.value_and_grad(loss_fn)(state.params)
    new = state.apply_gradients(grads=grads)
    keep = functools.partial(jnp.where, is_finite)
    return new.replace(params=jax.tree.map(keep, new.params, state.params)), dynamic_scale
"""
RIGHT = """\
def train_step(state, dynamic_scale, batch):
    dynamic_scale, is_finite, loss, grads = dynamic_scale.value_and_grad(loss_fn)(state.params)
    new = state.apply_gradients(grads=grads)
    keep = functools.partial(jnp.where, is_finite)
    new = new.replace(
        params=jax.tree.map(keep, new.params, state.params),
        opt_state=jax.tree.map(keep, new.opt_state, state.opt_state),
    )
    return new, dynamic_scale
"""


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the states of which a verdict selects the parameters alone."""
    for function in source.all_functions:
        if not [*verdicts(function)] or "opt_state" in words_of(function, {}) | _keywords(function):
            continue
        for call in (each for each in ast.walk(function) if isinstance(each, ast.Call)):
            given = {keyword.arg for keyword in call.keywords}
            if leaf(name_of(call.func, {})) == "replace" and "params" in given:
                yield call, "the old parameters are kept in a skipped step, and the optimizer's state is the new one"


def _keywords(node: ast.AST) -> set[str]:
    return {each.arg for each in ast.walk(node) if isinstance(each, ast.keyword) and each.arg}


RULE = Rule(
    code="AMP119",
    name="state-not-selected",
    sentence="Where gradients are not finite the old parameters are kept, and the optimizer's state is the new one, "
    "with "
    "inf or NaN in its moments. Select opt_state, too.",
    law=SKIP,
    thread="",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)

"""No source that Python parses makes the engine raise, and findings stand in the file."""

import ast
import math
import os
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim.lint.engine import RULES, lint
from ampsim.lint.source import UnreadableError
from tests.examples import examples

LARGEST = math.inf if os.environ.get("AMPSIM_DEEP") == "1" else 25_000
"""Bytes of a file: a quarter of all text, which has each kind of node that all have."""
STDLIB = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[::3]
STDLIB = [path for path in STDLIB if path.stat().st_size < LARGEST]


@pytest.mark.parametrize("path", STDLIB, ids=[path.stem for path in STDLIB])
def test_standard_library_has_no_findings(path: Path) -> None:
    assert (
        lint(
            "scaler = None\n" + path.read_text(encoding="utf-8", errors="replace"),
            codes=RULES,
        )
        == []
    )


NAMES = st.sampled_from(
    [
        "scaler",
        "self",
        "optimizer",
        "scheduler",
        "ema",
        "loss",
        "model",
        "x",
        "p",
        "GradScaler",
    ]
)
ATTRIBUTES = st.sampled_from(
    [
        "step",
        "update",
        "scale",
        "unscale_",
        "backward",
        "grad",
        "norm",
        "zero_grad",
        "state_dict",
        "get_scale",
        "half",
    ]
)


def extended(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("{}.{}".format, inner, ATTRIBUTES),
        st.builds("{}({})".format, inner, inner),
        st.builds("{}()".format, inner),
        st.builds("{}[{}]".format, inner, inner),
        st.builds(
            "({} {} {})".format,
            inner,
            st.sampled_from(["/", "%", "==", "is not", "and", "or", ","]),
            inner,
        ),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("(not {})".format, inner),
        st.builds("[{0} for {0} in {1}]".format, NAMES, inner),
        st.builds("(lambda: {})".format, inner),
        st.builds("torch.nn.utils.clip_grad_norm_({})".format, inner),
        st.builds("(torch.isfinite({}) or 'scaler')".format, inner),
    )


EXPRESSIONS = st.recursive(NAMES, extended, max_leaves=6)
SIMPLE = st.one_of(
    EXPRESSIONS,
    st.builds("{} = {}".format, NAMES, EXPRESSIONS),
    st.builds("{}, {} = {}".format, NAMES, NAMES, EXPRESSIONS),
    st.builds("{}.grad /= {}".format, NAMES, EXPRESSIONS),
    st.builds("del {}".format, NAMES),
    st.sampled_from(["pass", "return", "raise", "import torch", "global scaler"]),
)
HEADS = st.one_of(
    st.builds("if {}:".format, EXPRESSIONS),
    st.builds("for {} in {}:".format, NAMES, EXPRESSIONS),
    st.builds(
        "for {}, {} in zip({}, {}):".format, NAMES, NAMES, EXPRESSIONS, EXPRESSIONS
    ),
    st.builds("while {}:".format, EXPRESSIONS),
    st.builds("with {} as {}:".format, EXPRESSIONS, NAMES),
    st.builds(
        "def {}(self, {}, scaler=None, *args):".format,
        st.sampled_from(["f", "g", "step"]),
        NAMES,
    ),
    st.builds("class {}:".format, st.sampled_from(["A", "B"])),
)


def indented(head: str, body: list[str]) -> str:
    return "\n".join(
        [head, *("    " + line for part in body for line in part.splitlines())]
    )


STATEMENTS = st.recursive(
    SIMPLE,
    lambda inner: st.builds(indented, HEADS, st.lists(inner, min_size=1)),
    max_leaves=12,
)


@settings(max_examples=examples(ms=5))
@given(st.lists(STATEMENTS, min_size=1))
def test_generated_loops_do_not_raise(statements: list[str]) -> None:
    text = "\n".join(["scaler = torch.amp.GradScaler()", *statements])
    try:
        ast.parse(text)
    except SyntaxError:
        with pytest.raises(UnreadableError):
            lint(text, codes=RULES)
        return
    lines = text.count("\n") + 1
    for each in lint(text, codes=RULES):
        assert 1 <= each.line <= lines
        assert each.code in RULES


def test_mutual_recursion_terminates() -> None:
    calls = "\n".join(f"    f{each}(scaler)" for each in range(30))
    text = "\n".join(
        f"def f{each}(scaler):\n    scaler.step(optimizer)\n{calls}"
        for each in range(30)
    )
    assert lint(text) == []


FREE = """
def train(loader, scheduler):
    scaler = GradScaler()
    for batch in loader:
        scaler.scale(model(batch)).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
"""


def test_disabled_scaler_hides_no_findings() -> None:
    off = "def evaluate():\n    scaler = GradScaler(enabled=False)\n"
    assert [each.code for each in lint(off + FREE, codes=["AMP101"])] == ["AMP101"]
    for off in (
        "(enabled=False)\n",
        "(init_scale=float(2), enabled=False)  # as GradScaler()\n",
    ):
        assert lint(FREE.replace("()\n", off, 1), codes=["AMP101"]) == []


def test_a_form_feed_begins_no_line() -> None:
    text = "head = 1\n\f\n# \x0b \u2028" + FREE.replace(
        "scheduler.step()", "scheduler.step()  # ampsim: ignore[AMP101]"
    )
    assert lint(text, codes=["AMP101"]) == []

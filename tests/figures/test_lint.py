"""Refuses a typed digit in what a figure says: seeds, steps, scales and rates come from the data or
its provenance.

A figure's strings are its text, so each is looked at, the caption in the module's docstring too.
Not looked at are format specifications (`.2f`), other docstrings, and names of columns
(`log2_scales`, a lower-case identifier).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from figures import __main__ as cli
from figures import _style

ALLOWED = {
    r"\b(?:fp8|fp16|fp32|bf16|float16|float32|E4M3|E5M2)\b": "number formats",
    r"\bT(?:10|[1-9])\b": "theorems",
    r"\blog(?:2|10)\b": "logarithms",
    r"\b(?:2|10)\\?\^(?!\{?-?\d)|e\+1": "the base of a power, and the end of any binade",
    r"\b1/$": "a reciprocal, before the number",
    r"(?<![\d.])0(?![\d.])": "nothing at all, which no measurement rounds to",
    r"\bln 10\b": "the loss of a guess among ten classes, a formula",
    r"\bGPT-2\b": "a model",
    r"\bFSDP2\b": "a way to shard one",
    r"^(?:backoff |deduplicated |headroom |G=)[\w= ^]+$": "a policy as the data names it, drawn by that name",
    r"^#[0-9A-F]{6}$|^arc3,rad=$": "a colour, and matplotlib's name of an arc",
}
_ALLOWED = re.compile("|".join(ALLOWED))


def typed_digits(path: Path) -> Iterator[str]:
    """Yield a refusal for each string of a figure's source that has a digit of its own."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ignored = _format_specs(tree) | _docstrings(tree)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in ignored
        ):
            text = _ALLOWED.sub("", node.value)
            column = node.value.isidentifier() and node.value.islower()
            if re.search(r"\d", text) and not column:
                yield (
                    f"{path.name}, line {node.lineno}: {node.value!r} has a typed digit; expected it to come from "
                    "the data: run.config, run.seeds, an arm's settings"
                )


def _format_specs(tree: ast.AST) -> set[int]:
    specs = [
        node.format_spec
        for node in ast.walk(tree)
        if isinstance(node, ast.FormattedValue) and node.format_spec
    ]
    return {id(part) for spec in specs for part in ast.walk(spec)}


def _docstrings(tree: ast.Module) -> set[int]:
    """Return the strings that stand alone, but for the first, which is the caption."""
    alone = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    return {id(node) for node in alone if node is not tree.body[0].value}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [*cli.stems(), "_style"])
def test_figures_contain_no_typed_numbers(name: str) -> None:
    assert list(typed_digits(_style.HERE / f"{name}.py")) == []


@pytest.mark.parametrize(
    ("planted", "seen"),
    [
        ('axes.set_title("Final loss, 5 seeds")', True),
        ('axes.text(0, 0, f"G = 50, {seeds} seeds")', True),
        ('NAMES = {"unscaled": "from $2^{16}$"}', True),
        ('run.arm("static 2^4")', True),
        ('"""A caption about 3 seeds."""', True),
        (
            "axes.text(0, 0, f\"{share:.1f} % of fp16, by T3, of {row['log2_scales']}\")",
            False,
        ),
        ('color = "#00704F"', False),
        ('def f():\n    """Draw 3 lines."""', False),
    ],
)
def test_typed_digits_are_found(planted: str, seen: bool, tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(
        planted if planted.startswith('"""') else f'"""A caption."""\n{planted}\n'
    )
    assert [line.startswith("planted.py, line ") for line in typed_digits(path)] == [
        True
    ] * seen

"""No figure has a typed digit where a number of the data should stand."""

from pathlib import Path

import pytest

from figures import __main__ as cli
from figures import _lint, _style


@pytest.mark.parametrize("name", [*cli.stems(), "_policies", "_style", "_training"])
def test_no_figure_says_a_number_that_was_typed(name: str) -> None:
    assert list(_lint.typed_digits(_style.HERE / f"{name}.py")) == []


@pytest.mark.parametrize(
    ("planted", "seen"),
    [
        ('axes.set_title("Final loss, 5 seeds")', True),
        ('axes.text(0, 0, f"G = 50, {seeds} seeds")', True),
        ('NAMES = {"unscaled": "from $2^{16}$"}', True),
        ('run.arm("static 2^4")', True),
        ('"""A caption about 3 seeds."""', True),
        ("axes.text(0, 0, f\"{share:.1f} % of fp16, by T3, of {row['log2_scales']}\")", False),
        ('color = "#00704F"', False),
        ('def f():\n    """Draw 3 lines."""', False),
    ],
)
def test_a_planted_digit_is_seen(planted: str, seen: bool, tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(planted if planted.startswith('"""') else f'"""A caption."""\n{planted}\n')
    assert [line.startswith("planted.py, line ") for line in _lint.typed_digits(path)] == [True] * seen

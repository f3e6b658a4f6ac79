"""`ampsim adapt`: what it writes for a wrong loop breaks the law, and for a right one keeps it."""

from typing import Any

import pytest

from ampsim.lint.adapt.module import adapt
from ampsim.lint.engine import RULES

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")


@pytest.mark.parametrize("code", ["AMP101", "AMP103"])
def test_the_written_loop_breaks_the_law(code: str) -> None:
    from ampsim.testing.loop.judge import judge_loop

    rule = RULES[code]
    for source, broken in ((rule.wrong, [rule.law]), (rule.right, [])):
        text, _ = adapt(source, "train.py")
        module: dict[str, Any] = {}
        exec(compile(text, "my_loop.py", "exec"), module)  # noqa: S102 - it was written here
        found = judge_loop(module["make"], module["batches"], [rule.law])
        assert [each.law.name for each in found if each.is_finding] == broken

"""AMP116: names that torch gives up."""

import ast
from collections.abc import Sequence

from ampsim.lint.event import Trace
from ampsim.lint.names import name_of
from ampsim.lint.rule import Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.cuda.amp.GradScaler()
"""
RIGHT = """\
scaler = torch.amp.GradScaler("cuda")
"""


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the uses and imports of ``torch.cuda.amp``."""
    for node in source.nodes:
        match node:
            case ast.Attribute(attr="GradScaler" | "autocast") if name_of(node.value, {}) == "torch.cuda.amp":
                yield node, f"torch.cuda.amp.{node.attr} is deprecated: torch.amp.{node.attr}"
            case ast.ImportFrom(module="torch.cuda", names=names) if any(each.name == "amp" for each in names):
                yield node, "torch.cuda.amp is deprecated: torch.amp"
            case ast.ImportFrom(module="torch.cuda.amp" | "torch.cuda.amp.grad_scaler"):
                yield node, "torch.cuda.amp is deprecated: torch.amp"


RULE = Rule(
    code="AMP116",
    name="deprecated-names",
    sentence='torch.cuda.amp is deprecated since torch 2.4: torch.amp.GradScaler("cuda"), torch.autocast("cuda"). It '
    "breaks no law, and torch says so itself when it runs; therefore this is asked only if it is selected.",
    law="",
    thread="",
    wrong=WRONG,
    right=RIGHT,
    find=find,
    on=False,
)

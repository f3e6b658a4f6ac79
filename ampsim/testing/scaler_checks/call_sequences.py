"""Level 1: any sequence of calls against torch's scaler with the scales of the reference state
machine.
"""

import math
from collections.abc import Sequence

import torch
from hypothesis import strategies as st

from ampsim.testing.scaler_checks.adapter import Constants, ScalerAdapter
from ampsim.testing.scaler_checks.check import check
from ampsim.testing.scaler_checks.reference import GRADIENTS, Program
from ampsim.testing.scaler_checks.strategies import rules

PHRASES = [phrase.split() for phrase in (
    "scale clean step update",
    "scale inf step update",
    "scale clean unscale_ step",
    "scale clean unscale_ unscale_ step",
    "scale clean unscale_ update(8.0)",
    *("scale", "clean", "inf", "none", "unscale_", "step", "update", "update(8.0)"),
)]  # fmt: skip
Call = tuple[str, int]  # the event, and which of two optimizers


def _joined(phrases: Sequence[tuple[list[str], int]]) -> list[Call]:
    return [(event, i) for phrase, i in phrases for event in phrase]


CALLS = st.lists(
    st.tuples(st.sampled_from(PHRASES), st.integers(0, 1)), min_size=1, max_size=10
).map(_joined)
BOTH = "scale 0, inf 0, clean 1, unscale_ 0, unscale_ 1, step 0, step 1, update 0"
FOUND = [  # both optimizers, calls before the first scale(), and calls that come twice
    BOTH,
    *("clean 0, unscale_ 0", "clean 0, step 0", "update 0"),
    *("scale 0, clean 0, step 0, unscale_ 0", "scale 0, clean 0, step 0, step 0"),
]


def _calls(text: str) -> list[Call]:
    return [(event, int(i)) for event, i in map(str.split, text.split(", "))]


@check(
    1,
    issue="redai-studio/Relax#44",
    needs="unscale_ growth",
    adapts="misuse_errors",
    rule=rules(growth=False),
    calls=CALLS,
    found=[
        {"rule": {"init_scale": 8.0, "growth_interval": 3}, "calls": _calls(text)}
        for text in FOUND
    ],
)
def call_sequences_match_torch(
    case: ScalerAdapter, rule: Constants, calls: list[Call]
) -> None:
    """Any sequence of calls returns, raises, unscales, and steps as torch's scaler; a drop-in
    matches exactly.

    Without `misuse_errors`, a sequence ends at the first call for which torch's scaler raises.
    """
    raises = "misuse_errors" not in case.traits.unsupported
    drop_in = case.traits.drop_in
    rounding = 0.0 if drop_in else 2.0**-20
    if "override" in case.traits.unsupported:
        calls = [call for call in calls if call[0] != "update(8.0)"]
    program = Program(case.make(**rule))
    for (event, i), due in zip(calls, case.expected_calls(rule, calls)):
        if due is None:
            continue
        if event in GRADIENTS:
            program.give(event, i, due.scale)
            continue
        if due.raises and not raises:
            return
        raised = program.call(event, i)
        if raised and due.is_late:
            return  # torch divides by the wrong scale here, so raising is also correct
        same = raised == due.raises if drop_in else bool(raised) == bool(due.raises)
        seen = f"raised {raised}" if raised else "did not raise"
        assert same, f"{event} {seen}, expected {due.raises or 'no exception'}"
        shown = program.scaler.get_scale()
        same = math.isclose(shown, due.scale, rel_tol=rounding)
        assert same, f"after {event} the scale is {shown}, expected {due.scale}"
        text = (
            f"{event} called the optimizer {program.steps} times, expected {due.steps}"
        )
        assert program.steps == due.steps, text
        got = program.gradient(i)
        near = repr(got) == repr(due.gradient)
        if rounding and got and due.gradient:
            both = torch.tensor(got), torch.tensor(due.gradient)
            near = torch.allclose(*both, rounding, 2.0**-149, equal_nan=True)
        assert near, f"{event} left the gradient {got}, expected {due.gradient}"

"""Level 1: any sequence of calls against `ampsim.core.torch_model.protocol`, the pure model of torch's scaler."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from ampsim.testing.scaler_checks.adapter import ScalerAdapter
from ampsim.testing.scaler_checks.check import check
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
BOTH = ["scale 0", "inf 0", "clean 1", "unscale_ 0", "unscale_ 1", "step 0", "step 1", "update 0"]


def call(scaler: Any, event: str, optimizer: torch.optim.Optimizer) -> None:
    """Make one call of a scaler."""
    if event == "scale":
        scaler.scale(torch.ones(()))
    elif event == "update":
        scaler.update()
    elif event == "update(8.0)":
        scaler.update(8.0)
    else:
        getattr(scaler, event)(optimizer)


@check(
    1,
    issue="redai-studio/Relax#44",
    needs="refusals unscale_ override growth",
    rule=rules(growth=False),
    calls=CALLS,
    found=[
        {
            "rule": {"init_scale": 8.0, "growth_interval": 3},
            "calls": [(call.split()[0], int(call.split()[1])) for call in BOTH],
        }
    ],
)
def call_sequences_match_torch(
    case: ScalerAdapter, rule: dict[str, Any], calls: list[Call]
) -> None:
    """Any sequence of calls returns, raises, unscales, and steps as in torch's protocol; a drop-in matches exactly."""
    drop_in = case.traits.drop_in
    scaler, steps, rounding = case.make(**rule), [], 0.0 if drop_in else 2.0**-20
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizers = [torch.optim.SGD([param], lr=0.125, momentum=0.9) for param in params]
    for optimizer in optimizers:
        optimizer.register_step_pre_hook(lambda *_: steps.append(1))
    for (event, i), due in zip(calls, case.expected_calls(rule, calls)):
        if due is None:
            continue
        if event in ("clean", "inf", "none"):
            last = math.inf if event == "inf" else 0.3 * due.scale
            gradient = torch.tensor([0.3 * due.scale, 0.3 * due.scale, last])
            params[i].grad = None if event == "none" else gradient
            continue
        steps.clear()
        raised = None
        try:
            call(scaler, event, optimizers[i])
        except Exception as error:
            raised = repr(error)
        if raised and due.is_late:
            return  # torch divides by the wrong scale here, so raising is also correct
        same = raised == due.raises if drop_in else bool(raised) == bool(due.raises)
        assert same, f"{event} raised {raised}, expected {due.raises}"
        shown = scaler.get_scale()
        assert math.isclose(shown, due.scale, rel_tol=rounding), (
            f"the scale is {shown}, expected {due.scale}"
        )
        if due.steps is not None:
            assert len(steps) == due.steps, (
                f"{event} called the optimizer {len(steps)} times, expected {due.steps}"
            )
            grad = params[i].grad
            got = None if grad is None else grad.tolist()
            near = repr(got) == repr(due.gradient)
            if rounding and grad is not None and due.gradient is not None:
                expected = torch.tensor(due.gradient)
                near = torch.allclose(grad, expected, rounding, 2.0**-149, equal_nan=True)
            assert near, f"{event} left the gradient {got}, expected {due.gradient}"

"""Level 1: any sequence of calls against `ampsim.core.torch_model.protocol`, the pure model of torch's scaler."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from ampsim.core.machine import Rule
from ampsim.core.torch_model import protocol
from ampsim.core.torch_model.protocol import Optimizer, Outcome
from ampsim.testing.kit.check import check
from ampsim.testing.kit.strategies import rules
from ampsim.testing.kit.subject import Traits

PHRASES = [phrase.split() for phrase in (
    "scale clean step update",
    "scale inf step update",
    "scale clean unscale_ step",
    "scale clean unscale_ unscale_ step",
    "scale clean unscale_ update(8.0)",
    *("scale", "clean", "inf", "none", "unscale_", "step", "update", "update(8.0)"),
)]  # fmt: skip
CALLS = st.lists(
    st.tuples(st.sampled_from(PHRASES), st.integers(0, 1)), min_size=1, max_size=10
).map(
    lambda drawn: [
        (event, i) for phrase, i in drawn for event in phrase
    ]  # i: which of two optimizers
)

BOTH = [
    ("scale", 0),
    ("inf", 0),
    ("clean", 1),
    ("unscale_", 0),
    ("unscale_", 1),
    ("step", 0),
    ("step", 1),
    ("update", 0),
]


class Due(NamedTuple):
    """A call as it is due: how it raises, the scale after it, optimizer calls and gradient, where they are asked for.

    A call is `late` if the scale has changed since the gradient was computed. It may raise, and then nothing is known
    of the calls after it.
    """

    raises: str | None
    scale: float
    left: tuple[int, list[float] | None] | None = None
    late: bool = False


class Model:
    """The pure model of a scaler and two optimizers; `calls` are the calls that are settled, with what is due."""

    def __init__(self, traits: Traits, rule: Rule) -> None:
        self.traits, self.model = traits, protocol.create(rule)
        self.gradients: dict[int, np.ndarray | None] = {0: None, 1: None}
        self.made_at: dict[int, float] = {}  # optimizer -> the scale that its gradient has
        self.has_loss = False  # scaled since the last update

    def due(self, event: str, i: int) -> Due | None:
        """Apply one event to optimizer i; None where it is left out."""
        if not (self._says_the_same_to_all(event, i) or self.traits.drop_in):
            return None
        scale = self.model.state.scale
        if event in ("clean", "inf", "none"):
            value = np.full(3, 0.3 * scale, np.float32)
            value[2] = math.inf if event == "inf" else value[2]
            self.made_at[i], self.gradients[i] = scale, None if event == "none" else value
            return Due(None, scale)
        late, result = (
            event in ("unscale_", "step") and self.made_at.get(i) != scale,
            self._called(event, i),
        )
        left = None
        if result.optimizer is not None:
            (self.gradients[i],) = result.optimizer.grads
            grad = self.gradients[i]
            left = int(result.called), None if grad is None else grad.tolist()
        raises = (
            f"{result.refusal.kind.__name__}({result.refusal.text!r})" if result.refusal else None
        )
        return Due(raises, self.model.state.scale, left, late)

    def _says_the_same_to_all(self, event: str, i: int) -> bool:
        """Return whether the checks settle what an event does; elsewhere torch's answer is one of several right ones.

        They do not where there is no gradient or no loss, or no loss was ever scaled, and where a gradient is exchanged
        after it was checked.
        """
        self.has_loss = event == "scale" or (self.has_loss and not event.startswith("update"))
        if event.startswith("update"):
            return self.model.exists
        if event in ("clean", "inf", "none"):
            return self.model.record(i).stage is not protocol.Stage.UNSCALED
        return event not in ("unscale_", "step") or (
            self.has_loss and self.gradients[i] is not None
        )

    def _called(self, event: str, i: int) -> Outcome:
        if event == "scale":
            self.model, result = protocol.scale(self.model, np.ones((), np.float32))
            return replace(result, value=None)
        if event.startswith("update"):
            self.model, result = protocol.update(
                self.model, 8.0 if event == "update(8.0)" else None
            )
        else:
            self.model, result = getattr(protocol, event)(
                self.model, Optimizer(i, (self.gradients[i],))
            )
        return result


def modelled(
    traits: Traits, rule: Mapping[str, Any], calls: Sequence[tuple[str, int]]
) -> list[tuple[Any, ...] | None]:
    """Return what torch's protocol says of each call; None for one that is left out."""
    model = Model(traits, traits.follows(Rule(**rule)))
    return [due and tuple(due) for due in (model.due(*each) for each in calls)]


@check(
    1,
    issue="redai-studio/Relax#44",
    needs="refusals unscale_ override growth",
    rule=rules(growth=False),
    calls=CALLS,
    expected=modelled,
    found=[{"rule": {"init_scale": 8.0, "growth_interval": 3}, "calls": BOTH}],
)
def call_sequences_match_torch(make, params, optimizers, drop_in, rule, calls, expected):
    """Any sequence of calls returns, raises, unscales, and steps as in torch's protocol; a drop-in matches exactly."""
    scaler, stepped, rounding = make(**rule), [], 0.0 if drop_in else 2.0**-20
    for optimizer in optimizers:
        optimizer.register_step_pre_hook(lambda *_: stepped.append(1))
    for event, i, (raises, scale, left, late) in [
        (*call, due) for call, due in zip(calls, expected) if due
    ]:
        if event in ("clean", "inf", "none"):
            last = math.inf if event == "inf" else 0.3 * scale
            params[i].grad = (
                None if event == "none" else torch.tensor([0.3 * scale, 0.3 * scale, last])
            )
            continue
        name, _, new_scale = event.partition("(")
        given = torch.ones(()) if name == "scale" else optimizers[i]
        arguments = [8.0] * bool(new_scale) if name == "update" else [given]
        stepped.clear()
        try:
            raised = getattr(scaler, name)(*arguments) and None
        except Exception as error:
            raised = repr(error)
        if raised and late:
            return  # torch divides by the wrong scale here, so raising is also correct
        same = raised == raises if drop_in else bool(raised) == bool(raises)
        assert same, f"{event} raised {raised}, expected {raises}"
        shown = scaler.get_scale()
        assert math.isclose(shown, scale, rel_tol=rounding), (
            f"the scale is {shown}, expected {scale}"
        )
        if left:
            calls_due, grad = left
            found = params[i].grad if params[i].grad is None else params[i].grad.tolist()
            near = repr(found) == repr(grad) or (rounding and found and grad and torch.allclose(
                torch.tensor(found), torch.tensor(grad), rounding, 2.0**-149, equal_nan=True))  # fmt: skip
            assert len(stepped) == calls_due, (
                f"{event} called the optimizer {len(stepped)} times, expected {calls_due}"
            )
            assert near, f"{event} left the gradient {found}, expected {grad}"

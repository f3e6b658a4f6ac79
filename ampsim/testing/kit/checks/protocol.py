"""Level 1: any sequence of calls against `ampsim.core.torch_model.protocol`, the pure model of torch's scaler."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from ampsim.core.machine import Rule
from ampsim.core.torch_model import protocol
from ampsim.core.torch_model.protocol import Optimizer, Outcome
from ampsim.core.torch_model.refusals import Refusal
from ampsim.testing.kit.bench import Bench, sgd
from ampsim.testing.kit.check import check
from ampsim.testing.kit.strategies import rules
from ampsim.testing.kit.trial import Trial, outcome

PHRASES = [phrase.split() for phrase in (
    "scale clean step update",
    "scale inf step update",
    "scale clean unscale_ step",
    "scale clean unscale_ unscale_ step",
    "scale clean unscale_ update(8.0)",
    *("scale", "clean", "inf", "none", "unscale_", "step", "update", "update(8.0)"),
)]  # fmt: skip
CALLS = st.lists(st.tuples(st.sampled_from(PHRASES), st.integers(0, 1)), min_size=1, max_size=10).map(
    lambda drawn: [(event, i) for phrase, i in drawn for event in phrase]  # i: which of two optimizers
)


class Pair:
    """A real scaler with its optimizers, and the model of both."""

    def __init__(self, t: Trial, rule: Rule) -> None:
        self.t = t
        self.scaler = t.start(rule, Bench(sgd), Bench(sgd))
        self.model = protocol.create(t.rule)
        self.has_loss = False  # scaled since the last update
        self.made_at: dict[int, float] = {}  # optimizer -> the scale that its gradient has

    def do(self, event: str, i: int) -> None:
        """Apply one event to optimizer i on both sides, and compare what can be seen."""
        if not (self.t.traits.drop_in or self._says_the_same_to_all(event, i)):
            return
        self.t.log_event(event if event in ("scale", "update", "update(8.0)") else f"{event} {i}")
        bench = self.t.benches[i]
        if event in ("clean", "inf"):
            self.made_at[i] = self.scaler.get_scale()
            bench.put(0.3 * self.made_at[i], math.inf if event == "inf" else None)
        elif event == "none":
            bench.params[0].grad = None
        else:
            calls, seen = bench.calls, Optimizer(i, (self._gradient(bench),))
            late = event in ("unscale_", "step") and self.made_at.get(i) != self.scaler.get_scale()
            got = outcome(lambda: self._real(event, bench))
            if late and isinstance(got, Refusal):
                return  # torch divides it by the wrong scale: the law of two steps asks for no more than a refusal
            expected = self._modelled(event, seen)
            self._compare(event, got, expected)
            if expected.optimizer is not None:
                self._compare_bench(event, bench, expected, bench.calls - calls)

    def _says_the_same_to_all(self, event: str, i: int) -> bool:
        """Return whether the laws settle what an event does; elsewhere torch's answer is one of several right ones.

        They do not where there is no gradient or no loss, and where a gradient is exchanged after it was checked.
        """
        self.has_loss = event == "scale" or (self.has_loss and not event.startswith("update"))
        if event in ("clean", "inf", "none"):
            return self.model.record(i).stage is not protocol.Stage.UNSCALED
        return event not in ("unscale_", "step") or (self.has_loss and self._gradient(self.t.benches[i]) is not None)

    def _real(self, event: str, bench: Bench) -> object:
        if event == "scale":
            self.t.loss_scale()
            return None
        if event.startswith("update"):
            return self.scaler.update(*([8.0] if event == "update(8.0)" else []))
        return getattr(self.scaler, event)(bench.optimizer)

    def _modelled(self, event: str, seen: Optimizer) -> Outcome:
        if event == "scale":
            self.model, result = protocol.scale(self.model, Bench().params[0].detach().cpu().numpy())
            return replace(result, value=None)
        if event.startswith("update"):
            self.model, result = protocol.update(self.model, 8.0 if event == "update(8.0)" else None)
        else:
            self.model, result = getattr(protocol, event)(self.model, seen)
        return result

    def _compare(self, event: str, got: object, expected: Outcome) -> None:
        if expected.refusal:
            self.t.require_refusal(got, expected.refusal, event)
        else:
            self.t.require(got is None, f"{event} gave {got!r}, expected None")
        self.t.state = self.model.state
        self.t.require_scale(self.scaler.get_scale())

    def _compare_bench(self, event: str, bench: Bench, expected: Outcome, calls: int) -> None:
        t = self.t
        t.require(calls == expected.called, f"{event} called the optimizer {calls} times, expected {expected.called:d}")
        (left,) = expected.optimizer.grads if expected.optimizer else (None,)
        found = self._gradient(bench)
        t.require(self._is_same(found, left), f"{event} left the gradient {found}, expected {left}")

    def _is_same(self, found: np.ndarray | None, left: np.ndarray | None) -> bool:
        """Return whether two gradients are: to the last bit of a drop-in, else up to how a quotient is rounded."""
        if found is None or left is None:
            return found is left
        if self.t.traits.drop_in:
            return found.tobytes() == left.tobytes()
        return np.allclose(found, left, rtol=2.0**-22, atol=2.0**-149, equal_nan=True)

    @staticmethod
    def _gradient(bench: Bench) -> np.ndarray | None:
        grad = bench.params[0].grad
        return None if grad is None else grad.clone().cpu().numpy()


@check(1, issue="redai-studio/Relax#44", needs="refusals unscale_ override", rule=rules(growth=False), calls=CALLS)
def any_calls_do_what_torchs_do(t: Trial, rule: Rule, calls: list[tuple[str, int]]) -> None:
    """Any sequence of calls returns, raises, divides and steps as torch's protocol says; a drop-in to the last bit."""
    pair = Pair(t, rule)
    for event, i in calls:
        pair.do(event, i)

"""The template of `any_calls_do_what_torchs_do`: the calls in a row, and what torch's protocol says of the last one."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ampsim.core.machine import Rule
from ampsim.core.torch_model.protocol import Outcome
from ampsim.testing.emit.case import Case, number, template
from ampsim.testing.kit.bench import Bench
from ampsim.testing.kit.checks.protocol import Pair
from ampsim.testing.kit.result import BrokenError
from ampsim.testing.kit.trial import Trial

TWO = """one, two = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
first, second = (torch.optim.SGD([param], lr=0.125, momentum=0.9, foreach=False) for param in (one, two))"""
NAMES = (("one", "first"), ("two", "second"))


class Recorded(Pair):
    """A scaler and the model of it, which writes down the calls that it makes as lines."""

    def __init__(self, t: Trial, rule: Rule) -> None:
        super().__init__(t, rule)
        self.lines: list[str] = []
        self.raised = False
        self.expected = Outcome()

    def do(self, event: str, i: int) -> None:
        """Write the line before, and wrap it where the call raised and may."""
        before, self.raised = len(self.t.events), False
        try:
            super().do(event, i)
        finally:
            if len(self.t.events) > before:
                line = self._line(event, i)
                self.lines += ["with suppress(Exception):", f"    {line}"] if self.raised else [line]

    def _line(self, event: str, i: int) -> str:
        param, optimizer = NAMES[i]
        if event in ("clean", "inf"):
            value = number(0.3 * self.made_at[i])
            return f"{param}.grad = torch.tensor([{value}, {value}, {'math.inf' if event == 'inf' else value}])"
        calls = {"none": f"{param}.grad = None", "scale": "scaler.scale(torch.ones(()))"}
        calls |= {"update": "scaler.update()", "update(8.0)": "scaler.update(8.0)"}
        return calls.get(event, f"scaler.{event}({optimizer})")

    def _real(self, event: str, bench: Bench) -> object:
        try:
            return super()._real(event, bench)
        except Exception:
            self.raised = True
            raise

    def _compare(self, event: str, got: object, expected: Outcome) -> None:
        self.expected = expected
        super()._compare(event, got, expected)


@template
def any_calls_do_what_torchs_do(case: Case) -> Sequence[str]:
    trial = Trial(case.trial.subject)
    pair, last = Recorded(trial, case.drawn["rule"]), ("", 0)
    with suppress(BrokenError):
        for last in case.drawn["calls"]:
            pair.do(*last)
    event, i = last
    *before, call = pair.lines if not pair.raised else [*pair.lines[:-2], pair.lines[-1].strip()]
    return TWO, case.scaler, *before, *_asked(case, pair, event, i, call)


def _asked(case: Case, pair: Recorded, event: str, i: int, call: str) -> list[str]:
    """Return the last call with what it is to do."""
    (param, optimizer), expected = NAMES[i], pair.expected
    asked = [f"calls = []\n{optimizer}.register_step_pre_hook(lambda *_: calls.append(1))"] if event == "step" else []
    asked += [case.refused(call, expected.refusal) if expected.refusal else call]
    asked.append(f"assert scaler.get_scale() == {number(pair.model.state.scale)}")
    if event == "step":
        asked.append(f"assert len(calls) == {int(expected.called)}")
    if expected.optimizer is not None and event in ("unscale_", "step"):
        asked += _gradient(param, expected.optimizer.grads[0], exact=case.trial.traits.drop_in)
    return asked


def _gradient(param: str, grad: Any, *, exact: bool) -> list[str]:
    if grad is None:
        return [f"assert {param}.grad is None"]
    values = [number(each) for each in grad]
    expected = f"torch.full((3,), {values[0]})" if len({*values}) == 1 else f"torch.tensor([{', '.join(values)}])"
    near = "rtol=0, atol=0" if exact else "rtol=2.0**-22, atol=2.0**-149"
    return [f"torch.testing.assert_close({param}.grad, {expected}, {near}, equal_nan=True)"]

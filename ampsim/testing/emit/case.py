"""A failure of a scaler, and how its parts are written: the constructor, flags, expected scales, calls."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ampsim.core.machine import Rule, init, update
from ampsim.core.torch_model.refusals import Refusal
from ampsim.testing.emit.text import WIDTH
from ampsim.testing.kit.check import Check
from ampsim.testing.kit.trial import Trial

OPTIMIZER = """param = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([param], lr=0.125, momentum=0.9, foreach=False)"""
ITERATE = """
def iterate(found_inf):  # returns the scale that it used
    scale = float(scaler.scale(torch.ones(())))
    param.grad = torch.tensor([scale, scale, math.inf if found_inf else scale])
    scaler.step(optimizer)
    scaler.update()
    return scale
"""


@dataclass(frozen=True)
class Peer:
    """A scaler as source text: how it is made and driven.

    Attributes:
        imports: lines.
        make: returns an expression for a scaler with the constants of a rule, enabled or not.
        iterate: lines that define ``iterate(found_inf)``, which runs one iteration and returns the scale that it used.
        flags_only: the gradients are left to others: ``iterate`` is all that there is.
    """

    imports: str
    make: Callable[..., str]
    iterate: str = f"{OPTIMIZER}\n{ITERATE}"
    flags_only: bool = False


@dataclass(frozen=True)
class Case:
    """The shortest failure of a check, as a template sees it.

    Attributes:
        peer: the scaler, as text.
        check: the one that failed.
        trial: the example that failed, as far as it came.
        drawn: what was drawn for it, by name.
    """

    peer: Peer
    check: Check
    trial: Trial
    drawn: Mapping[str, Any]

    def make(self, rule: Rule | None = None, *, enabled: bool = True) -> str:
        """Return an expression for a scaler of a rule; None is the one that the trial asked for."""
        return self.peer.make(rule or self.trial.requested, enabled=enabled)

    @property
    def rule(self) -> Rule:
        """The rule that the scaler is to follow, traits included."""
        return self.trial.traits.follows(self.trial.requested)

    @property
    def scaler(self) -> str:
        """The line that makes the scaler."""
        return f"scaler = {self.make()}"

    @property
    def ready(self) -> tuple[str, ...]:
        """The lines that make a scaler whose optimizer has clean gradients and may be stepped."""
        return (
            OPTIMIZER,
            self.scaler,
            "scale = float(scaler.scale(torch.ones(())))",
            "param.grad = torch.full_like(param, scale)",
        )

    def expected(self, found: Sequence[bool]) -> list[float]:
        """Return the scale before each update, as a float32 loss sees it: the reference machine's."""
        state, scales = init(self.rule), []
        for flag in found:
            scales.append(self.trial.seen(state.scale))
            state = update(self.rule, state, flag)
        return scales

    def backed_off(self, indent: str = "") -> list[str]:
        """Return the line that asks for the scale after an overflow; none where it is used later."""
        _, after = self.expected([True, False])
        seen = f"{indent}assert float(scaler.scale(torch.ones(()))) == {number(after)}"
        return [] if self.trial.traits.delay else [seen]

    @property
    def is_fused(self) -> bool:
        """Whether the optimizer that was drawn divides and skips in its own kernel."""
        return bool(self.drawn["kernel"] and self.trial.has("fused"))

    @property
    def unscale(self) -> list[str]:
        """The line that calls `unscale_`, where it was drawn and may be."""
        return ["scaler.unscale_(optimizer)"] if self.drawn["unscales"] and self.trial.has("unscale_") else []

    def refused(self, call: str, refusal: Refusal, *held: str) -> str:
        """Return lines that ask for a refusal, a drop-in's in torch's words, which changes none of `held`."""
        lines = [f"before = [{', '.join(held)}]"] if held else []
        exact = self.trial.traits.drop_in
        lines += [f"with TestCase().assertRaises(Exception){' as caught' * exact}:", f"    {call}"]
        if exact:
            lines.append(f"assert repr(caught.exception) == {f'{refusal.kind.__name__}({refusal.text!r})'!r}")
        return "\n".join(lines + [f"assert [{', '.join(held)}] == before"] * bool(held))


def iterates(found: Sequence[bool], *more: str) -> list[str]:
    """Return the lines that run an iteration per flag, and `more` after each."""
    return [f"for found_inf in {sequence(found)}:", "    iterate(found_inf)", *more]


Template = Callable[[Case], Sequence[str]]
TEMPLATES: dict[str, Template] = {}  # by the check's name


def template(function: Template) -> Template:
    """Register a template under its name, which is the check's."""
    TEMPLATES[function.__name__] = function
    return function


def number(value: float) -> str:
    """Write a number as Python reads it back."""
    value = float(value)
    if not math.isfinite(value):
        return f"math.{value}".replace("-inf", "inf") if value > 0 or value != value else "-math.inf"
    mantissa, exponent = math.frexp(value)
    return f"2.0**{exponent - 1}" if mantissa == 0.5 and abs(exponent) > 11 else repr(value)


def sequence(values: Sequence[object]) -> str:
    """Write a list, equal values in a row as one: ``[True] * 3 + [False]``."""
    runs = [(value, len(list(run))) for value, run in groupby(values)]
    if max((times for _, times in runs), default=0) < 4:
        return repr([*values])
    return " + ".join(f"[{value!r}]" + f" * {times}" * (times > 1) for value, times in runs)


def hexadecimal(values: Sequence[float]) -> str:
    """Write an expression for a list of numbers, to the last bit."""
    words = " ".join(value.hex().replace(".0000000000000p", "p") for value in values)
    if len(words) > WIDTH - 50:
        words = '""\n' + textwrap.indent(textwrap.fill(words, WIDTH), "    ") + '\n""'
    return f'[*map(float.fromhex, "{words}".split())]'

"""torch's GradScaler and ``core.protocol`` driven through the same events and compared after each one.

The comparison is of everything that can be seen: what was returned or raised (type and text), the scale's
bits, the growth tracker, all getters, every optimizer's stage and found_inf, whether it was called, its
gradients, parameters and state. Each comparison carries the name of a law, and the AssertionError begins
with it.

What parameters become is not modelled. Each optimizer has a twin, an ordinary torch optimizer that is never
shown to a scaler: when the model says that a step happened the twin steps with the gradients the model
predicts, so parameters and optimizer state must agree to the last bit.
"""

import copy
import math
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ampsim.core.formats import FP32
from ampsim.core.machine import Rule, round_to_float32
from ampsim.core.torch_model import protocol, refusals, state_dict
from ampsim.core.torch_model.protocol import Optimizer, Outcome, Protocol, Refusal, Tensor

KINDS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.125, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.1),
    "adamw, fused": lambda params: torch.optim.AdamW(params, lr=0.1, fused=True),
    # without momentum: a first step that is skipped leaves an uninitialized buffer, see test_lockstep
    "sgd, fused": lambda params: torch.optim.SGD(params, lr=0.125, fused=True),
}
LAYOUTS = {  # dtype of each parameter
    "float32": (torch.float32, torch.float32),
    "mixed": (torch.float32, torch.float64, torch.float32),
    "bfloat16": (torch.bfloat16, torch.float32),
    "float16": (torch.float32, torch.float16),
}
SHAPES = ((3,), (37,), ())  # 37: a vector loop and its remainder
NUMPY = {torch.bfloat16: np.dtype(ml_dtypes.bfloat16)}


# ------------------------------------------------------------------------------------------- reading torch


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy, bit for bit; bfloat16 becomes ml_dtypes' bfloat16."""
    tensor = tensor.detach().clone()
    return tensor.view(torch.int16).numpy().view(NUMPY[tensor.dtype]) if tensor.dtype in NUMPY else tensor.numpy()


def to_torch(array: np.ndarray) -> torch.Tensor:
    if array.dtype == NUMPY[torch.bfloat16]:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def same_bits(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Equal to the last bit, up to the payload and sign of a NaN."""
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.tobytes() == b.tobytes():
        return True
    unequal = a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}") if a.ndim else np.array(True)
    return bool(np.isnan(a[unequal].astype(np.float64)).all() and np.isnan(b[unequal].astype(np.float64)).all())


def attempt(call: Callable[[], Any]) -> tuple[Any, Refusal | None]:
    """What a call returned or raised."""
    try:
        return call(), None
    except Exception as error:
        return None, Refusal(type(error), str(error))


@dataclass(eq=False)
class Side:
    """A real optimizer, its twin, and what the model knows of both."""

    kind: str
    layout: str
    params: list[torch.nn.Parameter] = field(init=False)
    real: torch.optim.Optimizer = field(init=False)
    twin: torch.optim.Optimizer = field(init=False)
    seen: Optimizer = field(init=False)
    called: list[bool] = field(default_factory=list)  # one entry a call of real.step: were all gradients finite

    def __post_init__(self) -> None:
        self.params, self.real = self._make()
        _, self.twin = self._make()
        self.real.register_step_pre_hook(lambda *_: self.called.append(self._finite()))
        self.seen = Optimizer(id(self.real), (None,) * len(self.params), "fused" in self.kind)

    def _make(self) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
        dtypes = LAYOUTS[self.layout]
        params = [torch.nn.Parameter(torch.ones(s, dtype=d)) for s, d in zip(SHAPES, dtypes, strict=False)]
        return params, KINDS[self.kind](params)

    def _finite(self) -> bool:
        return all(p.grad is None or bool(p.grad.isfinite().all()) for p in self.params)

    def gradients(self) -> tuple[np.ndarray | None, ...]:
        return tuple(None if p.grad is None else to_numpy(p.grad) for p in self.params)

    def held(self, optimizer: torch.optim.Optimizer) -> list[np.ndarray]:
        """Parameters and optimizer state."""
        tensors = []
        for param in optimizer.param_groups[0]["params"]:
            state = optimizer.state.get(param, {})
            tensors += [param, *(state[name] for name in sorted(state) if state[name] is not None)]
        return [to_numpy(t) for t in tensors]

    def step_twin(self, outcome: Outcome, before: Optimizer) -> None:
        """What the model says that torch did: a step with these gradients and this grad_scale."""
        fused = outcome.kernel is not None
        grads = before.grads if fused else outcome.optimizer.grads  # a fused kernel divides by itself
        for param, grad in zip(self.twin.param_groups[0]["params"], grads, strict=True):
            param.grad = None if grad is None else to_torch(grad)
        if fused:
            divisor, found = outcome.kernel
            self.twin.grad_scale = None if divisor is None else torch.tensor(divisor)
            self.twin.found_inf = 0 if found is None else torch.tensor(found)  # sum([]) is what torch hands over
        failure = attempt(self.twin.step)[1]
        hold("refusals_match", failure == outcome.refusal, "the twin's step", failure, outcome.refusal)
        if fused:
            del self.twin.grad_scale, self.twin.found_inf


# --------------------------------------------------------------------------------------------- what to draw

INITS = (
    *(2.0**16, 2.0**16, 2.0**10, 1.0, 0.1, 1700.0, 4),
    *(2.0**126, 2.0**127, 3e38, 1e39),
    *(2.0**-126, 2.0**-127, 2.0**-128, 2.0**-149),
)
GROWTHS = (2.0, 2.0, 4.0, 3.0, 1.1, 1.0000000001, 2.0**64, math.inf, 2, math.nan)
BACKOFFS = (0.5, 0.5, 0.25, 0.7, 0.1, 2.0**-64, 0.0, -0.5, 0, math.nan)
INTERVALS = (1, 1, 2, 2, 3, 4, 0, -1)
SETTINGS = {
    "growth_factor": (2.0, 3.0, 1.0, 0.5, 0.3, 0.0, -2.0, 1e300, 1.1, math.inf, math.nan, 2, True, "x", None),
    "backoff_factor": (0.5, 0.7, 0.1, 1.0, 2.0, 0.0, -0.5, math.inf, math.nan, 1, "x", None, 1 + 0j),
    "growth_interval": (1, 2, 3, 4, 0, -1, 2**40, 2**70, 2.0, True, None, "x", np.float32(2), np.int64(2)),
}
SCALES = (
    *(2.0, 1024.0, 0.1, 0.0, -0.0, -3.0, 2.0**127, 2.0**-128, 2.0**-149, 1e-50),
    *(FP32.max_finite, 1e39, -1e39, math.inf, -math.inf, math.nan, np.float64(8.0)),
    *(8, 2**80, True, "8", np.float32(8), [8.0]),  # neither float nor tensor
)
TENSORS = (  # value, dtype, shape, requires_grad, device
    (8.0, torch.float32, (), False, "cpu"),
    (0.1, torch.float64, (), False, "cpu"),
    (1e39, torch.float64, (), False, "cpu"),
    (math.nan, torch.float32, (), False, "cpu"),
    (3, torch.int64, (), False, "cpu"),
    (3.3, torch.float16, (), False, "cpu"),
    (8.0, torch.float32, (1,), False, "cpu"),
    (8.0, torch.float32, (1, 1), False, "cpu"),
    (8.0, torch.float32, (2,), False, "cpu"),
    (8.0, torch.float32, (0,), False, "cpu"),
    (8.0, torch.float32, (), True, "cpu"),
    (8.0, torch.float32, (), False, "meta"),
)
FOUND = (0.0, 1.0, 2.0, 0.5, -1.0, 1e-45, math.nan)  # what an all-reduce might leave
CLEAN = (1.0, -3.0, 0.1, 1e-3, 1000.0)
EDGE = (0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 3e38, -3e38, 7e4)
BAD = (math.inf, -math.inf, math.nan)
CLASSES = ("clean", "clean", "overflow", "overflow", "edge", "gap", "none")

gradients = st.tuples(
    st.sampled_from(CLASSES),
    st.sampled_from(CLEAN),
    st.sampled_from(EDGE),
    st.sampled_from(BAD),
    st.integers(0, 36),
)
index = st.integers(0, 2)
leaves = st.sampled_from(
    [
        *((0.1, dtype, ()) for dtype in ("float16", "bfloat16", "float32", "float64")),
        *((0.3, dtype, (3,)) for dtype in ("float16", "bfloat16", "float32", "float64")),
        (1.0, "float16", (2,)),
        (3e38, "float32", (2,)),
        (math.inf, "float32", ()),
        (5, "int64", ()),
        (5, "int32", (2,)),
        (1, "bool", (2,)),
    ]
)
junk = st.sampled_from([3.0, None, "junk", "iterator"])
outputs = st.recursive(
    st.one_of(leaves, leaves, leaves, junk),
    lambda inner: st.builds(list, st.lists(inner, max_size=3)) | st.lists(inner, max_size=3).map(lambda x: (tuple, x)),
    max_leaves=4,
)


def plant(shape: tuple[int, ...], dtype: torch.dtype, drawn: tuple, position: int, last: int) -> torch.Tensor | None:
    """One gradient of the drawn class for the parameter at `position`."""
    kind, clean, edge, bad, at = drawn
    if kind == "none" or (kind == "gap" and position == 0):
        return None
    grad = torch.full(shape, edge if kind == "edge" else clean, dtype=torch.float64).to(dtype)
    if kind == "overflow" and position == at % (last + 1):
        grad.view(-1)[at % grad.numel()] = bad
    return grad


def build(drawn: Any) -> tuple[Any, Any]:
    """Drawn outputs for torch and for the model."""
    if isinstance(drawn, list):
        pairs = [build(d) for d in drawn]
        return [a for a, _ in pairs], [b for _, b in pairs]
    if isinstance(drawn, tuple) and drawn[0] is tuple:
        pairs = [build(d) for d in drawn[1]]
        return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
    if isinstance(drawn, tuple):
        value, dtype, shape = drawn
        tensor = torch.full(shape, value, dtype=getattr(torch, dtype))
        return tensor, to_numpy(tensor)
    return (iter(()), iter(())) if drawn == "iterator" else (drawn, drawn)


def same_outputs(real: Any, model: Any) -> bool:
    if isinstance(model, list | tuple):
        return type(real) is type(model) and len(real) == len(model) and all(map(same_outputs, real, model))
    if isinstance(model, np.ndarray):
        return isinstance(real, torch.Tensor) and same_bits(to_numpy(real), model)
    return isinstance(real, map) if model is protocol.LAZY else real is model


# ----------------------------------------------------------------------------------------------- the machine

TWICE = {refusals.UNSCALED_TWICE, refusals.UNSCALED_LATE, refusals.STEPPED_TWICE}
LAWS = {  # what is broken if this differs after an event that should not have touched it
    "value": "refusals_match",
    "scale": "only_update_changes_the_scale",
    "tracker": "only_update_changes_the_scale",
    "settings": "setters_take_effect",
    "stages": "unscale_happens_once",
    "found_inf": "never_steps_on_nonfinite",
    "gradients": "unscale_divides_by_the_scale_of_the_loss",
    "parameters": "skipped_step_changes_nothing",
}
RESUME = dict.fromkeys(("value", "scale", "tracker", "settings", "stages", "found_inf"), "resume_is_invisible")


def hold(law: str, holds: bool, event: str, got: Any, expected: Any) -> None:
    if not holds:
        raise AssertionError(f"{law}: after {event}: got {got!r}, expected {expected!r}")


def scale_law(before: Protocol, expected: float, got: float) -> str:
    """The law that a scale other than the expected one breaks."""
    found = [r.found_inf for _, r in before.records if r.found_inf is not None]
    rule, old = before.rule, before.state.scale
    due = before.state.growth_tracker + 1 == rule.growth_interval
    if got != expected and math.isclose(got, expected, rel_tol=1e-6) and not math.isclose(got, old, rel_tol=1e-6):
        return "scale_is_exact_float32"
    if any(f != 0 for f in found):
        forgotten = got == old or got == round_to_float32(old * rule.growth_factor)
        return "any_optimizer_overflow_backs_off" if forgotten and 0 in found else "overflow_backs_off_once"
    if not math.isfinite(got):
        return "scale_stays_finite"
    if due:
        return "growth_waits_for_the_interval" if got == old else "growth_multiplies_by_the_growth_factor"
    grew = got == round_to_float32(old * rule.growth_factor)
    return "growth_waits_for_the_interval" if grew else "clean_step_keeps_the_scale"


def tracker_law(before: Protocol, got: int) -> str:
    """The law that a growth tracker other than the expected one breaks."""
    found = [r.found_inf for _, r in before.records if r.found_inf is not None]
    counted = before.state.growth_tracker + 1
    if any(f != 0 for f in found):
        forgotten = 0 in found and got == counted
        return "any_optimizer_overflow_backs_off" if forgotten else "overflow_restarts_the_streak"
    due = counted == before.rule.growth_interval
    return "growth_waits_for_the_interval" if due else "clean_step_counts_once"


class Lockstep(RuleBasedStateMachine):
    """A real scaler and the pure protocol, side by side."""

    make: Callable[..., Any] = torch.amp.GradScaler
    examples = 0  # started so far, the replays of a failure included
    first_failure: int | None = None  # the example that failed first

    def __init__(self) -> None:
        super().__init__()
        type(self).examples += 1
        self.scaler: Any = None
        self.p = Protocol()
        self.sides: list[Side] = []
        self.saved: list[dict[str, Any]] = []

    @classmethod
    def of(cls, make: Callable[..., Any]) -> type["Lockstep"]:
        """The machine for another scaler."""
        return type(
            f"Lockstep_{getattr(make, '__name__', 'scaler')}", (cls,), {"make": staticmethod(make), "examples": 0}
        )

    # ---- comparing

    def compare(self, event: str, real: tuple[Any, Refusal | None], outcome: Outcome, **laws: str) -> None:
        """Everything that can be seen, refusals first."""
        with self._noting_the_first_failure():
            self._compare(event, real, outcome, {**LAWS, **laws})

    @contextmanager
    def _noting_the_first_failure(self) -> Iterator[None]:
        try:
            yield
        except AssertionError:
            if type(self).first_failure is None:
                type(self).first_failure = type(self).examples
            raise

    def _compare(self, event: str, real: tuple[Any, Refusal | None], outcome: Outcome, laws: dict[str, str]) -> None:
        value, refusal = real
        twice = refusal is None and outcome.refusal in TWICE
        law = "unscale_happens_once" if twice else "refusals_match"
        hold(law, refusal == outcome.refusal, event, refusal, outcome.refusal)
        hold(laws["value"], same_outputs(value, outcome.value) or repr(value) == repr(outcome.value),
             event, value, outcome.value)  # fmt: skip
        self._compare_scaler(event, laws)
        for side in self.sides:
            self._compare_side(event, side, laws)

    def _compare_scaler(self, event: str, laws: dict[str, str]) -> None:
        got, expected = self.scaler.get_scale(), state_dict.get_scale(self.p)
        hold(laws["scale"], repr(got) == repr(expected), event, got, expected)
        got, expected = self.scaler._get_growth_tracker(), state_dict.get_growth_tracker(self.p)
        hold(laws["tracker"], repr(got) == repr(expected), event, got, expected)
        for name in protocol.FIELDS:
            value, refusal = attempt(getattr(self.scaler, f"get_{name}"))
            if refusal:  # a subclass has another name
                text = refusal.text.replace(f"'{type(self.scaler).__name__}'", "'GradScaler'")
                refusal = replace(refusal, text=text)
            got = (value, refusal)
            outcome = state_dict.get(self.p, name)[1]
            expected = (outcome.value, outcome.refusal)
            hold(laws["settings"], repr(got) == repr(expected), f"{event}, {name}", got, expected)
        got, expected = self.scaler.state_dict(), state_dict.state_dict(self.p)
        hold("resume_is_invisible", repr(got) == repr(expected), f"{event}, state_dict", got, expected)
        got, expected = self.scaler.is_enabled(), self.p.enabled
        hold("setters_take_effect", got is expected, f"{event}, is_enabled", got, expected)
        records = dict(self.p.records)
        states = self.scaler._per_optimizer_states if self.p.enabled else {}
        got = {key: state["stage"].value for key, state in states.items()}
        expected = {key: record.stage.value for key, record in records.items()}
        hold(laws["stages"], got == expected, f"{event}, stages", got, expected)
        got = {key: [t.item() for t in state["found_inf_per_device"].values()] for key, state in states.items()}
        expected = {key: [] if r.found_inf is None else [r.found_inf] for key, r in records.items()}
        hold(laws["found_inf"], repr(got) == repr(expected), f"{event}, found_inf", got, expected)

    def _compare_side(self, event: str, side: Side, laws: dict[str, str]) -> None:
        got, expected = side.gradients(), side.seen.grads
        hold(laws["gradients"], all(map(same_bits, got, expected)), f"{event}, {side.kind}", got, expected)
        left = getattr(side.real, "grad_scale", ())
        got = left if left == () else (left.item() if isinstance(left, torch.Tensor) else left,)
        hold(laws["gradients"], repr(got) == repr(side.seen.grad_scale), event, got, side.seen.grad_scale)
        got, expected = side.held(side.real), side.held(side.twin)
        equal = len(got) == len(expected) and all(map(same_bits, got, expected))
        hold(laws["parameters"], equal, f"{event}, {side.kind}", got, expected)

    def side(self, i: int) -> Side:
        return self.sides[i % len(self.sides)]

    # ---- events

    @initialize(
        constants=st.tuples(*map(st.sampled_from, (INITS, GROWTHS, BACKOFFS, INTERVALS))),
        enabled=st.sampled_from([True] * 15 + [False]),
        kinds=st.lists(
            st.tuples(st.sampled_from([*KINDS, "sgd"]), st.sampled_from(["float32"] * 6 + [*LAYOUTS])),
            min_size=1,
            max_size=3,
        ),
        begins=st.sampled_from([True] * 4 + [False]),
    )
    def begin(self, constants: tuple, enabled: bool, kinds: list[tuple[str, str]], begins: bool) -> None:
        self.sides = [Side(*kind) for kind in kinds]
        self.renew(constants, enabled)
        if begins:
            self.scale((1.0, "float32", ()))

    def renew(self, constants: tuple, enabled: bool) -> None:
        self.scaler = type(self).make("cpu", *constants, enabled=enabled)
        init, growth, backoff, interval = constants
        self.p = protocol.create(
            Rule.unchecked(init_scale=init, growth_factor=growth, backoff_factor=backoff, growth_interval=interval),
            enabled=enabled,
        )
        self.compare("construction", (None, None), Outcome(), settings="setters_take_effect")

    @rule(drawn=outputs)
    def scale(self, drawn: Any) -> None:
        real_outputs, model_outputs = build(drawn)
        real = attempt(lambda: self.scaler.scale(real_outputs))
        if not self.p.enabled:
            hold("refusals_match", real[0] is real_outputs, "scale, disabled", real, real_outputs)
            return
        self.p, outcome = protocol.scale(self.p, model_outputs)
        self.compare(f"scale({drawn})", real, outcome, value="loss_is_multiplied_by_the_scale",
                     scale="scale_is_exact_float32")  # fmt: skip

    @rule(i=index, weight=st.sampled_from([*CLEAN, 3e38, 1e-40]))
    def backward(self, i: int, weight: float) -> None:
        side = self.side(i)
        loss = sum((p * weight).sum().float() for p in side.params)
        scaled, refusal = attempt(lambda: self.scaler.scale(loss))
        plain = to_numpy(loss)
        self.p, outcome = protocol.scale(self.p, plain)
        if refusal is None:
            scaled.backward()
        side.seen = replace(side.seen, grads=side.gradients())
        value = loss if outcome.value is plain else outcome.value  # disabled: the very same
        self.compare("backward", (scaled, refusal), replace(outcome, value=value),
                     value="loss_is_multiplied_by_the_scale", scale="scale_is_exact_float32")  # fmt: skip

    @rule(i=index, drawn=gradients)
    def set_gradients(self, i: int, drawn: tuple) -> None:
        side = self.side(i)
        for k, param in enumerate(side.params):
            param.grad = plant(tuple(param.shape), param.dtype, drawn, k, len(side.params) - 1)
        side.seen = replace(side.seen, grads=side.gradients())

    @rule(i=index)
    def unscale(self, i: int) -> None:
        side = self.side(i)
        real = attempt(lambda: self.scaler.unscale_(side.real))
        self.p, outcome = protocol.unscale_(self.p, side.seen)
        side.seen = outcome.optimizer
        self.compare("unscale_", real, outcome)

    @rule(i=index, how=st.sampled_from(["plain"] * 5 + ["closure", "positional closure", "nonsense"]))
    def step(self, i: int, how: str) -> None:
        side, before = self.side(i), self.side(i).seen
        args = (lambda: 5.0,) if how == "positional closure" else ()
        kwargs = {"closure": lambda: 5.0} if how == "closure" else {"nonsense": 1} if how == "nonsense" else {}
        fails = attempt(lambda: side.twin.step(**kwargs))[1] if how == "nonsense" else None
        side.called.clear()
        params = [to_numpy(p) for p in side.params]
        real = attempt(lambda: self.scaler.step(side.real, *args, **kwargs))
        returns = 5.0 if "closure" in how else None
        self.p, outcome = protocol.step(self.p, before, closure="closure" in kwargs, returns=returns, fails=fails)
        side.seen = outcome.optimizer
        if outcome.called and how != "nonsense":
            side.step_twin(outcome, before)
        self._judge_step(side, outcome, real[1], params)
        moved = "unscale_divides_by_the_scale_of_the_loss" if outcome.stepped else "skipped_step_changes_nothing"
        self.compare(f"step ({how})", real, outcome, value="step_returns_what_the_optimizer_returns", parameters=moved)

    def _judge_step(self, side: Side, outcome: Outcome, refusal: Refusal | None, before: list[np.ndarray]) -> None:
        """Called or not, before anything else is compared: it says more than the bits that follow from it."""
        with self._noting_the_first_failure():
            if side.called and not outcome.called and outcome.refusal is None:
                finite = side.called[-1]
                law = "skipped_step_changes_nothing" if finite else "never_steps_on_nonfinite"
                hold(law, False, f"step of {side.kind}", "called", "skipped")
            if not side.called and outcome.called and refusal is None:
                hold("skip_is_per_optimizer", False, f"step of {side.kind}", "skipped", "called")
            if not outcome.stepped:
                now = [to_numpy(p) for p in side.params]
                changed = not all(map(same_bits, before, now))
                hold("skipped_step_changes_nothing", not changed, f"step of {side.kind}", now, before)

    @rule()
    def update(self) -> None:
        real = attempt(lambda: self.scaler.update())
        before = self.p
        self.p, outcome = protocol.update(self.p)
        laws = {"stages": "update_clears_the_stages"}
        if outcome.refusal is None and self.p.enabled:
            laws["scale"] = scale_law(before, self.p.state.scale, self.scaler.get_scale())
            laws["tracker"] = tracker_law(before, self.scaler._get_growth_tracker())
        self.compare("update()", real, outcome, **laws)

    @rule(new_scale=st.one_of(st.sampled_from(SCALES), st.sampled_from(TENSORS)))
    def update_by_hand(self, new_scale: Any) -> None:
        for_torch = for_model = new_scale
        if isinstance(new_scale, tuple):
            value, dtype, shape, requires_grad, device = new_scale
            for_torch = torch.full(shape, value, dtype=dtype, device=device, requires_grad=requires_grad)
            held = float(torch.tensor(value, dtype=dtype))
            for_model = Tensor(held, shape, device, requires_grad)
        real = attempt(lambda: self.scaler.update(for_torch))
        self.p, outcome = protocol.update(self.p, for_model)
        self.compare(f"update({for_torch})", real, outcome, scale="scale_is_exact_float32",
                     tracker="override_keeps_the_streak", stages="update_clears_the_stages")  # fmt: skip

    @rule(
        plan=st.lists(gradients, min_size=3, max_size=3),
        unscales=st.sets(index),
        mood=st.sampled_from(["clean", "clean", "overflow", "drawn"]),
        which=index,
        times=st.integers(1, 3),
    )
    def iterate(self, plan: list[tuple], unscales: set[int], mood: str, which: int, times: int) -> None:
        """Whole iterations in a row, so that streaks, growths and overflows are common."""
        for _ in range(times):
            self.scale((1.0, "float32", ()))
            for i in range(len(self.sides)):
                kind = plan[i][0] if mood == "drawn" else "clean"
                kind = "overflow" if mood == "overflow" and i == which % len(self.sides) else kind
                self.set_gradients(i, (kind, *plan[i][1:]))
                if i in unscales:
                    self.unscale(i)
            for i in range(len(self.sides)):
                self.step(i, "plain")
            self.update()

    @rule(drawn=st.sampled_from([(name, value) for name, values in SETTINGS.items() for value in values]))
    def put(self, drawn: tuple[str, Any]) -> None:
        name, value = drawn
        real = attempt(lambda: getattr(self.scaler, f"set_{name}")(value))
        self.p = state_dict.put(self.p, name, value)
        self.compare(f"set_{name}({value!r})", real, Outcome())

    @precondition(lambda self: any(r.found_inf is not None for _, r in self.p.records))
    @rule(i=index, value=st.sampled_from(FOUND))
    def write_found_inf(self, i: int, value: float) -> None:
        """An all-reduce over ranks writes found_inf."""
        found = [key for key, r in self.p.records if r.found_inf is not None]
        key = found[i % len(found)]
        for tensor in self.scaler._per_optimizer_states[key]["found_inf_per_device"].values():
            tensor.fill_(value)
        self.p = self.p.note(key, found_inf=round_to_float32(value))

    @rule()
    def save(self) -> None:
        self.saved.append(self.scaler.state_dict())

    @rule(
        i=index,
        fresh=st.booleans(),
        without=st.sampled_from([None] * 6 + ["scale", *protocol.FIELDS, "all"]),
        changes=st.sampled_from([{}] * 4 + [{"scale": s} for s in (1e39, 2, 0.1)] + [{"_growth_tracker": 7}]),
    )
    def load(self, i: int, fresh: bool, without: str | None, changes: dict[str, Any]) -> None:
        source = {**self.saved[i % len(self.saved)], **changes} if self.saved else dict(changes)
        source.pop(without, None)
        if without == "all":
            source.clear()
        if fresh:
            self.renew((2.0**10, 4.0, 0.25, 5), self.p.enabled)
        real = attempt(lambda: self.scaler.load_state_dict(source))
        self.p, outcome = state_dict.load_state_dict(self.p, source)
        self.compare(f"load_state_dict({source})", real, outcome, **RESUME)

    @rule(copier=st.sampled_from([copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))]))  # noqa: S301
    def copy(self, copier: Callable[[Any], Any]) -> None:
        scaler, refusal = attempt(lambda: copier(self.scaler))
        self.p, outcome = state_dict.pickled(self.p)
        if refusal is None and outcome.refusal is None:
            self.scaler, self.p, outcome = scaler, outcome.value, Outcome()
        self.compare("a pickle round trip", (None, refusal), outcome, **RESUME)


class RareEvents(Lockstep):
    """The lockstep machine with events of their own for what is rare among those that it draws."""

    @precondition(lambda self: any(r.found_inf is not None for _, r in self.p.records))
    @rule(i=index)
    def write_found_inf(self, i: int) -> None:  # only a subnormal
        super().write_found_inf(i, 1e-45)
        self.update()

    @rule(i=index, how=st.sampled_from(["closure", "positional closure"]))
    def step_with_a_closure(self, i: int, how: str) -> None:
        self._give_gradients("clean")
        self.step(i, how)

    @rule()
    def overflow_everywhere(self) -> None:
        self._give_gradients("overflow")
        for i in range(len(self.sides)):
            self.unscale(i)
        self.update()

    @rule(change=st.sampled_from([None, 1, 2]))
    def interrupt_a_streak(self, change: int | None) -> None:
        """Set the scale by hand, or make the interval shorter, after clean iterations."""
        for _ in range(3):
            self._give_gradients("clean")
            self.step(0, "plain")
            self.update()
        self.update_by_hand(2.0) if change is None else self.put(("growth_interval", change))

    def _give_gradients(self, kind: str) -> None:
        self.scale((1.0, "float32", ()))
        for i in range(len(self.sides)):
            self.set_gradients(i, (kind, 1.0, 0.0, math.inf, 0))

"""torch's GradScaler and ``core.protocol`` driven through the same events and compared after each one.

The comparison is of everything that can be seen: what was returned or raised (type and text), the scale's
bits, the growth tracker, all getters, every optimizer's stage and found_inf, its gradients, parameters and
state.

What parameters become is not modelled. Each optimizer has a twin, an ordinary torch optimizer that is never
shown to a scaler: when the model says that a step happened the twin steps with the gradients the model
predicts, so parameters and optimizer state must agree to the last bit.
"""

import copy
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ampsim.core.formats import FP32
from ampsim.core.machine import Rule, round_to_float32
from ampsim.core.torch_model import protocol, state_dict
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
    return (
        tensor.view(torch.int16).numpy().view(NUMPY[tensor.dtype])
        if tensor.dtype in NUMPY
        else tensor.numpy()
    )


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
    return bool(
        np.isnan(a[unequal].astype(np.float64)).all()
        and np.isnan(b[unequal].astype(np.float64)).all()
    )


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

    def __post_init__(self) -> None:
        self.params, self.real = self._make()
        _, self.twin = self._make()
        self.seen = Optimizer(id(self.real), (None,) * len(self.params), "fused" in self.kind)

    def _make(self) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
        dtypes = LAYOUTS[self.layout]
        params = [
            torch.nn.Parameter(torch.ones(s, dtype=d)) for s, d in zip(SHAPES, dtypes, strict=False)
        ]
        return params, KINDS[self.kind](params)

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
        grads = (
            before.grads if fused else outcome.optimizer.grads
        )  # a fused kernel divides by itself
        for param, grad in zip(self.twin.param_groups[0]["params"], grads, strict=True):
            param.grad = None if grad is None else to_torch(grad)
        if fused:
            divisor, found = outcome.kernel
            self.twin.grad_scale = None if divisor is None else torch.tensor(divisor)
            self.twin.found_inf = (
                0 if found is None else torch.tensor(found)
            )  # sum([]) is what torch hands over
        failure = attempt(self.twin.step)[1]
        same("the twin's step", failure, outcome.refusal)
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
    "growth_factor": (
        2.0,
        3.0,
        1.0,
        0.5,
        0.3,
        0.0,
        -2.0,
        1e300,
        1.1,
        math.inf,
        math.nan,
        2,
        True,
        "x",
        None,
    ),
    "backoff_factor": (
        0.5,
        0.7,
        0.1,
        1.0,
        2.0,
        0.0,
        -0.5,
        math.inf,
        math.nan,
        1,
        "x",
        None,
        1 + 0j,
    ),
    "growth_interval": (
        1,
        2,
        3,
        4,
        0,
        -1,
        2**40,
        2**70,
        2.0,
        True,
        None,
        "x",
        np.float32(2),
        np.int64(2),
    ),
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
    lambda inner: (
        st.builds(list, st.lists(inner, max_size=3))
        | st.lists(inner, max_size=3).map(lambda x: (tuple, x))
    ),
    max_leaves=4,
)


def plant(
    shape: tuple[int, ...], dtype: torch.dtype, drawn: tuple, position: int, last: int
) -> torch.Tensor | None:
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
        return (
            type(real) is type(model)
            and len(real) == len(model)
            and all(map(same_outputs, real, model))
        )
    if isinstance(model, np.ndarray):
        return isinstance(real, torch.Tensor) and same_bits(to_numpy(real), model)
    return isinstance(real, map) if model is protocol.LAZY else real is model


# ----------------------------------------------------------------------------------------------- the machine


def same(event: str, got: Any, expected: Any) -> None:
    assert repr(got) == repr(expected), f"after {event}: got {got!r}, expected {expected!r}"


def all_same_bits(
    event: str, got: Sequence[np.ndarray | None], expected: Sequence[np.ndarray | None]
) -> None:
    equal = len(got) == len(expected) and all(map(same_bits, got, expected))
    assert equal, f"after {event}: got {got!r}, expected {expected!r}"


class Lockstep(RuleBasedStateMachine):
    """A real scaler and the pure protocol, side by side."""

    make: Callable[..., Any] = torch.amp.GradScaler

    def __init__(self) -> None:
        super().__init__()
        self.scaler: Any = None
        self.p = Protocol()
        self.sides: list[Side] = []
        self.saved: list[dict[str, Any]] = []

    @classmethod
    def of(cls, make: Callable[..., Any]) -> type["Lockstep"]:
        """The machine for another scaler."""
        return type(
            f"Lockstep_{getattr(make, '__name__', 'scaler')}", (cls,), {"make": staticmethod(make)}
        )

    # ---- comparing

    def compare(self, event: str, real: tuple[Any, Refusal | None], outcome: Outcome) -> None:
        """Everything that can be seen, refusals first."""
        value, refusal = real
        same(event, refusal, outcome.refusal)
        if not same_outputs(value, outcome.value):
            same(event, value, outcome.value)
        self._compare_scaler(event)
        for side in self.sides:
            all_same_bits(f"{event}, {side.kind}", side.gradients(), side.seen.grads)
            left = getattr(side.real, "grad_scale", ())
            left = (
                left if left == () else (left.item() if isinstance(left, torch.Tensor) else left,)
            )
            same(event, left, side.seen.grad_scale)
            all_same_bits(f"{event}, {side.kind}", side.held(side.real), side.held(side.twin))

    def _compare_scaler(self, event: str) -> None:
        same(event, self.scaler.get_scale(), state_dict.get_scale(self.p))
        same(event, self.scaler._get_growth_tracker(), state_dict.get_growth_tracker(self.p))
        for name in protocol.FIELDS:
            value, refusal = attempt(getattr(self.scaler, f"get_{name}"))
            if refusal:  # a subclass has another name
                text = refusal.text.replace(f"'{type(self.scaler).__name__}'", "'GradScaler'")
                refusal = replace(refusal, text=text)
            outcome = state_dict.get(self.p, name)[1]
            same(f"{event}, {name}", (value, refusal), (outcome.value, outcome.refusal))
        same(f"{event}, state_dict", self.scaler.state_dict(), state_dict.state_dict(self.p))
        same(f"{event}, is_enabled", self.scaler.is_enabled(), self.p.enabled)
        records = dict(self.p.records)
        states = self.scaler._per_optimizer_states if self.p.enabled else {}
        got = {key: state["stage"].value for key, state in states.items()}
        same(f"{event}, stages", got, {key: record.stage.value for key, record in records.items()})
        got = {
            key: [t.item() for t in state["found_inf_per_device"].values()]
            for key, state in states.items()
        }
        expected = {key: [] if r.found_inf is None else [r.found_inf] for key, r in records.items()}
        same(f"{event}, found_inf", got, expected)

    def side(self, i: int) -> Side:
        return self.sides[i % len(self.sides)]

    # ---- events

    @initialize(
        constants=st.tuples(*map(st.sampled_from, (INITS, GROWTHS, BACKOFFS, INTERVALS))),
        enabled=st.sampled_from([True] * 15 + [False]),
        kinds=st.lists(
            st.tuples(
                st.sampled_from([*KINDS, "sgd"]), st.sampled_from(["float32"] * 6 + [*LAYOUTS])
            ),
            min_size=1,
            max_size=3,
        ),
        begins=st.sampled_from([True] * 4 + [False]),
    )
    def begin(
        self, constants: tuple, enabled: bool, kinds: list[tuple[str, str]], begins: bool
    ) -> None:
        self.sides = [Side(*kind) for kind in kinds]
        self.renew(constants, enabled)
        if begins:
            self.scale((1.0, "float32", ()))

    def renew(self, constants: tuple, enabled: bool) -> None:
        self.scaler = type(self).make("cpu", *constants, enabled=enabled)
        init, growth, backoff, interval = constants
        self.p = protocol.create(
            Rule.unchecked(
                init_scale=init,
                growth_factor=growth,
                backoff_factor=backoff,
                growth_interval=interval,
            ),
            enabled=enabled,
        )
        self.compare("construction", (None, None), Outcome())

    @rule(drawn=outputs)
    def scale(self, drawn: Any) -> None:
        real_outputs, model_outputs = build(drawn)
        real = attempt(lambda: self.scaler.scale(real_outputs))
        if not self.p.enabled:
            assert real[0] is real_outputs
            return
        self.p, outcome = protocol.scale(self.p, model_outputs)
        self.compare(f"scale({drawn})", real, outcome)

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
        self.compare("backward", (scaled, refusal), replace(outcome, value=value))

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

    @rule(
        i=index, how=st.sampled_from(["plain"] * 5 + ["closure", "positional closure", "nonsense"])
    )
    def step(self, i: int, how: str) -> None:
        side, before = self.side(i), self.side(i).seen
        args = (lambda: 5.0,) if how == "positional closure" else ()
        kwargs = (
            {"closure": lambda: 5.0}
            if how == "closure"
            else {"nonsense": 1}
            if how == "nonsense"
            else {}
        )
        fails = attempt(lambda: side.twin.step(**kwargs))[1] if how == "nonsense" else None
        real = attempt(lambda: self.scaler.step(side.real, *args, **kwargs))
        returns = 5.0 if "closure" in how else None
        self.p, outcome = protocol.step(
            self.p, before, closure="closure" in kwargs, returns=returns, fails=fails
        )
        side.seen = outcome.optimizer
        if outcome.called and how != "nonsense":
            side.step_twin(outcome, before)
        self.compare(f"step ({how})", real, outcome)

    @rule()
    def update(self) -> None:
        real = attempt(lambda: self.scaler.update())
        self.p, outcome = protocol.update(self.p)
        self.compare("update()", real, outcome)

    @rule(new_scale=st.one_of(st.sampled_from(SCALES), st.sampled_from(TENSORS)))
    def update_by_hand(self, new_scale: Any) -> None:
        for_torch = for_model = new_scale
        if isinstance(new_scale, tuple):
            value, dtype, shape, requires_grad, device = new_scale
            for_torch = torch.full(
                shape, value, dtype=dtype, device=device, requires_grad=requires_grad
            )
            held = float(torch.tensor(value, dtype=dtype))
            for_model = Tensor(held, shape, device, requires_grad)
        real = attempt(lambda: self.scaler.update(for_torch))
        self.p, outcome = protocol.update(self.p, for_model)
        self.compare(f"update({for_torch})", real, outcome)

    @rule(
        plan=st.lists(gradients, min_size=3, max_size=3),
        unscales=st.sets(index),
        mood=st.sampled_from(["clean", "clean", "overflow", "drawn"]),
        which=index,
        times=st.integers(1, 3),
    )
    def iterate(
        self, plan: list[tuple], unscales: set[int], mood: str, which: int, times: int
    ) -> None:
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

    @rule(
        drawn=st.sampled_from(
            [(name, value) for name, values in SETTINGS.items() for value in values]
        )
    )
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
        changes=st.sampled_from(
            [{}] * 4 + [{"scale": s} for s in (1e39, 2, 0.1)] + [{"_growth_tracker": 7}]
        ),
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
        self.compare(f"load_state_dict({source})", real, outcome)

    @rule(
        copier=st.sampled_from([copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))])  # noqa: S301
    )
    def copy(self, copier: Callable[[Any], Any]) -> None:
        scaler, refusal = attempt(lambda: copier(self.scaler))
        self.p, outcome = state_dict.pickled(self.p)
        if refusal is None and outcome.refusal is None:
            self.scaler, self.p, outcome = scaler, outcome.value, Outcome()
        self.compare("a pickle round trip", (None, refusal), outcome)


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

"""GradScaler under a model of CUDA graphs: replays of an iteration are iterations.

The model has two parts. `OnDevice` is a tensor on a device of its own (it says "meta"): only
operations see its elements, the host does not, so that a scaler takes the paths that it takes on
CUDA. `Graph` records the operations of one iteration and replays them on the same tensors, running
no Python: numbers from the host are frozen, and what an operation makes is written where it was put
when it was captured. As on CUDA the capture itself computes nothing, and whatever has to wait for
the device raises. This shows what is captured and what is not; it says nothing about kernels,
streams or the graph's memory.
"""

import copy
import sys
from contextlib import contextmanager
from typing import Self

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from ampsim.torch import GradScaler
from tests.examples import examples
from tests.torch.helpers import INF, NAN

EXAMPLES = examples(ms=45, least=30)  # tens of iterations each
DEVICE = torch.device("meta")
CPU = torch.device("cpu")
aten = torch.ops.aten
WAITS = {
    aten._local_scalar_dense.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.nonzero.default,
}


class OnDevice(torch.Tensor):
    """A tensor on DEVICE; `elements` is its memory there."""

    @staticmethod
    def __new__(cls, elements: torch.Tensor) -> Self:
        strides, offset = elements.stride(), elements.storage_offset()
        return torch.Tensor._make_wrapper_subclass(
            cls, elements.shape, strides, offset, dtype=elements.dtype, device=DEVICE
        )

    def __init__(self, elements: torch.Tensor) -> None:
        self.elements = elements

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

    def __repr__(self) -> str:
        return f"OnDevice({self.elements!r})"


_open: list["Graph"] = []  # the graph that is being captured, if any


class Graph:
    """Stands for torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.operations = []
        self._before: dict[
            int, tuple[torch.UntypedStorage, torch.UntypedStorage | None]
        ] = {}

    @contextmanager
    def capture(self):
        _open.append(self)
        try:
            yield self
        finally:
            _open.pop()
            for memory, before in self._before.values():  # nothing has been computed
                if before is not None:
                    memory.copy_(before)

    def run(self, func, args, kwargs):
        for tensor in tensors_in((args, kwargs)):
            memory = tensor.untyped_storage()
            self._before.setdefault(memory._cdata, (memory, memory.clone()))
        out = func(*args, **kwargs)
        for tensor in tensors_in(out):
            self._before.setdefault(
                tensor.untyped_storage()._cdata, (tensor.untyped_storage(), None)
            )
        self.operations.append((func, args, kwargs, out))
        return out

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, out in self.operations:
                for old, new in zip(
                    tensors_in(out), tensors_in(func(*args, **kwargs)), strict=True
                ):
                    if old.untyped_storage()._cdata != new.untyped_storage()._cdata:
                        old.copy_(new)


def mapped(change, tree):
    """What an operation takes or returns, changed: pytree knows more kinds of trees, and takes
    longer.
    """
    if isinstance(tree, list | tuple):
        return type(tree)([mapped(change, branch) for branch in tree])
    if isinstance(tree, dict):
        return {name: mapped(change, branch) for name, branch in tree.items()}
    return change(tree)


def tensors_in(tree) -> list[torch.Tensor]:
    found = []
    mapped(
        lambda leaf: found.append(leaf) if isinstance(leaf, torch.Tensor) else None,
        tree,
    )
    return found


def run(func, args, kwargs):
    """Run an operation on the memory of its tensors; into the graph, if one is being captured."""
    wrappers = {
        id(t.elements): t for t in tensors_in((args, kwargs)) if isinstance(t, OnDevice)
    }
    on_device = (
        torch.device(kwargs.get("device") or (DEVICE if wrappers else CPU)) == DEVICE
    )

    def memory(value):
        if isinstance(value, OnDevice):
            return value.elements
        if isinstance(value, torch.Tensor) and _open:
            return value.clone()  # the host's: taken by value
        return CPU if isinstance(value, torch.device) else value

    def wrap(value):
        known = wrappers.get(id(value))
        return (
            OnDevice(value)
            if isinstance(value, torch.Tensor) and known is None
            else known
        )

    args, kwargs = mapped(memory, args), mapped(memory, kwargs)
    if _open and wrappers and (func in WAITS or not on_device):
        raise RuntimeError("operation not permitted when stream is capturing")
    out = (
        _open[-1].run(func, args, kwargs)
        if _open and on_device
        else func(*args, **kwargs)
    )
    if not on_device or func in WAITS:
        return out
    return mapped(wrap, out)


class Device(TorchDispatchMode):
    """While it is on, tensors that are made on DEVICE are made there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


@pytest.fixture(autouse=True)
def a_device(monkeypatch):
    fused_on = lambda: ["cpu", DEVICE.type]  # noqa: E731
    monkeypatch.setattr(
        sys.modules["torch.optim.optimizer"],
        "_get_fused_kernels_supported_devices",
        fused_on,
    )
    with Device():
        yield


# --------------------------------------------------------------------------------------------------
# the loop

OPTIMIZERS = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.125, fused=True),
    "amsgrad": lambda params: torch.optim.Adam(
        params, lr=0.25, amsgrad=True, fused=True
    ),
    "SGD": lambda params: torch.optim.SGD(params, lr=0.125, fused=True),
    "momentum": lambda params: torch.optim.SGD(
        params, lr=0.25, momentum=0.5, fused=True
    ),
}


class Loop:
    """A small model, its optimizers and its static input, on DEVICE or, with `put` the identity, on
    the CPU.
    """

    def __init__(
        self, scaler, kinds, how="step", put=OnDevice, set_to_none=True
    ) -> None:
        self.scaler, self.how, self.set_to_none = scaler, how, set_to_none
        generator = torch.Generator().manual_seed(0)
        self.x = put(torch.zeros(2, 3))
        shapes = [(3, 4), (3,), (4, 1)]
        self.weights = [
            torch.nn.Parameter(put(torch.randn(s, generator=generator))) for s in shapes
        ]
        groups = (
            [self.weights] if len(kinds) == 1 else [self.weights[:2], self.weights[2:]]
        )
        self.optimizers = [
            OPTIMIZERS[kind](group) for kind, group in zip(kinds, groups, strict=True)
        ]
        self.norms = self.loss = None

    def forward_backward(self) -> None:
        first, shift, last = self.weights
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=self.set_to_none)
        loss = (torch.tanh(self.x @ first) @ last).sum() + (self.x * shift).sum()
        scaled = self.scaler.scale(loss)
        scaled.backward()
        if isinstance(self.scaler, GradScaler):
            self.loss = self.scaler.loss_value(scaled)

    def step(self) -> None:
        if self.how == "unscale":
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
        if self.how == "clip":
            self.norms = [
                self.scaler.unscale_and_clip_(optimizer, 2.0)
                for optimizer in self.optimizers
            ]
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()

    def iteration(self) -> None:
        self.forward_backward()
        self.step()

    def feed(self, value: float) -> None:
        elements(self.x).copy_(torch.tensor([[value, 1.0, -0.5], [0.25, 2.0, value]]))

    def eager(self, value: float) -> None:
        self.feed(value)
        self.iteration()

    def bits(self):
        """All that training leaves behind, with the bits of every number."""
        states = [
            o.state[p]
            for o in self.optimizers
            for group in o.param_groups
            for p in group["params"]
        ]
        return bits(
            [
                self.weights,
                states,
                self.scaler.get_scale(),
                self.scaler._get_growth_tracker(),
            ]
        )


def elements(tensor):
    return tensor.elements if isinstance(tensor, OnDevice) else tensor.detach()


def bits(tree):
    return mapped(
        lambda t: elements(t).numpy().tobytes() if isinstance(t, torch.Tensor) else t,
        tree,
    )


def captured(loop: Loop, warm: list[float]) -> Graph:
    """A graph of one iteration, after eager ones. What the capture itself must not have done is
    checked.
    """
    for value in warm:
        loop.eager(value)
    before, graph = loop.bits(), Graph()
    with graph.capture():
        loop.iteration()
    assert loop.bits() == before
    return graph


# --------------------------------------------------------------------------- replays are iterations

LARGE = [3e38, 1e30, 1e24, 1e16]  # overflow at some scales
batches = st.sampled_from([1.0, 1.0, 1.0, 0.3, INF, NAN, *LARGE])
plans = st.lists(
    st.one_of(
        batches.map(lambda value: ("replay", value)),
        batches.map(lambda value: ("replay", value)),
        batches.map(lambda value: ("eager", value)),
        st.sampled_from([4.0, 2.0**20, 0.7]).map(lambda scale: ("set", scale)),
        st.just(("save", None)),
        st.just(("load", None)),
    ),
    max_size=20,
)
rules = st.fixed_dictionaries(
    {
        "init_scale": st.sampled_from([4.0, 1000.0, 2.0**16]),
        "growth_factor": st.sampled_from([2.0, 3.0, 2.0**16]),
        "backoff_factor": st.sampled_from([0.5, 0.3]),
        "growth_interval": st.integers(1, 3),
    }
)
kinds = st.lists(st.sampled_from([*OPTIMIZERS]), min_size=1, max_size=2)
hows = st.sampled_from(["step", "unscale", "clip"])


def follow(plan, ours: Loop, graph: Graph, theirs: Loop) -> None:
    """One loop by replays, the other by iterations: nothing may tell them apart."""
    inside = said(ours)
    scale, address = ours.scaler._scale, ours.scaler._scale.elements.data_ptr()
    saved = ours.scaler.state_dict()
    for what, value in plan:
        if what == "set":
            ours.scaler.update(value)
            theirs.scaler.update(value)
        elif what == "save":
            saved = ours.scaler.state_dict()
            assert saved == theirs.scaler.state_dict()
        elif what == "load":
            ours.scaler.load_state_dict(saved)
            theirs.scaler.load_state_dict(saved)
        else:
            theirs.eager(value)
            ours.feed(value)
            (graph.replay if what == "replay" else ours.iteration)()
            assert read(inside if what == "replay" else said(ours), ours) == read(
                said(theirs), theirs
            )
        assert ours.bits() == theirs.bits()
    assert ours.scaler._scale is scale
    assert scale.elements.data_ptr() == address
    if not any(what == "eager" for what, _ in plan):
        assert told(ours.scaler.last_step, ours) == told(inside[0], ours)


def said(loop: Loop):
    return loop.scaler.last_step, loop.norms, loop.loss


def told(report, loop: Loop) -> list[bool]:
    return [report.skipped, *map(report.skipped_by, loop.optimizers)]


def read(said, loop: Loop):
    report, norms, loss = said
    return [*told(report, loop), bits(norms), bits(loss)]


options = st.fixed_dictionaries(
    {
        "min_scale": st.sampled_from([None, 0.5]),
        "max_scale": st.sampled_from([None, 2.0**20]),
    }
)


@settings(max_examples=EXAMPLES)
@given(rules, options, kinds, hows, st.booleans(), st.lists(batches, max_size=3), plans)
def test_graph_replays_equal_iterations(
    rule, options, kinds, how, set_to_none, warm, plan
) -> None:
    ours, theirs = (
        Loop(GradScaler("meta", **rule, **options), kinds, how, set_to_none=set_to_none)
        for _ in range(2)
    )
    warm = [1.0, *warm]
    for value in warm:
        theirs.eager(value)
    follow(plan, ours, captured(ours, warm), theirs)


@settings(max_examples=EXAMPLES)
@given(rules, st.lists(st.tuples(st.integers(0, 1), batches), max_size=20))
def test_forward_backward_capture_matches_eager(rule, plan) -> None:
    """Two graphs, as for two shapes of batch; unscale, step, with an optimizer that reads the flag,
    and update run.
    """
    ours = [Loop(GradScaler("meta", **rule), ["AdamW"], "unscale")]
    ours.append(copy.copy(ours[0]))
    ours[1].x = OnDevice(torch.zeros(2, 3))
    theirs = Loop(
        torch.amp.GradScaler("cpu", **rule), ["AdamW"], "unscale", put=torch.clone
    )
    for loop in (ours[0], theirs):
        loop.optimizers = [torch.optim.SGD(loop.weights, lr=0.125, momentum=0.5)]
        loop.eager(1.0)
    ours[1].optimizers = ours[0].optimizers
    graphs = []
    for loop in ours:
        with Graph().capture() as graph:
            loop.forward_backward()
        graphs.append((graph, [weight.grad for weight in loop.weights]))
    for which, value in plan:
        theirs.eager(value)
        ours[which].feed(value)
        graph, grads = graphs[which]
        graph.replay()
        for weight, grad in zip(ours[which].weights, grads, strict=True):
            weight.grad = grad
        ours[which].step()
        assert ours[which].bits() == theirs.bits()


def test_synchronizing_capture_raises() -> None:
    text = "not permitted when stream is capturing"
    loops = [
        Loop(
            GradScaler("meta", init_scale=8.0, growth_interval=1), ["momentum"], "clip"
        )
        for _ in range(2)
    ]
    loops[0].eager(1.0)
    scaler, element = loops[0].scaler, loops[0].x[0, 0]
    for wait in (
        scaler.get_scale,
        scaler.state_dict,
        element.item,
        element.cpu,
        element.__bool__,
    ):
        with Graph().capture(), pytest.raises(RuntimeError, match=text):
            wait()
    loops[0].optimizers = [
        torch.optim.SGD(loops[0].weights)
    ]  # it does not read the flag
    loops[1].eager(INF)  # skipped: the momentum is still to be made
    for loop in loops:
        with Graph().capture(), pytest.raises(RuntimeError, match=text):
            loop.iteration()

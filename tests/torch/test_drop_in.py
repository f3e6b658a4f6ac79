"""Our scaler in torch's place: what it does at depth 0 is torch's, but for the Differences in its docstring."""

import copy
import gc
import inspect
import math
import pickle
import re
import warnings
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from ampsim.torch import GradScaler, roundpipe
from ampsim.torch.state.device import DeviceVersion
from ampsim.torch.state.host import HostVersion
from ampsim.torch.step import optimizer_step
from tests.examples import examples
from tests.torch import lockstep
from tests.torch.helpers import INF, NAN, an_optimizer, told

EXAMPLES = examples(ms=28, least=50)  # two machines


def exact(*args, **options):
    return GradScaler(*args, exact_torch=True, **options)


# ----------------------------------------------------------------------------------------- against torch itself

KINDS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.125, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.1),
    "adamw, fused": lambda params: torch.optim.AdamW(params, lr=0.1, fused=True),
    "sparse": lambda params: torch.optim.SGD(params, lr=0.1),
}
LAYOUTS = {
    "float32": (torch.float32, torch.float32),
    "mixed": (torch.float32, torch.float64, torch.bfloat16),
    "float16": (torch.float32, torch.float16),
}
VALUES = (1.0, -3.0, 0.1, 1e-3, 1000.0, 1e-40, -0.0, 7e4)
BAD = (None, None, None, INF, -INF, NAN)
LEFT = "gradients from before an update() would be divided by the scale"
index = st.integers(0, 2)
kinds = st.lists(
    st.tuples(st.sampled_from([*KINDS]), st.sampled_from(["float32"] * 3 + [*LAYOUTS])), min_size=1, max_size=3
)


def same(a, b):
    """Equal in type, dtype and every bit; NaN equals NaN."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.layout == b.layout and all(map(lockstep.same_bits, parts(a), parts(b)))
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (isinstance(a, map) or repr(a) == repr(b))


def parts(tensor):
    return [lockstep.to_numpy(t) for t in ((tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,))]


def state_of(optimizer, param):
    """What an optimizer keeps for a parameter; what is all 0, as a skipped first step leaves it, counts as nothing."""
    state = optimizer.state.get(param, {})
    kept = [state[name] for name in sorted(state)]
    return kept if any(value.any() for value in kept if value is not None) else []


class Side:
    """One scaler with its own parameters and optimizers."""

    def __init__(self, make, constants, kinds):
        self.make, self.scaler = make, make("cpu", *constants)
        self.params, self.optimizers = [], []
        for kind, layout in kinds:
            shapes = [(5, 3)] if kind == "sparse" else [(3,), (37,), ()][: len(LAYOUTS[layout])]
            dtypes = LAYOUTS[layout]
            params = [torch.nn.Parameter(torch.ones(s, dtype=d)) for s, d in zip(shapes, dtypes, strict=False)]
            self.params.append(params)
            self.optimizers.append(KINDS[kind](params))

    def everything(self):
        found = [self.scaler.get_scale(), self.scaler._get_growth_tracker(), list(self.scaler.state_dict().items())]
        found += [self.scaler.get_growth_factor(), self.scaler.get_backoff_factor(), self.scaler.get_growth_interval()]
        for params, optimizer in zip(self.params, self.optimizers, strict=True):
            found += [[p, p.grad] for p in params]
            found += [state_of(optimizer, p) for p in params]
            found.append([hasattr(optimizer, "grad_scale"), hasattr(optimizer, "found_inf")])
        return found


class DropIn(RuleBasedStateMachine):
    """torch's scaler and ours, each with its own copy of the world, through the same events."""

    make = staticmethod(GradScaler)
    constants = st.tuples(
        st.sampled_from([2.0**16, 2.0**30, 1700.0, 1e6]), st.sampled_from([2.0, 3.0, 1.1]),
        st.sampled_from([0.5, 0.7, 0.25]), st.sampled_from([1, 2, 3]),
    )  # fmt: skip
    new_scales = st.sampled_from([2.0, 1024.0, 1700.3, 2.0**120, np.float64(8.0)])
    found = st.just(1.0)
    settings_ = st.sampled_from(
        [("growth_factor", 4.0), ("growth_factor", 1.0), ("backoff_factor", 0.9), ("backoff_factor", 0.1),
         ("growth_interval", 1), ("growth_interval", 4)]
    )  # fmt: skip

    def both(self, act):
        """The same on each side; same result, and the same world afterwards."""
        ours = told(lambda: act(self.ours))
        left = isinstance(ours, tuple) and LEFT in str(ours[1])  # difference 15
        assert left or same(told(lambda: act(self.theirs)), ours), ours
        a, b = self.theirs.everything(), self.ours.everything()
        assert all(map(same, a, b)), [pair for pair in zip(a, b, strict=True) if not same(*pair)]

    @initialize(data=st.data(), kinds=kinds, begins=st.sampled_from([True] * 4 + [False]))
    def begin(self, data, kinds, begins):
        constants = data.draw(self.constants)
        self.theirs = Side(torch.amp.GradScaler, constants, kinds)
        self.ours = Side(self.make, constants, kinds)
        self.saved = []
        if begins:
            self.scale([1.0], "float32", "tensor")

    @rule(values=st.lists(st.sampled_from(VALUES), min_size=1, max_size=3),
          dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64", "int64"]),
          shape=st.sampled_from(["tensor", "scalar", "list", "nested", "map", "generator", "junk", "half junk"]))  # fmt: skip  # noqa: E501
    def scale(self, values, dtype, shape):
        def act(side):
            tensor = torch.tensor(values).to(getattr(torch, dtype))
            outputs = {
                "tensor": tensor, "scalar": tensor[0], "list": [tensor, tensor[0]], "nested": ([tensor], (tensor[0],)),
                "map": map(torch.clone, [tensor]), "generator": (t for t in [tensor]), "junk": 3.0,
                "half junk": [tensor, None],
            }[shape]  # fmt: skip
            scaled = side.scaler.scale(outputs)
            return list(scaled) if shape in ("map", "generator") else scaled

        self.both(act)

    @rule(
        i=index, values=st.lists(st.sampled_from([*VALUES, "none"]), min_size=3, max_size=3), bad=st.sampled_from(BAD)
    )
    def backward(self, i, values, bad):
        def act(side):
            params = side.params[i % len(side.params)]
            sparse = params[0].dim() == 2
            used = [(p, v) for p, v in zip(params, values, strict=False) if v != "none"]
            for p in params:
                p.grad = None
            if sparse:
                rows = torch.nn.functional.embedding(torch.tensor([1, 3, 1]), params[0], sparse=True)
                side.scaler.scale(rows.sum() * (1.0 if values[0] == "none" else values[0])).backward()
            elif used:
                side.scaler.scale(sum((p * v).sum().float() for p, v in used)).backward()
            if bad is not None and params[0].grad is not None:
                grad = params[0].grad
                (grad._values() if grad.is_sparse else grad).view(-1)[-1] = bad

        self.both(act)

    @rule(i=index)
    def unscale(self, i):
        self.both(lambda side: side.scaler.unscale_(side.optimizers[i % len(side.optimizers)]))

    @rule(i=index, closure=st.sampled_from([False] * 9 + [True]))
    def step(self, i, closure):
        options = {"closure": lambda: 5.0} if closure else {}

        if not self._unscaled_nothing(i):
            self.both(lambda side: side.scaler.step(side.optimizers[i % len(side.optimizers)], **options))

    def _unscaled_nothing(self, i):
        """A fused optimizer unscaled before it had gradients: torch then fails on an int found_inf."""
        optimizer = self.theirs.optimizers[i % len(self.theirs.optimizers)]
        state = self.theirs.scaler._per_optimizer_states.get(id(optimizer))
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        return fused and state is not None and state["stage"].value == 1 and not state["found_inf_per_device"]

    @rule()
    def update(self):
        self.both(lambda side: side.scaler.update())

    @rule(data=st.data(), as_tensor=st.booleans())
    def update_by_hand(self, data, as_tensor):
        new = data.draw(self.new_scales)
        self.both(lambda side: side.scaler.update(torch.tensor(new, dtype=torch.float64) if as_tensor else new))

    @rule(i=index, data=st.data())
    def write_found_inf(self, i, data):
        """An all-reduce over ranks writes found_inf of an overflow."""
        self.backward(i, [1.0, 0.1, -3.0], INF)
        self.unscale(i)
        value = data.draw(self.found)

        def act(side):
            for state in side.scaler._per_optimizer_states.values():
                for flag in state["found_inf_per_device"].values():
                    flag.fill_(value)

        self.both(act)
        self.step(i, closure=False)

    @rule(data=st.data())
    def set(self, data):
        name, value = data.draw(self.settings_)
        if self.make is GradScaler and name == "growth_interval":
            assume(value > self.theirs.scaler._get_growth_tracker())  # difference 13
        self.both(lambda side: getattr(side.scaler, f"set_{name}")(value))

    @rule(overflows=st.lists(st.booleans(), min_size=1, max_size=4), unscales=st.booleans())
    def iterate(self, overflows, unscales):
        for overflow in overflows:
            for i in range(len(self.theirs.optimizers)):
                self.backward(i, [1.0, 0.1, -3.0], INF if overflow else None)
                if unscales:
                    self.unscale(i)
            for i in range(len(self.theirs.optimizers)):
                self.step(i, closure=False)
            self.update()

    @rule()
    def save(self):
        self.saved.append((self.theirs.scaler.state_dict(), self.ours.scaler.state_dict()))
        assert same(list(self.saved[-1][0].items()), list(self.saved[-1][1].items()))

    @rule(i=index, crosswise=st.booleans(), fresh=st.booleans())
    def load(self, i, crosswise, fresh):
        running = bool(self.theirs.scaler._per_optimizer_states)
        if not self.saved or (running and not fresh):
            return
        pair = self.saved[i % len(self.saved)][:: -1 if crosswise else 1]

        def act(side):
            if fresh:
                side.scaler = side.make("cpu", 512.0, 2.5, 0.3, 7)
            side.scaler.load_state_dict(pair[side is self.ours])

        self.both(act)

    @rule(copier=st.sampled_from([copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))]))  # noqa: S301
    def copy(self, copier):
        def act(side):
            side.scaler = copier(side.scaler)

        self.both(act)


class DropInStrict(DropIn):
    """``exact_torch=True``: where torch itself goes wrong, just the same."""

    make = staticmethod(exact)
    constants = st.tuples(
        st.sampled_from([2.0**16, 1.0, 0.1, 2.0**127, 2.0**-127, 2.0**-149, 4, 1e39, NAN, -1.0]),
        st.sampled_from([2.0, 3.0, 2.0**64, INF, NAN]), st.sampled_from([0.5, 0.7, 2.0**-64, 0.0, -0.5, NAN]),
        st.sampled_from([1, 2, 3, 0, -1]),
    )  # fmt: skip
    new_scales = st.sampled_from(lockstep.SCALES)
    found = st.sampled_from(lockstep.FOUND)
    settings_ = st.sampled_from(
        [("growth_factor", 0.5), ("growth_factor", NAN), ("growth_factor", 2), ("backoff_factor", 3.0),
         ("backoff_factor", -1.0), ("growth_interval", 0), ("growth_interval", 3)]
    )  # fmt: skip


@pytest.mark.parametrize("machine", [DropIn, DropInStrict])
def test_in_lockstep_with_torch(machine):
    run_state_machine_as_test(machine, settings=settings(max_examples=EXAMPLES))


# ------------------------------------------------------------------------------------------------- interface


def of_torch(name):
    return inspect.signature(getattr(torch.amp.GradScaler, name)).parameters


@pytest.mark.parametrize(
    "name", [n for n in vars(torch.amp.GradScaler) if not n.startswith("_")] + ["__init__", "_get_growth_tracker"]
)
def test_signatures_begin_with_torchs(name):
    """Names, order, kinds, defaults and annotations; what we add stands behind and is optional."""
    theirs, ours = of_torch(name), inspect.signature(getattr(GradScaler, name)).parameters
    fixed = [p for p in theirs.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    for mine, their in zip(ours.values(), fixed, strict=False):
        assert (mine.name, mine.kind, mine.default) == (their.name, their.kind, their.default)
    added = [p for n, p in ours.items() if n not in theirs]
    assert all(p.default is not p.empty for p in added)
    assert [p.kind for p in theirs.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)] == [
        p.kind for p in ours.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"policy": "torch"}, "exact_torch=True"),
        ({"policy": "raise"}, 'at_min_scale="raise"'),
        ({"rule": None}, "policy="),
    ],
)
def test_an_old_spelling_is_answered_with_the_new_one(old, new):
    with pytest.raises(TypeError, match=re.escape(new)):
        GradScaler("cpu", **old)


@pytest.mark.parametrize("device", [1024.0, "gpu", "", 2.0**16])
def test_difference_4_a_device_that_is_none_is_refused(device):
    with pytest.raises(ValueError, match=r"device=.*: expected .*; pass .* the scale as init_scale="):
        GradScaler(device)
    for make in (exact, torch.amp.GradScaler):
        assert make(device).is_enabled()
    for right in ("cpu", "meta", "mps", "cpu:0", torch.device("cpu")):
        assert GradScaler(right).is_enabled()


def test_construction_agrees_with_the_specification():
    expected = (
        "(self, device='cuda', init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, "
        "enabled=True, *, depth=0, min_scale=None, max_scale=None, at_min_scale='clamp', "
        "exact_torch=False, policy=None, launch=None, allow_fp16=False, capturable=False, group=None, "
        "fused_step=False)"
    )
    signature = inspect.signature(GradScaler.__init__)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    assert str(signature.replace(parameters=bare, return_annotation=signature.empty)) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_cuda_without_cuda_warns_and_disables_as_torch_does():
    warned = []
    for make in (torch.amp.GradScaler, GradScaler):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scaler = make()
        assert not scaler.is_enabled()
        warned.append([(w.category, str(w.message), w.filename) for w in caught])
    assert warned[0] == warned[1]
    assert warned[0][0][2] == __file__


def test_disabled_passes_through_as_torch_does():
    results = []
    for make in (torch.amp.GradScaler, GradScaler):
        scaler = make("cpu", enabled=False)
        param = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([param], lr=0.5)
        outputs = [torch.ones(2), 3.0]
        assert scaler.scale(outputs) is outputs
        param.grad = torch.tensor([1.0, INF])
        scaler.unscale_(optimizer)
        calls = [
            lambda s=scaler, o=optimizer: s.step(o, closure=lambda: 5.0), lambda s=scaler: s.update("anything"),
            scaler.get_scale, scaler._get_growth_tracker, scaler.state_dict, lambda s=scaler: s.load_state_dict({}),
            scaler.get_growth_factor, lambda s=scaler: s.set_growth_factor("x"), scaler.get_growth_factor,
            lambda s=scaler: pickle.loads(pickle.dumps(s)).get_growth_factor(),  # noqa: S301
            lambda s=scaler: copy.deepcopy(s).is_enabled(),
        ]  # fmt: skip
        results.append([*map(told, calls), param.detach()])
    assert all(map(same, *results)), results


def test_disabled_works_with_tickets_too():
    scaler = GradScaler("cpu", enabled=False, depth=2)
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([param], lr=0.5)
    for _ in range(5):  # nothing to wait for
        ticket = scaler.begin(timeout=0)
        param.grad = None
        loss = scaler.scale(param.sum(), ticket=ticket)
        assert scaler.loss_value(loss, ticket=ticket) == loss
        loss.backward()
        scaler.unscale_(optimizer, ticket=ticket)
        assert scaler.unscale_and_clip_(optimizer, 1.0, ticket=ticket) == math.sqrt(2)
        scaler.step(optimizer)
        scaler.update(ticket=ticket)


def test_disabled_for_roundpipe_needs_no_thread(monkeypatch):
    monkeypatch.setattr(roundpipe, "optimizer_stream", lambda: pytest.fail("it was asked for"))
    assert not roundpipe.GradScaler(enabled=False).enabled


def test_disabled_for_roundpipe_knows_its_constants():
    for scaler in (roundpipe.GradScaler(enabled=False), roundpipe.GradScaler(1.0, 3.0, 0.25, 7, enabled=False)):
        factors = scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()
        assert factors in ((2.0, 0.5, 2000), (3.0, 0.25, 7))
        assert scaler.state_dict() == {}
        scaler.set_growth_interval(5)
        assert pickle.loads(pickle.dumps(scaler)).get_growth_interval() == 5  # noqa: S301


# ------------------------------------------------------------------------------------------------ Differences


def differences():
    """The numbered sentences of the class docstring."""
    text = re.split(r"Differences from torch", inspect.getdoc(GradScaler))[1].split("\n\n")[0]
    return [int(n) for n in re.findall(r"^\s+(\d+)\. ", text, re.MULTILINE)]


def test_every_difference_has_a_test_and_every_test_a_difference():
    tested = sorted(int(n) for name in globals() for n in re.findall(r"^test_difference_(\d+)_", name))
    assert sorted(set(tested)) == differences()


def one(scaler, *grads, **options):
    """An optimizer whose parameters are 0 and whose gradients are given; the scaler has a scale."""
    params = [torch.nn.Parameter(torch.zeros(())) for _ in grads]
    optimizer = torch.optim.SGD(params, lr=1.0, **options)
    scaler.scale(torch.tensor(1.0))
    for param, grad in zip(params, grads, strict=True):
        param.grad = torch.tensor(grad)
    return params, optimizer


def test_difference_1_the_scale_stops_at_2_to_minus_126():
    for make, lowest in ((GradScaler, 2.0**-126), (exact, 0.0), (torch.amp.GradScaler, 0.0)):
        scaler = make("cpu")
        _, optimizer = one(scaler, INF)
        for _ in range(200):
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == lowest


def test_difference_2_gradients_below_scale_1_are_checked_once_divided():
    for make, expected in ((GradScaler, 0.0), (exact, -INF), (torch.amp.GradScaler, -INF)):
        for fused in (False, True):
            scaler = make("cpu", init_scale=0.5)
            (param,), optimizer = one(scaler, 3e38, fused=fused)
            scaler.step(optimizer)
            assert param.item() == expected


def test_difference_2_duplicates_of_a_sparse_gradient_are_checked_added_up():
    for make, moved in ((GradScaler, 0.0), (exact, -INF), (torch.amp.GradScaler, -INF)):
        scaler = make("cpu", init_scale=4.0)
        (param,), optimizer = one(scaler, 0.0)
        param = torch.nn.Parameter(torch.zeros(2, 1))
        optimizer = torch.optim.SGD([param], lr=1.0)
        param.grad = duplicates(3e38, 3e38, 3e38, 3e38, 3e38)
        scaler.step(optimizer)
        assert param.tolist() == [[moved], [0.0]]


@pytest.mark.parametrize("exact_torch", [False, True])
def test_the_norm_of_a_sparse_gradient_is_that_of_its_sums(exact_torch):
    scaler = GradScaler("cpu", init_scale=4.0, exact_torch=exact_torch)
    param = torch.nn.Parameter(torch.zeros(2, 1))
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler.scale(torch.ones(()))
    param.grad = duplicates(*[8.0] * 16)
    assert scaler.unscale_and_clip_(optimizer, 1.0).item() == 32.0
    scaler.step(optimizer)
    torch.testing.assert_close(param.detach(), torch.tensor([[-1.0], [0.0]]))


def duplicates(*values):
    """A sparse gradient of shape (2, 1) with all values in its first row."""
    rows = torch.zeros(1, len(values), dtype=torch.long)
    return torch.sparse_coo_tensor(rows, torch.tensor(values).reshape(-1, 1), (2, 1), check_invariants=True)


def test_difference_3_a_closure_is_refused_by_position_too():
    for make, refused in ((GradScaler, True), (exact, False), (torch.amp.GradScaler, False)):
        scaler = make("cpu")
        _, optimizer = one(scaler, 1.0)
        result = told(lambda s=scaler, o=optimizer: s.step(o, lambda: 5.0))
        refusal = (RuntimeError, "Closure use is not currently supported if GradScaler is enabled.")
        assert result == (refusal if refused else 5.0)


@pytest.mark.parametrize(
    "constants",
    [{"init_scale": NAN}, {"init_scale": -1.0}, {"init_scale": 2.0**-127}, {"init_scale": 1e39}, {"growth_factor": INF},
     {"backoff_factor": 0.0}, {"backoff_factor": -1.0}, {"growth_interval": 0}, {"growth_interval": 2.5}],
)  # fmt: skip
def test_difference_4_constants_that_no_run_could_want_are_refused(constants):
    torch.amp.GradScaler("cpu", **constants)
    exact("cpu", **constants)
    with pytest.raises((ValueError, TypeError), match=f"{next(iter(constants))}=.*expected"):
        GradScaler("cpu", **constants)


@pytest.mark.parametrize("new_scale", [NAN, 0.0, -1.0, INF])
def test_difference_4_scales_that_no_run_could_want_are_refused(new_scale):
    for make, refused in ((GradScaler, True), (exact, False), (torch.amp.GradScaler, False)):
        scaler = make("cpu")
        scaler.scale(torch.tensor(1.0))
        result = told(lambda s=scaler: s.update(new_scale))
        assert (result is not None) == refused
        assert repr(scaler.get_scale()) == repr(2.0**16 if refused else new_scale)


def test_difference_5_any_number_will_do_as_new_scale():
    for new_scale in (8, np.float32(8), torch.tensor([8.0])):
        for make, taken in ((GradScaler, True), (exact, False), (torch.amp.GradScaler, False)):
            scaler = make("cpu")
            scaler.scale(torch.tensor(1.0))
            told(lambda s=scaler, n=new_scale: s.update(n))
            assert scaler.get_scale() == (8.0 if taken else 2.0**16)


@pytest.mark.parametrize("late", ["", "its first gradient", "in the group"])
def test_difference_6_a_first_fused_step_that_is_skipped_makes_no_state(monkeypatch, late):
    empty_like = torch.empty_like  # memory that held something before
    monkeypatch.setattr(torch, "empty_like", lambda *args, **options: empty_like(*args, **options).fill_(777.0))
    for make, moved in ((GradScaler, -1.0), (exact, -1.0 - 0.5 * 777.0), (torch.amp.GradScaler, -1.0 - 0.5 * 777.0)):
        scaler = make("cpu", init_scale=4.0)
        (param, other), optimizer = one(scaler, INF, 4.0, fused=True, momentum=0.5)
        if late:  # the other parameter has its state already
            param.grad = None
            scaler.step(optimizer)
            scaler.update()
            param.grad = torch.tensor(INF)
        if late == "in the group":  # in the other's place
            optimizer.param_groups[0]["params"] = [param]
        other.grad = None
        scaler.step(optimizer)
        scaler.update()
        param.grad = torch.tensor(scaler.get_scale())  # 1, scaled
        scaler.step(optimizer)
        assert param.item() == moved


@pytest.mark.parametrize(
    "change",
    [
        lambda o, param: o.state.clear(),
        lambda o, param: o.load_state_dict({**o.state_dict(), "state": {}}),
        lambda o, param: o.param_groups[0]["params"].__setitem__(0, param),
        lambda o, param: o.param_groups[0]["params"].append(param),
        lambda o, param: o.add_param_group({"params": [param]}),
    ],
)
def test_difference_6_whenever_state_is_made(change):
    scaler = GradScaler("cpu", init_scale=4.0)
    param, new = (torch.nn.Parameter(torch.zeros(())) for _ in range(2))
    optimizer = torch.optim.AdamW([param], fused=True)
    param.grad = scaler.scale(torch.ones(()))
    scaler.step(optimizer)
    scaler.update()
    change(optimizer, new)
    had = list(optimizer.state)
    param.grad, new.grad = torch.tensor(INF), torch.tensor(INF)
    scaler.step(optimizer)
    assert list(map(id, optimizer.state)) == list(map(id, had))


@pytest.mark.parametrize("options", [{"momentum": 0.5}, {}])
def test_difference_6_a_fused_optimizer_is_called_to_skip_as_by_torch(options):
    for make in (GradScaler, exact, torch.amp.GradScaler):
        scaler, calls = make("cpu", init_scale=4.0), []
        (param,), optimizer = one(scaler, INF, fused=True, **options)
        optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append("called"))
        for grad in (INF, INF, 1.0, INF):
            param.grad.fill_(grad)
            scaler.step(optimizer)
            scaler.update()
        assert len(calls) == 4


def test_difference_7_gradients_are_not_divided_by_a_scale_that_was_loaded_since():
    for make, refused in ((GradScaler, True), (exact, False), (torch.amp.GradScaler, False)):
        scaler = make("cpu", init_scale=4.0)
        param = torch.nn.Parameter(torch.zeros(()))
        optimizer = torch.optim.SGD([param])
        scaler.scale(param).backward()
        scaler.load_state_dict({**scaler.state_dict(), "scale": 8.0})
        text = told(lambda s=scaler, o=optimizer: s.step(o))
        assert ("would be divided by the scale 8.0: expected 4.0" in str(text)) == refused, text


def test_difference_7_with_tickets_loading_ends_the_iteration():
    scaler = GradScaler("cpu", init_scale=4.0)
    ticket = scaler.begin()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))])
    scaler.unscale_(optimizer, ticket=ticket)
    scaler.load_state_dict(scaler.state_dict())
    with pytest.raises(RuntimeError, match="expected one that this scaler's begin"):
        scaler.step(optimizer, ticket=ticket)
    scaler.unscale_(optimizer, ticket=scaler.begin())


def test_difference_8_a_state_dict_that_is_refused_changes_nothing():
    for make, after in ((GradScaler, 4.0), (exact, 4.0), (torch.amp.GradScaler, 8.0)):
        scaler = make("cpu", init_scale=4.0)
        scaler.scale(torch.tensor(1.0))
        kind, text = told(lambda s=scaler: s.load_state_dict({"scale": 8.0}))
        if make is GradScaler:
            assert text.startswith("the state dict has no 'growth_factor', 'backoff_factor', 'growth_interval', ")
            assert "only ['scale']: expected all five keys" in text
            assert issubclass(kind, KeyError)
        else:
            assert (kind, text) == (KeyError, "'growth_factor'")
        assert scaler.get_scale() == after


@pytest.mark.parametrize("missing", ["scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"])
def test_difference_8_names_the_key_that_is_missing(missing):
    saved = GradScaler("cpu").state_dict()
    del saved[missing]
    kind, text = told(lambda: GradScaler("cpu").load_state_dict(saved))
    assert issubclass(kind, KeyError)
    assert text.startswith(f"the state dict has no {missing!r}, only [")


def test_every_pending_scale_of_a_state_dict_is_looked_at():
    scaler = GradScaler("cpu", depth=2)
    kind, text = told(lambda: scaler.load_state_dict(scaler.state_dict() | {"pending": [2.0, 0.0]}))
    assert (kind, text.partition(":")[0]) == (ValueError, "scale=0.0")


def test_difference_8_an_update_that_is_refused_changes_nothing():
    for make, moved in ((exact, 0.0), (torch.amp.GradScaler, -INF)):
        scaler = make("cpu")
        (param,), optimizer = one(scaler, INF, fused=True)
        _, other = one(scaler, INF)
        scaler.unscale_(optimizer)
        scaler.unscale_(other)
        scaler.set_growth_interval(2.0)
        assert told(scaler.update)[0] is TypeError  # torch has summed found_inf in place: 2, which no kernel skips
        scaler.step(optimizer)
        assert param.item() == moved


def test_difference_9_a_fused_step_that_raises_leaves_nothing_on_the_optimizer():
    for make, divided in ((GradScaler, -1.0), (exact, -1.0), (torch.amp.GradScaler, -0.25)):
        scaler = make("cpu", init_scale=4.0)
        (param,), optimizer = one(scaler, 4.0, fused=True)
        assert told(lambda s=scaler, o=optimizer: s.step(o, nonsense=1))[0] is TypeError
        scaler.step(optimizer)
        assert param.item() == divided  # torch's grad_scale stayed and was multiplied in


def test_difference_9_a_grad_scale_of_the_users_own_comes_back():
    scaler = GradScaler("cpu", init_scale=4.0)
    (param,), optimizer = one(scaler, 8.0, fused=True)
    optimizer.grad_scale = torch.tensor(2.0)
    assert told(lambda: scaler.step(optimizer, nonsense=1))[0] is TypeError
    assert optimizer.grad_scale == 2.0
    scaler.step(optimizer)
    assert param.item() == -1.0
    assert not hasattr(optimizer, "grad_scale")


def test_difference_10_gradients_that_come_after_unscale_reach_a_fused_step():
    for make, expected in ((GradScaler, None), (exact, None), (torch.amp.GradScaler, AttributeError)):
        scaler = make("cpu", init_scale=4.0)
        (param,), optimizer = one(scaler, 1.0, fused=True)
        param.grad = None
        scaler.unscale_(optimizer)
        param.grad = torch.tensor(1.0)
        result = told(lambda s=scaler, o=optimizer: s.step(o))
        assert (result and result[0]) == expected


class DividesAndSkips(torch.optim.SGD):
    """A fused optimizer that is not torch's; it reads the flag, as it may."""

    _step_supports_amp_scaling = True

    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            param.data -= param.grad / self.grad_scale * (1.0 - self.found_inf.item())


def test_a_fused_optimizer_of_another_library_gets_a_flag_to_read():
    for make in (GradScaler, exact, torch.amp.GradScaler):
        for grad, moved in ((4.0, -1.0), (8.0, -2.0)):
            scaler = make("cpu", init_scale=4.0)
            (param,), _ = one(scaler, grad)
            scaler.step(DividesAndSkips([param]))
            assert param.item() == moved


class WantsTheScaler(torch.optim.SGD):
    """An optimizer of the kind that torch hands the scaler itself, with a warning that it will stop."""

    _step_supports_amp_scaling = True

    def step(self, closure=None, *, grad_scaler=None):
        self.given = grad_scaler
        return super().step(closure)


def test_difference_11_an_optimizer_that_wants_the_scaler_gets_unscaled_gradients():
    param = torch.nn.Parameter(torch.zeros(()))
    optimizer = WantsTheScaler([param], lr=1.0)
    for make, moved in ((GradScaler, -1.0), (exact, -1.0)):
        scaler = make("cpu", init_scale=4.0)
        scaler.scale(torch.tensor(1.0))
        param.data.zero_()
        param.grad = torch.tensor(4.0)
        optimizer_step._wants_scaler.cache_clear()  # it tells once of each step
        with pytest.warns(RuntimeWarning, match=r"WantsTheScaler.step takes grad_scaler: .* unscaled, and no scaler"):
            scaler.step(optimizer)
        assert param.item() == moved
        assert optimizer.given is None
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.tensor(1.0))
    with pytest.warns(FutureWarning, match="going to stop passing itself"):
        scaler.step(optimizer)
    assert optimizer.given is scaler


def test_difference_12_a_fused_step_looks_at_strides():
    numbers = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    for make, right in ((GradScaler, True), (exact, True), (torch.amp.GradScaler, False)):
        param = torch.nn.Parameter(torch.zeros(2, 2))
        optimizer, scaler = torch.optim.SGD([param], lr=1.0, fused=True), make("cpu", init_scale=4.0)
        scaler.scale(torch.tensor(1.0))
        param.grad = (4.0 * numbers).t()
        scaler.step(optimizer)
        assert param.equal(-numbers.t() if right else -numbers)


def test_difference_13_an_interval_lowered_below_the_streak_does_not_stop_growth():
    for make, grown in ((GradScaler, 8.0), (exact, 4.0), (torch.amp.GradScaler, 4.0)):
        for load in (False, True):
            scaler = make("cpu", init_scale=4.0)
            _, optimizer = one(scaler, 1.0)
            for i in range(7):
                if i == 5 and load:
                    scaler.load_state_dict(scaler.state_dict() | {"growth_interval": 3})
                elif i == 5:
                    scaler.set_growth_interval(3)
                scaler.step(optimizer)
                scaler.update()
            assert scaler.get_scale() == grown


def test_difference_14_a_scale_is_kept_within_an_iteration():
    for make, divided in ((GradScaler, -1.0), (exact, -1.0), (torch.amp.GradScaler, -0.5)):
        scaler = make("cpu", init_scale=4.0)
        (param,), optimizer = one(scaler, 4.0)
        refused = isinstance(told(lambda s=scaler: s._scale.fill_(8.0)), tuple)
        scaler.step(optimizer)
        assert (param.item(), refused) == (divided, make is not torch.amp.GradScaler)


def two(make, *steps, interval=1):
    """Run a loop over two parameters, each with its optimizer; return the parameters and how the loop ended."""
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizers = [torch.optim.SGD([param], lr=1.0) for param in params]
    scaler = make("cpu", init_scale=1024.0, growth_interval=interval)
    ended = told(lambda: [step(scaler, *params, *optimizers) for step in steps] and None)
    return params, ended


def back(of):
    """A backward pass from a scaled sum."""
    return lambda s, a, b, oa, ob: s.scale((of(a, b)).sum()).backward()


BOTH, OF_A, OF_B = back(lambda a, b: a + b), back(lambda a, b: a), back(lambda a, b: b)
STEP_A, STEP_B = (lambda s, a, b, oa, ob: s.step(oa)), (lambda s, a, b, oa, ob: s.step(ob))
UNSCALE_B = lambda s, a, b, oa, ob: s.unscale_(ob)  # noqa: E731
UPDATE = lambda s, *_: s.update()  # noqa: E731
ZERO_A = lambda s, a, b, oa, ob: oa.zero_grad(set_to_none=False)  # noqa: E731
ZERO_B = lambda s, a, b, oa, ob: ob.zero_grad(set_to_none=False)  # noqa: E731
NONE_B = lambda s, a, b, oa, ob: ob.zero_grad()  # noqa: E731
ITERATION = (BOTH, STEP_A, STEP_B, UPDATE, ZERO_A, ZERO_B)


@pytest.mark.parametrize(
    "steps",
    [
        (BOTH, STEP_A, UPDATE, STEP_B),
        (BOTH, STEP_A, UPDATE, UNSCALE_B),
        (*ITERATION, BOTH, STEP_A, UPDATE, STEP_B),
        (OF_A, OF_B, STEP_A, UPDATE, STEP_B),
        (BOTH, STEP_A, UPDATE, ZERO_A, OF_A, STEP_A, UPDATE, STEP_B),  # two updates later
        (BOTH, UNSCALE_B, STEP_A, UPDATE, STEP_B),  # it would be divided twice
        (BOTH, STEP_A, STEP_B, ZERO_B, OF_B, UPDATE, STEP_B),  # the backward pass came before the update
    ],
)
def test_difference_15_gradients_that_an_update_found_unstepped_are_refused(steps):
    for make in (torch.amp.GradScaler, exact, partial(GradScaler, capturable=True)):
        params, ended = two(make, *steps)
        assert ended is None
        assert params[1].tolist() not in ([0.0, 0.0], [-1.0, -1.0])  # whole steps of 1
    params, ended = two(GradScaler, *steps)
    assert ended[0] is RuntimeError
    assert ended[1].startswith(LEFT)
    assert params[1][0].item() in (1.0, 0.0)


def test_difference_15_what_was_divided_is_not_divided_again_by_the_same_scale():
    params, ended = two(GradScaler, BOTH, UNSCALE_B, STEP_A, UPDATE, STEP_B, interval=9)
    assert ended[1].startswith(f"{LEFT} 1024.0: expected 1.0, ")
    assert params[1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("interval", "steps"),
    [
        (1, ITERATION * 3),
        (1, (OF_A, BOTH, STEP_A, STEP_B, UPDATE)),
        (1, (BOTH, STEP_A, UPDATE, ZERO_B, OF_B, STEP_B, UPDATE) * 2),  # a GAN's: the first pass leaks into b
        (1, (BOTH, STEP_A, UPDATE, NONE_B, OF_B, STEP_B, UPDATE) * 2),
        (1, (BOTH, STEP_A, ZERO_B, OF_B, STEP_B, UPDATE) * 2),
        (1, (BOTH, UNSCALE_B, STEP_A, UPDATE, NONE_B) * 2),  # b's step is left out, as after too large a norm
        (9, (BOTH, STEP_A, UPDATE, ZERO_A, BOTH, STEP_A, STEP_B, UPDATE)),  # accumulates over an update
        (9, (BOTH, STEP_A, UPDATE, STEP_B, UPDATE)),  # the scale has not changed
        (9, (BOTH, STEP_A, UPDATE, UNSCALE_B, STEP_B, UPDATE)),
    ],
)
def test_difference_15_refuses_no_loop_that_is_right(interval, steps):
    theirs, ended = two(torch.amp.GradScaler, *steps, interval=interval)
    ours, also_ended = two(GradScaler, *steps, interval=interval)
    assert ended is also_ended is None
    assert all(map(same, theirs, ours))


@pytest.mark.parametrize("fused", [False, True])
def test_difference_15_a_call_that_is_refused_leaves_no_record(fused):
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1)
    param = torch.nn.Parameter(torch.zeros(()))
    left = torch.optim.SGD([param], lr=1.0, fused=fused)
    _, other = one(scaler, 4.0)
    scaler.scale(param).backward()
    scaler.step(other)
    scaler.step(left)
    scaler.update()
    scaler.scale(param).backward()
    _, other = one(scaler, 8.0)
    scaler.step(other)
    scaler.update()
    for call in (scaler.unscale_, scaler.step):
        with pytest.raises(RuntimeError, match=re.escape(LEFT)):
            call(left)
    copy.deepcopy(scaler)


def test_difference_15_knows_parameters_of_any_kind():
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1)
    (param,), optimizer = one(scaler, 4.0)
    _, other = one(scaler, 4.0)
    scaler.step(optimizer)
    with torch.inference_mode():
        param.grad = torch.tensor(8.0)  # counts no versions
    scaler.scale(torch.ones(1, requires_grad=True))
    scaler.step(other)
    scaler.update()
    param.grad = torch.tensor(8.0)
    scaler.step(optimizer)
    assert param.item() == -2.0
    assert len(scaler._owners._known) == 2
    scaler.update()
    step_again(scaler, other)
    del param, optimizer
    gc.collect()
    assert len(scaler._owners._known) == 1


@pytest.mark.parametrize("exact_torch", [False, True])
def test_difference_16_a_first_scale_in_inference_mode(exact_torch):
    param = torch.nn.Parameter(torch.ones(()))
    theirs, ours = torch.amp.GradScaler("cpu"), GradScaler("cpu", init_scale=4.0, exact_torch=exact_torch)
    with torch.inference_mode():
        theirs.scale(torch.ones(()))
        ours.scale(torch.ones(()))
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        theirs.scale(param)
    optimizer = torch.optim.SGD([param], lr=1.0)
    ours.scale(param).backward()
    ours.step(optimizer)
    ours.update()
    assert param.item() == 0.0


class Noted(torch.autograd.Function):
    """The identity; its graph lives as long as its context does."""

    @staticmethod
    def forward(ctx, x):
        Noted.context = weakref.ref(ctx)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


@pytest.mark.parametrize("options", [{}, {"depth": 1}, {"exact_torch": True}, {"capturable": True}], ids=str)
def test_no_graph_outlives_its_loss(options):
    """Torch warns of a backward pass on another stream than that of the graph in which a parameter was first used."""
    param, optimizer = an_optimizer(1.0, 2.0, kind=torch.optim.AdamW, fused=True)
    scaler = GradScaler("cpu", init_scale=4.0, **options)
    loss = scaler.scale(Noted.apply(param).sum())
    loss.backward()
    scaler.loss_value(loss)
    scaler.unscale_and_clip_(optimizer, 1.0)
    scaler.step(optimizer)
    assert Noted.context() is not None
    del loss
    assert Noted.context() is None


@pytest.mark.parametrize(
    ("change", "unstepped"),
    [
        (lambda groups, b: groups[0]["params"].append(b), 0),
        (lambda groups, b: groups.append({**groups[0], "params": [b]}), 0),
        (lambda groups, b: groups[0].update(params=[b]), 1),  # a
        (lambda groups, b: groups.clear(), 2),
    ],
)
def test_difference_15_knows_an_optimizer_whose_groups_change(change, unstepped):
    a, b = (torch.nn.Parameter(torch.zeros(())) for _ in range(2))
    optimizer, scaler = torch.optim.SGD([a], lr=1.0), GradScaler("cpu", init_scale=4.0)

    def left_after_a_step():
        scaler.scale(a + b)
        a.grad, b.grad = torch.tensor(4.0), torch.tensor(4.0)
        scaler.step(optimizer)
        scaler.update(4.0)
        return list(scaler._owners._left)

    assert left_after_a_step() == left_after_a_step() == [id(b)]
    optimizer.zero_grad()
    change(optimizer.param_groups, b)
    if not optimizer.param_groups:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
        optimizer.param_groups[0]["params"][0].grad = torch.tensor(4.0)
    assert len(left_after_a_step()) == unstepped


def step_again(scaler, optimizer):
    scaler.scale(torch.ones(1, requires_grad=True))
    scaler.step(optimizer)
    scaler.update()


def test_the_state_is_the_reference_machines_and_strictly_torchs_kernels():
    scaler, other = GradScaler("cpu"), exact("cpu")
    for each, kind in ((scaler, HostVersion), (other, DeviceVersion)):
        each.scale(torch.tensor(1.0))
        assert type(each._iterations.register.newest) is kind


def test_a_loop_that_scales_by_hand_keeps_nothing_of_its_steps():
    param = torch.nn.Parameter(torch.zeros(1))
    optimizer, scaler = torch.optim.SGD([param], 0.1), GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    sizes = []
    for _ in range(8):
        param.grad = torch.full_like(param, scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        sizes.append([len(value) for value in vars(scaler._owners).values() if hasattr(value, "__len__")])
    assert sizes[1] == sizes[-1]

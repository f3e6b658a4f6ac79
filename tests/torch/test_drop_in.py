"""Our scaler in torch's place: what it does at depth 0 is torch's, but for the Differences in its docstring."""

import copy
import pickle
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
    st.tuples(st.sampled_from([*KINDS]), st.sampled_from(["float32"] * 3 + [*LAYOUTS])),
    min_size=1,
    max_size=3,
)


def same(a, b):
    """Equal in type, dtype and every bit; NaN equals NaN."""
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.layout == b.layout
            and all(map(lockstep.same_bits, parts(a), parts(b)))
        )
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (isinstance(a, map) or repr(a) == repr(b))


def parts(tensor):
    return [
        lockstep.to_numpy(t)
        for t in ((tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,))
    ]


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
            params = [
                torch.nn.Parameter(torch.ones(s, dtype=d))
                for s, d in zip(shapes, dtypes, strict=False)
            ]
            self.params.append(params)
            self.optimizers.append(KINDS[kind](params))

    def everything(self):
        found = [
            self.scaler.get_scale(),
            self.scaler._get_growth_tracker(),
            list(self.scaler.state_dict().items()),
        ]
        found += [
            self.scaler.get_growth_factor(),
            self.scaler.get_backoff_factor(),
            self.scaler.get_growth_interval(),
        ]
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
        i=index,
        values=st.lists(st.sampled_from([*VALUES, "none"]), min_size=3, max_size=3),
        bad=st.sampled_from(BAD),
    )
    def backward(self, i, values, bad):
        def act(side):
            params = side.params[i % len(side.params)]
            sparse = params[0].dim() == 2
            used = [(p, v) for p, v in zip(params, values, strict=False) if v != "none"]
            for p in params:
                p.grad = None
            if sparse:
                rows = torch.nn.functional.embedding(
                    torch.tensor([1, 3, 1]), params[0], sparse=True
                )
                side.scaler.scale(
                    rows.sum() * (1.0 if values[0] == "none" else values[0])
                ).backward()
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
            self.both(
                lambda side: side.scaler.step(side.optimizers[i % len(side.optimizers)], **options)
            )

    def _unscaled_nothing(self, i):
        """A fused optimizer unscaled before it had gradients: torch then fails on an int found_inf."""
        optimizer = self.theirs.optimizers[i % len(self.theirs.optimizers)]
        state = self.theirs.scaler._per_optimizer_states.get(id(optimizer))
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        return (
            fused
            and state is not None
            and state["stage"].value == 1
            and not state["found_inf_per_device"]
        )

    @rule()
    def update(self):
        self.both(lambda side: side.scaler.update())

    @rule(data=st.data(), as_tensor=st.booleans())
    def update_by_hand(self, data, as_tensor):
        new = data.draw(self.new_scales)
        self.both(
            lambda side: side.scaler.update(
                torch.tensor(new, dtype=torch.float64) if as_tensor else new
            )
        )

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

    @rule(
        copier=st.sampled_from([copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))])  # noqa: S301
    )
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
def test_scaler_matches_torch_in_lockstep(machine):
    run_state_machine_as_test(machine, settings=settings(max_examples=EXAMPLES))


# ------------------------------------------------------------------------------------------------- interface


@pytest.mark.parametrize("device", [1024.0, "gpu", "", 2.0**16])
def test_difference_4_invalid_device_raises(device):
    with pytest.raises(
        ValueError, match=r"device=.*: expected .*; pass .* the scale as init_scale="
    ):
        GradScaler(device)
    for make in (exact, torch.amp.GradScaler):
        assert make(device).is_enabled()
    for right in ("cpu", "meta", "mps", "cpu:0", torch.device("cpu")):
        assert GradScaler(right).is_enabled()


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_missing_cuda_warns_and_disables():
    warned = []
    for make in (torch.amp.GradScaler, GradScaler):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scaler = make()
        assert not scaler.is_enabled()
        warned.append([(w.category, str(w.message), w.filename) for w in caught])
    assert warned[0] == warned[1]
    assert warned[0][0][2] == __file__


def test_disabled_scaler_matches_torch():
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


def test_disabled_scaler_never_blocks_on_tickets():
    scaler, (param, optimizer) = GradScaler("cpu", enabled=False, depth=2), an_optimizer()
    for _ in range(5):
        ticket = scaler.begin_iteration(timeout=0)
        loss = scaler.scale(param.sum(), ticket=ticket)
        assert scaler.loss_value(loss, ticket=ticket) == loss
        scaler.step(optimizer, ticket=ticket)
        scaler.update(ticket=ticket)


def test_disabled_roundpipe_scaler_keeps_constants():
    scaler = roundpipe.GradScaler(1.0, 3.0, 0.25, 7, enabled=False)
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor()) == (3.0, 0.25)
    assert (scaler.get_growth_interval(), scaler.enabled) == (7, False)
    scaler.set_growth_interval(5)
    assert scaler.get_growth_interval() == 5


# ------------------------------------------------------------------------------------------------ Differences


def one(scaler, *grads, **options):
    """An optimizer whose parameters are 0 and whose gradients are given; the scaler has a scale."""
    params = [torch.nn.Parameter(torch.zeros(())) for _ in grads]
    optimizer = torch.optim.SGD(params, lr=1.0, **options)
    scaler.scale(torch.tensor(1.0))
    for param, grad in zip(params, grads, strict=True):
        param.grad = torch.tensor(grad)
    return params, optimizer


def test_difference_1_smallest_scale():
    for make, lowest in ((GradScaler, 2.0**-126), (exact, 0.0), (torch.amp.GradScaler, 0.0)):
        scaler = make("cpu")
        _, optimizer = one(scaler, INF)
        for _ in range(200):
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == lowest


def test_difference_2_sparse_duplicates_are_summed():
    for make, moved in ((GradScaler, 0.0), (exact, -INF), (torch.amp.GradScaler, -INF)):
        scaler = make("cpu", init_scale=4.0)
        (param,), optimizer = one(scaler, 0.0)
        param = torch.nn.Parameter(torch.zeros(2, 1))
        optimizer = torch.optim.SGD([param], lr=1.0)
        param.grad = duplicates(3e38, 3e38, 3e38, 3e38, 3e38)
        scaler.step(optimizer)
        assert param.tolist() == [[moved], [0.0]]


def duplicates(*values):
    """A sparse gradient of shape (2, 1) with all values in its first row."""
    rows = torch.zeros(1, len(values), dtype=torch.long)
    return torch.sparse_coo_tensor(
        rows, torch.tensor(values).reshape(-1, 1), (2, 1), check_invariants=True
    )


def test_difference_3_positional_closure_raises():
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
def test_difference_4_invalid_arguments_raise(constants):
    torch.amp.GradScaler("cpu", **constants)
    exact("cpu", **constants)
    with pytest.raises((ValueError, TypeError), match=f"{next(iter(constants))}=.*expected"):
        GradScaler("cpu", **constants)


@pytest.mark.parametrize("new_scale", [NAN, 0.0, -1.0, INF])
def test_difference_4_invalid_new_scale_raises(new_scale):
    for make, refused in ((GradScaler, True), (exact, False), (torch.amp.GradScaler, False)):
        scaler = make("cpu")
        scaler.scale(torch.tensor(1.0))
        result = told(lambda s=scaler: s.update(new_scale))
        assert (result is not None) == refused
        assert repr(scaler.get_scale()) == repr(2.0**16 if refused else new_scale)


def test_difference_5_new_scale_accepts_numbers():
    for new_scale in (8, np.float32(8), torch.tensor([8.0])):
        for make, taken in ((GradScaler, True), (exact, False), (torch.amp.GradScaler, False)):
            scaler = make("cpu")
            scaler.scale(torch.tensor(1.0))
            told(lambda s=scaler, n=new_scale: s.update(n))
            assert scaler.get_scale() == (8.0 if taken else 2.0**16)


@pytest.mark.parametrize("make", [GradScaler, exact, torch.amp.GradScaler])
def test_other_number_types_are_accepted(make):
    scaler = make("cpu", init_scale=torch.tensor(8.0))
    assert scaler.scale(torch.tensor(1.0)).item() == 8.0
    scaler.load_state_dict(scaler.state_dict() | {"_growth_tracker": 3.0})
    assert scaler._get_growth_tracker() == 3


@pytest.mark.parametrize("make", [GradScaler, exact, torch.amp.GradScaler])
def test_difference_6_skip_makes_no_state(make, monkeypatch):
    # torch's fused SGD makes its momentum of memory that held something before.
    empty_like = torch.empty_like
    monkeypatch.setattr(
        torch, "empty_like", lambda *args, **options: empty_like(*args, **options).fill_(777.0)
    )
    scaler = make("cpu", init_scale=4.0)
    (param,), optimizer = one(scaler, INF, fused=True, momentum=0.5)
    scaler.step(optimizer)
    scaler.update()
    assert bool(optimizer.state) == (make is not GradScaler)
    param.grad = torch.tensor(scaler.get_scale())  # 1, scaled
    scaler.step(optimizer)
    assert param.item() == (-1.0 if make is GradScaler else -1.0 - 0.5 * 777.0)


@pytest.mark.parametrize("options", [{"momentum": 0.5}, {}])
def test_difference_6_fused_skip_calls_optimizer(options):
    for make in (GradScaler, exact, torch.amp.GradScaler):
        scaler, calls = make("cpu", init_scale=4.0), []
        (param,), optimizer = one(scaler, INF, fused=True, **options)
        optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append("called"))
        for grad in (INF, INF, 1.0, INF):
            param.grad.fill_(grad)
            scaler.step(optimizer)
            scaler.update()
        assert len(calls) == 4


def test_difference_7_loaded_scale_mismatch_raises():
    for make, refused in ((GradScaler, True), (exact, False), (torch.amp.GradScaler, False)):
        scaler = make("cpu", init_scale=4.0)
        param = torch.nn.Parameter(torch.zeros(()))
        optimizer = torch.optim.SGD([param])
        scaler.scale(param).backward()
        scaler.load_state_dict({**scaler.state_dict(), "scale": 8.0})
        text = told(lambda s=scaler, o=optimizer: s.step(o))
        assert ("would be divided by the scale 8.0: expected 4.0" in str(text)) == refused, text


def test_difference_8_invalid_state_dict():
    for make in (GradScaler, exact):
        scaler = make("cpu", init_scale=4.0)
        scaler.scale(torch.tensor(1.0))
        with pytest.raises(KeyError, match="growth_factor"):
            scaler.load_state_dict({"scale": 8.0})
        assert scaler.get_scale() == 4.0
    torchs = torch.amp.GradScaler("cpu", init_scale=4.0)
    torchs.scale(torch.tensor(1.0))
    with pytest.raises(KeyError):
        torchs.load_state_dict({"scale": 8.0})
    assert torchs.get_scale() == 8.0


def test_pending_scales_are_validated():
    scaler = GradScaler("cpu", depth=2)
    kind, text = told(lambda: scaler.load_state_dict(scaler.state_dict() | {"pending": [2.0, 0.0]}))
    assert (kind, text.partition(":")[0]) == (ValueError, "scale=0.0")


def test_difference_8_failed_update_changes_nothing():
    for make, moved in ((exact, 0.0), (torch.amp.GradScaler, -INF)):
        scaler = make("cpu")
        (param,), optimizer = one(scaler, INF, fused=True)
        _, other = one(scaler, INF)
        scaler.unscale_(optimizer)
        scaler.unscale_(other)
        scaler.set_growth_interval(2.0)
        assert (
            told(scaler.update)[0] is TypeError
        )  # torch has summed found_inf in place: 2, which no kernel skips
        scaler.step(optimizer)
        assert param.item() == moved


def test_difference_9_failed_step_restores_optimizer():
    for make, divided in ((GradScaler, -1.0), (exact, -1.0), (torch.amp.GradScaler, -0.25)):
        scaler = make("cpu", init_scale=4.0)
        (param,), optimizer = one(scaler, 4.0, fused=True)
        assert told(lambda s=scaler, o=optimizer: s.step(o, nonsense=1))[0] is TypeError
        scaler.step(optimizer)
        assert param.item() == divided  # torch's grad_scale stayed and was multiplied in


def test_difference_10_gradients_after_unscale():
    for make, expected in (
        (GradScaler, None),
        (exact, None),
        (torch.amp.GradScaler, AttributeError),
    ):
        scaler = make("cpu", init_scale=4.0)
        (param,), optimizer = one(scaler, 1.0, fused=True)
        param.grad = None
        scaler.unscale_(optimizer)
        param.grad = torch.tensor(1.0)
        result = told(lambda s=scaler, o=optimizer: s.step(o))
        assert (result and result[0]) == expected


@pytest.mark.parametrize("make", [GradScaler, exact, torch.amp.GradScaler])
def test_difference_11_step_receives_no_scaler(make):
    class WantsTheScaler(torch.optim.SGD):
        """It divides by itself; torch hands it the scaler, and warns that it will stop to."""

        _step_supports_amp_scaling = True

        def step(self, closure=None, *, grad_scaler=None):
            self.given = grad_scaler
            return super().step(closure)

    torchs = make is torch.amp.GradScaler
    scaler = make("cpu", init_scale=4.0)
    (param,), _ = one(scaler, 4.0)
    optimizer = WantsTheScaler([param], lr=1.0)
    with pytest.warns(FutureWarning if torchs else RuntimeWarning, match="pass|WantsTheScaler"):
        scaler.step(optimizer)
    assert optimizer.given is (scaler if torchs else None)
    assert param.item() == (-4.0 if torchs else -1.0)


def test_difference_13_lowered_interval_allows_growth():
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


def test_difference_14_scale_fixed_within_iteration():
    for make, divided in ((GradScaler, -1.0), (exact, -1.0), (torch.amp.GradScaler, -0.5)):
        scaler = make("cpu", init_scale=4.0)
        (param,), optimizer = one(scaler, 4.0)
        refused = isinstance(told(lambda s=scaler: s._scale.fill_(8.0)), tuple)
        scaler.step(optimizer)
        assert (param.item(), refused) == (divided, make is not torch.amp.GradScaler)


class Two:
    """Two parameters, each with its optimizer, and one scaler; a story names its methods in order."""

    def __init__(self, make, interval):
        self.params = self.a, self.b = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        self.of_a, self.of_b = (torch.optim.SGD([param], lr=1.0) for param in self.params)
        self.scaler = make("cpu", init_scale=1024.0, growth_interval=interval)

    def run(self, story):
        """Return None, or the type and text of what a method raised."""
        return told(lambda: [getattr(self, name)() for name in story.split()] and None)

    def both(self):
        self.scaler.scale((self.a + self.b).sum()).backward()

    def only_a(self):
        self.scaler.scale(self.a.sum()).backward()

    def only_b(self):
        self.scaler.scale(self.b.sum()).backward()

    def step_a(self):
        self.scaler.step(self.of_a)

    def step_b(self):
        self.scaler.step(self.of_b)

    def unscale_b(self):
        self.scaler.unscale_(self.of_b)

    def update(self):
        self.scaler.update()

    def zero_a(self):
        self.of_a.zero_grad(set_to_none=False)

    def zero_b(self):
        self.of_b.zero_grad(set_to_none=False)

    def none_b(self):
        self.of_b.zero_grad()


@pytest.mark.parametrize(
    "story",
    [
        "both step_a update step_b",
        "both step_a update unscale_b step_b",
        "both step_a step_b update zero_a zero_b both step_a update step_b",
        "only_a only_b step_a update step_b",
        "both step_a update zero_a only_a step_a update step_b",  # two updates later
        "both unscale_b step_a update step_b",  # it would be divided twice
        "both step_a step_b zero_b only_b update step_b",  # the backward pass came before the update
        "only_a step_a both step_b update step_a",  # another loss added to stepped gradients
    ],
)
def test_difference_15_leftover_gradients_raise(story):
    for make in (torch.amp.GradScaler, exact, partial(GradScaler, capturable=True)):
        two = Two(make, interval=1)
        assert two.run(story) is None
        assert {two.a[0].item(), two.b[0].item()} - {1.0, 0.0, -1.0}  # no whole steps of 1
    two = Two(GradScaler, interval=1)
    kind, text = two.run(story)
    assert kind is RuntimeError
    assert text.startswith(LEFT)
    assert {two.a[0].item(), two.b[0].item()} <= {1.0, 0.0, -1.0}


@pytest.mark.parametrize(
    ("interval", "story"),
    [
        (1, "both step_a step_b update zero_a zero_b " * 3),
        (1, "only_a both step_a step_b update"),
        (
            1,
            "both step_a update zero_b only_b step_b update " * 2,
        ),  # a GAN's: the first pass leaks into b
        (1, "both step_a update none_b only_b step_b update " * 2),
        (1, "both step_a zero_b only_b step_b update " * 2),
        (
            1,
            "both unscale_b step_a update none_b " * 2,
        ),  # b's step is left out, as after too large a norm
        (
            1,
            "both unscale_b step_a zero_b update only_a step_a step_b update",
        ),  # zeroed gradients are anybody's
        (
            1,
            "only_a step_a only_b step_b update step_a",
        ),  # stepped again with what was stepped before
        (9, "both step_a update zero_a both step_a step_b update"),  # accumulates over an update
        (9, "both step_a update step_b update"),  # the scale has not changed
        (9, "both step_a update unscale_b step_b update"),
    ],
)
def test_difference_15_correct_loops_match_torch(interval, story):
    theirs, ours = Two(torch.amp.GradScaler, interval), Two(GradScaler, interval)
    assert theirs.run(story) is ours.run(story) is None
    assert all(map(same, theirs.params, ours.params))


@pytest.mark.parametrize("exact_torch", [False, True])
def test_difference_16_first_scale_in_inference(exact_torch):
    param = torch.nn.Parameter(torch.ones(()))
    theirs, ours = (
        torch.amp.GradScaler("cpu"),
        GradScaler("cpu", init_scale=4.0, exact_torch=exact_torch),
    )
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


@pytest.mark.parametrize(
    "options", [{}, {"depth": 1}, {"exact_torch": True}, {"capturable": True}], ids=str
)
def test_graph_is_freed_with_loss(options):
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

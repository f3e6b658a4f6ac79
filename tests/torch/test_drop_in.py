"""Our scaler in torch's place: all that it does is torch's, but for the list in its docstring."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from ampsim.torch import GradScaler
from tests.examples import examples
from tests.torch.helpers import INF, NAN, told

EXAMPLES = examples(ms=28, least=50)


# ----------------------------------------------------------------------------- against torch itself

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
            and all(map(same_bits, parts(a), parts(b)))
        )
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (isinstance(a, map) or repr(a) == repr(b))


def same_bits(a, b):
    """Equal in dtype, shape, and every bit, up to the payload and sign of a NaN."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    integers = getattr(torch, f"int{8 * a.element_size()}")
    equal = a.contiguous().view(integers) == b.contiguous().view(integers)
    return bool((equal | (a.isnan() & b.isnan())).all())


def parts(tensor):
    tensor = tensor.detach()
    return (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)


def state_of(optimizer, param):
    """What an optimizer keeps for a parameter; what is all 0, as a skipped first step leaves it,
    counts as nothing.
    """
    state = optimizer.state.get(param, {})
    kept = [state[name] for name in sorted(state)]
    return kept if any(value.any() for value in kept if value is not None) else []


class Side:
    """One scaler with its own parameters and optimizers."""

    def __init__(self, make, constants, kinds):
        self.make, self.scaler = make, make("cpu", *constants)
        self.params, self.optimizers = [], []
        for kind, layout in kinds:
            shapes = (
                [(5, 3)]
                if kind == "sparse"
                else [(3,), (37,), ()][: len(LAYOUTS[layout])]
            )
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
            found.append(
                [hasattr(optimizer, "grad_scale"), hasattr(optimizer, "found_inf")]
            )
        return found


class DropIn(RuleBasedStateMachine):
    """torch's scaler and ours, each with its own copy of the world, through the same events."""

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
        assert same(told(lambda: act(self.theirs)), ours), ours
        a, b = self.theirs.everything(), self.ours.everything()
        assert all(map(same, a, b)), [
            pair for pair in zip(a, b, strict=True) if not same(*pair)
        ]

    @initialize(
        data=st.data(), kinds=kinds, begins=st.sampled_from([True] * 4 + [False])
    )
    def begin(self, data, kinds, begins):
        constants = data.draw(self.constants)
        self.theirs = Side(torch.amp.GradScaler, constants, kinds)
        self.ours = Side(GradScaler, constants, kinds)
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
                side.scaler.scale(
                    sum((p * v).sum().float() for p, v in used)
                ).backward()
            if bad is not None and params[0].grad is not None:
                grad = params[0].grad
                (grad._values() if grad.is_sparse else grad).view(-1)[-1] = bad

        self.both(act)

    @rule(i=index)
    def unscale(self, i):
        self.both(
            lambda side: side.scaler.unscale_(side.optimizers[i % len(side.optimizers)])
        )

    @rule(i=index, closure=st.sampled_from([False] * 9 + [True]))
    def step(self, i, closure):
        options = {"closure": lambda: 5.0} if closure else {}

        if not self._unscaled_nothing(i):
            self.both(
                lambda side: side.scaler.step(
                    side.optimizers[i % len(side.optimizers)], **options
                )
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
        if name == "growth_interval":
            assume(value > self.theirs.scaler._get_growth_tracker())  # difference 9
        self.both(lambda side: getattr(side.scaler, f"set_{name}")(value))

    @rule(
        overflows=st.lists(st.booleans(), min_size=1, max_size=4),
        unscales=st.booleans(),
    )
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
        self.saved.append(
            (self.theirs.scaler.state_dict(), self.ours.scaler.state_dict())
        )
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
        copier=st.sampled_from(
            [copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))]  # noqa: S301
        )
    )
    def copy(self, copier):
        def act(side):
            side.scaler = copier(side.scaler)

        self.both(act)


def test_scaler_matches_torch_in_lockstep():
    run_state_machine_as_test(DropIn, settings=settings(max_examples=EXAMPLES))


# ------------------------------------------------------------ differences, as numbered in the class

Theirs = torch.amp.GradScaler


def one(scaler, *grads, **options):
    """Return parameters that are 0, with scaled gradients, and their optimizer."""
    params = [torch.nn.Parameter(torch.zeros(())) for _ in grads]
    optimizer = torch.optim.SGD(params, lr=1.0, **options)
    scaler.scale(torch.tensor(1.0))
    for param, grad in zip(params, grads, strict=True):
        param.grad = torch.tensor(grad)
    return params, optimizer


@pytest.mark.parametrize(("make", "lowest"), [(GradScaler, 2.0**-126), (Theirs, 0.0)])
def test_1_scale_keeps_a_reciprocal(make, lowest):
    scaler = make("cpu")
    _, optimizer = one(scaler, INF)
    for _ in range(200):
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == lowest


@pytest.mark.parametrize("how", ["unscale_", "step", "unscale_and_clip_"])
@pytest.mark.parametrize("fused", [False, True])
def test_1_divided_gradients_are_checked(how, fused):
    scaler = GradScaler("cpu", init_scale=2.0**-10)
    (param,), optimizer = one(scaler, 3e38, fused=fused)
    if how == "unscale_and_clip_":
        scaler.unscale_and_clip_(optimizer, INF)
    elif how == "unscale_":
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert scaler.last_step.skipped
    assert param.item() == 0.0


@pytest.mark.parametrize(("make", "moved"), [(GradScaler, 0.0), (Theirs, -INF)])
def test_1_sparse_duplicates_are_summed(make, moved):
    scaler = make("cpu", init_scale=4.0)
    param = torch.nn.Parameter(torch.zeros(2, 1))
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler.scale(torch.tensor(1.0))
    rows = torch.zeros(1, 5, dtype=torch.long)  # all in the first row
    values = torch.full((5, 1), 3e38)
    param.grad = torch.sparse_coo_tensor(rows, values, (2, 1), check_invariants=True)
    scaler.step(optimizer)
    assert param.tolist() == [[moved], [0.0]]


@pytest.mark.parametrize(("make", "is_finite"), [(GradScaler, True), (Theirs, False)])
def test_1_flags_of_two_devices_skip(make, is_finite):
    # A fused kernel skips if its flag is 1, and torch passes the sum of all flags.
    scaler = make("cpu")
    (param,), optimizer = one(scaler, INF, fused=True)
    scaler.unscale_(optimizer)
    flags = {torch.device(name): torch.ones(()) for name in ("cpu", "cpu:0")}
    scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = flags
    scaler.step(optimizer)
    assert bool(param.isfinite()) == is_finite


@pytest.mark.parametrize("make", [GradScaler, Theirs])
def test_1_skip_makes_no_state(make, monkeypatch):
    # torch's fused SGD makes its momentum of memory that held something before.
    empty_like = torch.empty_like
    monkeypatch.setattr(
        torch,
        "empty_like",
        lambda *args, **options: empty_like(*args, **options).fill_(777.0),
    )
    scaler = make("cpu", init_scale=4.0)
    (param,), optimizer = one(scaler, INF, fused=True, momentum=0.5)
    scaler.step(optimizer)
    scaler.update()
    assert bool(optimizer.state) == (make is Theirs)
    param.grad = torch.tensor(scaler.get_scale())  # 1, scaled
    scaler.step(optimizer)
    assert param.item() == (-1.0 if make is GradScaler else -1.0 - 0.5 * 777.0)


@pytest.mark.parametrize(
    "fused", [(False, False), (False, True), (True, False), (True, True)]
)
@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("overflows", [False, True])
@pytest.mark.parametrize("meets_late", [False, True])
def test_2_shared_gradient_is_divided_once(fused, unscales, overflows, meets_late):
    scaler = GradScaler("cpu", init_scale=8.0)
    shared, own = (torch.nn.Parameter(torch.zeros(())) for _ in range(2))
    first = torch.optim.SGD([shared], lr=1.0, fused=fused[0])
    second = torch.optim.SGD([shared, own], lr=1.0, fused=fused[1])
    both = [first, second]
    for iteration in range(3):
        scaler.scale(shared + own * (INF if overflows else 1.0)).backward()
        optimizers = both[: 1 + (iteration > 0)] if meets_late else both
        if unscales:
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        shared.grad = own.grad = None
    steps = [3, 0 if overflows else 3 - meets_late]
    assert (shared.item(), own.item()) == (-float(sum(steps)), -float(steps[1]))


def test_2_unknown_divisions_raise():
    scaler = GradScaler("cpu", init_scale=8.0)
    param = torch.nn.Parameter(torch.zeros(()))
    first, second, third = (torch.optim.SGD([param], lr=1.0) for _ in range(3))
    for optimizer in (first, second):
        scaler.scale(param).backward()
        scaler.step(optimizer)
        scaler.update()
        param.grad = None
    scaler.scale(param).backward()
    scaler.unscale_(first)
    torch.nn.utils.clip_grad_norm_([param], 0.5)
    with pytest.raises(RuntimeError, match="and then written"):
        scaler.unscale_(second)
    with pytest.raises(RuntimeError, match="and then written"):
        scaler.step(third)
    assert param.grad.item() == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_2_clipped_gradient_waits_for_step(fused):
    scaler = GradScaler("cpu", init_scale=8.0)
    (param,), first = one(scaler, 8.0, fused=True)
    second = torch.optim.SGD([param], lr=1.0, fused=fused)
    scaler.unscale_and_clip_(first, INF)  # left to the fused step
    for call in (scaler.unscale_, scaler.step):
        with pytest.raises(RuntimeError, match="fused step would be divided twice"):
            call(second)
    scaler.step(first)
    scaler.step(second)
    assert param.item() == -2.0


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("overflows", [False, True])
def test_2_update_between_steps_raises(fused, unscales, overflows):
    scaler = GradScaler("cpu", init_scale=4.0)
    _, first = one(scaler, INF if overflows else 4.0)
    (param,), second = one(scaler, 4.0, fused=fused)
    scaler.step(first)
    scaler.update()
    for call in [scaler.unscale_] * unscales + [scaler.step]:
        if overflows:
            with pytest.raises(RuntimeError, match="from before an update"):
                call(second)
        else:
            call(second)  # the scale is the same
    assert param.item() == (0.0 if overflows else -1.0)


@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("how", ["unscale_", "unscale_and_clip_"])
def test_3_gradients_are_checked_at_step(checks, fused, how):
    scaler = GradScaler("cpu", init_scale=4.0, check_at_step=checks)
    (param,), optimizer = one(scaler, 4.0, fused=fused)
    getattr(scaler, how)(optimizer, *[1.0] * (how != "unscale_"))
    param.grad.div_(0)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.last_step.skipped == checks == bool(param.isfinite())
    assert scaler.get_scale() == (2.0 if checks else 4.0)


def test_4_loss_value_is_true_loss():
    scaler = GradScaler("cpu", init_scale=4.0)
    _, optimizer = one(scaler, INF)
    loss = scaler.scale(torch.tensor(3.0))
    assert scaler.loss_value(loss) == 3.0
    scaler.step(optimizer)
    scaler.update()
    scaler.load_state_dict(scaler.state_dict() | {"scale": 64.0})
    assert scaler.loss_value(loss) == 3.0
    assert GradScaler("cpu", enabled=False).loss_value(torch.tensor(3.0)) == 3.0


@pytest.mark.parametrize("value", [1.0, INF])
def test_4_step_by_hand_after_clip(value):
    scaler = GradScaler("cpu", init_scale=4.0)
    (param,), optimizer = one(scaler, 4.0 * value, fused=True)
    scaler.unscale_and_clip_(optimizer, 0.5)
    optimizer.step()
    scaler.update()
    assert param.item() == pytest.approx(-0.5 if value == 1.0 else 0.0, rel=1e-5)
    assert not hasattr(optimizer, "grad_scale")
    assert not hasattr(optimizer, "found_inf")


@pytest.mark.parametrize(
    "constants",
    [{"init_scale": NAN}, {"init_scale": -1.0}, {"init_scale": 2.0**-127}, {"init_scale": 1e39}, {"growth_factor": INF},
     {"backoff_factor": 0.0}, {"backoff_factor": -1.0}, {"growth_interval": 0}, {"growth_interval": 2.5}],
)  # fmt: skip
def test_7_invalid_constants_raise(constants):
    Theirs("cpu", **constants)
    ((name, value),) = constants.items()
    with pytest.raises((ValueError, TypeError), match=f"{name}=.*expected"):
        GradScaler("cpu", **constants)
    if name != "init_scale":
        scaler = GradScaler("cpu")
        with pytest.raises((ValueError, TypeError), match=f"{name}=.*expected"):
            getattr(scaler, f"set_{name}")(value)
        with pytest.raises((ValueError, TypeError), match=f"{name}=.*expected"):
            scaler.load_state_dict(scaler.state_dict() | constants)
        assert scaler.state_dict() == GradScaler("cpu").state_dict()


@pytest.mark.parametrize("new_scale", [NAN, 0.0, -1.0, INF, True, "8"])
def test_7_invalid_new_scale_raises(new_scale):
    scaler = GradScaler("cpu")
    scaler.scale(torch.tensor(1.0))
    with pytest.raises((ValueError, TypeError), match=r"new_scale=.*expected"):
        scaler.update(new_scale)
    assert scaler.get_scale() == 2.0**16


@pytest.mark.parametrize("new_scale", [8, np.float32(8), torch.tensor([8.0])], ids=repr)
@pytest.mark.parametrize(("make", "scale"), [(GradScaler, 8.0), (Theirs, 2.0**16)])
def test_7_new_scale_accepts_numbers(make, scale, new_scale):
    scaler = make("cpu")
    scaler.scale(torch.tensor(1.0))
    told(lambda: scaler.update(new_scale))
    assert scaler.get_scale() == scale


@pytest.mark.parametrize(("make", "scale"), [(GradScaler, 4.0), (Theirs, 8.0)])
def test_7_incomplete_state_changes_nothing(make, scale):
    scaler = make("cpu", init_scale=4.0)
    scaler.scale(torch.tensor(1.0))
    with pytest.raises(KeyError, match="growth_factor"):
        scaler.load_state_dict({"scale": 8.0})
    assert scaler.get_scale() == scale


@pytest.mark.parametrize(("make", "moved"), [(GradScaler, 0.0), (Theirs, -INF)])
def test_7_failed_update_changes_nothing(make, moved):
    scaler = make("cpu")
    (param,), optimizer = one(scaler, INF, fused=True)
    _, other = one(scaler, INF)
    scaler.unscale_(optimizer)
    scaler.unscale_(other)
    scaler._growth_interval = 2.0
    # torch has summed found_inf in place by then: 2, which no kernel skips
    assert told(scaler.update)[0] is TypeError
    scaler.step(optimizer)
    assert param.item() == moved


@pytest.mark.parametrize(("make", "refused"), [(GradScaler, True), (Theirs, False)])
def test_7_positional_closure_raises(make, refused):
    scaler = make("cpu")
    _, optimizer = one(scaler, 1.0)
    result = told(lambda: scaler.step(optimizer, lambda: 5.0))
    refusal = (
        RuntimeError,
        "Closure use is not currently supported if GradScaler is enabled.",
    )
    assert result == (refusal if refused else 5.0)


@pytest.mark.parametrize("make", [GradScaler, Theirs])
def test_other_number_types_are_accepted(make):
    scaler = make("cpu", init_scale=torch.tensor(8.0))
    assert scaler.scale(torch.tensor(1.0)).item() == 8.0
    scaler.load_state_dict(scaler.state_dict() | {"_growth_tracker": 3.0})
    assert scaler._get_growth_tracker() == 3


@pytest.mark.parametrize(("make", "divided"), [(GradScaler, -1.0), (Theirs, -0.25)])
def test_8_failed_step_restores_optimizer(make, divided):
    scaler = make("cpu", init_scale=4.0)
    (param,), optimizer = one(scaler, 4.0, fused=True)
    assert told(lambda: scaler.step(optimizer, nonsense=1))[0] is TypeError
    scaler.step(optimizer)
    assert param.item() == divided  # torch's grad_scale stayed and was multiplied in


def test_8_failed_step_keeps_clip():
    scaler = GradScaler("cpu", init_scale=4.0)
    (param,), optimizer = one(scaler, 4.0, fused=True)
    scaler.unscale_and_clip_(optimizer, 0.5)
    assert told(lambda: scaler.step(optimizer, nonsense=1))[0] is TypeError
    scaler.step(optimizer)
    assert param.item() == pytest.approx(-0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "error"), [(GradScaler, None), (Theirs, AttributeError)]
)
def test_8_gradients_after_unscale(make, error):
    scaler = make("cpu", init_scale=4.0)
    (param,), optimizer = one(scaler, 1.0, fused=True)
    param.grad = None
    scaler.unscale_(optimizer)
    param.grad = torch.tensor(1.0)
    result = told(lambda: scaler.step(optimizer))
    assert (result and result[0]) == error


@pytest.mark.parametrize(("make", "grown"), [(GradScaler, 8.0), (Theirs, 4.0)])
@pytest.mark.parametrize("loads", [False, True])
def test_9_lowered_interval_allows_growth(make, grown, loads):
    scaler = make("cpu", init_scale=4.0)
    _, optimizer = one(scaler, 1.0)
    for i in range(7):
        if i == 5 and loads:
            scaler.load_state_dict(scaler.state_dict() | {"growth_interval": 3})
        elif i == 5:
            scaler.set_growth_interval(3)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == grown


def test_10_first_scale_in_inference():
    param = torch.nn.Parameter(torch.ones(()))
    theirs, ours = Theirs("cpu"), GradScaler("cpu", init_scale=4.0)
    with torch.inference_mode():
        theirs.scale(torch.ones(()))
        ours.scale(torch.ones(()))
    with pytest.raises(
        RuntimeError, match="Inference tensors cannot be saved for backward"
    ):
        theirs.scale(param)
    optimizer = torch.optim.SGD([param], lr=1.0)
    ours.scale(param).backward()
    ours.step(optimizer)
    ours.update()
    assert param.item() == 0.0


# ----------------------------------------------------------------------------------------------
# what is torch's


def test_missing_cuda_warns_and_disables():
    if torch.cuda.is_available():
        pytest.skip("CUDA is available")
    for make in (Theirs, GradScaler):
        with pytest.warns(UserWarning, match="CUDA is not available"):
            assert not make().is_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GradScaler("cpu")


def test_disabled_scaler_matches_torch():
    results = []
    for make in (Theirs, GradScaler):
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


def test_optimizer_with_grad_scaler_gets_it():
    class WantsScaler(torch.optim.SGD):
        """It divides by itself; torch passes the scaler, and warns that it will stop to."""

        _step_supports_amp_scaling = True

        def step(self, closure=None, *, grad_scaler=None):
            self.given = grad_scaler
            return super().step(closure)

    for make in (GradScaler, Theirs):
        scaler = make("cpu", init_scale=4.0)
        (param,), _ = one(scaler, 4.0)
        optimizer = WantsScaler([param], lr=1.0)
        with pytest.warns(FutureWarning, match="stop passing itself"):
            scaler.step(optimizer)
        assert optimizer.given is scaler
        assert param.item() == -4.0

"""The private names of torch's scaler on ours: what is read is in force, what is written is obeyed or refused."""

import copy
import pickle
from contextlib import closing
from functools import partial

import pytest
import torch

from ampsim.core.policies.log_max import LogMax
from ampsim.torch import GradScaler, OptimizerThread, roundpipe
from tests.torch.helpers import INF, told

Theirs = torch.amp.GradScaler
BOTH = pytest.mark.parametrize(
    "make", [Theirs, GradScaler, partial(GradScaler, exact_torch=True)], ids=["torch", "default", "exact"]
)


def one(scaler, grad, **options):
    """Return an optimizer of one parameter, 0, whose loss was scaled and whose gradient, still scaled, is given."""
    param = torch.nn.Parameter(torch.zeros(()))
    scaler.scale(param.sum())
    param.grad = torch.tensor(grad)
    return torch.optim.SGD([param], lr=1.0, **options)


def iterate(scaler, grad=1.0, **options):
    optimizer = one(scaler, grad, **options)
    scaler.step(optimizer)
    scaler.update()
    return optimizer


def test_a_scaler_is_an_instance_of_torchs_class():
    for scaler in (
        GradScaler("cpu"),
        GradScaler("cpu", enabled=False),
        GradScaler("cpu", depth=2),
        roundpipe.GradScaler(),
    ):
        for like in (scaler, copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler))):  # noqa: S301
            assert isinstance(like, Theirs)


@BOTH
def test_a_disabled_scaler_has_what_torchs_has(make):
    scaler = make("cpu", enabled=False)
    for name in ("_scale", "_growth_tracker", "_init_scale", "_growth_factor", "_per_optimizer_states"):
        assert not hasattr(scaler, name)
    scaler._scale = 3
    assert scaler._scale == 3


def test_a_name_a_disabled_scaler_has_not_is_told_in_pythons_words():
    theirs, ours = (make("cpu", enabled=False) for make in (Theirs, GradScaler))
    assert told(lambda: theirs._scale) == told(lambda: ours._scale)


def test_a_scale_that_is_written_at_depth_is_the_next_ones_too():
    scaler = GradScaler("cpu", init_scale=8.0, depth=2)
    iterate(scaler)
    loss = scaler.scale(torch.ones(()))
    iterate(scaler)
    scaler._scale.fill_(32.0)
    assert scaler.loss_value(loss) == 1.0
    assert not scaler.last_step.skipped
    assert scaler.scale(torch.ones(())) == 32.0


def test_a_scale_that_is_written_before_there_is_one_is_the_first():
    scaler = GradScaler("cpu")
    scaler._scale = 32
    assert (scaler._scale, scaler.scale(torch.ones(()))) == (32.0, 32.0)


@BOTH
def test_what_starts_is_written_before_the_first_scale(make):
    scaler = make("cpu")
    scaler._init_scale, scaler._init_growth_tracker, scaler._growth_interval = 4.0, 6, 8
    assert (scaler.get_scale(), scaler._get_growth_tracker(), scaler.get_growth_interval()) == (4.0, 6, 8)
    iterate(scaler)
    iterate(scaler)
    assert scaler.get_scale() == 8.0


def test_a_copy_of_the_scale_is_a_plain_tensor():
    scaler = GradScaler("cpu", init_scale=8.0)
    iterate(scaler)
    pickled = pickle.loads(pickle.dumps(scaler._scale))  # noqa: S301
    for same in (copy.deepcopy(scaler._scale), pickled, scaler._scale.clone(), scaler._scale * 1):
        assert type(same) is torch.Tensor
        assert same.fill_(3.0) == 3.0
    assert repr(scaler._scale) == "tensor(8.)"
    assert scaler.get_scale() == 8.0


def put(name, value):
    return lambda s, _: setattr(s, name, value)


REFUSED = {
    "of the count": (lambda s, _: s._growth_tracker.fill_(1), "_growth_tracker set to 1 between scale"),
    "of the count's place": (put("_growth_tracker", torch.tensor(3)), "_growth_tracker set to 3 between scale"),
    "of one state": (
        lambda s, o: s._per_optimizer_states.__setitem__(id(o), 1),
        "_per_optimizer_states of .* set to 1",
    ),
    "of the scale within an iteration": (lambda s, _: s._scale.fill_(2.0), "_scale set to 2.0 between scale"),
    "of a view of it": (lambda s, _: s._scale.view(1).fill_(2.0), "_scale set to 2.0 between scale"),
    "of its data": (lambda s, _: setattr(s._scale, "data", torch.tensor(2.0)), "_scale set to 2.0 between"),
    "of what is no stage": (
        lambda s, o: s._per_optimizer_states[id(o)].__setitem__("stage", 0),
        "of an optimizer got 'stage': 0",
    ),
    "of what are no flags": (
        lambda s, _: s._per_optimizer_states[7].__setitem__("found_inf_per_device", 1.0),
        "got 'found_inf_per_device'",
    ),
    "that takes a key": (lambda s, o: s._per_optimizer_states[id(o)].pop("stage"), "of an optimizer lost 'stage'"),
    "by torch's kernel": (
        lambda s, _: torch._amp_update_scale_(*s._check_scale_growth_tracker("update"), torch.ones(()), 2.0, 0.5, 1),
        "set to",
    ),
}


@pytest.mark.parametrize(("write", "match"), REFUSED.values(), ids=REFUSED)
def test_a_write_that_would_not_count_is_refused_and_changes_nothing(write, match):
    scaler = GradScaler("cpu", init_scale=8.0)
    optimizer = one(scaler, 8.0)
    scaler.unscale_(optimizer)
    before = scaler.state_dict()
    with pytest.raises(RuntimeError, match=f"{match}.*: expected .*; ") as told:
        write(scaler, optimizer)
    assert ("_per_optimizer_states" in str(told.value)) <= ("group=" in str(told.value))
    assert scaler.state_dict() == before
    scaler.step(optimizer)
    scaler.update()
    assert (optimizer.param_groups[0]["params"][0], scaler.get_scale()) == (-1.0, 8.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, INF, "8"])
def test_a_scale_that_no_run_could_want_is_refused(scale):
    scaler = GradScaler("cpu")
    with pytest.raises((ValueError, TypeError), match=r"new_scale=.*expected"):
        scaler._scale = scale


def test_a_flag_that_is_written_after_the_step_does_not_change_what_was_done():
    scaler = GradScaler("cpu", init_scale=8.0)
    optimizer = one(scaler, 8.0)
    scaler.step(optimizer)
    for flag in scaler._found_inf_per_device(optimizer).values():
        flag.fill_(1.0)  # another rank's, reduced only now
    scaler.update()
    assert (scaler.last_step.skipped, scaler.get_scale()) == (False, 4.0)


@BOTH
def test_the_scale_is_made_by_name(make):
    scaler = make("cpu", init_scale=8.0)
    scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
    assert scaler._scale == 8.0
    with pytest.raises(AssertionError, match="_growth_tracker initialized before _scale"):
        scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))


# ------------------------------------------------------------------------------------------------- overrides


def calls_of(base, fused, step_early, **options):
    """Return the names that torch's methods call on a subclass with a clean step and a skipped one, and the result."""
    calls = []

    class Watching(base):
        def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
            calls.append(("_unscale_grads_", inv_scale.item(), found_inf.item(), allow_fp16))
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16=True)

        def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
            calls.append(("_maybe_opt_step", optimizer_state["stage"], args, kwargs))
            return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)

        def unscale_(self, optimizer):
            calls.append("unscale_")
            super().unscale_(optimizer)

    scaler = Watching("cpu", init_scale=8.0, **options)
    params = []
    for grad in (8.0, INF):
        optimizer = one(scaler, grad, fused=fused)
        if step_early:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        params += [param.item() for param in optimizer.param_groups[0]["params"]]
    return calls, params, scaler.get_scale()


@pytest.mark.parametrize("step_early", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("options", [{}, {"exact_torch": True}])
def test_an_override_is_called_where_torch_calls_it(options, fused, step_early):
    assert calls_of(GradScaler, fused, step_early, **options) == calls_of(Theirs, fused, step_early)


@pytest.mark.parametrize("step_early", [False, True])
def test_an_override_is_called_as_often_where_another_thread_owns_the_optimizer(step_early):
    with closing(OptimizerThread()) as thread:
        ours = calls_of(GradScaler, False, step_early, launch=thread.launch)
    assert ours == calls_of(Theirs, False, step_early)


def test_float16_is_taken_by_an_override_that_takes_it():
    class TakesHalf(GradScaler):
        def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)

    scaler = TakesHalf("cpu", init_scale=8.0)
    param = torch.nn.Parameter(torch.zeros(1, dtype=torch.float16))
    scaler.scale(param.sum()).backward()
    scaler.unscale_(torch.optim.SGD([param]))
    assert param.grad == 1.0


def test_an_override_on_the_instance_counts_too():
    scaler, called = GradScaler("cpu"), []
    scaler._unscale_grads_ = lambda *args: called.append(args) or {torch.device("cpu"): torch.ones(())}
    optimizer = iterate(scaler)
    assert len(called) == 1
    assert (optimizer.param_groups[0]["params"][0], scaler.get_scale()) == (0.0, 2.0**15)


def test_overflows_on_two_devices_skip_a_fused_step():
    scaler = GradScaler("cpu")
    scaler._unscale_grads_ = lambda *_: {torch.device(name): torch.ones(()) for name in ("cpu", "cpu:0")}
    optimizer = one(scaler, INF, fused=True)
    scaler.step(optimizer)
    assert optimizer.param_groups[0]["params"][0] == 0.0


def test_clipping_in_one_read_is_refused_where_it_would_pass_an_override_by():
    class Watching(GradScaler):
        def _unscale_grads_(self, *args):
            return super()._unscale_grads_(*args)

    scaler = Watching("cpu")
    with pytest.raises(RuntimeError, match=r"_unscale_grads_ that was overridden: expected .*; call unscale_"):
        scaler.unscale_and_clip_(one(scaler, 1.0), 1.0)


@pytest.mark.parametrize("name", ["_check_inf_per_device", "_get_scale_async", "_scale", "_get_growth_tracker"])
def test_an_override_that_would_never_be_called_is_refused(name):
    odd = type("Odd", (GradScaler,), {name: lambda self: None, "__module__": __name__})
    type("Odd", (Theirs,), {name: lambda self: None})("cpu", enabled=False)
    with pytest.raises(TypeError, match=f"Odd overrides {name}, which would never be called: expected .*; override"):
        odd("cpu")


def test_a_policys_scale_is_read_and_written_too():
    scaler = GradScaler("cpu", policy=LogMax())
    first = scaler._init_scale
    iterate(scaler)
    assert scaler._scale == scaler.get_scale()
    scaler._scale = 32.0
    assert (scaler.get_scale(), scaler._init_scale) == (32.0, first)
    with pytest.raises(RuntimeError, match="not with a policy"):
        GradScaler("cpu", policy=LogMax())._init_growth_tracker = 3

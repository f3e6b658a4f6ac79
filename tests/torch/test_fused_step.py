"""`fused_step=True`: torch's Adam and AdamW by our kernels, in Triton's interpreter (test_triton) or on a GPU."""

import warnings
from contextlib import nullcontext

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ampsim.torch import GradScaler, OptimizerThread, Pipelined
from ampsim.torch.gradients import kernels, unscale
from ampsim.torch.step import fused_step
from tests.examples import examples
from tests.torch.helpers import DEVICE, FUSES, INF, INTERPRETED, NAN, bits, drawn, kernel_on_device, no_waits

pytestmark = [
    pytest.mark.usefixtures("small_tiles"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),  # numpy's, of inf and NaN
]
KINDS = {False: torch.optim.Adam, True: torch.optim.AdamW}
on_device = pytest.mark.peer("triton") if INTERPRETED else pytest.mark.gpu  # of a parameter
no_fixtures = HealthCheck.function_scoped_fixture  # they patch the same for every example

betas = st.sampled_from([(0.9, 0.999), (0.9, 0.95), (0.0, 0.5), (0.875, 1 - 2**-10)])
scales = st.sampled_from([2.0**-10, 1.0, 3.0, 1024.0, 65536.0])
grad_dtypes = st.sampled_from(list(kernels.DTYPES))


# ---------------------------------------------------------------------------------- the scaler, in lockstep with torch

# torch's CPU kernel has its betas in float64; where an interpreter does not fuse, 1 - beta2 costs 2^-24 / (1 - beta2).
SQUARES = 4e-5 if FUSES else 1e-4  # relative
ROUNDING = 2.0**-18 if FUSES else 2.0**-14  # of lr per step


class Pair:
    """A model stepped by ours, and its copy stepped by torch's scaler with torch's kernel."""

    def __init__(self, sizes, kind, groups, scale, dtype=torch.float32, **options) -> None:
        values = drawn(1, sizes, 1.0)
        self.sizes, self.dtype = sizes, dtype
        self.ours, self.theirs = ([torch.nn.Parameter(v.clone()) for v in values] for _ in range(2))
        self.optimizers = []
        for params in (self.ours, self.theirs):
            parts = [{"params": params[i :: len(groups)], **group} for i, group in enumerate(groups)]
            self.optimizers.append(kind(parts, fused=True))
        for p in self.ours:
            p.grad_dtype = dtype
        constants = {"init_scale": scale, "growth_interval": 2}
        self.scaler = GradScaler(DEVICE, **{"fused_step": True, **constants, **options})
        self.torchs = torch.amp.GradScaler(DEVICE, **constants)

    def step(self, seed, magnitude, bad, clip, missing=None, *, transposed=False) -> None:
        scale = self.scaler.get_scale()
        for i, grad in enumerate(drawn(seed, self.sizes, magnitude * scale, self.dtype)):
            if bad is not None and grad.numel() and i == len(self.sizes) - 1:
                grad[-1] = bad
            self.ours[i].grad, self.theirs[i].grad = (None, None) if i == missing else (grad, grad.float().clone())
            if transposed and grad.dim() == 2 and i != missing:
                self.ours[i].grad = grad.t().contiguous().t()
        for scaler in (self.scaler, self.torchs):
            scaler.scale(torch.ones((), device=DEVICE))
        if clip is not None:
            norm = self.scaler.unscale_and_clip_(self.optimizers[0], clip)
            self.torchs.unscale_(self.optimizers[1])
            wanted = torch.nn.utils.clip_grad_norm_(self.theirs, clip)
            torch.testing.assert_close(norm, wanted, rtol=1e-6, atol=1e-30, equal_nan=True)
        for scaler, optimizer in zip((self.scaler, self.torchs), self.optimizers, strict=True):
            scaler.step(optimizer)
            scaler.update()

    def state(self, which, name):
        return [self.optimizers[which].state.get(p, {}).get(name) for p in (self.ours, self.theirs)[which]]


groups = st.fixed_dictionaries(
    {"lr": st.sampled_from([1e-3, 0.1]), "betas": betas, "eps": st.sampled_from([1e-8, 1e-3]),
     "weight_decay": st.sampled_from([0.0, 0.1]), "maximize": st.booleans()}
)  # fmt: skip
GROUP = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1, "maximize": False}
steps = st.tuples(
    st.integers(0, 99), st.sampled_from([1e-4, 1.0, 100.0]), st.sampled_from([None, None, None, INF, NAN]),
    st.sampled_from([None, 0.5, 1e6]), st.sampled_from([None, None, 0]),
)  # fmt: skip


@kernel_on_device
@settings(max_examples=examples(ms=200, least=10), suppress_health_check=[no_fixtures])
@given(
    decoupled=st.booleans(), options=st.lists(groups, min_size=1, max_size=2), dtype=grad_dtypes, scale=scales,
    story=st.lists(steps, min_size=1, max_size=4), capturable=st.booleans(),
)  # fmt: skip
def test_a_run_is_torchs(decoupled, options, dtype, scale, story, capturable) -> None:
    pair = Pair([3, 0, 17], KINDS[decoupled], options, scale, dtype, capturable=capturable)  # the scale on the device
    largest = max(group["lr"] for group in options)
    for number, step in enumerate(story, 1):
        before = bits(*pair.ours), {key: bits(*each.values()) for key, each in pair.optimizers[0].state.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="fused_step")
            pair.step(*step)
        if pair.scaler.last_step.skipped:
            after = bits(*pair.ours), {key: bits(*each.values()) for key, each in pair.optimizers[0].state.items()}
            assert after[0] == before[0]
            assert after[1] == before[1]
        assert pair.scaler.get_scale() == pair.torchs.get_scale()
        assert {name for each in pair.optimizers[0].state.values() for name in each} <= {
            "step",
            "exp_avg",
            "exp_avg_sq",
        }
        for name, rtol in (("step", 0.0), ("exp_avg", 1e-5), ("exp_avg_sq", SQUARES)):
            for a, b in zip(pair.state(0, name), pair.state(1, name), strict=True):
                if a is not None:
                    torch.testing.assert_close(a, b, rtol=rtol, atol=1e-7 * float(b.abs().max()) if b.numel() else 0.0)
                else:
                    assert b is None or not b.any()  # torch keeps what a skipped step has made
        for a, b in zip(pair.ours, pair.theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-6, atol=number * largest * ROUNDING)


@kernel_on_device
@settings(max_examples=examples(ms=100, least=10), suppress_health_check=[no_fixtures])
@given(options=groups, scale=scales, story=st.lists(steps, min_size=1, max_size=4), plain=st.booleans())
@example(GROUP, 4.0, [(0, 1.0, None, 0.5, None), (1, 1.0, INF, 0.5, None), (2, 1.0, None, None, None)], True)
@example(GROUP, 4.0, [(0, 1.0, None, None, None), (1, 1.0, NAN, None, None), (2, 1.0, None, 0.5, 0)], False)
def test_torchs_kernel_steps_behind_one_read_as_it_does_in_torchs_protocol(options, scale, story, plain) -> None:
    """`plain`: all gradients lie one after the other; else in a transposed one, which the read does not take."""
    with pytest.MonkeyPatch.context() as patch:
        checks, updates = [], []
        check, update = kernels.check, torch._amp_update_scale_
        patch.setattr(unscale, "KERNEL_DEVICES", {DEVICE})
        patch.setattr(kernels, "available", lambda device: device.type == DEVICE)
        patch.setattr(kernels, "check", lambda *args: checks.append(args) or check(*args))
        patch.setattr(torch, "_amp_update_scale_", lambda *args: updates.append(args) or update(*args))
        sizes = [3, 0, 17] if plain else [3, (2, 5), 17]
        pair = Pair(sizes, torch.optim.AdamW, [options], scale, fused_step=False, capturable=True)
        for number, step in enumerate(story, 1):
            del checks[:], updates[:]
            pair.step(*step, transposed=not plain)
            assert len(updates) == 1 + (not plain)  # torch's own
            assert len(checks) == 1 or not plain
            assert pair.scaler.get_scale() == pair.torchs.get_scale()
            assert pair.scaler.last_step.skipped == (step[2] is not None)
            for a, b in zip(pair.ours, pair.theirs, strict=True):
                torch.testing.assert_close(a, b, rtol=2e-6, atol=number * options["lr"] * ROUNDING)


@kernel_on_device
def test_the_last_program_has_updated_the_scale(monkeypatch) -> None:
    """With one optimizer; with two, whose flags are joined, torch's kernel does it."""
    calls, update = [], torch._amp_update_scale_
    monkeypatch.setattr(torch, "_amp_update_scale_", lambda *args: calls.append(args) or update(*args))
    params, seen = [ones(3), ones(2)], []
    optimizers = [torch.optim.AdamW([param], fused=True) for param in params]
    scaler = GradScaler(DEVICE, init_scale=4.0, growth_interval=2, fused_step=True, capturable=True)
    for bad in (False, True, False, False):
        a_step(
            params[:1], optimizers[0], scaler, grads=[torch.full((3,), INF if bad else 1.0, device=DEVICE)], clip=1.0
        )
        seen.append(scaler.get_scale())
    assert (seen, calls) == ([4.0, 2.0, 2.0, 4.0], [])
    scaler.scale(torch.ones((), device=DEVICE))
    for param, optimizer in zip(params, optimizers, strict=True):
        param.grad = torch.full_like(param, INF if param is params[1] else 1.0)
        scaler.step(optimizer)
    scaler.update()
    assert (scaler.get_scale(), len(calls)) == (2.0, 1)


# ---------------------------------------------------------------------------------------- left to torch, and saying so


def a_step(params, optimizer, scaler=None, grads=None, clip=None, **options):
    """Step parameters of ones by gradients of ones, and return the scaler."""
    scaler = scaler or GradScaler(DEVICE, init_scale=4.0, fused_step=True, **options)
    scaler.scale(torch.ones((), device=DEVICE))
    for param, grad in zip(params, grads or map(torch.ones_like, params), strict=True):
        param.grad = grad.detach().mul_(4.0)
    if clip is not None:
        scaler.unscale_and_clip_(optimizer, clip)
    scaler.step(optimizer)
    scaler.update()
    return scaler


def ones(*shape) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(shape, device=DEVICE))


class Mine(torch.optim.AdamW):
    pass


def with_state_in(dtype):
    def change(params, optimizer) -> None:
        optimizer.step()
        optimizer.state[params[0]]["exp_avg"] = optimizer.state[params[0]]["exp_avg"].to(dtype)

    return change


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (torch.optim.SGD, {"lr": 0.1, "fused": True}, "SGD is none of torch.optim.Adam and AdamW"),
        (torch.optim.AdamW, {}, "AdamW was made without fused=True"),
        (Mine, {"fused": True}, "Mine is none of .*subclasses not included"),
        pytest.param(torch.optim.Adam, {"fused": True}, "its gradients are on cpu: expected CUDA, with Triton",
                     marks=pytest.mark.skipif(INTERPRETED or DEVICE != "cpu", reason="has kernels")),
        pytest.param(torch.optim.AdamW, {"fused": True, "amsgrad": True}, "amsgrad=True: expected False",
                     marks=on_device),
        pytest.param(torch.optim.AdamW, {"fused": True, "lr": torch.tensor(0.1)}, "lr or betas is a tensor",
                     marks=on_device),
    ],
)  # fmt: skip
def test_an_optimizer_that_the_kernels_do_not_know_is_left_to_torch_with_one_warning(kind, options, why) -> None:
    params, theirs = [ones(3), ones(2)], [ones(3), ones(2)]
    optimizer, other = kind(params, **options), kind(theirs, **options)
    with pytest.warns(RuntimeWarning, match=f"fused_step=True, but .*{why}.*; torch's own kernels step it") as seen:
        scaler = a_step(params, optimizer)
    assert len(seen) == 1
    with warnings.catch_warnings(action="error"):
        a_step(params, optimizer, scaler)
    plain = GradScaler(DEVICE, init_scale=4.0)
    for _ in range(2):
        a_step(theirs, other, plain)
    assert bits(*params) == bits(*theirs)


def test_each_reason_is_told_once() -> None:
    step = fused_step.FusedStep()
    for why, times in (("it is a", 1), ("it is a", 0), ("it is b", 1), ("it is b", 0)):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            step._tell(why)
        assert [str(each.message) for each in seen] == [
            f"fused_step=True, but {why}; torch's own kernels step it"
        ] * times


def test_an_option_that_the_kernel_does_not_have_is_named() -> None:
    group = {"amsgrad": False, "differentiable": False, "lr": 0.1, "betas": (0.9, 0.99)}
    assert fused_step._options_of(group) is None
    for change, why in (
        ({"amsgrad": True}, "amsgrad=True: expected False"),
        ({"differentiable": True}, "differentiable=True: expected False"),
        ({"lr": torch.tensor(0.1)}, "lr or betas is a tensor: expected numbers"),
        ({"betas": (0.9, torch.tensor(0.99))}, "lr or betas is a tensor: expected numbers"),
    ):
        assert fused_step._options_of(group | change) == why


HALF, DOUBLE = torch.float16, torch.float64


@kernel_on_device
@pytest.mark.parametrize(
    ("dtype", "grads", "why"),
    [
        (torch.float32, [torch.float32, HALF], "dtypes: expected parameters and state in float32"),
        (DOUBLE, [DOUBLE, DOUBLE], "dtypes: expected parameters and state in float32"),
        (torch.float32, None, "strides: expected no gaps"),
    ],
)
def test_tensors_that_the_kernels_do_not_take_are_left_to_torch(dtype, grads, why) -> None:
    params = [torch.nn.Parameter(torch.ones(4, 4, device=DEVICE, dtype=dtype)) for _ in range(2)]
    for param in params:
        param.grad_dtype = None
    made = [torch.ones(4, 8, device=DEVICE, dtype=each)[:, ::2] for each in grads or [dtype] * 2]
    made = made if grads is None else [grad.contiguous() for grad in made]
    optimizer = torch.optim.AdamW(params, fused=True)
    # torch's kernel takes no two dtypes in one group either, and on CUDA no gaps.
    refused = HALF in (grads or ()) or (grads is None and DEVICE == "cuda")
    with pytest.warns(RuntimeWarning, match=why) as seen, pytest.raises(RuntimeError) if refused else nullcontext():
        a_step(params, optimizer, grads=made, clip=1.0)
    assert len(seen) == 1
    assert refused or all((param != 1).all() for param in params)


@kernel_on_device
def test_channels_last_follows_the_strides() -> None:
    values = torch.arange(32.0, device=DEVICE).reshape(2, 4, 2, 2)
    ours, theirs = (torch.nn.Parameter(values.contiguous(memory_format=torch.channels_last)) for _ in range(2))
    grad = torch.randn(2, 4, 2, 2, device=DEVICE).contiguous(memory_format=torch.channels_last)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="fused_step")
        a_step([ours], torch.optim.AdamW([ours], fused=True), grads=[grad.clone()])
    a_step([theirs], torch.optim.AdamW([theirs], fused=True), GradScaler(DEVICE, init_scale=4.0), grads=[grad])
    torch.testing.assert_close(ours, theirs)


def test_it_is_refused_where_torch_is_repeated_exactly() -> None:
    with pytest.raises(ValueError, match="fused_step=True with exact_torch=True: expected one of the two"):
        GradScaler("cpu", fused_step=True, exact_torch=True)


# -------------------------------------------------------------------------------------------- the optimizer is torch's


@kernel_on_device
def test_hooks_and_schedulers_run_and_nothing_stays_behind() -> None:
    param, seen = ones(3), []
    optimizer = torch.optim.AdamW([param], fused=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer.register_step_pre_hook(
        lambda opt, *_: seen.append(("before", opt.grad_scale.item(), param.grad[0].item()))
    )
    optimizer.register_step_post_hook(lambda *_: seen.append(("after", param.grad[0].item())))
    names = {*vars(optimizer), "_opt_called"}  # the scheduler's
    with warnings.catch_warnings(action="error"):  # the scheduler's, of a step that it did not see
        scaler = a_step([param], optimizer)
        schedule.step()
        a_step([param], optimizer, scaler)
    assert seen == [("before", 4.0, 4.0), ("after", 4.0)] * 2  # the gradient is read only
    assert set(vars(optimizer)) == names
    assert optimizer.state[param]["step"] == 2


@kernel_on_device
def test_a_step_that_raises_leaves_nothing_behind() -> None:
    param = ones(3)
    optimizer = torch.optim.AdamW([param], fused=True)
    names = set(vars(optimizer))
    handle = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        a_step([param], optimizer)
    handle.remove()
    assert set(vars(optimizer)) == names
    assert param.tolist() == [1.0] * 3


@kernel_on_device
def test_torch_goes_on_from_our_state_and_we_from_its() -> None:
    ours, theirs = [ones(3), ones(5)], [ones(3), ones(5)]
    optimizers = [torch.optim.AdamW(params, lr=0.1, fused=True) for params in (ours, theirs)]
    for _ in range(2):
        a_step(ours, optimizers[0])
        a_step(theirs, optimizers[1], GradScaler(DEVICE, init_scale=4.0))
        first, second = (optimizer.state_dict() for optimizer in optimizers)
        assert first["param_groups"] == second["param_groups"]
        assert [sorted(each) for each in first["state"].values()] == [sorted(each) for each in second["state"].values()]
        optimizers[0].load_state_dict(second)
        optimizers[1].load_state_dict(first)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=0.0)


@kernel_on_device
def test_what_the_backward_pass_has_saved_is_seen_to_change() -> None:
    param = ones(3)
    optimizer = torch.optim.AdamW([param], fused=True)
    product = (param * param).sum()
    a_step([param], optimizer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@kernel_on_device
def test_the_map_is_made_once_and_new_addresses_are_followed() -> None:
    kernels._tiles.cache_clear()
    params = [ones(3), ones(40)]
    optimizer = torch.optim.AdamW(params, lr=0.5, fused=True)
    scaler = a_step(params, optimizer)
    before = kernels._tiles.cache_info().misses
    kept = [p.grad for p in params]
    a_step(params, optimizer, scaler)  # gradients elsewhere
    optimizer.state[params[0]]["exp_avg"] = optimizer.state[params[0]]["exp_avg"].clone()
    params[1].data = params[1].data.clone()
    a_step(params, optimizer, scaler)
    assert kernels._tiles.cache_info().misses == before
    assert [p.grad is not k for p, k in zip(params, kept, strict=True)] == [True, True]
    for param in params:
        torch.testing.assert_close(param, torch.full_like(param, (1 - 0.005) ** 3 - 0.5 * (1 + 0.995 + 0.995**2)))
    params.append(ones(7))
    optimizer.add_param_group({"params": [params[2]]})
    a_step(params, optimizer, scaler)
    assert kernels._tiles.cache_info().misses > before
    assert (params[2] != 1).all()


@kernel_on_device
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_pipeline_need_not_widen_its_gradients(dtype) -> None:
    results, accumulated = [], (torch.eye(3), torch.ones(2, 3))
    for widen in (True, False):
        model, thread = torch.nn.Linear(3, 2, device=DEVICE, dtype=dtype), OptimizerThread()
        for param in model.parameters():
            torch.nn.init.ones_(param)
        pipelined = Pipelined(model, depth=0, thread=thread, widen=widen)
        optimizer = torch.optim.AdamW(pipelined.parameters(), lr=0.1, fused=True)
        scaler = GradScaler(DEVICE, init_scale=8.0, fused_step=not widen, launch=thread.launch)

        def step(scaler=scaler, optimizer=optimizer, kept=torch.float32 if widen else dtype) -> None:
            assert {p.grad.dtype for group in optimizer.param_groups for p in group["params"]} == {kept}
            scaler.unscale_and_clip_(optimizer, 0.5)
            scaler.step(optimizer)
            optimizer.zero_grad()

        for _ in range(3):
            for batch in accumulated:
                inputs = (batch.to(DEVICE, dtype),)
                pipelined.forward_backward(inputs, None, lambda outputs, _, scale=scaler.scale: scale(outputs.sum()))
            pipelined.step(step, is_async=False)
            scaler.update(is_async=False)
        pipelined.synchronize()
        results.append([master.detach() for master in pipelined.parameters()])
        thread.close()
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        assert (ours < 0.8).all()


# ------------------------------------------------------------------------------------------------- CUDA alone


def loop_on_cuda(**options):
    params = [ones(3), ones(kernels.BLOCK + 5), ones(100, 100)]
    scaler = GradScaler("cuda", init_scale=4.0, growth_interval=2, fused_step=True, **options)
    optimizer = torch.optim.AdamW(params, lr=0.1, fused=True)
    return params, lambda: a_step(params, optimizer, scaler, clip=1.0)


@pytest.mark.gpu
def test_on_cuda_nothing_waits_for_the_device() -> None:
    params, iterate = loop_on_cuda()
    for _ in range(3):
        iterate()  # compiles, and makes the state
    with no_waits("cuda"):
        for _ in range(3):
            iterate()
    assert all((param < 0.7).all() for param in params)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True:UserWarning")
def test_on_cuda_replays_of_a_graph_are_steps() -> None:
    results = []
    for captured in (False, True):
        params = [ones(3), ones(kernels.BLOCK + 5)]
        optimizer = torch.optim.AdamW(params, lr=0.1, fused=True, capturable=True)
        scaler = GradScaler("cuda", init_scale=4.0, growth_interval=2, fused_step=True, capturable=True)
        for param in params:
            param.grad = torch.ones_like(param)

        def iterate(params=params, optimizer=optimizer, scaler=scaler) -> None:
            scaler.scale(params[0].sum())
            scaler.unscale_and_clip_(optimizer, 1.0)
            scaler.step(optimizer)
            scaler.update()

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                iterate()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        if captured:
            with torch.cuda.graph(graph), warnings.catch_warnings(action="error"):
                iterate()
        for value in (2.0, INF, 3.0):
            for param in params:
                param.grad.fill_(value)
            (graph.replay if captured else iterate)()
        results.append((bits(*params), scaler.get_scale(), optimizer.state[params[0]]["step"].item()))
    assert results[0] == results[1]

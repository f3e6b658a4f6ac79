"""Level 5: what float32 does to scales and gradients: subnormals, the top, inf and NaN, dtypes, fused kernels."""

import math
from functools import partial

import torch
from hypothesis import strategies as st

from ampsim.core import laws
from ampsim.core.machine import Rule
from ampsim.core.torch_model.refusals import Refusal
from ampsim.testing.kit.bench import Bench, bits, fused
from ampsim.testing.kit.check import check
from ampsim.testing.kit.strategies import BAD, histories
from ampsim.testing.kit.trial import RULE, Trial, format_number, outcome

DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
MIXED = (torch.float32, torch.bfloat16, torch.float64)
LARGEST = 3.4028234e38  # of float32
SIZES = st.sampled_from([1.0, -3.0, 1e4, 1e-3, 2.0**-149, 1e38, -LARGEST])  # of scaled gradients


def _never_nonfinite(t: Trial, scale: float, size: float, kernel: bool, bad: float | None = None) -> None:
    """Overflow down to `scale`, then take one step with a gradient of `size`; the parameters stay finite."""
    make = fused if kernel and t.has("fused") else torch.optim.SGD
    t.start(Rule(init_scale=max(scale, 1.0), backoff_factor=2.0**-16), Bench(partial(make, lr=2.0**-10)))
    while t.loss_scale() > scale and len(t.events) < 9 * t.steps_per_16_binades:
        t.overflow()
    (bench,) = t.benches
    bench.put(size, bad)
    t.log_event(f"scaled gradient {format_number(size)}" + ("" if bad is None else f" and {bad}"))
    before, calls = bench.held(), bench.calls
    t.scaler.step(bench.optimizer)
    changed = bench.held() != before
    stepped = changed or bench.calls > calls
    step = laws.Step(bad is not None, unscaled_finite=bench.finite(), stepped=stepped, parameters_changed=changed)
    t.require(not (seen := laws.never_steps_on_nonfinite(step)), seen or "")
    moved = [*map(bits, bench.params)] != before[: len(bench.params)]
    t.require(bad is None or not moved, f"a step with a gradient of {bad} was not skipped")


@check(
    5,
    issue="pytorch/pytorch#95781",
    scale=st.sampled_from([2.0**16, 1.0, 1700.0, 2.0**127]),
    size=SIZES,
    kernel=st.booleans(),
    bad=st.sampled_from([None, *BAD]),
)
def never_steps_on_nonfinite(t: Trial, scale: float, size: float, kernel: bool, bad: float | None) -> None:
    """No optimizer steps with a gradient that is inf or NaN once unscaled, at scales from 1."""
    _never_nonfinite(t, scale, size, kernel, bad)


@check(5, issue="pytorch/pytorch#96755", scale=st.sampled_from([2.0**-16, 2.0**-64]), size=SIZES, kernel=st.booleans())
def never_steps_on_nonfinite_below_scale_one(t: Trial, scale: float, size: float, kernel: bool) -> None:
    """No optimizer steps with a gradient that is finite while scaled and inf once divided by a scale below 1."""
    _never_nonfinite(t, scale, size, kernel)


@check(5, issue="pytorch/pytorch#99640", scale=st.sampled_from([2.0**-128, 2.0**-144, 0.0]), kernel=st.booleans())
def never_steps_on_nonfinite_at_subnormal_scales(t: Trial, scale: float, kernel: bool) -> None:
    """However many overflows came before, a clean step leaves finite parameters: 1/S is inf for S <= 2^-128."""
    _never_nonfinite(t, scale, 2.0**-149, kernel)


@check(
    5,
    bad=st.sampled_from(BAD),
    dtypes=st.just(MIXED) | DTYPES.map(lambda dtype: (dtype,)),
    which=st.integers(0, 3),
    where=st.sampled_from([1.0, 0.0, 0.5, 0.33]),
    kernel=st.booleans(),
)
def finds_every_nonfinite(
    t: Trial, bad: float, dtypes: tuple[torch.dtype, ...], which: int, where: float, kernel: bool
) -> None:
    """inf, -inf and NaN are found in any element of any gradient of any dtype, and one of them is one overflow."""
    make = fused if kernel and t.has("fused") else torch.optim.SGD
    bench = Bench(make, ((37,), (3, 2), (255, 257), ()), dtypes)  # 37: a vector loop and its remainder
    t.start(RULE, bench)
    bench.put(1.0)
    t.loss_scale()
    grad = bench.grad(which).view(-1)
    place = int(where * (len(grad) - 1))
    grad[place] = bad
    t.log_event(f"{bad} in element {place} of {len(grad)} of gradient {which}, {grad.dtype}")
    before = [param.clone() for param in bench.params]
    t.scaler.step(bench.optimizer)
    t.require(all(map(torch.equal, before, bench.params)), "the optimizer stepped")
    t.scaler.update()
    t.follows_an_overflow()


@check(5, bad=st.sampled_from([None, *BAD]), which=st.integers(0, 1))
def sparse_gradients_are_checked(t: Trial, bad: float | None, which: int) -> None:
    """An inf or NaN in a sparse gradient skips the step and is an overflow; or sparse gradients are refused."""
    bench = Bench(partial(torch.optim.SGD, lr=1.0), ((4, 2), (4, 2)))
    scale = t.start(RULE, bench) and t.loss_scale()
    for index, param in enumerate(bench.params):
        values = torch.full((2, 2), 3 * scale)
        if bad is not None and index == which:
            values[1, 1] = bad
        param.grad = torch.sparse_coo_tensor(torch.tensor([[3, 1]]), values, (4, 2), check_invariants=True)
    t.log_event(f"step with sparse gradients, {bad or 'clean'}")
    got = outcome(lambda: t.scaler.step(bench.optimizer))
    refused, expected = isinstance(got, Refusal), torch.ones(4, 2)
    if bad is None and not refused:
        expected[[1, 3]] = -2.0
    t.require(all(torch.equal(param, expected) for param in bench.params), f"parameters became {bench.params}")
    if bad is not None and not refused:
        t.scaler.update()
        t.follows_an_overflow()


@check(
    5,
    found=[{"scale": 0, "size": -125, "dtype": torch.float32}],  # the largest power of two at which it is subnormal
    scale=st.integers(0, 100),
    size=st.integers(-140, 20),
    dtype=DTYPES,
)
def unscaling_by_a_power_of_two_is_exact(t: Trial, scale: int, size: int, dtype: torch.dtype) -> None:
    """A gradient that was multiplied by a power of two is divided back to the last bit, subnormal or not."""
    bench = Bench(lambda params: torch.optim.SGD(params, lr=0.0), dtypes=(dtype,))
    t.start(Rule(init_scale=2.0**scale), bench)
    used, third = t.loss_scale(), torch.tensor(1 / 3, dtype=dtype)
    bench.put(1.0)
    bench.grad().copy_(third * 2.0**size).mul_(used)
    t.log_event(f"gradient {third.item() * 2.0**size!r} of {dtype}")
    t.scaler.step(bench.optimizer)
    t.require(bool((bench.grad() == third * 2.0**size).all()), f"unscaled to {bench.grad()[0].item()!r}")


@check(
    5,
    issue="redai-studio/Relax#44",
    scale=st.sampled_from([1700.0, 2.0**16, 0.1]),
    found_inf=histories(longest=6),
    unscales=st.booleans(),
)
def unscale_divides_by_the_scale_of_the_loss(t: Trial, scale: float, found_inf: list[bool], unscales: bool) -> None:
    """From loss to optimizer the gradient is multiplied and divided once: it is the true one, up to rounding."""
    t.start(Rule(init_scale=scale, growth_interval=2), Bench(partial(torch.optim.SGD, lr=1.0)))
    for flag in found_inf:
        t.iterate(flag)
    (bench,) = t.benches
    bench.params[0].grad, before = None, bench.params[0].detach().clone()
    t.scaler.scale((3 * bench.params[0]).sum()).backward()
    unscales = unscales and t.has("unscale_")
    if unscales:
        t.scaler.unscale_(bench.optimizer)
    t.log_event("backward, unscale_, step" if unscales else "backward, step")
    t.scaler.step(bench.optimizer)
    seen = (before - bench.params[0])[0].item()
    t.require(math.isclose(seen, 3.0, rel_tol=1e-5), f"the optimizer saw a gradient of {seen!r}, expected 3.0")
    t.scaler.update()


@check(5, issue="pytorch/pytorch#95847", needs="fused", flags=st.lists(st.booleans(), min_size=1, max_size=6))
def fused_agrees_with_unfused(t: Trial, flags: list[bool]) -> None:
    """A fused optimizer skips where an unfused one does, and moves parameters alike, unscaled by hand or not."""
    plain = Bench(lambda params: torch.optim.AdamW(params, lr=0.125, foreach=False))
    t.start(RULE, Bench(fused), plain)
    for number, flag in enumerate(flags):
        scale = t.loss_scale()
        t.log_event("inf" if flag else "clean")
        for bench in t.benches:
            bench.put(scale, math.inf if flag else None)
            if number % 2 and t.has("unscale_"):
                t.scaler.unscale_(bench.optimizer)
            t.scaler.step(bench.optimizer)
        t.scaler.update()
        ours, theirs = (bench.params[0] for bench in t.benches)
        t.require(torch.allclose(ours, theirs, rtol=1e-5), f"fused {ours.tolist()}, unfused {theirs.tolist()}")


@check(5, needs="fused strided", wide=st.booleans(), unscales=st.booleans())
def fused_steps_follow_strides(t: Trial, wide: bool, unscales: bool) -> None:
    """A fused step with a gradient that lies in memory otherwise than its parameter is right, or is refused."""
    bench = Bench(partial(torch.optim.SGD, lr=1.0, fused=True), ((2, 3),))
    scale = t.start(RULE, bench) and t.loss_scale()
    true = torch.arange(6.0).reshape(2, 3)
    memory = torch.zeros(2, 6)[:, ::2] if wide else torch.zeros(3, 2).t()
    bench.params[0].grad = memory.copy_(true * scale)
    t.log_event(f"fused step with a gradient of strides {memory.stride()}")
    if unscales and t.has("unscale_"):
        t.scaler.unscale_(bench.optimizer)
    refused = isinstance(outcome(lambda: t.scaler.step(bench.optimizer)), Refusal)
    moved = 1.0 - bench.params[0].detach()
    right = torch.zeros(2, 3) if refused else true
    t.require(torch.equal(moved, right), f"parameters moved by {moved.tolist()}, expected {right.tolist()}")

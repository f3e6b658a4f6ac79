"""Level 5: what float32 does to scales and gradients: subnormals, the top, inf and NaN, dtypes, fused kernels."""

import math
from functools import partial

import torch
from hypothesis import strategies as st

from ampsim.core import laws
from ampsim.core.machine import Rule
from ampsim.testing.kit.check import check
from ampsim.testing.kit.strategies import BAD, histories
from ampsim.testing.kit.trial import RULE, Bench, Trial, bits, format_number, fused

DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
LARGEST = 3.4028234e38  # of float32
SIZES = st.sampled_from([1.0, -3.0, 1e4, 1e-3, 2.0**-149, 1e38, -LARGEST])  # of scaled gradients


def _from_to(before: float, after: float) -> str:
    return f"from {format_number(before)} to {format_number(after)}"


def _never_nonfinite(t: Trial, scale: float, size: float, kernel: bool, bad: float | None = None) -> None:
    """Overflow down to `scale`, then take one step with a gradient of `size`; the parameters stay finite."""
    make = fused if kernel and t.has("fused") else torch.optim.SGD
    t.start(Rule(init_scale=max(scale, 1.0), backoff_factor=2.0**-16), Bench(partial(make, lr=2.0**-10)))
    while t.loss_scale() > scale and len(t.events) < 9:
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


@check(5, issue="pytorch/pytorch#157436", overflows=st.integers(1, 12))
def scale_stays_normal(t: Trial, overflows: int) -> None:
    """However many overflows come, the scale stays positive and normal: at least 2^-126."""
    t.start(Rule(init_scale=1.0, backoff_factor=2.0**-16))
    (seen, _) = t.observe([True] * overflows)
    t.require(min(seen.scale) >= 2.0**-126, f"the scale fell to {format_number(min(seen.scale))}")


@check(
    5,
    issue="google/flax#2547",
    found=[{"overflows": 10, "growths": 0}, {"overflows": 0, "growths": 7}],  # the shortest ways to 0 and to inf
    overflows=st.integers(0, 12),
    growths=st.integers(0, 12),
)
def scale_comes_back(t: Trial, overflows: int, growths: int) -> None:
    """From wherever growths and overflows lead, clean steps raise the scale and an overflow lowers it."""
    t.start(Rule(init_scale=1.0, growth_factor=2.0**16, backoff_factor=2.0**-16, growth_interval=1))
    backoff = [True] * t.traits.hysteresis
    t.observe([False] * growths + backoff * overflows)
    before, *_, after = t.observe([False])[0].scale
    top = t.traits.max_scale or 2.0**112
    t.require(after > before or before >= top, f"a clean step led {_from_to(before, after)}")
    before, *_, after = t.observe(backoff)[0].scale
    floor = t.traits.min_scale or 0.0
    t.require(after < before or before <= floor, f"an overflow led {_from_to(before, after)}")


@check(5, bad=st.sampled_from(BAD), dtype=DTYPES, which=st.integers(0, 2), last=st.booleans(), kernel=st.booleans())
def finds_every_nonfinite(t: Trial, bad: float, dtype: torch.dtype, which: int, last: bool, kernel: bool) -> None:
    """inf, -inf and NaN are found in any element of any gradient, and one of them is one overflow."""
    make = fused if kernel and t.has("fused") else torch.optim.SGD
    bench = Bench(make, shapes=((37,), (3, 2), ()), dtype=dtype)  # 37: a vector loop and its remainder
    t.start(RULE, bench)
    bench.put(1.0)
    t.loss_scale()
    bench.grad(which).view(-1)[-1 if last else 0] = bad
    t.log_event(f"{bad} in gradient {which} of {dtype}")
    before = [param.clone() for param in bench.params]
    t.scaler.step(bench.optimizer)
    t.require(all(map(torch.equal, before, bench.params)), "the optimizer stepped")
    t.scaler.update()


@check(5, scale=st.integers(0, 100), size=st.integers(-100, 20), dtype=DTYPES)
def unscaling_by_a_power_of_two_is_exact(t: Trial, scale: int, size: int, dtype: torch.dtype) -> None:
    """A gradient that was multiplied by a power of two is divided back to the last bit, in its own format."""
    bench = Bench(lambda params: torch.optim.SGD(params, lr=0.0), dtype=dtype)
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

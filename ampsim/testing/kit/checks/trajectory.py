"""Checks of several levels that need only the scale. With level 0, these run without torch."""

import math

from hypothesis import strategies as st

from ampsim.testing.check import CHECKS_VERSION
from ampsim.testing.kit.check import check
from ampsim.testing.kit.expected import trajectory
from ampsim.testing.kit.strategies import FLAGS, histories, rules


@check(1, rule=rules(growth=False), found_inf=histories(), expected=trajectory)
def scale_is_exact_float32(make, iterate, drop_in, rule, found_inf, expected):
    """The scale after each update is ``float32(float64(S) * factor)``, up to rounding; exactly for a drop-in."""
    scaler, rounding = make(**rule), 0.0 if drop_in else 2.0**-18  # of 24 updates
    for overflows, due in zip([*found_inf, False], expected):
        scale = iterate(scaler, overflows)
        assert math.isclose(scale, due, rel_tol=rounding), f"the scale is {scale}, expected {due}"


@check(
    2,
    issue="NVIDIA-NeMo/Megatron-Bridge#5591",
    needs="optimizers",
    found_inf=FLAGS,
    expected=trajectory,
)
def any_optimizer_overflow_backs_off(make, iterate_all, found_inf, expected):
    """Overflows in one or more optimizers count as one overflow; a finite step of all optimizers counts as one."""
    scaler = make(growth_interval=3)
    for overflows, due in zip([*found_inf, (False, False, False)], expected):
        scale = iterate_all(scaler, overflows)
        assert scale == due, f"the scale is {scale}, expected {due}"


@check(2, micro=st.integers(2, 4), found_inf=histories(longest=8))
def micro_batches_count_as_one_step(make, iterate, loss_scale, micro, found_inf):
    """Any number of losses scaled for one step share one scale and count as one step of the growth tracker."""
    runs: list[list[float]] = []
    for losses in (1, micro):
        scaler = make(growth_interval=3)
        runs.append([])
        for overflows in [*found_inf, False]:
            runs[-1] += {loss_scale(scaler) for _ in range(losses)}
            iterate(scaler, overflows)
    once, often = runs
    assert often == once, f"{micro} losses per step were multiplied by {often}, one loss by {once}"


@check(2, needs="setters growth", lowered=st.integers(1, 4), tracker=st.integers(1, 8))
def growth_continues_after_interval_is_lowered(make, iterate, max_scale, delay, lowered, tracker):
    """After the interval is lowered to the growth tracker or below, the scale grows within one new interval."""
    scaler = make(growth_interval=9)
    for _ in range(tracker):
        iterate(scaler, False)
    scaler.set_growth_interval(lowered)
    before, *_, after = [iterate(scaler, False) for _ in range(lowered + delay + 1)]
    assert after > before or before == max_scale, f"the scale is still {after}"


@check(5, issue="pytorch/pytorch#157436", overflows=st.integers(1, 12))
def scale_is_never_subnormal(make, run, repeats, overflows):
    """After any number of overflows the scale is positive and normal: at least 2^-126."""
    scales = run(make(init_scale=1.0, backoff_factor=2.0**-16), [True] * overflows * repeats)
    assert min(scales) >= 2.0**-126, f"the scale fell to {min(scales)}"


@check(
    5,
    issue="google/flax#2547",
    needs="growth",
    found=[
        {"overflows": 10, "growths": 0},
        {"overflows": 0, "growths": 7},
    ],  # the shortest ways to 0 and to inf
    overflows=st.integers(0, 12),
    growths=st.integers(0, 12),
)
def scale_recovers_after_overflows(
    make, run, repeats, hysteresis, min_scale, max_scale, overflows, growths
):
    """After any growths and overflows, finite steps raise the scale, and an overflow lowers it."""
    scaler = make(growth_factor=2.0**16, backoff_factor=2.0**-16, init_scale=1.0, growth_interval=1)
    backoff = [True] * hysteresis
    run(scaler, [False] * growths * repeats + backoff * overflows * repeats)
    before, *_, after = run(scaler, [False] * 3)
    assert after > before or before >= (max_scale or 2.0**112), (
        f"finite steps changed the scale from {before} to {after}"
    )
    before, *_, after = run(scaler, backoff)
    assert after < before or before <= (min_scale or 0.0), (
        f"an overflow changed the scale from {before} to {after}"
    )


@check(
    5,
    since=CHECKS_VERSION,
    found=[{"scale": 2.0**14, "found_inf": [False] * 3}],  # past the largest number of float16
    scale=st.sampled_from([1.0, 2.0**14, 2.0**100]),
    found_inf=histories(longest=8),
)
def scale_stays_power_of_two(make, iterate, loss_scale, scale, found_inf):
    """With factors 2 and 1/2, a power-of-two scale stays a power of two, so scaling and unscaling are exact."""
    scaler = make(init_scale=scale, growth_interval=1)
    for overflows in found_inf:
        iterate(scaler, overflows)
        now = loss_scale(scaler)
        assert now in (0.0, math.inf) or math.frexp(now)[0] == 0.5, f"the scale is {now!r}"


@check(0, since=CHECKS_VERSION, found_inf=histories(longest=6))
def new_scaler_starts_at_init_scale(make, iterate, found_inf):
    """A second scaler in the process starts at its own initial scale, with its own growth tracker."""
    runs: list[list[float]] = []
    for before in (found_inf, [False] * 0):
        scaler = make(init_scale=1024.0, growth_interval=3)
        for overflows in before:
            iterate(scaler, overflows)
        second = make(init_scale=1024.0, growth_interval=3)
        runs.append([iterate(second, False) for _ in range(5)])
    after, alone = runs
    assert after == alone, f"after another scaler's run the scales are {after}, without it {alone}"


@check(5, since=CHECKS_VERSION, needs="gives_up")
def minimum_scale_error_repeats(make, iterate):
    """A scaler that raises at its minimum scale raises the same exception at the next update."""
    scaler, kinds = make(init_scale=2.0, growth_interval=2), []
    for _ in range(200):
        try:
            iterate(scaler, True)
        except Exception as error:
            kinds.append(type(error).__name__)
    assert len({*kinds}) < 2, (
        f"it raised {kinds[0]}, then {next(each for each in kinds if each != kinds[0])}"
    )


@check(0, since=CHECKS_VERSION, needs="reset", clean=st.integers(1, 3))
def separated_overflows_do_not_accumulate(make, run, hysteresis, clean):
    """With hysteresis reset by finite steps, overflows separated by finite steps never back off."""
    few = [True] * (hysteresis - 1)
    scales = run(make(init_scale=1024.0, growth_interval=2000), few + [False] * clean + few)
    assert min(scales) == scales[0], (
        f"the scale fell to {min(scales)} without {hysteresis} overflows in a row"
    )


@check(
    0,
    since=CHECKS_VERSION,
    needs="min_scale",
    above=st.sampled_from([1.5, 4.0]),
    overflows=st.integers(1, 12),
)
def scale_falls_to_min_scale(make, run, min_scale, hysteresis, above, overflows):
    """After enough overflows the scale is the declared minimum and stays there."""
    scales = run(make(init_scale=above * min_scale), [True] * (2 + overflows) * hysteresis)
    assert min(scales) == scales[-1] == min_scale, (
        f"the last scales are {scales[-3:]}, expected {min_scale}"
    )

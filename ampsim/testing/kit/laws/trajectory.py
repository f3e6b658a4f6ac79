"""Laws of several levels that need the scale only: with level 0 all that is asked where torch is not installed."""

from hypothesis import strategies as st

from ampsim.testing.kit.check import law
from ampsim.testing.kit.expected import trajectory
from ampsim.testing.kit.strategies import FLAGS, histories, rules


@law(1, rule=rules(growth=False), found_inf=histories(), expected=trajectory)
def scale_is_exact_float32(make, iterate, rule, found_inf, expected):
    """The scale after each update is ``float32(float64(S) * factor)``, to the last bit, as torch's kernel has it."""
    scaler = make(**rule)
    for overflows, due in zip([*found_inf, False], expected):
        scale = iterate(scaler, overflows)
        assert scale == due, f"the scale is {scale}, expected {due}"


@law(2, issue="NVIDIA-NeMo/Megatron-Bridge#5591", needs="optimizers", found_inf=FLAGS, expected=trajectory)
def any_optimizer_overflow_backs_off(make, iterate_all, found_inf, expected):
    """An overflow in one or more optimizers is one overflow of the scaler; a clean step of all is one clean step."""
    scaler = make(growth_interval=3)
    for overflows, due in zip([*found_inf, (False, False, False)], expected):
        scale = iterate_all(scaler, overflows)
        assert scale == due, f"the scale is {scale}, expected {due}"


@law(2, micro=st.integers(2, 4), found_inf=histories(longest=8))
def micro_batches_are_one_step(make, iterate, loss_scale, micro, found_inf):
    """However many losses are scaled for one step, it is one step of the streak, under one scale."""
    runs: list[list[float]] = []
    for losses in (1, micro):
        scaler = make(growth_interval=3)
        runs.append([])
        for overflows in [*found_inf, False]:
            runs[-1] += {loss_scale(scaler) for _ in range(losses)}
            iterate(scaler, overflows)
    once, often = runs
    assert often == once, f"{micro} losses per step were multiplied by {often}, one loss by {once}"


@law(2, needs="setters growth", lowered=st.integers(1, 4), streak=st.integers(1, 8))
def growth_goes_on_when_the_interval_is_lowered(make, iterate, max_scale, delay, lowered, streak):
    """An interval set to what the streak has reached or passed: the scale grows within that many clean steps."""
    scaler = make(growth_interval=9)
    for _ in range(streak):
        iterate(scaler, False)
    scaler.set_growth_interval(lowered)
    before, *_, after = [iterate(scaler, False) for _ in range(lowered + delay + 1)]
    assert after > before or before == max_scale, f"the scale is still {after}"


@law(5, issue="pytorch/pytorch#157436", overflows=st.integers(1, 12))
def scale_stays_normal(make, run, repeats, overflows):
    """However many overflows come, the scale stays positive and normal: at least 2^-126."""
    scales = run(make(init_scale=1.0, backoff_factor=2.0**-16), [True] * overflows * repeats)
    assert min(scales) >= 2.0**-126, f"the scale fell to {min(scales)}"


@law(
    5,
    issue="google/flax#2547",
    needs="growth",
    found=[{"overflows": 10, "growths": 0}, {"overflows": 0, "growths": 7}],  # the shortest ways to 0 and to inf
    overflows=st.integers(0, 12),
    growths=st.integers(0, 12),
)
def scale_comes_back(make, run, repeats, hysteresis, min_scale, max_scale, overflows, growths):
    """From wherever growths and overflows lead, clean steps raise the scale and an overflow lowers it."""
    scaler = make(growth_factor=2.0**16, backoff_factor=2.0**-16, init_scale=1.0, growth_interval=1)
    backoff = [True] * hysteresis
    run(scaler, [False] * growths * repeats + backoff * overflows * repeats)
    before, after = run(scaler, [False])
    assert after > before or before >= (max_scale or 2.0**112), f"a clean step led from {before} to {after}"
    before, *_, after = run(scaler, backoff)
    assert after < before or before <= (min_scale or 0.0), f"an overflow led from {before} to {after}"

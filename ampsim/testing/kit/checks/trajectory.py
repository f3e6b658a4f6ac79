"""Laws of several levels that need the scale only: with level 0 all that is asked where torch is not installed."""

from hypothesis import strategies as st

from ampsim.core.machine import Rule
from ampsim.testing.kit.check import check
from ampsim.testing.kit.strategies import FLAGS, Flags, histories, rules
from ampsim.testing.kit.trial import RULE, Bench, Trial, format_number, loss


@check(1, rule=rules(growth=False), found_inf=histories())
def scale_is_exact_float32(t: Trial, rule: Rule, found_inf: list[bool]) -> None:
    """The scale after each update is ``float32(float64(S) * factor)``, to the last bit, as torch's kernel has it."""
    t.start(rule)
    for flag in found_inf:
        t.follow(flag)
    t.require_scale(t.loss_scale())


@check(2, issue="NVIDIA-NeMo/Megatron-Bridge#5591", flags=FLAGS)
def any_optimizer_overflow_backs_off(t: Trial, flags: Flags) -> None:
    """An overflow in one or more optimizers is one overflow of the scaler; a clean step of all is one clean step."""
    t.start(RULE, Bench(), Bench(), Bench())
    for each in flags:
        t.follow(*each)
    t.require_scale(t.loss_scale())


@check(2, micro=st.integers(2, 4), found_inf=histories(longest=8))
def micro_batches_are_one_step(t: Trial, micro: int, found_inf: list[bool]) -> None:
    """However many losses are scaled for one step, it is one step of the streak, under one scale."""
    runs: list[list[float]] = []
    for scales in (1, micro):
        scaler = t.start()
        t.events.clear()
        runs.append([])
        for flag in [*found_inf, False]:
            runs[-1] += {float(scaler.scale(loss())) for _ in range(scales)}
            t.log_event(f"scale x {scales}")
            t.iterate(flag)
    once, often = runs
    t.require(often == once, f"{micro} losses per step were multiplied by {often}, one loss by {once}")


@check(2, needs="setters", lowered=st.integers(1, 4), streak=st.integers(1, 8))
def growth_goes_on_when_the_interval_is_lowered(t: Trial, lowered: int, streak: int) -> None:
    """An interval set to what the streak has reached or passed: the scale grows within that many clean steps."""
    scaler = t.start(RULE.replace(growth_interval=9))
    for _ in range(streak):
        t.iterate()
    t.log_event(f"set_growth_interval({lowered})")
    scaler.set_growth_interval(lowered)
    before = t.loss_scale()
    for _ in range(lowered + t.traits.delay):
        t.iterate()
    after = t.loss_scale()
    t.require(after > before or before == t.traits.max_scale, f"the scale is still {format_number(after)}")


@check(5, issue="pytorch/pytorch#157436", overflows=st.integers(1, 12))
def scale_stays_normal(t: Trial, overflows: int) -> None:
    """However many overflows come, the scale stays positive and normal: at least 2^-126."""
    t.start(Rule(init_scale=1.0, backoff_factor=2.0**-16))
    (seen, _) = t.observe([True] * overflows * t.steps_per_16_binades)
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
    t.observe([False] * growths * t.steps_per_16_binades + backoff * overflows * t.steps_per_16_binades)
    before, *_, after = t.observe([False])[0].scale
    top = t.traits.max_scale or 2.0**112
    t.require(after > before or before >= top, f"a clean step led {_from_to(before, after)}")
    before, *_, after = t.observe(backoff)[0].scale
    floor = t.traits.min_scale or 0.0
    t.require(after < before or before <= floor, f"an overflow led {_from_to(before, after)}")


def _from_to(before: float, after: float) -> str:
    return f"from {format_number(before)} to {format_number(after)}"

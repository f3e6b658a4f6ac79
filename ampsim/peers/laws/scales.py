"""Laws of the scale: when it falls, when it grows, and where it ends."""

from hypothesis import strategies as st

from ampsim.peers.laws.law import law
from ampsim.peers.laws.trial import CLEAN, OVERFLOW, NotApplicableError, Trial

FLAGS = st.lists(st.booleans(), min_size=1, max_size=6)
USED = "[step.used for step in scaler.steps]"
NEVER = 1000  # a growth interval that no example reaches


@law("overflow does not reduce loss scale next step", flags=FLAGS)
def overflow_lowers_the_next_scale(trial: Trial, flags: list[bool]) -> None:
    """An overflow lowers the scale of the very next iteration, so that none is paid for twice."""
    scaler = trial.start(init_scale=1024.0, growth_interval=2, hysteresis=1)
    scaler.iterate(*flags, CLEAN)
    used = scaler.used()
    stuck = [after for flag, before, after in zip(flags, used, used[1:], strict=False) if flag and after >= before]
    after = [i for i, flag in enumerate(flags) if flag]
    trial.require(
        f"all(scaler.steps[i + 1].used < scaler.steps[i].used for i in {after})", f"after an overflow, again {stuck}"
    )


@law("loss scale increases after overflow", init=st.sampled_from([1024.0, 3.0, 1.0, 0.5, 2.0**-20]))
def overflow_never_raises_the_scale(trial: Trial, init: float) -> None:
    """An overflow never raises a scale above the minimum."""
    scaler = trial.start(init_scale=init, **({"min_scale": init / 8} if trial.takes("min_scale") else {}))
    if init < trial.least:
        raise NotApplicableError("its minimum is fixed")
    scaler.iterate(OVERFLOW, OVERFLOW, CLEAN)
    trial.require(
        "all(b.used <= a.used for a, b in zip(scaler.steps, scaler.steps[1:]))",
        f"two overflows: {' -> '.join(map(repr, scaler.used()))}",
    )


@law("hysteresis consecutive overflows loss scale", clean=st.integers(1, 3))
def overflows_apart_are_not_added_up(trial: Trial, clean: int) -> None:
    """Where a backoff takes two overflows in a row, clean iterations between them begin the count anew."""
    if not trial.takes("hysteresis"):
        raise NotApplicableError("every overflow backs off")
    scaler = trial.start(init_scale=1024.0, growth_interval=NEVER, hysteresis=2)
    scaler.iterate(OVERFLOW, *[CLEAN] * clean, OVERFLOW, CLEAN)
    trial.require(
        "scaler.steps[-1].used == 1024.0",
        f"overflow, {clean} clean, overflow: {' -> '.join(map(repr, scaler.used()))}",
    )


@law("loss scale growth interval off by one", interval=st.sampled_from([1, 2, 3, 5]))
def growth_comes_after_the_interval(trial: Trial, interval: int) -> None:
    """The scale grows after exactly as many clean iterations as the growth interval says, and again after as many."""
    scaler = trial.start(init_scale=1024.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=interval)
    scaler.iterate(*[CLEAN] * (2 * interval + 1))
    expected = f"[1024.0] * {interval} + [2048.0] * {interval} + [4096.0]"
    trial.require(f"{USED} == {expected}", f"interval {interval}: {' '.join(f'{used:g}' for used in scaler.used())}")


@law(
    "overflow does not reset growth counter loss scale",
    interval=st.sampled_from([2, 3]),
    init=st.sampled_from([1024.0, 1.0]),
    rounds=st.integers(1, 3),
)
def overflow_restarts_the_streak(trial: Trial, interval: int, init: float, rounds: int) -> None:
    """An overflow restarts the count of clean iterations: without an interval of them in a row nothing grows."""
    scaler = trial.start(init_scale=init, growth_interval=interval)
    scaler.iterate(*([CLEAN] * (interval - 1) + [OVERFLOW]) * rounds, *[CLEAN] * interval)
    trial.require(
        "all(b.used <= a.used for a, b in zip(scaler.steps, scaler.steps[1:]))",
        f"interval {interval}, never so many clean in a row: {' -> '.join(f'{used:g}' for used in scaler.used())}",
    )


@law("loss scale becomes inf growth", init=st.sampled_from([1024.0, 2.0**126, 2.0**127]), clean=st.integers(1, 5))
def scale_never_becomes_inf(trial: Trial, init: float, clean: int) -> None:
    """However long the iterations are clean, the scale stays finite."""
    scaler = trial.start(init_scale=init, growth_interval=1)
    scaler.iterate(*[CLEAN] * clean)
    trial.require("math.isfinite(scaler.scale())", f"from {init!r}: {scaler.scale()!r}")


@law(
    "loss scale reaches 0 nan",
    found=[{"init": 1.0, "overflows": 160}],
    init=st.sampled_from([1.0, 2.0**-100, 2.0**-125]),
    overflows=st.sampled_from([1, 2, 30, 60, 160]),
)
def scale_never_becomes_zero(trial: Trial, init: float, overflows: int) -> None:
    """However many iterations overflow, the scale stays above zero."""
    scaler = trial.start(init_scale=init, hysteresis=1)
    scaler.iterate(*[OVERFLOW] * overflows)
    trial.require("scaler.scale() > 0", f"from {init!r}, {overflows} overflows: {scaler.scale()!r}")


@law("loss scale stuck at 0 never recovers", overflows=st.sampled_from([1, 5, 200]))
def scale_comes_back(trial: Trial, overflows: int) -> None:
    """After any number of overflows, clean iterations raise the scale again."""
    scaler = trial.start(init_scale=4.0, growth_interval=2)
    scaler.iterate(*[OVERFLOW] * overflows, *[CLEAN] * 8)
    trial.require(
        f"scaler.steps[-1].used > scaler.steps[{overflows}].used",
        f"{overflows} overflows, then 8 clean at an interval of 2: {scaler.steps[-1].used!r}",
    )


@law(
    "loss scale not power of two max",
    init=st.sampled_from([2.0**14, 2.0**126]),
    flags=st.lists(st.booleans(), min_size=1, max_size=5),
)
def powers_of_two_stay_powers_of_two(trial: Trial, init: float, flags: list[bool]) -> None:
    """With factors that are powers of two, so is every scale: scaling and unscaling round nothing."""
    scaler = trial.start(init_scale=init, growth_factor=2.0, backoff_factor=0.5, growth_interval=1)
    scaler.iterate(*flags)
    trial.require(
        "scaler.scale() in (0.0, math.inf) or math.frexp(scaler.scale())[0] == 0.5",
        f"from {init!r}: {scaler.scale()!r}",
    )

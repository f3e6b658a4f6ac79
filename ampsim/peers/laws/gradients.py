"""Laws of gradients: which are an overflow, and what the optimizer sees of the others."""

import math

from hypothesis import strategies as st

from ampsim.core.machine import round_to_float32
from ampsim.peers.laws.law import law
from ampsim.peers.laws.trial import CLEAN, NotApplicableError, Scaler, Trial

FLAGS = st.lists(st.booleans(), min_size=1, max_size=6)
SOUND = "not scaler.steps[-1].stepped or all(map(math.isfinite, scaler.steps[-1].unscaled))"
PLACES = st.integers(0, 2)


@law("loss scaled by wrong scale", flags=FLAGS)
def loss_is_multiplied_by_the_scale(trial: Trial, flags: list[bool]) -> None:
    """A loss is multiplied by the scale that the scaler says is in force, but for a rounding."""
    scaler = trial.start(init_scale=1024.0, growth_interval=2)
    scaler.iterate(*flags)
    trial.require(
        "abs(scaler.scale_loss(3.0) - 3 * scaler.scale()) <= 2.0**-23 * scaler.scale_loss(3.0)",
        f"a loss of 3.0 became {scaler.scale_loss(3.0)!r} at {scaler.scale()!r}",
    )


@law("gradients unscaled with updated loss scale growth step wrong gradient", flags=FLAGS)
def unscaling_gives_the_gradient_back(trial: Trial, flags: list[bool]) -> None:
    """Where the scale is a power of two, the optimizer sees the very gradient of the loss, in every clean iteration."""
    scaler = trial.start(init_scale=1024.0, growth_interval=2)
    for flag in flags:
        scaler.train(1.0, float("inf") if flag else -3.0)
    clean = [index for index, flag in enumerate(flags) if not flag]
    if not any(scaler.steps[index].unscaled for index in clean):
        raise NotApplicableError("it divides no gradients")
    wrong = [got for index in clean if (got := scaler.steps[index].unscaled) not in (None, (1.0, -3.0))]
    trial.require(
        f"all(scaler.steps[i].unscaled in (None, (1.0, -3.0)) for i in {clean})",
        f"the gradient (1.0, -3.0) became {wrong}",
    )


@law("unscale rounding loss scale precision", init=st.sampled_from([3.0, 1700.0, 3333.25, 0.7]))
def unscaling_rounds_once(trial: Trial, init: float) -> None:
    """At any scale, the optimizer sees the gradient of the loss to two units in the last place of float32."""
    scaler = trial.start(init_scale=round_to_float32(init))
    scaler.train(1.0, -3.0)
    require_unscaled(scaler)
    trial.require(
        "all(abs(a - b) <= 2.0**-22 * abs(b) for a, b in zip(scaler.steps[0].unscaled, (1.0, -3.0)))",
        f"at {init!r} the gradient (1.0, -3.0) became {scaler.steps[0].unscaled}",
    )


@law(
    "inf gradient not detected optimizer step",
    bad=st.sampled_from([math.inf, -math.inf]),
    place=PLACES,
)
def overflow_is_never_stepped_into(trial: Trial, bad: float, place: int) -> None:
    """The optimizer is not stepped where any gradient is infinite, of either sign."""
    scaler = trial.start(init_scale=1024.0)
    scaler.feed(*[bad if i == place else 1.0 for i in range(3)])
    require_verdict(scaler)
    trial.require("not scaler.steps[-1].stepped", f"{bad} at place {place}: stepped with {scaler.steps[-1].unscaled}")


@law("nan gradient not detected loss scale", place=PLACES)
def nan_is_an_overflow(trial: Trial, place: int) -> None:
    """A gradient that is no number counts as an overflow: no step, and the scale backs off as it does for inf."""
    scaler = trial.start(init_scale=1024.0, hysteresis=1)
    scaler.feed(*[math.nan if i == place else 1.0 for i in range(3)])
    scaler.iterate(CLEAN, CLEAN)
    trial.require(
        "not scaler.steps[0].stepped and scaler.steps[-1].used < 1024.0",
        f"stepped: {scaler.steps[0].stepped}; from 1024.0 to {scaler.steps[-1].used!r}",
    )


@law("step skipped although gradients finite false overflow", gradient=st.sampled_from([1.0, 0.0, 2.0**60, 3e38]))
def finite_gradients_are_never_skipped(trial: Trial, gradient: float) -> None:
    """Gradients that are all finite, however large, are stepped with, and do not lower the scale."""
    scaler = trial.start(init_scale=1024.0, hysteresis=1)
    scaler.feed(gradient, gradient, gradient)
    scaler.iterate(CLEAN, CLEAN)
    trial.require(
        "scaler.steps[0].stepped is not False and scaler.steps[-1].used >= 1024.0",
        f"three of {gradient!r}: stepped {scaler.steps[0].stepped}, from 1024.0 to {scaler.steps[-1].used!r}",
    )


@law("scale below 1 unscale overflow inf gradients found_inf not detected", init=st.sampled_from([0.5, 0.25]))
def scale_below_one_hides_no_overflow(trial: Trial, init: float) -> None:
    """Below a scale of one, dividing makes gradients larger: one that becomes infinite so is not stepped into."""
    scaler = trial.start(init_scale=init)
    scaler.feed(3e38, 1.0)
    require_gradients(scaler)
    trial.require(SOUND, f"at {init!r} a scaled gradient of 3e38 was stepped into as {scaler.steps[-1].unscaled}")


@law("loss scale subnormal inverse scale inf nan parameters", init=st.sampled_from([2.0**-127, 2.0**-129, 2.0**-140]))
def subnormal_scales_apply_nothing_infinite(trial: Trial, init: float) -> None:
    """A scale so small that its reciprocal is infinite puts no infinity and no NaN into the parameters."""
    scaler = trial.start(init_scale=init)
    scaler.train(1.0, 0.0)
    require_gradients(scaler)
    trial.require(SOUND, f"at {init!r} the gradient (1.0, 0.0) was stepped into as {scaler.steps[-1].unscaled}")


def require_verdict(scaler: Scaler) -> None:
    """Leave a peer alone that leaves the step to its caller."""
    if scaler.steps[-1].stepped is None:
        raise NotApplicableError("it leaves the step to its caller")


def require_gradients(scaler: Scaler) -> None:
    """Leave a peer alone that stepped, and shows not with what."""
    require_verdict(scaler)
    if scaler.steps[-1].stepped and not scaler.steps[-1].unscaled:
        raise NotApplicableError("it divides no gradients")


def require_unscaled(scaler: Scaler) -> None:
    """Leave a peer alone that divides no gradients."""
    if not scaler.steps[-1].unscaled:
        raise NotApplicableError("it divides no gradients" if scaler.steps[-1].stepped else "no step to look at")

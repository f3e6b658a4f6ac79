"""Laws of the constants that a scaler is made with."""

from typing import Any

from hypothesis import strategies as st

from ampsim.peers.laws.law import law
from ampsim.peers.laws.trial import CLEAN, OVERFLOW, NotApplicableError, RaisedError, Trial, written
from ampsim.testing.law import BrokenError

UNLIMITED = 1000  # iterations: no law runs so long without an overflow
NONSENSE = (("growth_factor", 0.5), ("backoff_factor", 2.0), ("init_scale", 0.0), ("init_scale", -1.0))


@law("initial loss scale ignored clamped", init=st.sampled_from([1024.0, 1.0, 3.0, 2.0**20, 2.0**30]))
def initial_scale_is_honoured(trial: Trial, init: float) -> None:
    """The first loss is multiplied by the initial scale that was asked for."""
    scaler = trial.start(init_scale=init)
    scaler.iterate(CLEAN)
    trial.require(
        f"scaler.steps[0].used == {written(init)}", f"init_scale={written(init)}, used {scaler.steps[0].used!r}"
    )


@law(
    "growth factor backoff factor ignored loss scale",
    field=st.sampled_from(["growth_factor", "backoff_factor"]),
    larger=st.sampled_from([4.0, 8.0]),
)
def factors_are_honoured(trial: Trial, field: str, larger: float) -> None:
    """A growth multiplies the scale by the growth factor that was asked for, a backoff by the backoff factor."""
    if not trial.takes(field):
        raise NotApplicableError(f"{field} is fixed")
    grows = field == "growth_factor"
    asked = larger if grows else 1 / larger
    patience = {"hysteresis": 1} if trial.takes("hysteresis") else {}  # one overflow is a backoff
    scaler = trial.start(init_scale=1024.0, growth_interval=2 if grows else UNLIMITED, **{field: asked}, **patience)
    scaler.iterate(*[not grows] * (4 if grows else 1), CLEAN, CLEAN)
    first = next((used for used in scaler.used() if used != 1024.0), 1024.0)
    trial.require(
        f"{1024.0 * asked!r} in [step.used for step in scaler.steps]", f"{field}={asked}: from 1024.0 to {first!r}"
    )


@law(
    "GradScaler validate arguments growth_factor backoff_factor",
    choice="it checks no constants; whoever passes nonsense has it",
    nonsense=st.sampled_from(NONSENSE),
)
def nonsense_is_refused(trial: Trial, nonsense: tuple[str, float]) -> None:
    """A growth factor of at most one, a backoff factor of at least one, an initial scale of zero or less is refused."""
    field, value = nonsense
    if not trial.takes(field):
        raise NotApplicableError(f"{field} is fixed")
    try:
        trial.start_exactly(**_alone(trial, field, value))
    except RaisedError:
        return
    call = trial.lines.pop().removeprefix("scaler = ")
    trial.lines += ["try:", f"    {call}", "except Exception:", "    return"]
    trial.claim = "False"
    raise BrokenError(f"took {field}={value!r}")


def _alone(trial: Trial, field: str, value: float) -> dict[str, Any]:
    """Return fields with this one; a factor of both goes with its inverse."""
    other = {"growth_factor": "backoff_factor", "backoff_factor": "growth_factor"}.get(field)
    paired = other is not None and trial.has_one_factor
    return {field: value, **({other: 1 / value} if paired and other else {})}


@law("loss scale minimum not respected", init=st.sampled_from([4.0, 1.5]), least=st.sampled_from([1.0, 0.25, 2.0**-10]))
def overflows_end_at_the_minimum(trial: Trial, init: float, least: float) -> None:
    """Under overflows without end the scale comes down to the minimum that was asked for, and stays there."""
    if not trial.takes("min_scale"):
        raise NotApplicableError("it has no minimum")
    scaler = trial.start(init_scale=init, min_scale=least, hysteresis=1)
    scaler.iterate(*[OVERFLOW] * 15, CLEAN)
    trial.require(
        f"scaler.steps[-1].used == {written(least)}",
        f"from {init!r}, asked for at least {written(least)}: {scaler.steps[-1].used!r}",
    )

"""Laws of what a scaler keeps: a checkpoint, what is shared, what is left after it gave up."""

from hypothesis import strategies as st

from ampsim.peers.laws.law import law
from ampsim.peers.laws.trial import CLEAN, OVERFLOW, EndedError, NotApplicableError, Trial
from ampsim.testing.law import BrokenError

FLAGS = st.lists(st.booleans(), min_size=1, max_size=6)
AT_THE_END = 40  # overflows in a row, after which who gives up has done so twice
TWICE = """kinds = []
while len(kinds) < 2:
    try:
        scaler.iterate(True)
    except Exception as error:
        kinds.append(type(error))"""


@law("loss scaler state_dict scale not restored resume", flags=FLAGS)
def saved_state_has_the_scale(trial: Trial, flags: list[bool]) -> None:
    """A fresh scaler that loads a saved state has the scale that was saved."""
    scaler = trial.start(init_scale=1024.0, growth_interval=2)
    scaler.iterate(*flags)
    was, saved = scaler.scale(), scaler.save("saved")
    resumed = trial.start("resumed", init_scale=64.0, growth_interval=2)
    resumed.restore("saved", saved)
    trial.require(f"resumed.scale() == {was!r}", f"saved {was!r}, loaded {resumed.scale()!r}")


@law("loss scaler state_dict growth tracker hysteresis not saved resume checkpoint", before=FLAGS, after=FLAGS)
def saved_state_goes_on_alike(trial: Trial, before: list[bool], after: list[bool]) -> None:
    """A scaler resumed from a saved state uses the scales that the one that was saved goes on to use."""
    patience = {"hysteresis": 2} if trial.takes("hysteresis") else {}
    scaler = trial.start(init_scale=1024.0, growth_interval=3, **patience)
    scaler.iterate(*before)
    saved, done = scaler.save("saved"), len(scaler.steps)
    scaler.iterate(*after, CLEAN)
    went_on = scaler.used()[done:]
    resumed = trial.start("resumed", init_scale=1024.0, growth_interval=3, **patience)
    resumed.restore("saved", saved)
    resumed.iterate(*after, CLEAN)
    trial.require(
        f"[step.used for step in resumed.steps] == {went_on!r}", f"went on {went_on}, resumed {resumed.used()}"
    )


@law("loss scaler global state shared between instances", flags=FLAGS)
def new_scaler_is_fresh(trial: Trial, flags: list[bool]) -> None:
    """A second scaler of the same process begins at its own initial scale, with a streak of its own."""
    scaler = trial.start(init_scale=1024.0, growth_interval=3)
    scaler.iterate(*flags)
    second = trial.start("second", init_scale=1024.0, growth_interval=3)
    second.iterate(CLEAN, CLEAN, CLEAN, CLEAN)
    alone = trial.start("third", init_scale=1024.0, growth_interval=3)
    alone.iterate(CLEAN, CLEAN, CLEAN, CLEAN)
    trial.require(
        "[step.used for step in second.steps] == [step.used for step in third.steps]",
        f"after {flags}: {second.used()}, then {alone.used()}",
    )


@law("overflow handling raises ZeroDivisionError after minimum loss scale")
def giving_up_is_said_again(trial: Trial) -> None:
    """A scaler that gave up by an exception gives up by the same one if it is asked again."""
    scaler, said = trial.start(init_scale=2.0, growth_interval=2), []
    for _ in range(AT_THE_END):
        try:
            scaler.iterate(OVERFLOW)
        except EndedError as error:
            said.append(str(error))
    if len(said) < 2:
        raise NotApplicableError("it never gives up")
    kinds = [each.partition(":")[0] for each in said]
    if kinds[0] != kinds[1]:
        trial.lines[1:] = TWICE.splitlines()
        trial.claim = "kinds[0] is kinds[1]"
        raise BrokenError(f"{said[0]}; then {said[1]}")

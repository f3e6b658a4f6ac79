"""One example of a law: a peer's scaler is started and driven, and every call is noted as it stands in a test."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from ampsim.core import dialects
from ampsim.core.machine import Rule
from ampsim.core.replay.fold import states
from ampsim.peers.peer import Peer, Step
from ampsim.peers.wire import PeerLostError, PeerRaisedError
from ampsim.testing.law import BrokenError

CLEAN, OVERFLOW = False, True  # flags of `Scaler.iterate`
FIELDS = {"hysteresis": "hysteresis", "max_loss_scale": "max_scale", "factor": "factor"}  # options of dialects
MINIMUM = {"bmtrain.OptimManager": "min_loss_scale"}  # an option there; fairseq's of this name ends the run


class NotApplicableError(Exception):
    """The law asks for what the peer does not have; the text says what."""


class EndedError(Exception):
    """The example ends without a verdict: the peer refused to start so, or gave up as its dialect says."""


class RaisedError(AssertionError):
    """The peer raised where nothing may be raised."""


class Trial:
    """One example.

    Attributes:
        peer: the one that is judged.
        lines: what was done, as Python.
        scalers: by their names in `lines`.
        claim: the expression that was false; "" where the peer raised.
    """

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.lines: list[str] = []
        self.scalers: dict[str, Scaler] = {}
        self.claim = ""
        self._flags: Sequence[bool] = ()  # of the last line that is iterations
        self._rule = dialects.get(peer.dialect, **peer.options) if peer.dialect else Rule()

    @property
    def least(self) -> float:
        """The minimum that the dialect has fixed, or 0."""
        return 0.0 if self.takes("min_scale") else self._rule.min_scale or 0.0

    @property
    def has_one_factor(self) -> bool:
        """Whether growth and backoff have one factor, and its inverse."""
        return "factor" in fields(self.peer)

    def takes(self, field: str) -> bool:
        """Return whether `start` takes a field of `Rule`."""
        return field in fields(self.peer) or (field in ("growth_factor", "backoff_factor") and self.has_one_factor)

    def constants(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `start` is given for these fields of `Rule`.

        Raises:
            NotApplicableError: the peer fixes one of them, otherwise.
        """
        given, known = {}, fields(self.peer)
        for field, value in wanted.items():
            if field in known:
                given[known[field]] = value
            elif "factor" in known and field in ("growth_factor", "backoff_factor"):
                factor = value if field == "growth_factor" else 1 / value
                if given.setdefault(known["factor"], factor) != factor:
                    raise NotApplicableError("growth and backoff have one factor")
            elif getattr(self._rule, field) != value:
                raise NotApplicableError(f"{field} is fixed")
        return given

    def start(self, name: str = "scaler", /, **wanted: Any) -> "Scaler":
        """Make a fresh scaler of these fields of `Rule`; one that refuses them ends the example."""
        try:
            return self.start_exactly(name, **wanted)
        except RaisedError as error:
            raise EndedError(str(error)) from error

    def start_exactly(self, name: str = "scaler", /, **wanted: Any) -> "Scaler":
        """Make a fresh scaler; raise RaisedError if it refuses."""
        given = self.constants(wanted)
        shown = ", ".join(f"{key}={written(value)}" for key, value in given.items())
        self.scalers[name] = Scaler(self, name, self.followed(given))
        self.note(f"{name} = Scaler({shown})")
        self.ask(lambda: self.peer.start(**given))
        return self.scalers[name]

    def note(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def note_flags(self, name: str, flags: Sequence[bool]) -> None:
        """Add iterations; those of one scaler in a row become one line."""
        if self.lines[-1].startswith(f"{name}.iterate("):
            flags = (*self._flags, *flags)
            self.lines.pop()
        self._flags = flags
        self.lines.append(f"{name}.iterate({runs(flags)})")

    def ask(self, call: Callable[[], Any]) -> Any:
        """Return what the peer answers; its own exceptions become one kind, what it lacks another."""
        try:
            return call()
        except NotImplementedError as error:
            raise NotApplicableError(str(error)) from None
        except PeerLostError:
            raise
        except PeerRaisedError as error:
            raise RaisedError(f"raised {error.kind}: {error.text}") from error
        except Exception as error:
            raise RaisedError(f"raised {type(error).__name__}: {error}") from error

    def require(self, claim: str, seen: str) -> None:
        """Fail unless `claim`, a Python expression over the scalers by name, is true.

        Args:
            claim: it stands in the test, too.
            seen: the values, in words.
        """
        if not eval(claim, {"math": math, **self.scalers}):  # noqa: S307  a law's own text
            self.claim = claim
            raise BrokenError(seen)

    def followed(self, given: Mapping[str, Any]) -> Rule | None:
        """Return the rule that the dialect makes of what `start` is given; None if it takes no such constants."""
        names = self.peer.constants
        try:
            named = {names[key]: value for key, value in given.items()}
            return dialects.get(self.peer.dialect, **{**self.peer.options, **named}) if self.peer.dialect else None
        except (TypeError, ValueError):
            return None


class Driver:
    """Iterations, each kept in `steps`, in words that a law and its test share: their text stands in the test."""

    steps: list[Any]

    def iterate(self, *flags: bool) -> None:
        """Go through one iteration per flag, whose gradients have an infinity where it is true."""
        for found_inf in flags:
            self.take(1.0, float("inf") if found_inf else 1.0, 1.0)

    def train(self, *gradients: float) -> None:
        """Go through one iteration with these gradients of the loss, scaled as the loss is."""
        self.take(*[self.scale_loss(gradient) for gradient in gradients])

    def feed(self, *scaled: float) -> None:
        """Go through one iteration with these gradients of the scaled loss."""
        self.take(*scaled)

    def take(self, *scaled: float) -> None:
        """Go through one iteration, and keep it."""
        self.steps.append(self.step(scaled))

    def scale_loss(self, loss: float) -> float:
        raise NotImplementedError

    def step(self, scaled: tuple[float, ...]) -> Any:
        raise NotImplementedError


class Scaler(Driver):
    """A scaler of the peer; what is done to it is noted."""

    def __init__(self, trial: Trial, name: str, rule: Rule | None) -> None:
        self.trial, self.name, self.rule = trial, name, rule
        self.steps: list[Step] = []
        self.fed: list[tuple[float, ...]] = []

    def iterate(self, *flags: bool) -> None:
        self.trial.note_flags(self.name, flags)
        super().iterate(*flags)

    def train(self, *gradients: float) -> None:
        self.trial.note(f"{self.name}.train({', '.join(map(written, gradients))})")
        super().train(*gradients)

    def feed(self, *scaled: float) -> None:
        self.trial.note(f"{self.name}.feed({', '.join(map(written, scaled))})")
        super().feed(*scaled)

    def step(self, scaled: tuple[float, ...]) -> Step:
        """Go through one iteration; end the example where the dialect gives up, too."""
        self.fed.append(scaled)
        try:
            step: Step = self.trial.ask(lambda: self.trial.peer.step(scaled))
        except RaisedError as error:
            if self.gives_up():
                raise EndedError(str(error)) from error
            raise
        return step

    def gives_up(self) -> bool:
        """Return whether the dialect raises on the gradients so far."""
        if self.rule is None:
            return False
        try:
            for _ in states(self.rule, (not all(map(math.isfinite, each)) for each in self.fed)):
                pass
        except Exception:
            return True
        return False

    def scale(self) -> float:
        scale: float = self.trial.ask(self.trial.peer.scale)
        return scale

    def scale_loss(self, loss: float) -> float:
        scaled: float = self.trial.ask(lambda: self.trial.peer.scale_loss(loss))
        return scaled

    def used(self) -> list[float]:
        """Return the scale of each iteration."""
        return [step.used for step in self.steps]

    def save(self, name: str) -> object:
        """Return the state, under a name in the test."""
        self.trial.note(f"{name} = {self.name}.state()")
        return self.trial.ask(self.trial.peer.state)

    def restore(self, name: str, state: object) -> None:
        """Load a state that has this name in the test."""
        self.trial.note(f"{self.name}.load({name})")
        self.trial.ask(lambda: self.trial.peer.load(state))


def fields(peer: Peer) -> Mapping[str, str]:
    """Return field of `Rule`, or 'factor' for both factors -> what the peer's `start` calls it."""
    if not peer.dialect:
        return {field: name for name, field in peer.constants.items()}
    dialect = dialects.ALL[peer.dialect]
    extra = {MINIMUM[peer.dialect]: "min_scale"} if peer.dialect in MINIMUM else {}
    known = {**FIELDS, **extra, **dialect.parameters}
    return {known[theirs]: name for name, theirs in peer.constants.items() if theirs in known}


def runs(flags: Sequence[bool]) -> str:
    """Write arguments, many equal ones in a row as one."""
    grouped = [(flag, len(list(run))) for flag, run in groupby(flags)]
    return ", ".join(f"*[{flag}] * {n}" if n > 3 else ", ".join([str(flag)] * n) for flag, n in grouped)


def written(value: object) -> str:
    """Write a value as Python reads it back."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, float) and value > 0:
        mantissa, exponent = math.frexp(value)
        return f"2.0**{exponent - 1}" if mantissa == 0.5 and abs(exponent) > 11 else repr(value)
    return repr(value)

"""A right peer keeps every law; each planted bug dies by its law, and what it shows is a test that fails."""

from collections.abc import Sequence
from random import Random
from types import MappingProxyType
from typing import Any

import pytest

from ampsim.core import dialects
from ampsim.core.machine import Rule, State, init
from ampsim.peers import load, names
from ampsim.peers.laws import LAWS, judge
from ampsim.peers.laws.drift import drawn_setting, drift, run
from ampsim.peers.laws.emit import emitted, prove, pruned
from ampsim.peers.laws.trial import NotApplicableError, Trial, fields
from ampsim.peers.peer import Step
from ampsim.peers.wire import PeerLostError
from tests.peers.planted import PLANTED, Right

EXAMPLES = 15


@pytest.mark.parametrize("law", LAWS)
def test_a_right_peer_keeps_every_law(law: str) -> None:
    verdict = judge(Right(), LAWS[law], examples=EXAMPLES)
    assert verdict.outcome == ("not applicable" if law == "giving_up_is_said_again" else "passed"), verdict.seen


@pytest.mark.parametrize(("law", "peer"), [(law, peer) for law, peers in PLANTED.items() for peer in peers])
def test_a_planted_bug_dies_by_its_law(law: str, peer: type[Right]) -> None:
    verdict = judge(peer(), LAWS[law], examples=EXAMPLES)
    assert verdict.outcome == ("deviation" if LAWS[law].choice else "defect")
    assert verdict.seen
    assert verdict.trial is not None
    assert verdict.trial.claim


def test_every_law_has_a_planted_bug() -> None:
    assert PLANTED.keys() == LAWS.keys() - {"giving_up_is_said_again"}


class Ends(Right):
    asked = 0

    def step(self, scaled: Sequence[float]) -> Step:
        self.asked += 1
        raise PeerLostError("it ended")


def test_a_peer_that_was_lost_is_trouble_and_not_asked_again() -> None:
    peer = Ends()
    verdict = judge(peer, LAWS["nan_is_an_overflow"], examples=EXAMPLES)
    assert (verdict.outcome, verdict.seen, peer.asked) == ("trouble", "it ended", 1)


class OneFactor(Right):
    constants = MappingProxyType({"scale_factor": "factor"})


def test_one_factor_is_of_growth_and_of_backoff() -> None:
    settings = [drawn_setting(OneFactor(), Random(seed)) for seed in range(9)]  # noqa: S311  no secret
    assert {each["growth_factor"] * each["backoff_factor"] for each in settings} == {1.0}
    assert len({each["growth_factor"] for each in settings}) > 2
    with pytest.raises(NotApplicableError, match="growth and backoff have one factor"):
        Trial(OneFactor()).constants({"growth_factor": 2.0, "backoff_factor": 0.25})


@pytest.mark.parametrize("name", names())
def test_deviations_and_constants_name_what_there_is(name: str) -> None:
    peer = load(name)
    assert peer.deviations.keys() <= LAWS.keys()
    options = dialects.ALL[peer.dialect].options if peer.dialect else {}
    assert peer.constants.keys() == {*fields(peer).values()} | {
        name for name, theirs in peer.constants.items() if theirs in options
    }


class Torch(Right):
    """The reference machine by torch's rule, which it says that it is."""

    dialect = "torch.amp.GradScaler"
    constants = MappingProxyType({"init_scale": "init", "growth_interval": "interval"})

    def start(self, **constants: Any) -> None:
        self.following = Rule(**constants)
        self.now = init(self.following)


class GivesUp(Right):
    """The reference machine by DeepSpeed's rule, which gives up at its minimum."""

    dialect = "deepspeed.DynamicLossScaler"
    constants = MappingProxyType({"init_scale": "init"})

    def start(self, **constants: Any) -> None:
        self.following = dialects.get(self.dialect, init=constants["init_scale"])
        self.now = init(self.following)


class GrowsEarly(Torch):
    def after(self, found_inf: bool) -> State:
        after = super().after(found_inf)
        return State(after.scale, after.growth_tracker + 1) if found_inf else after


def test_a_dialect_that_differs_drifts() -> None:
    same, differs = (drift(peer(), histories=100) for peer in (Torch, GrowsEarly))
    assert (same.differing, same.refused, same.first) == (0, 0, "")
    assert differs.differing > 10
    assert "the package" in differs.first


def test_of_who_gives_up_the_scales_before_are_compared() -> None:
    used, followed = run(GivesUp(), {"init_scale": 4.0}, [True] * 9)
    assert used == followed == [4.0, 4.0, 2.0, None]


@pytest.mark.peer("torch")
@pytest.mark.usefixtures("warm_python")
def test_an_emitted_test_stands_alone_and_fails() -> None:
    peer = load("torch")
    verdict = judge(peer(), LAWS["subnormal_scales_apply_nothing_infinite"], examples=EXAMPLES)
    text = emitted(peer, verdict, "2.13.0")
    assert "ampsim" not in text
    assert len(text.splitlines()) < 110
    right = text.replace("2.0**-129", "1.0")
    assert prove(peer(), [text, right, text.replace("GradScaler", "NoScaler")]) == [
        "AssertionError",
        "",
        "AttributeError",
    ]


def test_methods_that_a_test_does_not_name_are_left_out() -> None:
    methods = ["def __init__(self): self.b()", "def b(self): self.c()", "def c(self): pass", "def d(self): e()"]
    piece = "\n    ".join(["class A:", *methods])
    (left,) = pruned([piece], "x = A()")
    assert "def c" in left
    assert "def d" not in left

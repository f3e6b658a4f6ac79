"""A right peer keeps every law; each planted bug dies by its law, and what it shows is a test that fails."""

import ast
import builtins
import dis
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from types import CodeType, MappingProxyType
from typing import Any

import pytest

from ampsim.core import dialects
from ampsim.core.machine import Rule, State, init
from ampsim.peers import REGISTRY, load
from ampsim.peers.laws import LAWS, judge, judging
from ampsim.peers.laws.drift import _shown, drawn_setting, drift, run
from ampsim.peers.laws.emit import _maker, emitted, prove
from ampsim.peers.laws.judging import CHOICE, ENDS, OWN, TORCH, UNASKED, judge_all
from ampsim.peers.laws.reports import NONE, reported
from ampsim.peers.laws.source import _Bare, _imports, driver_of, flat, prune
from ampsim.peers.laws.subject import (
    Driven,
    GaveUpError,
    UnaskableError,
    ceiling,
    constants,
    fields,
    followed,
    subject_of,
)
from ampsim.peers.peer import Step
from ampsim.peers.wire import PeerLostError, PeerRaisedError
from ampsim.testing.kit.laws import LAWS as KIT
from tests.golden import agree_part
from tests.peers.planted import PLANTED, Right

EXAMPLES = 15
GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("law", LAWS)
def test_a_right_peer_keeps_every_law(law: str) -> None:
    verdict = judge(Right(), LAWS[law], examples=EXAMPLES)
    assert verdict.result.outcome == ("not applicable" if law == "giving_up_is_said_again" else "passed"), verdict.seen


@pytest.mark.parametrize(("law", "peer"), [(law, peer) for law, peers in PLANTED.items() for peer in peers])
def test_a_planted_bug_dies_by_its_law(law: str, peer: type[Right]) -> None:
    verdict = judge(peer(), LAWS[law], examples=EXAMPLES)
    assert verdict.result.outcome == ("expected failure" if law in CHOICE else "failed")
    assert verdict.seen
    assert verdict.example is not None
    assert verdict.scalers or law in CHOICE
    told = [verdict.result.outcome, repr(verdict.example.drawn), verdict.result.text]
    told += [] if verdict.seen in verdict.result.text else [verdict.seen]
    if peer is PLANTED[law][0] and law in [*LAWS][:6]:
        text = emitted(peer, verdict, "1.0")
        told += [*text.splitlines()[1:4], text[text.index("def make") : text.index("def test_")]]
    text = "\n".join(line for line in "\n".join(told).splitlines() if not line.startswith(("  law ", "  issue ")))
    agree_part(GOLDEN / "planted.txt", f"{law} {peer.__name__}", text)


def test_every_law_has_a_planted_bug_a_promise_and_words_for_a_search() -> None:
    assert PLANTED.keys() == LAWS.keys() - {"giving_up_is_said_again"}
    assert {*TORCH, *OWN, *ENDS, *CHOICE} <= LAWS.keys()
    assert not {*TORCH} & {*OWN}
    assert {*UNASKED} <= KIT.keys() - LAWS.keys()


@pytest.mark.parametrize(
    ("law", "outcome"), [("overflow_backs_off_once", "expected failure"), ("scale_stays_normal", "failed")]
)
def test_what_is_documented_is_by_choice_but_at_the_ends_of_float32(law: str, outcome: str) -> None:
    class Documented(PLANTED[law][0]):  # type: ignore[misc]
        deviations = MappingProxyType({law: "on purpose: https://example.org"})

    class Kept(Right):
        deviations = MappingProxyType({law: "on purpose: https://example.org"})

    assert judge(Documented(), LAWS[law], examples=EXAMPLES).result.outcome == outcome
    kept = judge(Kept(), LAWS[law], examples=EXAMPLES).result.outcome
    assert kept == ("unexpected pass" if outcome == "expected failure" else "passed")


class Ends(Right):
    asked = 0

    def step(self, scaled: Sequence[float]) -> Step:
        self.asked += 1
        if self.asked < 2:  # which tells what it divides
            return super().step(scaled)
        raise PeerLostError("it ended")


@pytest.mark.parametrize("law", ["never_steps_on_nonfinite_below_scale_one", "finite_gradients_are_never_skipped"])
def test_a_step_that_raises_keeps_the_parameters_finite_and_no_other_law(law: str) -> None:
    class Loud(Right):
        def step(self, scaled: Sequence[float]) -> Step:
            if self.get_scale() < 1 or max(scaled) > 1e38:
                raise ValueError("out of range")
            return super().step(scaled)

    verdict = judge(Loud(), LAWS[law])
    assert verdict.result.outcome == ("passed" if law.startswith("never") else "failed")
    assert verdict.seen == ("" if law.startswith("never") else "raised ValueError: out of range")


def test_a_peer_that_takes_no_such_constants_is_not_judged() -> None:
    class Picky(Right):
        def start(self, **constants: Any) -> None:
            if "growth_interval" in constants:
                raise ValueError("no interval, please")
            super().start(**constants)

    result = judge(Picky(), LAWS["overflow_backs_off_once"], examples=EXAMPLES).result
    assert (result.outcome, result.text) == ("not applicable", "no interval, please")


def test_as_many_examples_are_asked_as_are_wanted() -> None:
    class Counting(Right):
        starts = 0

        def start(self, **constants: Any) -> None:
            Counting.starts += 1
            super().start(**constants)

    judge(Counting(), LAWS["new_scaler_is_fresh"], examples=1)
    few = Counting.starts
    judge(Counting(), LAWS["new_scaler_is_fresh"])
    assert Counting.starts > 4 * few


def test_only_a_thread_of_its_own_repository_reports_what_a_peer_breaks() -> None:
    assert reported(load("torch")(), "scale_comes_back").startswith("reported of torch: https://github.com/pytorch/")
    assert reported(load("accelerate")(), "scale_comes_back").startswith("also seen in: https://github.com/pytorch/")
    assert reported(load("flax")(), "scale_comes_back") == NONE


def test_a_law_that_cannot_be_told_here_is_not_asked() -> None:
    class Elsewhere(Right):
        unasked = MappingProxyType({"scale_stays_finite": "the kernel of a GPU"})

    result = judge(Elsewhere(), LAWS["scale_stays_finite"]).result
    assert (result.outcome, result.text) == ("not applicable", "the kernel of a GPU")


def test_a_peer_that_was_lost_cannot_be_judged_and_is_not_asked_again() -> None:
    peer = Ends()
    verdict = judge(peer, LAWS["new_scaler_is_fresh"], examples=EXAMPLES)
    assert (verdict.result.outcome, verdict.seen, peer.asked) == ("refused", "it ended", 2)
    assert verdict.subject is not None
    assert verdict.subject.name == "right"


def test_a_peer_that_was_lost_drifts_from_nothing() -> None:
    with pytest.raises(PeerLostError, match="it ended"):
        drift(LostTorch())


def test_laws_that_are_asked_of_one_peer_ask_it_once_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    subjects: list[str] = []

    def counted(peer: Right, **given: Any) -> Any:
        subjects.append(peer.name)
        return subject_of(peer, **given)

    monkeypatch.setattr(judging, "subject_of", counted)
    laws = [LAWS[name] for name in ("overflow_never_raises_the_scale", "clean_step_keeps_the_scale")]
    assert [verdict.result.outcome for verdict in judge_all(Right(), laws, examples=1)] == ["passed"] * 2
    assert subjects == ["right"]


def test_of_a_law_that_was_not_broken_there_is_nothing_to_emit() -> None:
    verdict = judge(Right(), LAWS["skip_budget"], examples=1)
    with pytest.raises(ValueError, match=r"^skip_budget passed on right: there is nothing to emit$"):
        emitted(Right, verdict, "1.0")


def test_a_scale_is_shown_with_the_digits_of_float32() -> None:
    assert _shown([16777215.0, None]) == "16777215 gave up"


def test_a_peer_is_asked_neither_for_what_it_lacks_nor_for_what_it_has_fixed() -> None:
    class SavesNothing(Right):
        def state_dict(self) -> object:
            raise NotImplementedError

    result = judge(SavesNothing(), LAWS["a_state_dict_continues_the_run"], examples=1).result
    assert (result.outcome, result.text) == ("not applicable", "it is without state_dict")
    with pytest.raises(UnaskableError, match=r"^growth_factor is fixed$"):
        constants(Torch(), {"growth_interval": 2, "growth_factor": 4.0})
    chainer = load("chainer")()
    follows = followed(chainer, {})
    assert follows is not None
    assert constants(chainer, {"growth_interval": 2, "growth_factor": follows.growth_factor}) == {"interval": 2}


def test_a_peer_whose_state_fails_is_not_one_that_has_none() -> None:
    class Fails(Right):
        def state_dict(self) -> object:
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        subject_of(Fails())


class OneFactor(Right):
    constants = MappingProxyType({"scale_factor": "factor"})


def test_one_factor_is_of_growth_and_of_backoff() -> None:
    settings = [drawn_setting(OneFactor(), Random(seed)) for seed in range(9)]  # noqa: S311  no secret
    assert {each["growth_factor"] * each["backoff_factor"] for each in settings} == {1.0}
    assert len({each["growth_factor"] for each in settings}) > 2
    assert constants(OneFactor(), {"growth_factor": 2.0, "backoff_factor": 0.25}) == {"scale_factor": 4.0}
    possible = subject_of(OneFactor()).traits.possible(Rule(backoff_factor=2.0**-16))
    assert (possible.growth_factor, possible.backoff_factor) == (2.0**16, 2.0**-16)


def test_a_scale_in_fp16_has_a_ceiling_of_which_no_parameter_speaks() -> None:
    assert ceiling(dialects.get("mpx.DynamicLossScaling")) == 65504.0
    assert [ceiling(Rule(max_scale=most)) for most in (None, 2.0**20)] == [None, 2.0**20]


def test_one_factor_is_emitted_as_it_was_asked() -> None:
    made = _maker("make", OneFactor, judge(OneFactor(), LAWS["skip_budget"], examples=1))
    assert 'scale_factor=max(rule["growth_factor"], 1 / rule["backoff_factor"])' in made


@pytest.mark.parametrize("name", REGISTRY)
def test_deviations_and_constants_name_what_there_is(name: str) -> None:
    peer = load(name)
    assert peer.deviations.keys() | peer.unasked.keys() <= LAWS.keys()
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


def test_a_peer_with_fixed_factors_is_asked_for_no_others() -> None:
    fixed, free = subject_of(Torch()), subject_of(Right())
    assert ("factors" in fixed.lacking, "factors" in free.lacking) == (True, False)
    assert fixed.traits.possible(Rule(growth_factor=4.0, backoff_factor=0.25)) == Rule()


class LostTorch(Torch):
    def history(self, *_: object) -> list[float | None]:  # as `Remote` has it
        raise PeerLostError("it ended")


class Late(Torch):
    dialect = "roundpipe.GradScaler[async]"

    def start(self, **constants: Any) -> None:
        self.following = Rule(delay=1, **constants)
        self.now = init(self.following)


class LateAndBacksOffByHalf(Late):
    def after(self, found_inf: bool) -> State:
        return super().after(found_inf and self.now.growth_tracker == 0)


def test_the_budget_of_skips_is_of_the_newest_scale() -> None:
    outcomes = [
        judge(peer(), LAWS["skip_budget"], examples=EXAMPLES).result.outcome for peer in (Late, LateAndBacksOffByHalf)
    ]
    assert outcomes == ["passed", "failed"]
    assert judge(Late(), LAWS["overflow_backs_off_once"], examples=EXAMPLES).result.outcome == "failed"


class GivesUp(Right):
    """The reference machine by DeepSpeed's rule, which gives up at its minimum."""

    dialect = "deepspeed.DynamicLossScaler"
    constants = MappingProxyType({"init_scale": "init", "growth_interval": "interval"})

    def start(self, **constants: Any) -> None:
        given = {self.constants[name]: value for name, value in constants.items()}
        self.following = dialects.get(self.dialect, **given)
        self.now = init(self.following)


class GivesUpInAnotherWay(GivesUp):
    def after(self, found_inf: bool) -> State:
        try:
            return super().after(found_inf)
        except Exception:
            self.following = self.following.replace(quirks=())
            self.now = State(0.0)
            raise

    def divide(self, scaled: Sequence[float], scale: float) -> tuple[float, ...]:
        return tuple(each / scale for each in scaled)


def test_a_peer_that_gives_up_is_judged_until_then_and_asked_again() -> None:
    for law in ("overflow_backs_off_once", "scale_stays_normal", "giving_up_is_said_again"):
        assert judge(GivesUp(), LAWS[law], examples=EXAMPLES).result.outcome == "passed"
    verdict = judge(GivesUpInAnotherWay(), LAWS["giving_up_is_said_again"], examples=EXAMPLES)
    assert (verdict.result.outcome, "then ZeroDivisionError" in verdict.seen) == ("failed", True)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_leads_to_giving_up_as_inf_does(bad: float) -> None:
    peer, given = GivesUp(), {"init_scale": 4.0}
    scaler = Driven(peer, given, followed(peer, given), frozenset())
    assert [scaler.step([1.0, bad]).used for _ in range(3)] == [4.0, 4.0, 2.0]
    with pytest.raises(GaveUpError):
        scaler.step([1.0, bad])
    assert [step.used for _, step in scaler.steps] == [4.0, 4.0, 2.0]


def test_what_a_peer_raises_has_its_name_and_is_no_giving_up_where_no_rule_is_known() -> None:
    class Raises(Right):
        def step(self, scaled: Sequence[float]) -> Step:
            raise PeerRaisedError("right", "a.b.TooSmallError", "no way down")

    scaler = Driven(Raises(), {}, None, frozenset())
    with pytest.raises(Exception, match=r"^no way down$") as caught:
        scaler.step([1.0, math.inf])
    assert type(caught.value).__mro__[:2] == (type(caught.value), Exception)
    assert type(caught.value).__name__ == "TooSmallError"


class GrowsEarly(Torch):
    def after(self, found_inf: bool) -> State:
        after = super().after(found_inf)
        return State(after.scale, after.growth_tracker + 1) if found_inf else after


def test_a_dialect_that_differs_drifts() -> None:
    same, differs = (drift(peer(), histories=100) for peer in (Torch, GrowsEarly))
    assert (same.differing, same.refused, same.first) == (0, 0, "")
    assert differs.differing > 10
    assert " x..: the package 3 1.5 3 3, the dialect 3 1.5 1.5 3" in differs.first, "the shortest"


def test_a_setting_that_is_refused_is_drawn_anew_and_at_last_each_history_is_refused() -> None:
    class Picky(Torch):
        def start(self, **constants: Any) -> None:
            if constants.get("init_scale") != 3.0:
                raise ValueError("another, please")
            super().start(**constants)

    class Never(Torch):
        def start(self, **constants: Any) -> None:
            raise ValueError("none, please")

    picky, never = drift(Picky(), histories=100), drift(Never(), histories=60)
    assert (picky.refused, picky.differing, picky.iterations > 100) == (0, 0, True)
    assert (never.refused, never.iterations, never.first) == (60, 0, "")


def test_of_who_gives_up_the_scales_before_are_compared() -> None:
    used, followed = run(GivesUp(), {"init_scale": 4.0}, [True] * 9)
    assert used == followed == [4.0, 4.0, 2.0, None]


@pytest.mark.peer("torch")
@pytest.mark.usefixtures("warm_python")
def test_an_emitted_test_stands_alone_and_fails() -> None:
    peer = load("torch")
    verdict = judge(peer(), LAWS["never_steps_on_nonfinite_at_subnormal_scales"], examples=EXAMPLES)
    text = emitted(peer, verdict, "2.13.0")
    assert "ampsim" not in text
    assert len(text.splitlines()) < 100
    right = text.replace("2.0**-128", "1.0")
    assert prove(peer(), [text, right, text.replace("GradScaler", "NoScaler")]) == [
        "AssertionError",
        "",
        "AttributeError",
    ]
    agree_part(GOLDEN / "planted.txt", "torch", text)


@pytest.mark.usefixtures("warm_python")
def test_a_process_that_ends_before_its_last_test_proves_none() -> None:
    tests = ["def test_a(): assert False", "import os\ndef test_b(): os._exit(3)", "def test_c(): pass"]
    with pytest.raises(RuntimeError, match=r"right: 1 of 3 tests ended; the process said last: nothing"):
        prove(Right(), tests)


def read_by(code: CodeType) -> Iterator[str]:
    """Yield the names of no function of its own that a program reads."""
    yield from (each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for inner in code.co_consts:
        yield from read_by(inner) if isinstance(inner, CodeType) else ()


@pytest.mark.parametrize("name", REGISTRY)
def test_a_driver_that_is_printed_brings_all_that_it_names(name: str) -> None:
    peer = load(name)
    calls = [f"scaler.{call}()" for call in ("start", "scale_loss", "step", "state_dict", "load_state_dict")]
    test = "\n".join([f"scaler = {peer.__name__}()", *calls])
    texts, imports = driver_of(peer, test)
    code = compile("\n".join(["from collections import namedtuple", *imports, *texts, test]), name, "exec")
    defined = {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_NAME"}
    assert {*read_by(code)} <= defined | {*dir(builtins)}
    assert "ampsim" not in "\n".join(imports) or name.startswith("ampsim")


def parsed(text: str) -> dict[str, ast.stmt]:
    return {node.name: node for node in ast.parse(text).body}


def test_methods_that_a_test_does_not_name_are_left_out() -> None:
    methods = ["def __init__(self): self.b()", "def b(self): self.c()", "def c(self): pass", "def d(self): pass"]
    pieces = parsed("\n    ".join(["class A:", *methods]))
    prune(pieces, "x = A()")
    assert "def c" in (left := ast.unparse(pieces["A"]))
    assert "def d" not in left
    pieces = parsed("class A:\n    def d(self): pass")
    prune(pieces, "x = A()")
    assert ast.unparse(pieces["A"]) == "class A:\n    pass"


def test_imports_are_those_whose_names_are_used_and_nothing_that_is_bare_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "driver.py"
    file.write_text("import numpy as np\nimport os.path\nfrom math import inf, nan as none\nimport ampsim.core\n")
    assert [*_imports([file], "np, os, none")] == [
        "import numpy as np",
        "import os.path",
        "from math import nan as none",
    ]
    assert [*_imports([file], "numpy, path, inf, nan, ampsim")] == ["from math import inf"]
    text = "class A:\n name: str\n name = floor = 1\n name = 2\n def f(self):\n  'Says nothing.'"
    assert (
        ast.unparse(_Bare().visit(ast.parse(text)))
        == "class A:\n    name = floor = 1\n\n    def f(self):\n        pass"
    )


TWO_CLASSES = """
class Base:
    def start(self, **constants):
        self.seen = [*constants]
    def size(self):
        return len(self.seen)
class Derived(Base):
    def start(self, **constants):
        super().start(**constants)
        self.seen.append("b")
"""


class Base:
    pass


class Derived(Base):
    pass


def test_a_class_is_written_with_what_it_derives_from() -> None:
    (own,) = flat(Derived, parsed(TWO_CLASSES)).values()
    text = ast.unparse(own)
    assert "super" not in text
    defined: dict[str, Any] = {}
    exec(text, defined)  # noqa: S102  as the test that is printed
    driver = defined["Derived"]()
    driver.start(a=1.0)
    assert driver.seen == ["a", "b"]
    assert driver.size() == 2


@pytest.mark.parametrize("call", ["return super().m(a + 1)", "super().m(a)"])
def test_a_call_of_super_that_returns_or_is_given_something_else_stays(call: str) -> None:
    text = f"class Base:\n def m(self, a): return a\nclass Derived(Base):\n def m(self, a): {call}"
    assert set(flat(Derived, parsed(text))) == {"Base", "Derived"}


def test_a_peer_that_is_lost_when_it_starts_anew_is_not_one_that_refuses_its_constants() -> None:
    class Lost(Right):
        starts = 0

        def start(self, **constants: Any) -> None:
            self.starts += 1
            if self.starts > 2:
                raise PeerLostError("ended by SIGSEGV")
            super().start(**constants)

    result = judge(Lost(), LAWS["overflow_backs_off_once"]).result
    assert (result.outcome, "ended by SIGSEGV" in result.text) == ("refused", True)

"""The small parts of the kit and of the laws of ranks, asked directly: what each says of a table of cases."""

import gc
import math
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import find as shortest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

import ampsim.testing  # noqa: E402
from ampsim.core.machine import Rule, round_to_float32  # noqa: E402
from ampsim.testing import FromFlag, Subject, Traits, examples, known, source  # noqa: E402
from ampsim.testing.alarm import OverdueError, place  # noqa: E402
from ampsim.testing.conductor.deadlock import Step  # noqa: E402
from ampsim.testing.emit.run_emitted import require_failure, run_apart  # noqa: E402
from ampsim.testing.kit import check, choices  # noqa: E402
from ampsim.testing.kit import judge as scalers  # noqa: E402
from ampsim.testing.kit.choices import Seen, _habits  # noqa: E402
from ampsim.testing.kit.example import Example, Recorded, readable, shorten  # noqa: E402
from ampsim.testing.kit.expected import backed_off, scales, trajectory  # noqa: E402
from ampsim.testing.kit.laws import LAWS  # noqa: E402
from ampsim.testing.kit.laws.protocol import modelled  # noqa: E402
from ampsim.testing.kit.laws.state_machine import STREAK  # noqa: E402
from ampsim.testing.kit.strategies import rules  # noqa: E402
from ampsim.testing.kit.subject import as_subject  # noqa: E402
from ampsim.testing.kit.subject import find as find_subject  # noqa: E402
from ampsim.testing.law import (  # noqa: E402
    LAWS_VERSION,
    BrokenError,
    Law,
    RaisedError,
    Result,
    address,
    by_cause,
    chosen,
    failure_of,
    settled,
    without_findings,
)
from ampsim.testing.load import load  # noqa: E402
from ampsim.testing.loop import judge as loops  # noqa: E402
from ampsim.testing.loop.laws.ranks import _takes_group  # noqa: E402
from ampsim.testing.ranks import judge  # noqa: E402
from ampsim.testing.ranks.gradients import DDP, FSDP2, Replicated, Sharded, bits, kind_of  # noqa: E402
from ampsim.testing.ranks.judge import find  # noqa: E402
from ampsim.testing.ranks.laws import LAWS as RANK_LAWS  # noqa: E402
from ampsim.testing.ranks.scenario import NONE, RankRecord, Scenario, scenarios  # noqa: E402
from ampsim.testing.ranks.scenario import Seen as OnRank  # noqa: E402
from ampsim.testing.ranks.threads import Late  # noqa: E402
from tests.golden import Golden  # noqa: E402
from tests.testing.loops import batches, sgd  # noqa: E402
from tests.testing.strangers import Stranger  # noqa: E402


def test_each_public_name_is_there() -> None:
    assert {name: getattr(ampsim.testing, name).__name__.rpartition(".")[2] for name in ampsim.testing.__all__} == {
        name: name for name in ampsim.testing.__all__
    }
    assert {*ampsim.testing.__all__} <= {*dir(ampsim.testing)}
    with pytest.raises(AttributeError) as refused:
        _ = ampsim.testing.check
    names = ampsim.testing.__all__
    assert str(refused.value) == f"module 'ampsim.testing' has no attribute 'check': expected one of {names}"
    assert names == sorted(names)


def test_a_public_name_whose_package_is_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'", name="hypothesis")

    monkeypatch.setattr(ampsim.testing.importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"pip install -c constraints.txt -e '.\[testing\]'"):
        _ = ampsim.testing.check_scaler


# --------------------------------------------------------------------------------------------------------- findings


@pytest.mark.parametrize("target", ["", ":", "math", "math:", ":pi"])
def test_a_target_has_a_module_and_an_attribute(target: str) -> None:
    with pytest.raises(ValueError, match=f"^'{target}': expected module:attribute, e.g. torch.amp:GradScaler$"):
        load(target)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("held:scale", "'held:scale': held has no 'scale'; expected one of inner, other"),
        ("held:other.b.c", "'held:other.b.c': held has no 'b'; did you mean 'bit'?"),
        ("needs_all:X", "needs_all: No module named 'needs'; install what it needs"),
        ("needs:X", "no module 'needs'; run from its folder, or install it"),
        ("needs.part:X", "no module 'needs'; run from its folder, or install it"),
        ("needs.py:X", "no module 'needs'; run from its folder, or install it"),
        ("held.py:X", "no module 'held.py'; say held:NAME"),
    ],
)
def test_what_a_target_names_and_is_not_there_is_told(
    target: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_all.py").write_text("import needs")
    held = SimpleNamespace(inner=1, other=SimpleNamespace(bit=2, _b=3), _scale=4)
    monkeypatch.setitem(sys.modules, "held", held)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        load(target)
    assert str(refused.value) == said


def test_an_import_that_raises_is_told_by_the_line_that_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "falls.py").write_text("def fall():\n    raise KeyError('x')\nfall()")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        load("falls:X")
    assert str(refused.value) == (
        f"importing falls raised KeyError: 'x' ({tmp_path}/falls.py:2); expected a module that can be imported"
    )


@pytest.mark.parametrize(
    ("issue", "said"),
    [
        ("a/b#1", "https://github.com/a/b/issues/1"),
        ("a-1/b.c_d#123", "https://github.com/a-1/b.c_d/issues/123"),
        ("https://github.com/a/b#1", "https://github.com/a/b#1"),
        ("see a/b#1", "see a/b#1"),
        ("a/b#1 and more", "a/b#1 and more"),
        ("", ""),
    ],
)
def test_an_issue_is_an_address(issue: str, said: str) -> None:
    assert address(issue) == said


@pytest.mark.parametrize(
    ("traits", "asked", "known"),
    [
        ({}, 2.0**127, 2.0**127),
        ({"scale_dtype": "float64"}, 2.0**127, 2.0**64),
        ({"min_scale": 1.0, "max_scale": 8.0}, 3.0, 3.0),
        ({"min_scale": 1.0}, 0.5, 1.0),
        ({"max_scale": 8.0, "powers_of_two": True}, 100.0, 8.0),
        ({"powers_of_two": True}, 3.0, 4.0),
    ],
)
def test_a_law_asks_for_what_the_scaler_may_know(traits: dict[str, Any], asked: float, known: float) -> None:
    given: list[object] = []
    law = Law(
        name="it", law="", function=lambda new_scale, factor, kernel: given.extend((new_scale, factor, kernel)),
        draws=dict.fromkeys(("new_scale", "factor", "kernel")),
    )  # fmt: skip
    subject = Subject(torch.amp.GradScaler, Traits(**traits, without=frozenset({"fused"})))
    Example(subject, law).judge(new_scale=asked, factor=(0.7, 2.0), kernel=True)
    assert given == [known, (0.5, 2.0) if "powers_of_two" in traits else (0.7, 2.0), False]


@settings(max_examples=20)
@given(rules(growth=False), rules())
def test_rules_move_the_scale_and_reach_the_top_where_they_may(far: dict[str, Any], any_: dict[str, Any]) -> None:
    assert far["init_scale"] <= 2.0**16
    for rule in (far, any_):
        assert rule["backoff_factor"] < 1 < rule["growth_factor"]
        torch.amp.GradScaler("cpu", **rule)


def test_rules_begin_at_the_top() -> None:
    assert shortest(rules(), lambda rule: rule["init_scale"] == 2.0**127)["growth_interval"] == 1


LOSS, CLEAN, UNSCALE, STEP, UPDATE = ("scale", 0), ("clean", 0), ("unscale_", 0), ("step", 0), ("update", 0)


@pytest.mark.parametrize(
    ("calls", "settled"),
    [
        ([LOSS, CLEAN, UNSCALE, STEP, UPDATE], [1, 1, 1, 1, 1]),
        ([CLEAN, UNSCALE, STEP, LOSS], [1, 0, 0, 1]),  # no loss
        ([LOSS, UNSCALE, ("none", 0), STEP], [1, 0, 1, 0]),  # no gradient
        ([LOSS, CLEAN, UNSCALE, CLEAN, ("inf", 0), ("none", 0), ("clean", 1)], [1, 1, 1, 0, 0, 0, 1]),  # exchanged
        ([UPDATE, ("update(8.0)", 0), LOSS, UPDATE, CLEAN, STEP], [0, 0, 1, 1, 1, 0]),  # no scale yet
    ],
)
def test_where_torchs_answer_is_one_of_several_it_is_asked_of_a_drop_in_alone(calls: Any, settled: Any) -> None:
    assert [int(due is not None) for due in modelled(Traits(), {}, calls)] == settled
    assert None not in modelled(Traits(drop_in=True), {}, calls)


@pytest.mark.parametrize("name", STREAK)
def test_what_is_counted_is_shown_by_growth(name: str) -> None:
    drawn, derives = {"rule": {"growth_interval": 3}, "found_inf": [True]}, LAWS[name].derives
    more, expected = (derives[each](Traits(), **drawn) for each in ("more", "expected"))
    assert expected[-2] < expected[-1]
    assert len([True, *more]) == len(expected)


@pytest.mark.parametrize(
    ("maker", "is_torchs", "inherits"),
    [
        (torch.amp.GradScaler, True, False),
        (type("Child", (torch.amp.GradScaler,), {}), True, True),
        (lambda rule: FromFlag(lambda: 1.0, lambda found_inf: None), False, False),
        (lambda rule: 1 / 0, False, False),
    ],
)
def test_what_a_scaler_inherits_from(maker: Any, is_torchs: bool, inherits: bool) -> None:
    subject = as_subject(maker)
    assert (subject.is_torchs, subject.inherits) == (is_torchs, inherits)


@pytest.mark.parametrize(("make", "takes"), [(sgd, False), (lambda scaler, group: 0, True), (dict, False)])
def test_who_takes_a_group_is_seen_in_what_it_takes(make: Any, takes: bool) -> None:
    assert _takes_group(make) is takes


def test_how_a_law_is_settled() -> None:
    law, reason = LAWS["skip_budget"], "a link"
    assert settled(law, None, None) == ("passed", "")
    holds = "skip_budget holds, but was expected to be broken: a link; take it off the list"
    assert settled(law, None, reason) == ("unexpected pass", holds)
    assert settled(law, "it broke", None) == ("failed", "it broke")
    assert settled(law, "it broke", reason) == settled(law, BrokenError("it"), reason) == ("expected failure", reason)
    another = ("failed", "x\n  expected a link: another kind of failure")
    assert settled(law, RaisedError("x"), reason) == settled(law, AssertionError("x"), reason) == another
    assert [failure_of(f"{each} x") for each in ("raised", "it raised", "raised_once")] == [
        RaisedError, BrokenError, BrokenError,
    ]  # fmt: skip
    assert settled(law, RaisedError("x"), "raised x") == ("expected failure", "raised x")


def test_findings_have_one_cause_by_their_whole_history_their_choice_or_what_they_raise() -> None:
    scaler, history, scale = "\n  scaler   a", "\n  history  b", "\n  scale    c"
    told = {
        "skip_budget": f"fell{scaler}{history}{scale}",
        "scale_comes_back": f"rose{scaler}{history}{scale}",
        "scale_stays_normal": f"fell{scaler}{history}",  # which is no whole history
        "clean_step_is_taken": f"rose{scaler}{history}",
        "new_scaler_is_fresh": f"raised X: 1{scaler}",
        "scale_stays_finite": "raised X: 1",
        "skip_is_reported": "raised X: 2\n  choice   d",
        "skip_is_per_optimizer": "fell\n  choice   d",
    }
    results = [Result(LAWS[name], "it", "failed", f"{name}: {text}") for name, text in told.items()]
    also = {each.law.name: text.partition("\n  also     ")[2] for each, text in by_cause(results)}
    assert also == {
        "skip_budget": "scale_comes_back",
        "scale_stays_normal": "",
        "clean_step_is_taken": "",
        "new_scaler_is_fresh": "scale_stays_finite",
        "skip_is_reported": "skip_is_per_optimizer",
    }


def test_findings_of_one_cause_are_one_by_way_of_a_third() -> None:
    told = ["raised X: 1", "raised X: 1\n  choice   d", "fell\n  choice   d", "it raised X: 1", "it raised X: 1"]
    names = ("skip_budget", "scale_comes_back", "scale_stays_normal", "clean_step_is_taken", "new_scaler_is_fresh")
    results = [Result(LAWS[name], "it", "failed", f"{name}: {text}") for name, text in zip(names, told, strict=True)]
    assert [text.partition("\n  also     ")[2] for _, text in by_cause(results)] == [", ".join(names[1:3]), "", ""]


def test_a_new_law_that_breaks_warns_whoever_asked_and_is_no_finding() -> None:
    def asks(outcome: Any) -> list[Result]:
        return without_findings([Result(new, "it", outcome, "it fell")])

    new = Law(name="it", law="It holds.", function=list, since=LAWS_VERSION)
    with pytest.warns(UserWarning, match=f"^new in {LAWS_VERSION}, to fail in the next version: it fell$") as said:
        asks("failed")
    here = test_a_new_law_that_breaks_warns_whoever_asked_and_is_no_finding.__code__.co_firstlineno + 6
    assert [(each.filename, each.lineno) for each in said] == [(__file__, here)]
    for outcome in ("passed", "not applicable", "expected failure"):
        assert len(asks(outcome)) == 1


def test_the_laws_of_some_names_come_in_their_own_order() -> None:
    names = [*LAWS][:5]
    assert [each.name for each in chosen(LAWS, names[::-1])] == names
    assert [*chosen(LAWS, None)] == [*LAWS.values()]
    assert chosen(LAWS, []) == []


def test_one_choice_of_two_scalers_is_two_findings() -> None:
    results = [Result(LAWS["skip_budget"], each, "failed", "skip_budget: fell\n  choice   d") for each in ("a", "b")]
    assert [(each.target, "also" in text) for each, text in by_cause(results)] == [("a", False), ("b", False)]


def test_a_replay_declares_what_the_scaler_was_judged_with() -> None:
    traits = Traits(max_scale=8.0, without=frozenset({"pickle"}))
    example = SimpleNamespace(failing={3: 1}, subject=SimpleNamespace(name="m:S"), traits=traits)
    shown = LAWS["a_state_dict_is_never_torn"]._replay(example)
    declared = "--trait max_scale=8.0 --without pickle"
    assert shown == f"ampsim check m:S {declared} --law a_state_dict_is_never_torn --schedule 3:1"
    example.subject.name, example.failing = "my scaler", {3: 1, 5: 2}
    shown = LAWS["a_state_dict_is_never_torn"]._replay(example)
    assert shown == f"ampsim check 'my scaler' {declared} --law a_state_dict_is_never_torn --schedule 3:1,5:2"


@pytest.mark.parametrize(("count", "last"), [(59, 0), (60, 3), (61, 3)])
def test_what_takes_long_is_asked_where_there_are_examples_enough(
    count: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check.warm_up()
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(check.drawing, "run", lambda *given: asked.append((given[3], len(given[4]))))
    LAWS["growth_waits_for_the_interval"].shortest(as_subject(torch.amp.GradScaler), count)
    assert asked == [(count, last)]


def test_what_a_law_needs_and_a_scaler_lacks_is_listed_in_order() -> None:
    subject = Subject(Stranger, Traits(static=True, without=frozenset({"unscale_", "refusals", "override", "pickle"})))
    assert LAWS["any_calls_do_what_torchs_do"].lacks(subject) == "growth, override, refusals, unscale_"


def test_the_traceback_of_what_a_scaler_raises_begins_in_it() -> None:
    named: dict[str, Any] = {"theirs": descend, "OverdueError": OverdueError}
    exec(compile("def kit(): theirs(1)\ndef alone(): raise OverdueError('x')", check.__file__, "exec"), named)  # noqa: S102
    for call, last in (("kit", ["descend", "descend", "ring"]), ("alone", ["alone"])):
        with pytest.raises(OverdueError) as raised:
            named[call]()
        shown = [each.name for each in traceback.extract_tb(check._theirs(raised.value.__traceback__))]
        assert shown[-len(last) :] == last
        assert (len(shown) == len(last)) is (call == "kit")  # where nothing follows it is all there is


def test_who_has_turned_the_collection_of_garbage_off_finds_it_off() -> None:
    check.warm_up()
    for turn in (gc.disable, gc.enable):
        turn()
        before = gc.isenabled()
        check.warm_up.__wrapped__()
        assert gc.isenabled() is before


def test_laws_are_chosen_by_all_levels_that_are_given_and_stand_as_they_are_registered() -> None:
    with pytest.raises(ValueError, match=r"^level=6: expected 0 to 5: "):
        scalers.chosen(levels=[0, 6])
    assert scalers.chosen(levels=[]) == scalers.chosen()
    for level in range(6):
        assert [each.name for each in scalers.chosen(levels=[level])] == [
            name for name, each in LAWS.items() if each.level == level
        ]


@pytest.mark.parametrize(
    ("target", "reason", "outcome"),
    [
        (torch.amp.GradScaler, known.TORCH["scale_stays_normal"], "unexpected pass"),
        (type("Child", (torch.amp.GradScaler,), {}), known.TORCH["scale_stays_normal"], "passed"),
        (type("Child", (torch.amp.GradScaler,), {}), "another", "unexpected pass"),
    ],
)
def test_who_inherits_from_torchs_scaler_may_do_better(
    target: Any, reason: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scalers, "judged", lambda law, name, *_: Result(law, name, "unexpected pass", "it holds"))
    laws = scalers.chosen(names=["scale_stays_normal"])
    (result,) = scalers.judge(target, laws, expected={"scale_stays_normal": reason})
    assert (result.outcome, result.text) == (outcome, "it holds" * (outcome != "passed"))


def test_the_laws_of_threads_are_asked_as_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(scalers, "check_scaler", lambda *target, **given: asked.append((target, given)))
    traits = Traits()
    scalers.check_threads(Stranger, traits=traits, examples=7, expected_failures={"x": "y"})
    given = {"traits": traits, "levels": [3], "examples": 7, "expected_failures": {"x": "y"}}
    assert asked == [((Stranger,), given)]


HELD = Subject(Stranger, Traits(min_scale=1.0, without=frozenset({"pickle"})), "mine")


def test_what_is_declared_is_added_to_what_a_subject_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "held", SimpleNamespace(it=HELD))
    found = find_subject("held:it", max_scale=8.0, without=frozenset({"fused"}))
    assert (found.name, found.traits.min_scale, found.traits.max_scale) == ("held:it", 1.0, 8.0)
    assert found.traits.without == {"pickle", "fused"}
    assert as_subject(HELD) is HELD
    again = as_subject(HELD, Traits(static=True))
    assert (again.name, again.traits) == ("mine", Traits(static=True))
    with pytest.raises(ValueError, match=r"^without='a_x': no such feature"):
        Traits(without=frozenset({"x_x", "b_x", "a_x", "c_x"}))
    called = type("Scaler", (torch.amp.GradScaler,), {"without": "pickle"})  # a word of its own
    assert as_subject(called).lacking == as_subject(torch.amp.GradScaler).lacking


def an_example(**traits: Any) -> Example:
    return Example(Subject(Stranger, Traits(**traits)), LAWS["skip_budget"])


@pytest.mark.parametrize(
    ("init", "scales", "may"),
    [(4.0, [], False), (2.0, [], True), (4.0, [4.0], True), (8.0, [8.0], False), (8.0, [8.0, 4.0], True)],
)
def test_a_scaler_may_give_up_at_its_floor(init: float, scales: list[float], may: bool) -> None:
    for traits, expected in (({"min_scale": 1.0}, may), ({}, False)):
        example = an_example(**traits)
        example.requested, example.scales = Rule(init_scale=init), scales
        assert example._may_give_up() is expected


def test_what_an_example_knows_of_its_scaler() -> None:
    floored, fixed = an_example(min_scale=0.1), an_example(without=frozenset({"factors"}))
    assert floored.words(["min_scale"]) == {"min_scale": round_to_float32(0.1)}
    assert (floored.repeats, fixed.repeats, fixed.floor) == (1, 16, None)
    for init in (4.0, 8.0):
        fixed.make(init_scale=init)
    assert fixed.requested == Rule(init_scale=4.0)


@pytest.mark.parametrize(("count", "told"), [(7, "1.0 -> 2.0 -> 3.0 -> 4.0 -> 5.0 -> 6.0 -> 7.0"),
                                             (9, "1.0 -> 2.0 -> 3.0 -> ... -> 7.0 -> 8.0 -> 9.0")])  # fmt: skip
def test_a_story_shows_seven_scales(count: int, told: str) -> None:
    example = an_example()
    example.scales = [float(each + 1) for each in range(count)]
    example.drawn = {"new_scale": 3.0, "kernel": True, "loads": False, "found_inf": [True], "rule": {}, "micro": 4}
    assert dict(example.story())["scale"] == told
    assert dict(example.story())["with"] == "new_scale=3.0, kernel=True"


def test_an_assertion_of_a_law_without_words_is_told() -> None:
    """And one of the scaler's own is an exception."""
    named: dict[str, Any] = {}
    exec(compile("def judge(): assert not 'here'", check.__file__, "exec"), named)  # noqa: S102  as a law's
    assert check._broken(SimpleNamespace(judge=named["judge"]), {}) == "it does not hold"
    assert check._broken(SimpleNamespace(judge=list), {}) == ""

    def theirs() -> None:
        raise AssertionError

    with pytest.raises(AssertionError):
        check._broken(SimpleNamespace(judge=theirs), {})


def test_examples_are_asked_in_their_order_each_once_and_the_shortest_failure_is_the_last() -> None:
    draws = (("n", st.integers(0, 9)),)
    asked: list[int] = []
    examples.run(lambda n: asked.append(n), draws, [{"n": 50}, {"n": 51}], 30, [{"n": 60}, {"n": 61}])
    assert (asked[:2], asked[-2:]) == ([50, 51], [60, 61])
    assert len(asked) == len({*asked})

    def fails(n: int) -> None:
        if n >= 3:
            asked.append(n)
            raise SystemExit(n)

    with pytest.raises(SystemExit):
        examples.run(fails, draws, (), 30, [{"n": 60}])
    assert asked[-1] == 3


def helper(one: int) -> int:
    """Has words."""
    for _ in range(3):
        one += 1
    return one


def test_the_lines_of_a_function_are_those_behind_its_docstring() -> None:
    assert source.body(helper) == ["    for _ in range(3):", "        one += 1", "    return one"]
    assert source.body(descend)[0] == "    def ring() -> None:"
    defined = source.definitions(Path(__file__))
    assert defined["helper"].names == {"int", "one", "range"}
    assert "descend" not in source.closure(["helper"], defined)


def test_a_driver_imports_what_is_no_part_of_python_and_its_own_words_come_first(tmp_path: Path) -> None:
    own, shared = tmp_path / "own.py", tmp_path / "shared.py"
    imports = [
        "import math",
        "import mathlike",
        "from contextlib import suppress",
        "from types import X",
        "from typesof import Y",
    ]
    own.write_text("\n".join([*imports, "a = 1", "def b(): return a"]))
    shared.write_text(
        "import cmath\nfrom mathlike import no_such\na = 2\n@c\ndef d(): return b(), e\nc = e = 3", "utf-8"
    )
    words = source.Words(own, shared)
    assert words.imports == ["import mathlike", "from typesof import Y"]
    assert [*words.asked(["d"])] == ["a", "b", "d", "c"]
    assert {name: each.lines for name, each in words.asked(["d"]).items()} == {
        "a": ["a = 1"], "b": ["def b(): return a"], "d": ["@c", "def d(): return b(), e"], "c": ["c = e = 3"],
    }  # fmt: skip
    assert {"math", "suppress", "cmath"} <= words.modules.keys()
    assert words.code(["a"]) is words.code(["a"])
    named: dict[str, Any] = {}
    for code in words.code(["b"]):
        exec(code, named)  # noqa: S102
    assert named["b"]() == 1


def descend(depth: int) -> None:
    def ring() -> None:
        raise OverdueError("did not end")

    if depth:
        descend(depth - 1)
    else:
        ring()


@pytest.mark.parametrize(("depth", "told"), [(0, 1), (2, 3), (3, 4), (5, 4)])
def test_where_an_alarm_rang_is_told_by_three_calls_and_the_last(depth: int, told: int) -> None:
    with pytest.raises(OverdueError) as late:
        examples.run(partial(descend, depth), (), (), 1)
    calls = place(late.value).split(", ")
    assert [call.rpartition(" in ")[2] for call in calls] == ["descend"] * told
    assert len({*calls[:-1]}) <= 2  # the first one is called by the kit, the others by themselves
    assert calls[-1] == f"test_kit_parts.py:{descend.__code__.co_firstlineno + 7} in descend"  # who rang


@pytest.mark.parametrize(("limit", "kept"), [(None, 600.0), (0, 0), (7.0, 7.0)])
def test_a_law_of_a_loop_has_ten_minutes_or_as_long_as_is_said(
    limit: float | None, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    for where in ("ampsim.testing.judge.alarm", "ampsim.testing.loop.judge.alarm"):
        monkeypatch.setattr(where, lambda seconds: limits.append(seconds) or nullcontext())
    (result,) = loops.judge_loop(sgd, batches(), ["it_learns"], limit=limit)
    assert (result.outcome, limits) == ("passed", [kept, kept])


# ------------------------------------------------------------------------------------------------------ the story


def test_numbers_and_events_are_written_short() -> None:
    assert readable("fell to 2.938735877055719e-39, 1e-05, 0.5, 16777216.0, 1.5e+30, 12345678.0, 340282e+33") == (
        "fell to 2**-128, 1e-05, 0.5, 2**24, 1.5e+30, 12345678.0, 340282e+33"
    )
    assert readable("3.0517578125e-05, 9.5367431640625e-07") == "3.0517578125e-05, 2**-20"
    assert shorten(["inf"] * 3 + ["clean"] + ["inf"] * 2) == "inf x 3, clean, inf x 2"
    assert shorten([]) == ""


def test_a_recorded_scaler_notes_calls_and_is_what_it_was() -> None:
    notes: list[str] = []
    scaler = Stranger(4.0)
    recorded = Recorded(scaler, notes.append)
    recorded.scale(torch.ones(()))
    recorded.set_growth_factor(3.0)
    assert (recorded.get_scale(), recorded.up, recorded._none if hasattr(recorded, "_none") else None) == (
        4.0,
        3.0,
        None,
    )
    recorded.up = 5.0
    recorded.set_growth_interval(7)
    assert (scaler.up, notes) == (5.0, ["scale()", "set_growth_factor(3.0)", "set_growth_interval(7)"])


# ----------------------------------------------------------------------------------------------- what is expected


def test_scales_of_the_reference(golden: Golden) -> None:
    """Of each kind of traits, over overflows of one or several optimizers and overrides."""
    flags: list[Any] = [False, True, (False, False), (False, True), True, False, False, False]
    lines = []
    for traits in (
        Traits(), Traits(min_scale=4.0, max_scale=16.0), Traits(hysteresis=2), Traits(delay=1), Traits(static=True),
        Traits(scale_dtype="float64"),
    ):  # fmt: skip
        rule = Rule(init_scale=8.1, growth_factor=3.0, backoff_factor=0.3, growth_interval=2)
        lines += [f"{scales(traits, rule, flags)}", f"  {scales(traits, rule, flags, {0: 5.0, 3: 7.3, 8: 1.0})}"]
        lines += [f"  {trajectory(traits, flags[:5])} {trajectory(traits, flags[:5], {'init_scale': 2.0})}"]
        lines += [f"  {backed_off(traits)}"]
    golden("\n".join(lines))


# -------------------------------------------------------------------------------------- choices that would excuse

SHOWN: dict[str, BaseException] = {
    "set_": AttributeError("no attribute 'set_growth_factor'"),
    "state_dict": NotImplementedError("state_dict"),
    "load_state_dict": TypeError("load_state_dict() missing"),
    "unscale_": AttributeError("unscale_"),
    "pickle": TypeError("cannot pickle 'lock' object"),
    "update": TypeError("update() takes 1 positional argument"),
    "another": ValueError("set_growth_factor, state_dict, unscale_, pickle"),
    "taken": AssertionError("it was taken"),
    "untaken": AssertionError("it was mistaken"),
    "resumed": AssertionError("after resuming the scales are"),
    "later": AssertionError("the scales after resuming"),
    "no last_step": AssertionError("the scaler has no last_step"),
    "raised None": AssertionError("it raised None"),
    "saw": AssertionError("optimizer 1 saw a gradient"),
    "optimizer 0": AssertionError("optimizer 0 saw a gradient"),
}


def test_what_a_failure_shows_a_scaler_to_lack(golden: Golden) -> None:
    asked = [*choices.CALLS, *choices.SHOWN, "refusals", "fused"]
    subjects = {"a stranger": as_subject(Stranger), "torch's": as_subject(torch.amp.GradScaler)}
    golden("\n".join(
        f"{kind}, {name}: {[feature for feature in asked if choices._lacks(subject, feature, seen)]}"
        for kind, subject in subjects.items() for name, seen in SHOWN.items()
    ))  # fmt: skip


def by_a_machine(traits: Traits, lowest: float = 0.0, **fixed: float) -> Callable[..., Seen]:
    """Use the reference machine with these traits, which knows some constants alone, and gives up at the lowest."""

    def used(found_inf: list[bool], **constants: float) -> Seen:
        seen = scales(traits, Rule(**{**constants, **fixed}), found_inf)
        ended = next((at for at, scale in enumerate(seen) if scale < lowest), len(seen))
        raised = OverflowError() if ended < len(seen) else None
        kept = seen[-1] * (1 + 1e-9) if traits.scale_dtype == "float64" else seen[-1]
        return Seen(SimpleNamespace(get_scale=lambda: kept), seen[:ended], raised)

    return used


MACHINES = {
    "torch's": by_a_machine(Traits()),
    "static": by_a_machine(Traits(static=True)),
    "powers of two": by_a_machine(Traits(powers_of_two=True)),
    "two and a half": by_a_machine(Traits(), growth_factor=2.0, backoff_factor=0.5),
    "a floor": by_a_machine(Traits(min_scale=2.0)),
    "a ceiling": by_a_machine(Traits(max_scale=2.0**20)),
    "a double": by_a_machine(Traits(scale_dtype="float64")),
    "patient": by_a_machine(Traits(hysteresis=2, hysteresis_refill="clean")),
    "patient until it grows": by_a_machine(Traits(hysteresis=2, hysteresis_refill="growth")),
    "patient each time": by_a_machine(Traits(hysteresis=3, hysteresis_refill="backoff")),
    "patient once": by_a_machine(Traits(hysteresis=2, hysteresis_refill=frozenset())),
    "late": by_a_machine(Traits(delay=2)),
    "gives up": by_a_machine(Traits(), lowest=1.0),
}


def test_the_habits_of_a_scaler_are_seen(golden: Golden) -> None:
    golden("\n".join(f"{name}: {dict(_habits(used))}".replace("frozenset()", "{}") for name, used in MACHINES.items()))


def test_what_begins_a_count_anew_may_be_two_things() -> None:
    refill = frozenset({"clean", "backoff"})
    assert dict(_habits(by_a_machine(Traits(hysteresis=3, hysteresis_refill=refill))))["hysteresis_refill"] == refill


def test_what_is_to_be_declared_in_python_and_in_the_shell(golden: Golden) -> None:
    subject = Subject(Stranger)
    changes: list[dict[str, Any]] = [
        {"min_scale": 2.0**-30},
        {"static": True, "without": frozenset({"pickle", "factors"})},
        {"gives_up": (OverflowError, ValueError)},
        {"hysteresis": 2, "hysteresis_refill": frozenset({"clean"})},
        {"hysteresis": 2, "hysteresis_refill": frozenset({"clean", "backoff"})},
        {"hysteresis": 2, "hysteresis_refill": frozenset()},
        {"skips": "all"},
        {"without": frozenset({"unscale_", "setters", "pickle", "float16"})},
    ]
    declared = [choices._declared(subject, {"hysteresis": count}) for count in (2, 3, 2)]
    assert [each.traits.hysteresis for each in declared] == [2, 3, 2]
    assert declared[0] is declared[2]
    golden("\n".join(choices._told(subject, each) for each in changes))


def test_under_what_is_declared_all_examples_are_asked() -> None:
    asked: list[int] = []
    law = Law(name="it", law="", function=list, draws={"n": st.just(1)}, found=[{"n": 2}], last=[{"n": 3}])
    law = replace(law, function=lambda n: asked.append(n))
    assert choices._holds(law, Subject(Stranger), {}, 5)
    assert asked == [2, 1, 3]
    for wrong in asked[:]:

        def function(n: int, wrong: int = wrong) -> None:
            assert n != wrong

        assert not choices._holds(replace(law, function=function), Subject(Stranger), {}, 5)


def test_a_flag_adapter_finds_an_overflow_of_any_optimizer_and_forgets_it_after_the_update() -> None:
    told: list[bool] = []
    scaler = FromFlag(lambda: 2.0, told.append)
    params = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizers = [torch.optim.SGD([each], lr=1.0) for each in params]
    for bad in (0, 1, None):
        scaler.scale(torch.ones(()))
        for number, (param, optimizer) in enumerate(zip(params, optimizers, strict=True)):
            param.grad = torch.full((1,), math.inf if number == bad else 2.0)
            scaler.step(optimizer)
        scaler.update()
    assert told == [True, True, False]
    assert [param.item() for param in params] == [-1.0, -1.0]  # of three steps one was skipped


def test_a_flag_adapter_scales_each_loss_of_a_container_and_unscales_by_what_it_scaled_with() -> None:
    told: list[bool] = []
    scale = [4.0]
    scaler = FromFlag(lambda: scale[0], told.append)
    assert [float(each) for each in scaler.scale([torch.ones(()), torch.ones(())])] == [4.0, 4.0]
    assert isinstance(scaler.scale((1.0,)), tuple)
    param = torch.nn.Parameter(torch.ones(2))
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1)), param], lr=1.0)
    for grad, found in ((8.0, False), (-math.inf, True), (math.nan, True)):
        scaler.scale(torch.ones(()))
        scale[0], param.grad = 2.0, torch.tensor([4.0, grad])
        before = param.detach().clone()
        assert scaler.step(other) is None
        scaler.update()
        assert param.grad[0] == 1.0 if grad == 8.0 else True
        assert (told[-1], torch.equal(param, before)) == (found, found)
        scale[0] = 4.0


# ------------------------------------------------------------------------------------------------------ short tests


def test_how_written_tests_end_apart() -> None:
    tests = [
        "def test_x(): pass",
        "def test_x(): assert 0, 'one\\ntwo'",
        "def test_x(): [][1]",
        "def test_x(): exit(3)",
    ]
    ended, last = run_apart(["import ampsim\n" + tests[0], *tests[1:]])
    assert ended == ["", "AssertionError one", "IndexError list index out of range", "SystemExit 3"]
    assert last == "nothing"


@pytest.mark.parametrize(
    ("ended", "raises", "said"),
    [
        ((["AssertionError x"], ""), False, None),
        ((["ValueError x"], ""), True, None),
        ((["ValueError x"], ""), False, "the short test ended otherwise, where an assertion should fail: ValueError x"),
        (([], "Killed"), True, "the short test ended otherwise, where the law's call should raise: Killed"),
        (
            ([""], ""),
            True,
            "the short test passes: it does not show what the kit's own check sees; report that with it",
        ),
    ],
)
def test_a_short_test_that_does_not_fail_is_not_given_out(
    ended: Any, raises: bool, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ampsim.testing.emit.run_emitted.run_apart", lambda sources, limit: ended)
    if said is None:
        require_failure("", raises=raises, limit=0)
        return
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        require_failure("", raises=raises, limit=0)
    assert str(refused.value) == said


# ------------------------------------------------------------------------------------------------------------ ranks


def on_rank(used: float = 8.0, after: float = 8.0, moved: Any = (True,), steps: Any = (1,), **more: Any) -> OnRank:
    return OnRank(used, after, more.get("state", "{}"), moved, more.get("finite", True), steps)


ONE = Scenario((frozenset({(0, 0)}),))
CLEAN, TWO = Scenario((NONE,)), Scenario((frozenset({(1, 1)}),), optimizers=2)
EMPTY, AGAIN = Scenario((NONE,), empty=frozenset({1})), Scenario((NONE, NONE), resumes=1)
PARTS = Scenario((frozenset({(0, 0)}),), parts="leaves out optimizer 0")
STEPPED, SKIPPED = on_rank(), on_rank(after=4.0, moved=(False,), steps=(0,))
SEEN: dict[str, tuple[Scenario, list[RankRecord]]] = {
    "clean": (CLEAN, [RankRecord([STEPPED])] * 2),
    "skipped": (ONE, [RankRecord([SKIPPED])] * 2),
    "one skips": (ONE, [RankRecord([SKIPPED]), RankRecord([STEPPED])]),
    "skipped though clean": (CLEAN, [RankRecord([STEPPED]), RankRecord([SKIPPED])]),
    "the second optimizer steps": (TWO, [RankRecord([on_rank(moved=(True, True), steps=(1, 1))])] * 2),
    "one scales otherwise": (CLEAN, [RankRecord([STEPPED]), RankRecord([on_rank(used=4.0)])]),
    "one has another scale": (CLEAN, [RankRecord([STEPPED]), RankRecord([on_rank(after=4.0)])]),
    "one has another state": (CLEAN, [RankRecord([STEPPED]), RankRecord([on_rank(state="{1}")])]),
    "one counts otherwise": (CLEAN, [RankRecord([STEPPED]), RankRecord([on_rank(steps=(2,))])]),
    "one has counted nothing": (CLEAN, [RankRecord([STEPPED]), RankRecord([on_rank(steps=(0,))])]),
    "two optimizers count apart": (
        Scenario((NONE, NONE), optimizers=2),
        [RankRecord([on_rank(moved=(True, True), steps=(1, 1)), on_rank(moved=(True, True), steps=(2, 2))])] * 2,
    ),
    "the second optimizer is skipped though clean": (
        Scenario((NONE,), optimizers=2),
        [RankRecord([on_rank(moved=(True, False), steps=(1, 0))])] * 2,
    ),
    "a kernel that counts nothing": (CLEAN, [RankRecord([on_rank(steps=(None,))])] * 2),
    "an inf": (ONE, [RankRecord([SKIPPED]), RankRecord([on_rank(moved=(False,), finite=False)])]),
    "one waits": (CLEAN, [RankRecord([STEPPED], waits="all_reduce 1"), RankRecord([STEPPED, STEPPED])]),
    "both wait": (CLEAN, [RankRecord(waits="all_reduce 1"), RankRecord(waits="broadcast 1")]),
    "one raises and one waits": (CLEAN, [RankRecord(error="E: x"), RankRecord(waits="all_reduce 1")]),
    "both raise": (CLEAN, [RankRecord(error="E: x"), RankRecord(error="E: y")]),
    "the empty one raises": (EMPTY, [RankRecord([STEPPED]), RankRecord(error="E: x")]),
    "the empty one has moved nothing": (EMPTY, [RankRecord([STEPPED]), RankRecord([on_rank(moved=(None,))])]),
    "a rank parts and steps": (PARTS, [RankRecord([SKIPPED]), RankRecord([STEPPED])]),
    "it resumes": (AGAIN, [RankRecord([STEPPED, SKIPPED])] * 2),
}


def test_what_each_law_of_ranks_says_of_what_was_seen(golden: Golden) -> None:
    """Against what was seen of the same scenario with all overflowing, uninterrupted, and with gradients everywhere."""
    others = {each: [RankRecord([STEPPED, STEPPED])] * 2 for each in (
        ONE.joined(2), TWO.joined(2), CLEAN, Scenario((NONE, NONE)),
    )}  # fmt: skip
    lines = []
    for name, (scenario, records) in SEEN.items():
        told = {law.name: law.function(scenario, records, others) for law in RANK_LAWS.values()}
        lines += [name, *(f"  {law}: {said}" for law, said in told.items() if said)]
    golden("\n".join(lines))


def test_what_makes_a_scaler_of_a_rank() -> None:
    sharded = "torch.distributed.fsdp.sharded_grad_scaler:ShardedGradScaler"
    targets = ("torch.amp:GradScaler", sharded, "ampsim.torch:GradScaler", f"{__name__}:on_rank")
    assert [find(each)[1] for each in targets] == [
        'GradScaler(device="cpu", init_scale=1024.0, growth_interval=2)',
        'ShardedGradScaler(device="cpu", init_scale=1024.0, growth_interval=2, process_group=dist.group.WORLD)',
        'GradScaler(device="cpu", init_scale=1024.0, growth_interval=2, group=dist.group.WORLD)',
        "on_rank(dist.group.WORLD)",
    ]  # fmt: skip
    made = find("torch.amp:GradScaler")[0](None)
    assert (made.get_scale(), made.get_growth_interval()) == (1024.0, 2)


@pytest.mark.parametrize(
    ("gradients", "lacks", "left"),
    [
        ("sharded", set(), 42), ("DDP", set(), 39), ("sharded", {"unscale_"}, 21), ("sharded", {"state_dict"}, 38),
        ("sharded", {"optimizers"}, 24), ("replicated", {"unscale_", "state_dict", "optimizers"}, 8),
    ],
)  # fmt: skip
def test_what_a_scaler_lacks_is_not_played(gradients: Any, lacks: set[str], left: int) -> None:
    assert sum(judge._can_play(each, gradients, lacks) for each in scenarios(2)) == left


def test_gradients_are_known_by_name() -> None:
    kinds = {"sharded": Sharded, "replicated": Replicated, "DDP": DDP, "FSDP2": FSDP2}
    assert {name: kind_of(name) for name in kinds} == kinds  # type: ignore[arg-type]
    assert kind_of(Sharded) is Sharded
    assert [kind.on_threads for kind in kinds.values()] == [True, True, True, False]
    assert (bits(torch.tensor([1.0])), bits(3)) == (b"\x00\x00\x80?", 3)


def test_a_late_rank_goes_on_where_no_other_can_and_now_and_then() -> None:
    choose = Late(1).begin()
    names = ["rank 1", "rank 0", "main"]
    assert [choose(step, names) for step in (1, 63, 64, 65, 128)] == [1, 1, 0, 1, 0]
    assert [choose(step, ["rank 1"]) for step in (1, 64)] == [0, 0]
    assert choose(64, ["rank 0", "rank 1"]) == 1
    assert [choose(1, [*names, "rank 2"][at:]) for at in (0, 1)] == [1, 0]


def test_a_step_is_told_without_what_it_lacks() -> None:
    assert str(Step("a", "point", "here")) == "a: point here"
    assert str(Step("a", "begin", "", "timed out")) == "a: begin timed out"

"""The small parts of which the laws of loops are made, asked directly: what each says of a table of cases."""

import math
import random
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

from ampsim.testing import Loop, LoopError, check_loop  # noqa: E402
from ampsim.testing.emit.loop import _planted  # noqa: E402
from ampsim.testing.judge import NotApplicableError  # noqa: E402
from ampsim.testing.law import Law, Result  # noqa: E402
from ampsim.testing.loop import events, rows  # noqa: E402
from ampsim.testing.loop import judge as of_loops  # noqa: E402
from ampsim.testing.loop.adapters import tiny  # noqa: E402
from ampsim.testing.loop.backends import torch as of_torch  # noqa: E402
from ampsim.testing.loop.backends.torch_exact import Inexact  # noqa: E402
from ampsim.testing.loop.faults import ENDS, Faults  # noqa: E402
from ampsim.testing.loop.judge import LAWS, judge_loop, message, unasked  # noqa: E402
from ampsim.testing.loop.law import Broken  # noqa: E402
from ampsim.testing.loop.laws import excused, learning, ranks, resume, rounding, scale, scaler, skipped, splitting  # noqa: E402
from ampsim.testing.loop.patterns import PATTERNS, _power, cause_of  # noqa: E402
from ampsim.testing.loop.run import NOTHING, Fault, Run  # noqa: E402
from ampsim.testing.loop.runs import Batch, advance, begin, play, run_class  # noqa: E402
from ampsim.testing.loop.state import Difference, differences, same, snapshot  # noqa: E402
from tests.golden import Golden  # noqa: E402
from tests.testing.loops import RIGHT, Trainer, batches, looping, loss_of, sgd  # noqa: E402
from tests.testing.test_loops import steps_at_the_third_skip  # noqa: E402

F32 = np.float32


def arrays(**values: Any) -> dict[str, np.ndarray]:
    return {name.replace("__", "."): np.asarray(value) for name, value in values.items()}


def difference(name: str, left: Any, right: Any, before: Any = None, dtype: Any = F32) -> Difference:
    left, right, before = (None if each is None else np.asarray(each, dtype) for each in (left, right, before))
    return Difference(name, left, right, before)


def listed(**lines: object) -> str:
    return "\n".join(f"{name}: {line}" for name, line in lines.items())


# ---------------------------------------------------------------------------------------- two states, and their words

APART = {
    "one run only, left": difference("w", None, 1.0),
    "one run only, right": difference("w", 1.0, None),
    "another shape": difference("w", [1.0, 2.0], [[1.0], [2.0]]),
    "another dtype": Difference("w", np.zeros(2, F32), np.zeros(2)),
    "a number": difference("w", 4.0, 5.0),
    "the largest": difference("w", [[1.0, -8.0], [2.0, 4.0]], [[1.5, -8.0], [2.0, 2.0]]),
    "nan": difference("w", [1.0, 2.0, 3.0], [7.0, math.nan, 3.0]),
    "inf on both sides": difference("w", [math.inf, 2.0], [math.inf, 1.0]),
    "zeros": difference("w", [0.0, 0.0], [0.0, 3.0]),
    "whole numbers": difference("w", [3, 4], [3, 9], dtype=int),
    "text": difference("w", ["a", "b"], ["a", "c"], dtype=str),
    "several texts": difference("w", ["a", "b", "c"], ["a", "x", "y"], dtype=str),
    "one text": difference("w", "a", "c", dtype=str),
    "truth": difference("w", [True, True], [True, False], dtype=bool),
    "negative zero": difference("w", [0.0, 1.0], [-0.0, 1.0]),
}


def test_a_difference_in_words(golden: Golden) -> None:
    golden(listed(**APART))


CHANGED = {
    "twice the change": difference("w", [2.0, 3.0], [3.0, 5.0], [1.0, 1.0]),
    "twice, called nearly so": difference("logged_w", [2.0, 3.0], [3.0, 5.0], [1.0, 1.0]),
    "no elements": difference("w", [], []),
    "twice, logged": difference("logged.w", [2.0, 3.0], [4.0, 6.0], [1.0, 1.0]),
    "twice, of nothing before": difference("w", [2.0, 3.0], [4.0, 6.0]),
    "before of another shape": difference("w", [2.0, 3.0], [4.0, 6.0], [1.0]),
    "by no one number": difference("w", [2.0, 3.0], [3.0, 9.0], [1.0, 1.0]),
    "nearly one number": difference("w", [65.0, 65.0], [129.0, 130.0], [1.0, 1.0]),
    "not at all": difference("w", [1.0, 1.0], [3.0, 3.0], [1.0, 1.0]),
    "inf": difference("w", [2.0], [math.inf], [1.0]),
    "half": difference("w", [3.0], [2.0], [1.0]),
    "backwards": difference("w", [3.0], [-1.0], [1.0]),
    "unsigned, downwards": difference("w", [3], [1], [5], np.uint8),
}


def test_the_factor_and_the_size_of_a_difference(golden: Golden) -> None:
    golden("\n".join(f"{name}: {each.factor()}, {each.size():.4g}" for name, each in {**CHANGED, **APART}.items()
                     if "text" not in name))  # fmt: skip


class Holder:
    def state_dict(self) -> dict[str, object]:
        return {"w": np.ones(2), "steps": 3, "none": None, "text": "x", "rest": [1.0, (2, {"k": np.float32(3)})]}


def test_a_snapshot_names_what_a_loop_carries(golden: Golden) -> None:
    def unpack(value: Any) -> Any:
        return value.state_dict() if hasattr(value, "state_dict") else value

    state = {"it": Holder(), "seen": lambda: 4, "array": np.zeros((1, 2)), "objects": np.array([None, "a"], object)}
    loop = Loop(lambda batch: None, state, logged=lambda: {"loss": 0.5, "more": lambda: [1, 2]})
    golden(
        listed(**{name: f"{each.dtype}{each.shape} {each.tolist()}" for name, each in snapshot(loop, unpack).items()})
    )
    held = {"it": MappingProxyType({"a": 1}), "part": Fraction(1, 3)}
    assert {name: each.tolist() for name, each in snapshot(Loop(print, held), lambda value: value).items()} == {
        "it.a": 1, "part": "Fraction(1, 3)",
    }  # fmt: skip
    array = np.zeros(2)
    kept = snapshot(Loop(print, {"array": array}), unpack)
    array += 1
    assert kept["array"].tolist() == [0, 0]  # and not what it is now
    for wrong in ({"name": "x"}, {"late": lambda: "x"}):
        with pytest.raises(LoopError, match=f"{next(iter(wrong))} is of type str: expected what has state_dict"):
            snapshot(Loop(lambda batch: None, wrong), unpack)


def test_states_differ_by_their_bits_in_the_order_of_the_left_one() -> None:
    left, right = arrays(b=1.0, a=0.0, gone=1, same=2), arrays(a=-0.0, b=2.0, same=2, new=3)
    found = differences(left, right, arrays(b=0.5))
    assert [each.name for each in found] == ["b", "a", "gone", "new"]
    assert [each.before is None for each in found] == [False, True, True, True]
    assert (found[2].right, found[3].left) == (None, None)
    assert not same(np.zeros(2), np.zeros(2, F32))
    assert not same(np.zeros(2), np.zeros((2, 1)))
    assert not same(None, np.zeros(1))
    assert same(None, None)


# ------------------------------------------------------------------------------------------------------- rounding

KINDS = [
    difference("model.0.weight", [1.0, 2.0], [1.0, 2.5], [0.0, 0.0]),
    difference("model.0.bias", [1.0], [1.0], [0.5]),
    difference("model.steps", 3, 3, 2, dtype=int),
    difference("adam.state.0.exp_avg", [1.0], [2.0]),
    difference("adam.state.1.exp_avg", [3.0], [3.0], [1.0]),
    difference("adam.state.0.step", 2.0, 2.0, 1.0),
    difference("adam.param_groups.0.lr", 0.5, 0.25, 0.5),
    difference("data.seen", 1.0, 2.0, 0.0),
    difference("logged.loss", 1.0, 2.0, 0.0),
    difference("gone", 1.0, None, 0.0),
]


def of_kinds(side: str) -> dict[str, np.ndarray]:
    return {each.name: getattr(each, side) for each in KINDS if getattr(each, side) is not None}


def test_kinds_of_arrays_and_their_distances(golden: Golden) -> None:
    """By owner and type, and of an optimizer by name: how far apart their changes are, and what a last bit makes."""
    lines = []
    for without, apart in product([(), ("gone", "model.0.weight")], [False, True]):
        for kind in rounding.kinds(of_kinds("before"), of_kinds("left"), of_kinds("right"), without, apart=apart):
            names = ", ".join(each.name for each in kind)
            lines += [f"{names}: {rounding.distance(kind):.4g}, {rounding.ulps(kind):.3e}".replace("e-0", " e-")]
        lines += [""]
    golden("\n".join(lines))


@pytest.mark.parametrize(
    ("apart", "shaken", "found"),
    [
        (0.0, 0.0, []),
        (2.0**-21, 0.0, []),  # within the last bits of the sum
        (2.0**-12, 0.0, ["w"]),
        (2.0**-12, 2.0**-15, []),  # sixteen times what the order of rows makes
        (2.0**-10, 2.0**-15, ["w"]),
        (2.0**-3, 2.0**-6, []),  # an array that is nothing but rounding
        (2.0**-1, 2.0**-6, []),
    ],
)
def test_what_is_beyond_rounding_is_held_against_rows_in_another_order(
    apart: float, shaken: float, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, left = arrays(w=np.zeros(2, F32)), arrays(w=np.ones(2, F32))
    right, other = ({"w": (left["w"] * (1 + by)).astype(F32)} for by in (apart, shaken))
    it = rounding.Rounding(lambda scaler: None, [], 1.0)
    monkeypatch.setattr(it, "_others", lambda *_: other)
    assert [each.name for each in it.beyond(before, left, right, 0)] == found
    monkeypatch.setattr(it, "_others", lambda *_: None)  # nothing says what rounding makes
    assert [each.name for each in it.beyond(before, left, right, 0)] == ["w"] * (apart > 2.0**-20)


# ------------------------------------------------------------------------------------------------- rows of batches


def test_an_inf_is_in_the_first_array_alone() -> None:
    x, y = np.zeros(2, F32), np.zeros(2, F32)
    assert [each.tolist() for each in rows.with_inf((x, y))] == [[0.0, math.inf], [0.0, 0.0]]


class Pair(NamedTuple):
    x: Any
    y: Any


def test_rows_of_batches(golden: Golden) -> None:
    """In another order, a last bit larger, with an inf, and halved: of all kinds of batches."""
    x, y = np.arange(4, dtype=F32), np.arange(4)
    batches = {
        "array": x,
        "matrix": np.arange(6, dtype=F32).reshape(3, 2),
        "whole numbers": y,
        "mapping": {"x": x, "y": y, "name": "b"},
        "tuple": (x, y),
        "list": [x, [y]],
        "named": Pair(x, y),
        "uneven": (x, y[:3]),
        "one row": (x[:1], y[:1]),
        "a number": (x, np.float32(1)),
        "none": "text",
    }
    lines = []
    for name, batch in batches.items():
        lines += [f"{name}: {rows._rows(batch)} rows"]
        for way in (rows.permuted, rows.larger, rows.with_inf, lambda each: rows.halved(each, 2)):
            lines += [f"  {shown(way(batch))}"]
    golden("\n".join(lines))


def shown(batch: Any) -> str:
    return repr(rows.mapped(batch, lambda each: [float(one).hex() for one in each.ravel()]))


# ------------------------------------------------------------------------------------------ what a skip may move

START = arrays(
    w=1.0,
    w__state=1.0,
    count=3,
    steps=3,
    hidden=0.5,
    early=1.0,
    scale=256.0,
    key=np.ones(2, np.uint32),
    byte=np.uint8(3),
)


def excuses(**clean: Any) -> excused.Excuses:
    it = object.__new__(excused.Excuses)
    it.start, it.clean, it.early = START, {**START, **arrays(**clean)}, arrays(early=2.0, w=2.0)
    it.trained, it.owners, it._otherwise = {"w"}, {"w.state": "optimizer"}, lambda: {**it.clean, **arrays(hidden=0.75)}
    return it


MOVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # what a clean step makes, and what the skipped one did
    "a parameter": ({"w": 2.0}, {"w": 2.0}),
    "an optimizer's state": ({"w__state": 2.0}, {"w__state": 2.0}),
    "an optimizer's state in a skip alone": ({}, {"w__state": 2.0}),
    "a count": ({"count": 4}, {"count": 4}),
    "a count of steps": ({"steps": 4}, {"steps": 4}),
    "a count that begins anew": ({"count": 4}, {"count": 0}),
    "a count that begins at one": ({"count": 4}, {"count": 1}),
    "a count that is new": ({"fresh": 1}, {"fresh": 1}),
    "a count that jumps": ({"count": 4}, {"count": 9}),
    "a count of skips": ({}, {"count": 4}),
    "a fraction": ({"hidden": 0.25}, {"hidden": 0.75}),
    "what follows the data": ({"hidden": 0.25}, {"hidden": 0.25}),
    "what follows the data otherwise": ({"hidden": 0.75}, {"hidden": 0.75}),
    "what had moved before the gradients": ({"early": 2.0}, {"early": 2.0}),
    "what moved again": ({"early": 2.0}, {"early": 3.0}),
    "a copy of the scale": ({"scale": 256.0}, {"scale": 128.0}),
    "a copy that is new": ({}, {"fresh": 128.0}),
    "an inverse of it": ({"scale": 256.0}, {"scale": 1 / 128.0}),
    "no copy of it": ({"scale": 512.0}, {"scale": 64.0}),
    "a generator": ({"key": np.full(2, 7, np.uint32)}, {"key": np.full(2, 7, np.uint32)}),
    "a generator in bytes": ({"bits": np.bytes_(b"ab")}, {"bits": np.bytes_(b"ab")}),
    "another generator": ({"key": np.full(2, 7, np.uint32)}, {"key": np.full(2, 8, np.uint32)}),
    "one unsigned number": ({"byte": np.uint8(7)}, {"byte": np.uint8(7)}),
    "many whole numbers": ({f"rng__{i}": i for i in range(65)}, {f"rng__{i}": i for i in range(65)}),
    "not so many": ({f"rng__{i}": i for i in range(64)}, {f"rng__{i}": i for i in range(64)}),
    "data, and what is logged": ({}, {"data__seen": 4, "logged__loss": 2.0}),
    "what is called nearly so": ({"logged_loss": 0.25}, {"logged_loss": 2.5}),
}


def test_what_may_go_on_in_a_skipped_step(golden: Golden) -> None:
    lines = {}
    for name, (clean, end) in MOVES.items():
        left, why = excuses(**clean).remaining({**START, **arrays(**end)}, (256.0, 128.0))
        inputs = sorted({*why.values()})
        lines[name] = f"{[each.name for each in left][:3]} remain, {[*why][:3]} are excused, {inputs} as inputs"
    golden(listed(**lines))


def test_what_is_apart_by_rounding_of_parameters_is_alike() -> None:
    found = [difference(name, [1.0], [1.0 + by]) for name in "ab" for by in (2.0**-19, 2.0**-20, 2.0**-21)]
    assert [(each.name, each is found[0]) for each in excused.unlike(found, ["a"])] == [
        ("a", True), ("b", False), ("b", False), ("b", False),
    ]  # fmt: skip


# --------------------------------------------------------------------------------------------- factors and causes


def test_a_power_of_the_scale() -> None:
    factors = (
        None,
        1.0,
        2.0**8,
        2.0**-8,
        2.0**16,
        2.0**-16,
        2.0**24,
        2.0**7,
        2.0**8 * 1.0005,
        2.0**8 * 1.002,
        -(2.0**8),
    )
    powers = [factor for factor in factors if scale.is_power(factor, 2.0**8)]
    assert powers == [2.0**8, 2.0**-8, 2.0**16, 2.0**-16, 2.0**8 * 1.0005]
    assert not scale.is_power(1.0, 1.0)
    assert [_power(each, 2.0**8) for each in (2.0**8, 2.0**-16, 2.0**7, 1.0, 0.0, -1.0, None)] == [
        1, -2, None, 0, None, None, None,
    ]  # fmt: skip
    assert [_power(2.0**8 * by, 2.0**8) for by in (1.0005, 1.002)] == [1, None]
    assert not scale._alike([difference("w", [2.0], [1 + by], [1.0]) for by in (0.001, 0.0015)])
    assert _power(2.0, 1.0) is None
    alike = [difference("w", [2.0], [by], [1.0]) for by in (4.0, 4.001, 4.01)]
    assert scale._alike(alike[:2])
    assert not scale._alike(alike)
    assert not scale._alike([*alike[:2], difference("w", [1.0], None)])


NAMES = (
    *("model.0.weight", "logged.grad_norm", "logged.loss", "adam.state.0.exp_avg_sq", "adam.state.0.exp_avg"),
    *("momentum", "scheduler.last_epoch", "adam.param_groups.0.lr", "scheduler._step_count", "scheduler._last_lr.0"),
    *("ema.0.weight", "shadow.w", "swa_model.w", "averaged", "scaler.scale", "count", "global_step"),
)


@pytest.mark.parametrize("law", PATTERNS)
def test_the_usual_cause_of_each_name(law: str, golden: Golden) -> None:
    """And of each power of the scale, and where the law knows one itself."""
    lines = []
    for each in PATTERNS[law]:
        lines += [f"{each.name!r} {each.power} {each.instead[:20]!r}: {each.cause}"]
    order = [each.cause for each in PATTERNS[law]]
    known = ["", *dict.fromkeys(each.instead for each in PATTERNS[law] if each.instead)]
    for power, cause in product((1, 2, -1, -2, None) if law == "scale_is_invisible" else (None,), known):
        factor, places = 3.0 if power is None else 256.0**power, dict[object, list[str]]()
        for name in NAMES:
            change = difference(name, [2.0], [1 + factor], [1.0])
            change = difference(name, [2.0], [2 * factor]) if name.startswith("logged") else change
            found, shown_by = cause_of(law, Broken("", 0, [change], 256.0, cause))
            assert shown_by in (change, None)
            places.setdefault(order.index(found) if found in order else found, []).append(name)
        lines += [f"S^{power}, {cause[:20]!r}: {places}"]
    own = Broken("", 0, [difference("w", 1.0, 2.0)], cause="of the law's own")
    assert cause_of(law, own) == (own.cause, own.differences[0])
    assert cause_of(law, Broken("", 0, cause=own.cause)) == (own.cause, None)
    golden("\n".join(lines))


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6])
def test_a_finding_of_a_loop_in_words(count: int, golden: Golden) -> None:
    found = [difference(f"w{i}", [2.0], [257.0], [1.0]) for i in range(count)]
    broken = Broken("after batch 1", 1, found, 256.0, seen="" if found else "nothing moved")
    golden(message(LAWS["scale_is_invisible"], [Batch(0, None), Batch(2, None)], broken, "a.py:1 scale 2"))


def test_a_finding_shows_the_array_that_tells_its_cause() -> None:
    found = [difference("w", [2.0], [9.0], [1.0]), difference("scaler.scale", 2.0, 4.0)]
    lines = message(LAWS["resume_is_invisible"], [], Broken("after loading", 0, found)).splitlines()
    assert lines[0] == "resume_is_invisible: w[0] is 9.0, expected 2.0, 7 apart, 3.5 of its largest, after loading"
    assert "  seen in  scaler.scale is 4.0, expected 2.0, 2 apart" in lines
    assert "  also     scaler.scale" in lines


def test_what_was_not_asked_is_told_with_why() -> None:
    law = LAWS["it_learns"]
    outcomes = ("passed", "not applicable", "refused", "failed")
    assert unasked(Result(law, "loop", each, "why") for each in outcomes) == [
        "it_learns is not asked: why",
        "it_learns cannot be judged: why",
    ]


# ------------------------------------------------------------------------------------------------ faults and events

FAULTS = [
    Fault(value, name, only, place)
    for value in (math.inf, -math.inf, math.nan)
    for name, only, place in [
        ("", None, ""), ("model.w", None, ""), ("", 0, ""), ("model.w", 2, ""), ("", None, "loss"), ("", 1, "output"),
    ]
]  # fmt: skip


def test_a_fault_in_words_and_in_code(golden: Golden) -> None:
    case: Any = SimpleNamespace(parameter=lambda name: f"<{name}>", parameters="<all>")
    golden("\n".join(f"{fault}: {_planted(case, fault) if fault.value == math.inf else ''}" for fault in FAULTS))


def frame(name: str, line: int, back: Any = None) -> Any:
    return SimpleNamespace(f_code=SimpleNamespace(co_filename=name), f_lineno=line, f_back=back)


def test_a_change_is_told_by_the_line_of_the_users_that_ran_before_it_was_seen() -> None:
    now = {"gradients": ("no gradients", 0), "scale": ("scale 2", 2.0)}
    run: Any = SimpleNamespace(look=lambda: dict(now))
    lines = events.Lines(run)
    step, rest = frame("/home/me/loop.py", 7), frame("/home/me/sub/other.py", 3)
    rest.f_back, below = step, frame("/home/me/site-packages/torch/x.py", 9)
    for theirs in (below, frame("<string>", 1), frame(f"{events.STANDARD}/copy.py", 1), frame(events.__file__, 1)):
        assert lines(theirs, "call", None) is None
    assert lines(step, "call", None) is lines
    now["scale"] = ("scale 4", 4.0)  # before the first line
    assert lines(step, "line", None) is lines
    now["gradients"] = ("gradients, norm 1", 1)
    step.f_lineno = 8
    lines(step, "line", None)
    lines(rest, "line", None)
    now |= {"scale": ("scale 8", 8.0), "gradients": ("gradients, norm 2", 2)}
    lines(rest, "return", None)
    now["scale"] = ("scale 16", 16.0)
    step.f_lineno, step.f_back = 9, below
    lines(step, "return", None)  # to a caller that is not the user's
    assert lines.told == [
        ("loop.py:7", "gradients, norm 1"), ("other.py:3", "gradients, norm 2, scale 8"), ("loop.py:8", "scale 16"),
    ]  # fmt: skip


def test_what_is_planted_by_a_callback_is_of_its_pass_and_place() -> None:
    faults = Faults()

    def given(fault: Fault) -> list[list[float]]:
        faults.plant(fault)
        return [[float(faults.loss()), *(float(faults.factor()) for _ in range(3))],
                *(faults.elements().tolist() for _ in range(2))]  # fmt: skip

    none = [1.0, 1.0]
    assert given(NOTHING) == [[1.0] * 4, none, none]
    assert given(Fault()) == [[1.0, *[math.inf] * 3], none, none]
    assert given(Fault(only=1)) == [[1.0, 1.0, math.inf, 1.0], none, none]
    assert given(Fault(2.0, place="loss")) == [[2.0] * 4, none, none]
    assert given(Fault(place="output")) == [[1.0] * 4, none, none]
    assert given(Fault(name=ENDS[0])) == [[1.0] * 4, [math.inf, 1.0], [math.inf, 1.0]]
    assert given(Fault(name=ENDS[1], only=1)) == [[1.0] * 4, none, [1.0, math.inf]]
    assert (faults.passes, faults.arrived) == (3, 2)


@pytest.mark.parametrize("count", [8, 9, 10])
def test_nine_events_are_told_in_their_order(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lines:
        def __init__(self, run: object) -> None:
            self.told = [(f"a.py:{i}", f"event {i}") for i in range(count) for _ in range(2)]

        def __call__(self, *_: object) -> None:
            return None

    monkeypatch.setattr(events, "Lines", Lines)
    monkeypatch.setattr(events.sys, "gettrace", lambda: None)
    monkeypatch.setattr(events.sys, "settrace", lambda _: None)
    told = events.order(looping(lambda t, batch: None), [Batch(0, None)], 1.0, Fault())
    expected = [f"a.py:{i} event {i}" for i in range(min(count, 9))] + ["and 1 more"] * (count > 9)
    assert told == "; ".join(expected)


def test_a_debuggers_tracer_is_left_where_it_is() -> None:
    def tracer(*_: object) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        told, after = events.order(sgd, [Batch(0, batch) for batch in batches()[:2]], 1.0, Fault()), sys.gettrace()
    finally:
        sys.settrace(before)
    assert (told, after) == ("", tracer)


# --------------------------------------------------------------------------------------------------- parts of laws


def test_places_of_what_is_skipped() -> None:
    batch = [Batch(place, None) for place in range(5)]
    assert skipped._places(batch[:2], batch[2:3], ()) == [[0, 1], [2], []]
    assert skipped._spread([difference("a", 1.0, math.inf)])
    assert skipped._spread([difference("a", 1.0, math.nan)], ["a"])
    assert not skipped._spread([difference("a", 1.0, math.inf)], ["b"])
    assert not skipped._spread([difference("a", math.inf, 1.0), difference("b", 1.0, None)])
    assert not skipped._spread([difference("a", 1, 2, dtype=int)])


def drawn(*names: str, **owners: str) -> list[str]:
    skip = object.__new__(skipped.Skip)
    skip.owners = owners
    return skip._drawn(names)


def test_a_fault_is_planted_in_four_parameters_at_most() -> None:
    assert drawn() == []
    assert drawn("a") == ["a"]
    assert drawn("a", "b") == ["b", "a"]
    assert drawn("a", "b", "c", "d", "e", b="two", d="three", a="one", e="one")[:3] == ["e", "a", "b"]
    assert len(drawn("a", "b", "c", "d", "e", b="two", c="four", d="three", a="one", e="one")) == 4


def test_a_checkpoint_is_cut_where_it_is_said_to_be() -> None:
    groups: list[Sequence[Batch]] = [[Batch(0, None), Batch(1, None)], [Batch(2, None)], [Batch(3, None)]]
    before, after = resume.halves(groups, 1)
    assert ([each.place for each in before], [each.place for each in after]) == ([0, 1], [2, 3])
    run: Any = SimpleNamespace(
        loop=Loop(lambda batch: None, {"model": 1, "seen": 2, "seen_too": 3}), loads=lambda value: value == 1,
        states=[arrays(a=1, logged__b=2)], scalers=[{"scaler.scale": np.ones(())}],
    )  # fmt: skip
    assert [*resume._carried(run, 0)] == ["a", "scaler.scale"]
    assert [resume._is_left_out(run, name) for name in ("model.w", "seen", "seen.x", "seenx", "seen_too", "other")] == [
        False, True, True, False, True, False,
    ]  # fmt: skip
    run.loop = Loop(lambda batch: None, {"seen": 2}, load=lambda saved: None)
    assert not resume._is_left_out(run, "seen")


@pytest.mark.parametrize(("count", "cuts"), [(3, [(1, 2)]), (4, [(2, 2), (1, 3)]), (6, [(3, 3), (2, 3)])])
def test_a_loop_is_resumed_in_the_middle_and_one_update_before(
    count: int, cuts: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(resume, "_resumed", lambda make, before, after: seen.append((len(before), len(after))))
    assert resume.resume_is_invisible.function(sgd, [Batch(*each) for each in enumerate(batches(count))]) is None
    assert seen == cuts


def test_several_skips_in_a_row_name_each_batch_that_is_skipped() -> None:
    groups = [[Batch(*each)] for each in enumerate(batches())]
    broken = skipped.in_a_row(looping(steps_at_the_third_skip), groups)
    assert broken is not None
    assert (broken.step, broken.places) == (3, [[0], [1, 2, 3], []])


FEW = "fewer than 2 batches after which "


@pytest.mark.parametrize(
    ("law", "module", "said"),
    [
        ("resume_is_invisible", resume, f"{FEW}the scaler is updated"),
        ("ranks_are_invisible", ranks, f"{FEW}the scaler is updated"),
        ("skipped_step_never_happened", skipped, f"{FEW}a clean step updates the scaler"),
    ],
)
def test_where_all_batches_are_one_step_nothing_is_asked(
    law: str, module: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [Batch(*each) for each in enumerate(batches())]
    monkeypatch.setattr(module, "iterations", lambda make, batches: [batches])
    with pytest.raises(NotApplicableError) as why:
        LAWS[law].function(lambda scaler, group=None: sgd(scaler), given)
    assert str(why.value) == said


def test_a_scaler_that_is_not_seen_between_updates_is_not_asked_whether_it_jumps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run: Any = SimpleNamespace(steps=None, scalers=[{}], again=lambda before: ())
    monkeypatch.setattr(scaler, "play", lambda *_: run)
    with pytest.raises(NotApplicableError) as why:
        LAWS["scaler_changes_by_update_only"].function(sgd, [])
    assert str(why.value) == "only the scaler of a loop of torch, and those of JAX, are seen between updates"


@pytest.mark.parametrize(
    ("broken", "looked_at"),
    [
        (Broken("after batch 1", 1), (2, 256.0, NOTHING)),
        (Broken("after batch 1", 0, scale=2.0**16), (1, 2.0**16, NOTHING)),
        (Broken("after batch 1", 1, fault=Fault()), (2, 256.0, Fault())),
        (Broken("after batch 1", 1, fault=Fault(), cause=skipped.HIDDEN), (2, 256.0, NOTHING)),
        (Broken("on rank 0 of 2 after batch 1", 1), ""),
        (Broken("on each of 2 ranks after batch 1", 1), ""),
        *(
            (Broken("in 2 batches", 1, cause=cause), "")
            for cause in (learning.SKIPPED, learning.STUCK, learning.STILL, learning.UNREACHED)
        ),
    ],
)  # fmt: skip
def test_the_step_that_is_looked_at_line_by_line(
    broken: Broken, looked_at: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_loops, "order", lambda make, given, scale, fault: (len(given), scale, fault))
    assert of_loops._happened(sgd, [Batch(place, None) for place in range(3)], broken) == looked_at


def raises_without_the_last(places: list[int]) -> bool:
    if 3 not in places:
        raise LoopError("it raised")
    return 1 in places


@pytest.mark.parametrize(
    ("is_broken", "ends_there", "left"),
    [
        (raises_without_the_last, True, [1, 3]),
        (lambda places: {1, 3} <= {*places}, True, [1, 3]),
        (lambda places: len(places) > 1, True, [0, 1]),
        (lambda places: True, True, [0]),
        (lambda places: {1, 3} <= {*places}, False, [1, 3]),
        (lambda places: 1 in places and len(places) > 2, False, [0, 1, 2]),
    ],
)
def test_a_finding_is_told_on_as_few_batches_as_can_be(is_broken: Any, ends_there: bool, left: list[int]) -> None:
    def asked(make: object, given: Sequence[Batch]) -> Broken | None:
        places = [batch.place for batch in given]
        step = places.index(1) if 1 in places and not ends_there else len(places) - 1
        return Broken(f"{places}", step) if is_broken(places) else None

    law, given = replace(LAWS["scale_is_invisible"], function=asked), [Batch(place, None) for place in range(5)]
    batches, broken = of_loops.shrink(law, sgd, given, Broken("", 3), ends_there=ends_there)
    assert ([batch.place for batch in batches], broken.where) == (left, f"{left}")
    assert of_loops.shrink(replace(law, shrinks=False), sgd, given, Broken("", 3))[0] == given[:4]


def test_a_loop_that_uses_its_own_scaler_alone_is_asked_about_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def played(used: bool, others: list[object], *states: dict[str, Any]) -> bool:
        run = SimpleNamespace(used=used, others=others, states=states)
        monkeypatch.setattr(of_loops, "play", lambda *_: run)
        return of_loops._try_out(sgd, [Batch(place, None) for place in range(3)])

    state = arrays(w=1.0)
    assert (played(True, [], {}, state), played(False, ["other"], state)) == (True, False)
    with pytest.raises(LoopError, match=r"^state is empty: "):
        played(True, [], state, {})
    with pytest.raises(LoopError, match=r"^the scaler was never used: "):
        played(False, [], state)


def test_a_law_in_which_the_loop_raises_is_refused_and_the_others_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(law: Law, name: str, *_: object) -> Result:
        if law.name in ("it_learns", "resume_is_invisible"):
            raise LoopError(f"{law.name} raised")
        return Result(law, name, "passed")

    monkeypatch.setattr(of_loops, "judged", judged)
    monkeypatch.setattr(of_loops, "_try_out", lambda *_: True)
    asked = ["scale_is_invisible", "resume_is_invisible", "splitting_is_invisible", "it_learns"]
    assert [each.outcome for each in judge_loop(sgd, [], asked)] == ["passed", "refused", "passed", "refused"]
    with pytest.raises(LoopError, match=r"^resume_is_invisible raised$"):
        check_loop(sgd, [], asked)


def test_a_run_seeds_whatever_a_loop_draws_from_by_the_place_of_the_batch() -> None:
    drawn: list[object] = []

    def draw(t: Trainer, batch: object) -> None:
        drawn.append((random.random(), np.random.random(), float(torch.rand(()))))  # noqa: NPY002, S311

    advance(begin(looping(draw), 1.0), [Batch(4, None), Batch(2, None)])
    torch.manual_seed(3)
    assert drawn[1] == (random.Random(3).random(), np.random.RandomState(3).random(), float(torch.rand(())))  # noqa: S311
    assert drawn[0] != drawn[1]


def test_no_run_is_so_long_that_its_scale_grows() -> None:
    given = [Batch(place, data) for place, data in enumerate(batches(12))]
    assert play(sgd, given, 2.0).scale == 2.0


def test_what_is_no_loop_is_refused() -> None:
    for made in (SimpleNamespace(step=print), SimpleNamespace(state={})):
        with pytest.raises(LoopError, match=r"^make returned SimpleNamespace, expected a Loop\(step, state=\{...\}\)$"):
            begin(lambda scaler, made=made: made, 1.0)


def test_both_micro_batches_have_an_inf_in_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    planted: list[int] = []
    monkeypatch.setattr(splitting, "_with_inf", lambda make, batch, step, bad: planted.append(bad))
    given = [Batch(*each) for each in enumerate(batches(2))]
    assert splitting.splitting_is_invisible.function(RIGHT["splitting"], given) is None
    assert planted == [0, 1]


def test_ranks_are_of_loops_of_torch_alone() -> None:
    with pytest.raises(LoopError, match=r"^ranks are played for loops of torch.distributed alone$"):
        Run.together(2, print)


def test_what_cannot_be_logged_is_told_where(golden: Golden) -> None:
    def logged() -> dict[str, float]:
        raise KeyError("loss")

    run = begin(looping(lambda t, batch: None, logged=logged), 1.0)  # when nothing has been logged
    with pytest.raises(LoopError) as refused:
        advance(run, [Batch(0, None)])
    golden(str(refused.value))


def test_the_size_of_a_gradient_is_its_largest_number_of_either_sign() -> None:
    grads = (None, torch.zeros(0), torch.tensor([-3.0, 1.0]), torch.tensor([[-2.0, 0.0]]).to_sparse())
    assert [of_torch._size(each) for each in grads] == [-1.0, 0.0, 3.0, 2.0]


@pytest.mark.parametrize(
    ("dtype", "half", "tiny"),
    [
        (torch.float16, "mul.Tensor gives float16", ""),
        (torch.bfloat16, "mul.Tensor gives bfloat16", ""),
        (torch.float32, "", "mul.Tensor gives numbers below the normal ones of float32"),
        (torch.float64, "", ""),
    ],
)
def test_half_precision_of_either_kind_is_inexact(dtype: torch.dtype, half: str, tiny: str) -> None:
    one, other = (torch.full((1,), number, dtype=dtype) for number in (1e-30, 1e-10))
    with Inexact() as watch:
        one.mul(other).mul(0.0).add(1.0).mul(one)  # the first that gives it is told, and 0 is no small number
    assert (watch.half, watch.tiny) == (half, tiny)


def test_what_nothing_has_been_written_to_is_not_looked_at() -> None:
    watch = Inexact()
    for name in ("new_empty.default", "empty_like.default", "mul.Tensor"):
        assert watch.tiny == watch.half == ""
        func: Any = lambda: [torch.tensor(1e-40), torch.tensor(1.0, dtype=torch.float16)]  # noqa: E731
        func.__name__ = name
        watch.__torch_dispatch__(func, ())
    assert (watch.half, watch.tiny) == (
        "mul.Tensor gives float16", "mul.Tensor gives numbers below the normal ones of float32",
    )  # fmt: skip


def test_a_checkpoint_in_folders_is_kept_whole(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "part").mkdir()
        for name in ("a.bin", "part/b.bin", "part/none"):
            (folder / name).write_text(name)

    files = tiny.saved(write)
    assert sorted(files) == ["a.bin", "part/b.bin", "part/none"]
    tiny.loaded(files, lambda folder: shutil.copytree(folder, tmp_path / "again"))
    assert (tmp_path / "again/part/b.bin").read_text() == "part/b.bin"


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (([True], [False]), "the verdict is step, expected skip"),
        (([False, False], [False, True]), "the verdict is step, skip, expected step"),
        (([False, True], []), "the verdict is none, expected skip"),
    ],
)
def test_a_verdict_in_words(verdicts: tuple[list[bool], list[bool]], said: str) -> None:
    assert splitting._say(*verdicts) == said


COUNTS = (
    *("last_epoch", "scheduler.last_epoch", "scheduler._step_count", "ema.n_averaged", "step", "steps", "global_step"),
    *("globalsteps", "it.num_updates", "my_last_epoch", "steps_seen", "adam.state.0.step", "adam.param_groups.0.step"),
    *("data.steps", "epoch", "count"),
)


def test_what_counts_steps_is_known_by_its_name() -> None:
    def found(name: str, clean: int = 3, size: int = 1, moves: bool = False) -> bool:
        state = {name: np.zeros(size, int)}
        last = {name: np.ones(size, int)} if moves else state
        run: Any = SimpleNamespace(verdicts=[[False]] * clean + [[True], []], states=[state, state, last])
        broken = learning._counts(run, "in 5 batches")
        assert broken is None or broken.seen == f"{name} stays 0 in {clean} clean steps"
        assert broken is None or (broken.step, broken.cause) == (clean + 1, learning.STILL)
        return broken is not None

    assert [name for name in COUNTS if found(name)] == [*COUNTS[:7], "globalsteps", "it.num_updates"]
    assert not found("step", clean=2)
    assert not found("step", size=2)
    assert not found("step", moves=True)


def test_a_judged_loop_leaves_torchs_threads_as_they_are() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        [*judge_loop(sgd, batches(), ["it_learns"])]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_parameter_at_0_whose_small_gradients_move_nothing_is_no_finding() -> None:
    def make(size: float, scaler: Any) -> Loop:
        t = Trainer(scaler)
        still = torch.nn.Parameter(torch.zeros(2))
        t.optimizer.add_param_group({"params": [still], "lr": 0.0})

        def step(batch: Any) -> None:
            t.optimizer.zero_grad()
            scaler.scale(loss_of(t.model, batch) + size * still.sum()).backward()
            t.update()

        return Loop(step, {**t.state, "still": still})

    for size, outcome in ((1e-5, "passed"), (1e-3, "failed")):
        [result] = judge_loop(partial(make, size), batches(), ["it_learns"])
        assert result.outcome == outcome


def test_what_counts_steps_of_ranks_grows_by_one() -> None:
    states = [arrays(steps=n, twice=2 * n, still=0, vector=[n, n], late=n) for n in range(4)]
    del states[0]["late"]
    run: Any = SimpleNamespace(states=states)
    assert ranks._counts(run, [(0, 1), (2, 3)]) == ["steps", "late"]
    assert ranks._counts(run, [(0, 2)]) == []
    assert ranks._value(None) == 0.0


def test_a_rank_is_given_its_part_of_a_batch() -> None:
    run: Any = SimpleNamespace(loop=Loop(lambda batch: None, {}))
    batch = (np.arange(4), np.arange(4))
    assert [ranks._part(run, rank, batch)[0].tolist() for rank in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(LoopError, match="the batch has no rows to share among 2 ranks: give Loop split="):
        ranks._part(run, 0, (np.arange(3), np.arange(3)))
    run.loop = Loop(lambda batch: None, {}, split=lambda batch, parts: [batch] * 3)
    with pytest.raises(LoopError, match=r"split\(batch, 2\) gave 3 parts, expected one per rank"):
        ranks._part(run, 0, batch)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ((), "an inf in all gradients"),
        ((0,), "a NaN in one element of c's gradient"),
        ((1,), "a -inf in one element of a's gradient"),
        ((0, 1), "an inf in all gradients"),
    ],
)
def test_what_is_planted_on_ranks(bad: tuple[int, ...], said: str) -> None:
    run: Any = SimpleNamespace(owners=lambda: {"a": "o", "c": "o"}, parameters=lambda: dict.fromkeys("abcd"))
    assert str(ranks._fault(run, bad)) == said
    run.owners = dict
    assert str(ranks._fault(run, bad)) == "an inf in all gradients"


def again(before: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
    """What an update makes of a scale that grows at every second clean step."""
    s, n = float(before["scale"]), int(before["n"])
    return [arrays(scale=s * 2 if n else s, n=1 - n), arrays(scale=s / 2, n=0)]


@pytest.mark.parametrize(
    ("after", "falls", "count"),
    [
        ((8.0, 0), False, 0),
        ((8.0, 1), False, 1),
        ((16.0, 0), False, 2),
        ((32.0, 0), False, 4),
        ((32.0, 1), False, None),
        ((4.0, 0), True, 1),
        ((2.0, 0), True, 2),
        ((4.0, 0), False, None),
    ],
)
def test_updates_are_counted_by_what_they_make_of_a_scaler(after: Any, falls: bool, count: int | None) -> None:
    run: Any = SimpleNamespace(again=again)
    states = [arrays(scale=s, n=n) for s, n in ((8.0, 0), after)]
    assert scaler._updates(run, *states, falls=falls) == count


# ------------------------------------------------------------------------------------------ frameworks by annotation


def annotated(annotation: Any) -> Callable[..., Any]:
    def make(scaler):  # type: ignore[no-untyped-def]
        return None

    make.__annotations__ = {"scaler": annotation} if annotation else {}
    return make


def named(module: str) -> type:
    return type("Scaler", (), {"__module__": module})


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (None, "TorchRun"),
        ("NoSuchName", "TorchRun"),
        (named("torch.amp"), "TorchRun"),
        (named("flaxen.scale"), "TorchRun"),
        (named("flax"), "JaxRun"),
        (named("flax.training.dynamic_scale"), "JaxRun"),
        (named("jmp._src.loss_scale"), "JaxRun"),
        (named("ampsim.jax.scale"), "JaxRun"),
        (type[named("flax.x")], "JaxRun"),
    ],
)
def test_a_framework_is_known_by_the_class_that_make_is_annotated_with(annotation: Any, kind: str) -> None:
    if kind == "JaxRun":
        pytest.importorskip("jax")
    assert run_class(annotated(annotation)).__name__ == kind


def test_every_law_of_loops_is_a_law() -> None:
    assert all(isinstance(each, Law) and each.group == "loop" for each in LAWS.values())
    assert [name for name, each in LAWS.items() if not each.shrinks] == ["scaler_changes_by_update_only", "it_learns"]
    assert len(batches()) > 3


@pytest.mark.parametrize(("sizes", "tiny"), [([1e-5, 1e-4], True), ([1e-4, 0.5], False)])
def test_numbers_below_the_normal_ones_excuse_only_what_is_all_slight(monkeypatch, sizes, tiny):
    asked = []
    run = SimpleNamespace(inexact=lambda replay, *, tiny: asked.append(tiny) or "an operation")
    monkeypatch.setattr(scale, "run_class", lambda _: run)
    found = [Difference(str(size), np.ones(1), np.full(1, 1 + size), np.ones(1)) for size in sizes]
    assert scale._excuse(Broken("", 0, found), sgd, [], 2.0, 1) == "an operation"
    assert asked == [tiny]


def test_what_a_loop_carries_is_all_but_what_it_has_logged() -> None:
    run: Any = SimpleNamespace(states=[arrays(logged_steps=1, logged__loss=2.0, w=3.0)], scalers=[arrays(scale=2.0)])
    assert {*resume._carried(run, 0)} == {"logged_steps", "w", "scale"}


def test_a_gradient_of_an_earlier_step_of_a_batch_is_one() -> None:
    def make(scaler: Any) -> Loop:
        torch.manual_seed(0)
        model, frozen = torch.nn.Linear(3, 1), torch.nn.Parameter(torch.ones(1))
        groups = [{"params": model.parameters(), "lr": 0.01}, {"params": [frozen], "lr": 0.0}]
        optimizer = torch.optim.SGD(groups)

        def step(batch: Any) -> None:
            for factor in (1.0, 0.0):
                optimizer.zero_grad()
                scaler.scale((model(batch) + factor * frozen).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()

        return Loop(step, {"model": model, "optimizer": optimizer})

    (result,) = judge_loop(make, torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0)), ["it_learns"])
    assert "params.0 did not move, with gradients up to " in result.text


@pytest.mark.parametrize("write", [lambda run: run.set_scale(4.0), lambda run: run.load(saved(run))])
def test_what_the_kit_writes_into_a_scaler_is_no_jump_of_the_loop(write: Callable[[Any], object]) -> None:
    given = [Batch(place, data) for place, data in enumerate(batches()[:3])]
    run = advance(begin(sgd, 2.0), given[:2])
    write(run)
    assert not advance(run, given[2:]).jumps
    run.scaler.load_state_dict({**run.scaler.state_dict(), "scale": 8.0})
    assert advance(run, given[:1]).jumps


def saved(run: Any) -> Any:
    """Return a checkpoint whose scale is another one."""
    scaler, rest = run.save()
    return {**scaler, "scale": 4.0}, rest

"""Two dialects side by side: what differs in words, and a history than which none is shorter."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ampsim import Rule, dialects
from ampsim.cli import app
from ampsim.core.differences import Search, in_words, shortest_separation
from ampsim.core.machine import Arithmetic
from ampsim.core.quirks import RaiseBelow, StreakStartsAt
from ampsim.core.replay.fold import states
from tests.examples import examples

SHORT = 6


def seen(rule: Rule, history: tuple[bool, ...]) -> list[object]:
    scales: list[object] = []
    try:
        for state in states(rule, history):
            scales.append(state.scale)  # noqa: PERF401
    except Exception:
        scales.append("gives up")
    return scales


def alike(name: str) -> Rule:
    wanted = {
        "init_scale": 64.0,
        "growth_interval": 2,
        "hysteresis": 2,
        "scale_max": 64.0,
    }
    dialect = dialects.ALL[name]
    return dialects.get(
        name,
        **{
            key: wanted[key]
            for key in wanted
            if key in {*dialect.parameters, *dialect.options}
        },
    )


@settings(max_examples=examples(ms=10))
@given(st.sampled_from(dialects.names()), st.sampled_from(dialects.names()))
def test_shortest_separation_matches_exhaustive_search(a: str, b: str) -> None:
    x, y = alike(a), alike(b)
    search = shortest_separation(x, y, SHORT)
    assert shortest_separation(y, x, SHORT) == search
    differing = (
        history
        for length in range(SHORT + 1)
        for history in itertools.product((False, True), repeat=length)
        if seen(x, history) != seen(y, history)
    )
    first = next(differing, None) if x.init_scale == y.init_scale else ()
    assert search.history == first
    assert search.length == (
        len(first) if first is not None else 0 if x == y else SHORT
    )


def test_search_ends_when_states_exhausted() -> None:
    small = Rule(4.0, growth_interval=1, min_scale=1.0, max_scale=4.0)
    search = shortest_separation(small, small.replace(growth_test=">="))
    assert search == Search(None, 3, exhausted=True)  # 4, 2, 1, and no more
    assert shortest_separation(small, small) == Search(None, 0, exhausted=True)


def test_search_ends_at_state_limit() -> None:
    search = shortest_separation(
        Rule(), Rule(growth_interval=3000), longest=20, most=30
    )
    assert (search.history, search.exhausted) == (None, False)
    assert search.length < 20


def test_minimum_scale_error_separates_rules() -> None:
    rule = Rule(4.0)
    raising = rule.replace(quirks=(RaiseBelow(1.0),))
    assert shortest_separation(rule, raising).history == (True, True)
    both = rule.replace(quirks=(RaiseBelow(1.0), StreakStartsAt(0)))
    assert shortest_separation(raising, both, 40).history is None


def test_description_lists_differing_settings() -> None:
    torch = dialects.get("torch.amp.GradScaler")
    rows = list(in_words(torch, dialects.get("megatron.core.DynamicGradScaler")))
    values = [row[1:] for row in rows]
    assert values[:4] == [
        ("2**16", "2**32"),
        ("2000", "1000"),
        ("none", "1"),
        ("1", "2"),
    ]
    assert list(in_words(torch, torch)) == []


@pytest.mark.parametrize(
    ("changes", "sides"),
    [
        (
            {"hysteresis_reset": {"clean"}},
            [],
        ),  # with hysteresis=1 there is nothing to reset
        (
            {"hysteresis": 2, "hysteresis_reset": {"clean"}},
            [("1", "2"), ("growth", "clean")],
        ),
        ({"arithmetic": Arithmetic(flush_subnormals=True)}, [("false", "true")]),
        (
            {"arithmetic": Arithmetic(round_factors=True)},
            [("false", "true")],
        ),
        ({"quirks": (StreakStartsAt(-1),)}, [("no", "yes")]),
    ],
)
def test_description_is_symmetric(changes, sides) -> None:
    rule = Rule(**changes)
    assert [row[1:] for row in in_words(Rule(), rule)] == sides
    assert [row[1:] for row in in_words(rule, Rule())] == [side[::-1] for side in sides]


def diff(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["dialects", "--diff", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_command_shows_first_difference() -> None:
    code, text = diff("torch.amp.GradScaler", "flax.DynamicScale")
    assert code == 0
    assert "they diverge after 2 x finite: 2048.0 and 1024.0" in " ".join(text.split())
    code, text = diff(
        "deepspeed.DynamicLossScaler",
        "deepspeed.FP16_Optimizer",
        "-s",
        "init_scale=2",
        "-s",
        "delayed_shift=1",
    )
    assert (code, "raises Exception" in text) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["flax.DynamicScal", "torch.amp.GradScaler"], "flax.DynamicScale"),
        (
            ["torch.amp.GradScaler", "nemo.GradScaler", "-s", "hysteresys=2"],
            "'hysteresis'",
        ),
    ],
)
def test_invalid_command_arguments_exit_2(arguments: list[str], shown: str) -> None:
    code, text = diff(*arguments)
    assert code == 2
    assert shown in text

"""Two dialects side by side: what differs in words, and a history than which none is shorter."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ampsim import Rule, dialects
from ampsim.cli import app
from ampsim.core.differences import _ARITHMETIC, _RULE, Search, in_words, shortest_separation
from ampsim.core.formats import far_power
from ampsim.core.machine import Arithmetic
from ampsim.core.quirks import HoldAtBounds, RaiseBelow, StreakStartsAt
from ampsim.core.replay.fold import states
from tests.examples import examples

SHORT = 6


def seen(rule: Rule, history: tuple[bool, ...]) -> list[object]:
    scales: list[object] = []
    try:
        for state in states(rule, history):
            scales.append(state.scale)  # noqa: PERF401 - extend would lose what came before an exception
    except Exception:
        scales.append("gives up")
    return scales


def alike(name: str) -> Rule:
    wanted = {"init": 64.0, "interval": 2, "hysteresis": 2, "scale_max": 64.0}
    dialect = dialects.ALL[name]
    return dialects.get(name, **{key: wanted[key] for key in wanted if key in {*dialect.parameters, *dialect.options}})


@settings(max_examples=examples(ms=10))
@given(st.sampled_from(dialects.names()), st.sampled_from(dialects.names()))
def test_a_shortest_history_separates_and_none_is_shorter(a: str, b: str) -> None:
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
    assert search.length == (len(first) if first is not None else 0 if x == y else SHORT)


def test_of_several_shortest_it_is_the_one_with_clean_steps_first() -> None:
    rule = Rule(8.0, growth_interval=3, min_scale=8.0)
    held = rule.replace(quirks=(HoldAtBounds(8.0, 64.0),))  # an overflow at the minimum keeps the streak
    for history in ((False, True, False, False), (False, False, True, False)):
        assert seen(rule, history) != seen(held, history)
    assert shortest_separation(rule, held).history == (False, False, True, False)


def test_a_search_ends_where_no_state_is_new() -> None:
    small = Rule(4.0, growth_interval=1, min_scale=1.0, max_scale=4.0)
    search = shortest_separation(small, small.replace(growth_test=">="))
    assert search == Search(None, 3, exhausted=True)  # 4, 2, 1, and no more
    assert shortest_separation(small, small) == Search(None, 0, exhausted=True)


def test_a_search_ends_with_too_many_states() -> None:
    wide = Rule(64.0, growth_factor=1.7, backoff_factor=0.3, growth_interval=3)
    search = shortest_separation(wide, wide.replace(growth_test=">="), most=300)
    assert search.history is None
    assert not search.exhausted
    assert 8 < search.length < 100


def test_giving_up_is_a_difference() -> None:
    rule = Rule(4.0)
    raising = rule.replace(quirks=(RaiseBelow(1.0),))
    assert shortest_separation(rule, raising).history == (True, True)
    both = rule.replace(quirks=(RaiseBelow(1.0), StreakStartsAt(0)))
    assert shortest_separation(raising, both, 40).history is None


def test_every_field_is_told() -> None:
    told = {*_RULE, *_ARITHMETIC}
    fields = {each.name for cls in (Rule, Arithmetic) for each in dataclasses.fields(cls)}
    assert told == fields - {"arithmetic", "quirks"}


def test_the_words() -> None:
    torch, other = dialects.get("torch.amp.GradScaler"), dialects.get("megatron.core.DynamicGradScaler")
    assert list(in_words(torch, other)) == [
        ("the first scale", "2**16", "2**32"),
        ("clean steps to a growth", "2000", "1000"),
        ("a backoff ends at", "no floor", "1"),
        ("overflows that a backoff takes", "1", "2"),
        ("a factor is used", "as a double", "rounded to that"),
        ("a growth to infinity", "is not taken", "is taken, for ever"),
    ]
    assert list(in_words(torch, torch)) == []
    patient = Rule(hysteresis=2, hysteresis_refill=frozenset({"clean", "backoff"}))
    assert list(in_words(torch, patient)) == [
        ("overflows that a backoff takes", "1", "2"),
        ("they are counted anew after", "a growth", "a backoff or a clean step"),
    ]
    assert [far_power(value, 10) for value in (2.0**-24, 2.0**-9, 2.0**10, 3.0 * 2**10)] == [
        "2**-24",
        None,
        "2**10",
        None,
    ]
    (row,) = in_words(torch, torch.replace(quirks=(RaiseBelow(0.5),)))
    assert row[0].startswith("fairseq (``min_loss_scale``): an overflow")
    assert row[0].endswith("limit=0.5")
    assert row[1:] == ("no", "yes")


# ------------------------------------------------------------------------------------------------- the command


def diff(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["dialects", "--diff", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, "\n".join(line.rstrip() for line in result.output.splitlines())


def test_the_command_shows_both_sides() -> None:
    code, text = diff("torch.amp.GradScaler", "flax.DynamicScale")
    assert code == 0
    assert text.endswith("""\
With init=1024.0, interval=2: they part after 2 clean
update         torch.amp.GradScaler  flax.DynamicScale
               1024.0                1024.0
0       clean  1024.0                1024.0
1       clean  2048.0                1024.0""")
    assert "clean steps to a growth  2000                  2001" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mmcv.runner.LossScaler", "apex.fp16_utils.DynamicLossScaler"],
         ["by default the rules are equal", "interval=2: no history separates them"]),
        (["torch.amp.GradScaler", "torch.fsdp.ShardedGradScaler[cpu]", "-s", "init=2**126", "-s", "interval=1"],
         ["With init=8.507059173023462e+37, interval=1: they part after 2 clean", "a growth to infinity", "inf"]),
        (["torch.amp.GradScaler", "torch.fsdp.ShardedGradScaler[cpu]", "--longest", "9"],
         ["no history of up to 9 updates separates them"]),
        (["torch.amp.GradScaler", "nemo.GradScaler", "-s", "hysteresis=2"],
         ["with these settings", "hysteresis=2 (nemo.GradScaler alone): they part after 1 overflow", "a clean step"]),
        (["torch.amp.GradScaler", "keras.LossScaleOptimizer[jax]"],
         ["after 137 overflows", "...", "5.877471754111438e-39"]),
        (["deepspeed.DynamicLossScaler", "deepspeed.FP16_Optimizer", "-s", "init=2", "-s", "delayed_shift=1"],
         ["they part after 2 overflows", "raises Exception"]),
        (["torch.amp.GradScaler", "torch.amp.GradScaler", "-s", "init=8"],
         ["init=8, interval=2: no history separates"]),
        (["torch.amp.GradScaler", "openseq2seq.BackoffScaler"], ["(torch.amp.GradScaler alone)", "before any update"]),
    ],
)  # fmt: skip
def test_what_the_command_says(arguments: list[str], said: list[str]) -> None:
    code, text = diff(*arguments)
    assert code == 0
    for each in said:
        assert each in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["torch.amp.GradScaler", "flax.DynamicScal"], "did you mean 'flax.DynamicScale'"),
        (["flax.DynamicScal", "torch.amp.GradScaler"], "did you mean 'flax.DynamicScale'"),
        (["torch.amp.GradScaler"], "Option '--diff' requires 2 arguments"),
        (["torch.amp.GradScaler", "nemo.GradScaler", "-s", "hysteresys=2"],
         "--set hysteresys: neither has it: did you mean 'hysteresis'?"),
        (["torch.amp.GradScaler", "nemo.GradScaler", "-s", "interval=0"], "interval=0"),
        (["torch.amp.GradScaler", "nemo.GradScaler", "-s", "interval"], "expected NAME=VALUE"),
        (["torch.amp.GradScaler", "nemo.GradScaler", "--longest", "0"], "Invalid value"),
    ],
)  # fmt: skip
def test_wrong_use_of_the_command(arguments: list[str], said: str) -> None:
    code, text = diff(*arguments)
    assert code == 2
    assert said in text


def test_settings_want_two_dialects() -> None:
    result = CliRunner().invoke(app, ["dialects", "-s", "interval=2"])
    assert result.exit_code == 2
    assert "--set: expected --diff A B with it" in result.output

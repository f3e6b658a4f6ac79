"""The vectors: small, the same bytes each time, and no wrong machine passes them."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from ampsim import dialects
from ampsim.core import conformance_vectors as vectors
from ampsim.core.conformance_vectors import (
    Vector,
    answer,
    as_data,
    as_file,
    as_hex,
    first_difference,
)
from ampsim.core.machine import Quirk, Rule


def test_vectors_are_small_and_reproducible() -> None:
    data = as_file(vectors.make(), "0")
    assert json.loads(data.partition(b"\n")[0])["lines"] == len(vectors.make())
    assert data == as_file(vectors.make(), "0")
    assert len(data) < 1_000_000
    assert {vector.dialect for vector in vectors.make()} == set(dialects.names())
    assert any(vector.synchronous for vector in vectors.make())


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (3.0, "0x1.8p+1"),
        (0.0, "0x0p+0"),
        (2.0**-1074, "0x0.0000000000001p-1022"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_are_hexadecimal_and_short(x: float, text: str) -> None:
    assert as_hex(x) == text
    assert answer(json.dumps([text]), 1) == (x,)


def test_question_contains_rule() -> None:
    for vector in vectors.make()[::9]:
        asked = json.loads(vector.question())
        assert asked["config"] == as_data(dialects.get(vector.dialect, **vector.params))
        assert len(asked["found_inf"]) == len(vector.found_inf) >= len(vector.outcome)


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ('["0x1p+1", 2, 0.5]', (2.0, 2.0, 0.5)),
        ('["inf", 1e3, "0X1P-2"]', (float("inf"), 1000.0, 0.25)),
        ('["0x1p+1", "gives up"]', (2.0, None)),
        ('[1, 1, "gives up"]', (1.0, 1.0, None)),
        ("null", None),
    ],
)
def test_answer_is_parsed(line: str, outcome: object) -> None:
    assert answer(line, 3) == outcome


@pytest.mark.parametrize(
    "line",
    [
        "0x1p+1 0x1p+1",
        "",
        "{}",
        "[1, 2]",
        "[1, 2, 3, 4]",
        '["gives up", 1, 1]',
        '[1, 1, 1, "gives up"]',
        "[1, 2, true]",
        "[1, 2, null]",
        '["0xg", 1, 1]',
        '["0x1p+5000", 1, 1]',
        f"[1, 1, 1{'0' * 400}]",
        "[" * 100_000,
    ],
)
def test_invalid_answer_raises(line: str) -> None:
    with pytest.raises(ValueError, match="expected a"):
        answer(line, 3)


@pytest.mark.parametrize(
    ("a", "b", "step"),
    [
        ((1.0, 2.0), (1.0, 2.0), None),
        ((1.0, 2.0), (1.0, 2.0 + 2**-51), 1),
        ((1.0, None), (1.0, None), None),
        ((1.0, None), (1.0, 1.0), 1),
        ((1.0,), (1.0, None), 1),
        ((float("nan"),), (float("nan"),), None),
    ],
)
def test_one_bit_makes_a_difference(
    a: vectors.Outcome, b: vectors.Outcome, step: int | None
) -> None:
    assert first_difference(a, b) == first_difference(b, a) == step


WRONG: dict[str, Callable[[Rule], dict[str, Any]]] = {
    "grows late": lambda rule: {"growth_interval": rule.growth_interval + 1},
    "grows at once": lambda rule: {"growth_interval": 1},
    "never patient": lambda rule: {"hysteresis": 1},
    "one too patient": lambda rule: {"hysteresis": rule.hysteresis + 1},
    "no floor": lambda rule: {"min_scale": None},
    "no threshold": lambda rule: {"max_scale": None},
    "no delay": lambda rule: {"delay": 0},
    "always late": lambda rule: {"delay": rule.delay + 1},
    "no quirks": lambda rule: {"quirks": ()},
    "reset when clean": lambda rule: {
        "hysteresis_reset": rule.hysteresis_reset | {"clean"}
    },
    "no reset at growth": lambda rule: {
        "hysteresis_reset": rule.hysteresis_reset - {"growth"}
    },
    "reset at backoff": lambda rule: {
        "hysteresis_reset": rule.hysteresis_reset | {"backoff"}
    },
}
OF_ARITHMETIC = {
    "round_factors": [False, True],
    "flush_subnormals": [False, True],
    "keeps_finite": [False, True],
    "backoff": ["multiply", "divide", "reciprocal"],
    "dtype": ["float64"],
}


def fails(change: Callable[[Rule], dict[str, Any]]) -> bool:
    """Whether a vector fails a machine whose every rule is changed."""
    for vector in vectors.make():
        rule = dialects.get(vector.dialect, **vector.params)
        changed = Rule.unchecked(**{**fields(rule), **change(rule)})
        if (
            Vector.of(changed, vector.found_inf, vector.synchronous).outcome
            != vector.outcome
        ):
            return True
    return False


def fields(rule: Rule) -> dict[str, Any]:
    return {each.name: getattr(rule, each.name) for each in dataclasses.fields(rule)}


def test_state_machine_passes() -> None:
    assert not fails(lambda rule: {})


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_changed_rule_fails(change: Callable[[Rule], dict[str, Any]]) -> None:
    assert fails(change)


@pytest.mark.parametrize(
    ("field", "value"),
    [(name, each) for name in OF_ARITHMETIC for each in OF_ARITHMETIC[name]],
)
def test_changed_arithmetic_fails(field: str, value: Any) -> None:
    assert fails(
        lambda rule: {
            "arithmetic": dataclasses.replace(rule.arithmetic, **{field: value})
        }
    )


QUIRKS = {
    type(quirk) for name in dialects.names() for quirk in dialects.get(name).quirks
}


@pytest.mark.parametrize("kind", sorted(QUIRKS, key=str))
def test_removed_quirk_fails(kind: type[Quirk]) -> None:
    assert fails(
        lambda rule: {
            "quirks": tuple(
                quirk for quirk in rule.quirks if not isinstance(quirk, kind)
            )
        }
    )

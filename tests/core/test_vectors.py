"""The vectors: small, the same bytes each time, and no wrong machine passes them."""

import dataclasses
import hashlib
import itertools
import json
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from ampsim import dialects
from ampsim.core import machine, quirks, vectors
from ampsim.core.files import DamagedFileError
from ampsim.core.machine import Rule
from ampsim.core.vectors import Vector, answer, as_data, as_file, as_hex, first_difference

SHA256 = "5166446cbc0ffc48acf405fa5ad8e347f642a2ab51682f1dcca53d798a9ef6ba"
"""Of the lines. Where they change on purpose, as by a dialect more, it goes here; see `vectors.VERSION`."""


def test_the_set_is_small_and_has_the_bytes_of_its_version() -> None:
    data = as_file(vectors.make(), "0")
    head = json.loads(data.partition(b"\n")[0])
    assert head == {
        "vectors": 1,
        "ampsim": "0",
        "licence": "Apache-2.0",
        "lines": len(vectors.make()),
        "sha256": SHA256,
    }
    assert len(data) < 1_000_000
    assert {vector.dialect for vector in vectors.make()} == set(dialects.names())


def test_a_file_comes_back_and_no_damaged_one(tmp_path: Path) -> None:
    file, some = tmp_path / "v.jsonl", vectors.make()[::40]
    data = as_file(some, "0")
    file.write_bytes(data)
    again = vectors.read(file)
    assert [each.line() for each in again] == [each.line() for each in some]
    assert [(each.found_inf, each.outcome) for each in again] == [(each.found_inf, each.outcome) for each in some]
    head, line = data.splitlines(keepends=True)[:2]
    for wrong, said in (
        (data[:-3], "line 1: sha256 of what follows is"),
        (data.replace(b'"0x1p+10"', b'"0x1p+11"', 1), "line 1: sha256 of what follows is"),
        (line, "line 1: no first line of such a file"),
        (b"", "line 1: Expecting value"),
        (b"\xff\n", "line 1: "),
        (head.replace(b'"vectors":1', b'"vectors":2'), "line 1: no first line"),
        (with_head(line + b"{}\n"), "line 3: 'outcome'"),
        (with_head(line + b"[\n"), "line 3: Expecting value"),
        (as_file([], "0").partition(b"\n")[0] + b"\n", None),
    ):
        file.write_bytes(wrong)
        if said is None:
            assert vectors.read(file) == []
            continue
        with pytest.raises(DamagedFileError, match="expected vectors of version 1, `ampsim traces export`") as error:
            vectors.read(file)
        assert said in str(error.value)


def with_head(body: bytes) -> bytes:
    """These lines as a file whose first line is right."""
    head = {"vectors": vectors.VERSION, "sha256": hashlib.sha256(body).hexdigest()}
    return json.dumps(head).encode() + b"\n" + body


@pytest.mark.parametrize(
    ("x", "text"), [(3.0, "0x1.8p+1"), (0.0, "0x0p+0"), (2.0**-1074, "0x0.0000000000001p-1022"), (float("inf"), "inf")]
)
def test_numbers_are_hexadecimal_and_short(x: float, text: str) -> None:
    assert as_hex(x) == text
    assert answer(json.dumps([text]), 1) == (x,)


def test_the_rule_is_in_the_line() -> None:
    for vector in vectors.make()[::9]:
        asked = json.loads(vector.question())
        assert asked["config"] == as_data(dialects.get(vector.dialect, **vector.params))
        assert len(asked["found_inf"]) == len(vector.found_inf) >= len(vector.outcome)


# --------------------------------------------------------------------------------------------------- an answer


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
def test_an_answer_is_read(line: str, outcome: object) -> None:
    assert answer(line, 3) == outcome


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0x1p+1 0x1p+1", "expected a JSON list such as"),
        ("", "Expecting value"),
        ("{}", "dict; expected a JSON list"),
        ("[1, 2]", "2 entries; expected a JSON list"),
        ("[1, 2, 3, 4]", "3 entries for as many updates"),
        ('["gives up", 1, 1]', "'gives up' before the last entry"),
        ('[1, 1, 1, "gives up"]', "4 entries; expected a JSON list"),
        ("[1, 2, true]", "True: expected a scale"),
        ("[1, 2, null]", "None: expected a scale"),
        ('[1, 2, "many"]', "'many': expected a scale"),
        ('["0xg", 1, 1]', "'0xg': expected a scale"),
        ('["0x1p+5000", 1, 1]', "'0x1p+5000': expected a scale"),
        (f"[1, 1, 1{'0' * 400}]", "0: expected a scale"),
        ("[" * 100_000, "expected a JSON list"),
    ],
)
def test_an_answer_of_another_form_is_refused(line: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"expected a") as error:
        answer(line, 3)
    assert said in str(error.value)


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
def test_one_bit_is_a_difference(a: vectors.Outcome, b: vectors.Outcome, step: int | None) -> None:
    assert first_difference(a, b) == first_difference(b, a) == step


# ---------------------------------------------------------------------------------------------- wrong machines

MACHINES = [
    ("scale * self._factor(rule.growth_factor)", "scale * rule.growth_factor"),  # rounds no factor
    ("ctypes.c_float(x).value", "x"),  # no float32
    ("0.0 if abs(x) < self.least else x", "x"),  # keeps subnormals
    ("0.0 if abs(x) < self.least else x", "0.0 if abs(x) <= self.least else x"),
    ("return 2.0**-126 if", "return 2.0**-125 if"),
    ("scale if self.keeps_finite and not math.isfinite(grown) else grown", "grown"),  # grows to inf
    ("if self.keeps_finite and not", "if not"),  # never grows to inf
    ("if rule.max_scale is not None:", "if False:"),
    ("lowered if rule.min_scale is None else", "lowered if True else"),
    ("scale / self._factor(rule.growth_factor)", "scale * (1 / rule.growth_factor)"),
    ("scale * self.round(1.0 / self._factor(rule.growth_factor))", "scale / self._factor(rule.growth_factor)"),
    ("        growth_tracker = 0\n        if overflow", "        if overflow"),  # an overflow keeps the streak
    ("overflow_tracker + 1 < rule.hysteresis", "overflow_tracker < rule.hysteresis"),  # one too patient
    ("overflow_tracker + 1 < rule.hysteresis", "False"),  # never patient
    ('0 if "backoff" in rule.hysteresis_refill', '0 if "growth" in rule.hysteresis_refill'),
    ('0 if "clean" in rule.hysteresis_refill else overflow_tracker', "0"),  # patience with those in a row alone
    ('0 if "clean" in rule.hysteresis_refill else overflow_tracker', "overflow_tracker"),
    ('0 if "growth" in rule.hysteresis_refill else overflow_tracker', "overflow_tracker"),
    ("rule.growth_interval):", "rule.growth_interval + 1):"),  # a step late
    ("(growth_tracker, rule", "(growth_tracker + 1, rule"),  # a step early
    ("            scale = rule.arithmetic.grow(scale, rule)\n            growth_tracker = 0\n",
     "            scale = rule.arithmetic.grow(scale, rule)\n"),  # a growth keeps the streak
    ("        growth_tracker += 1\n", "        growth_tracker += 1 + (rule.delay > 0)\n"),
    ("depth = 0 if synchronous else rule.delay", "depth = 0"),  # no delay
    ("depth = 0 if synchronous else rule.delay", "depth = rule.delay"),  # always a delay
    ("State(state.newest, state.growth", "State(state.scale, state.growth"),  # computes on the scale in force
    ("State(self.arithmetic.round(self.init_scale))", "State(float(self.init_scale))"),
]  # fmt: skip
# The count that BMTrain keeps while a growth waits at the maximum is in no scale: only an overflow brings the scale
# below it, and ends the count.
QUIRKS = [
    ("if not found_inf and not state.scale < self.high:", "if False:"),
    ("growth_tracker=self.start) if found_inf", "growth_tracker=0) if found_inf"),
    ("growth_tracker=self.start)\n", "growth_tracker=0)\n"),
    ("raise Exception(self.message)", "pass"),
    ("state.overflow_tracker + 1 >= rule.hysteresis", "True"),
    ("overflows / updates < self.fraction", "overflows / updates <= self.fraction"),
    ("updates_since_rescale=0 if rescaled else", "updates_since_rescale=0 if False else"),
    ("after.scale <= self.limit", "after.scale < self.limit / 2"),
    ("not state.scale > self.low", "not state.scale >= self.low"),
    ("min(max(after.scale, low), high)", "after.scale"),
    ("seen = found_inf or bool(state.recall(\"overflow_seen\"))", "seen = found_inf"),
    ("return after.remember(overflow_seen=1) if seen else after", "return after"),
    ("arithmetic=Arithmetic(flush_subnormals=True)", "arithmetic=rule.arithmetic"),
    ("in_a_row > self.overflows", "in_a_row > self.overflows + 1"),
]  # fmt: skip


def planted(module: types.ModuleType, right: str, wrong: str) -> types.ModuleType:
    source = Path(str(module.__file__)).read_text()
    assert right in source
    copy = types.ModuleType("planted")
    exec(compile(source.replace(right, wrong, 1), "planted", "exec"), copy.__dict__)  # noqa: S102 - our own source
    return copy


def remade(rule: Rule, machines: types.ModuleType, wraps: types.ModuleType) -> Rule:
    fields = {each.name: getattr(rule, each.name) for each in dataclasses.fields(rule)}
    fields["arithmetic"] = machines.Arithmetic(**vars(rule.arithmetic))
    fields["quirks"] = tuple(getattr(wraps, type(quirk).__name__)(**vars(quirk)) for quirk in rule.quirks)
    return machines.Rule(**fields)  # type: ignore[no-any-return]


def failing(machines: types.ModuleType = machine, wraps: types.ModuleType = quirks) -> Iterator[Vector]:
    for vector in vectors.make():
        rule = remade(dialects.get(vector.dialect, **vector.params), machines, wraps)
        if Vector.of(rule, vector.found_inf, vector.synchronous).outcome != vector.outcome:
            yield vector


def test_the_machine_made_anew_passes() -> None:
    assert not [*failing(planted(machine, "", ""), planted(quirks, "", ""))]


@pytest.mark.parametrize(("right", "wrong"), MACHINES)
def test_a_wrong_machine_fails(right: str, wrong: str) -> None:
    assert next(failing(planted(machine, right, wrong)), None)


@pytest.mark.parametrize(("right", "wrong"), QUIRKS)
def test_a_wrong_quirk_fails(right: str, wrong: str) -> None:
    assert next(failing(wraps=planted(quirks, right, wrong)), None)


# ------------------------------------------------------------------------------------------------- the dialects


def spoken(vector: Vector, name: str) -> vectors.Outcome | None:
    """Return what another dialect does with the settings of a vector that it has too; None if it refuses them."""
    mine = {**dialects.ALL[vector.dialect].parameters, **vectors.OPTIONS}
    fields = {mine.get(given, given): value for given, value in vector.params.items()}
    fields["growth_factor"] = fields.pop("factor", fields.get("growth_factor", 2.0))
    try:
        rule = dialects.get(name, **vectors.named(dialects.ALL[name], fields))
    except ValueError:
        return None
    return Vector.of(rule, vector.found_inf, vector.synchronous).outcome


def test_dialects_that_no_vector_separates_are_one_rule() -> None:
    lines: dict[str, list[Vector]] = {}
    for vector in vectors.make():
        lines.setdefault(vector.dialect, []).append(vector)
    alike = [
        (a, b)
        for a, b in itertools.combinations(lines, 2)
        if all(
            (seen := spoken(vector, other)) is None or seen == vector.outcome
            for mine, other in ((a, b), (b, a))
            for vector in lines[mine]
        )
    ]
    assert ("composer.ClosureGradScaler", "torch.amp.GradScaler") in alike
    assert [pair for pair in alike if dialects.get(pair[0]) != dialects.get(pair[1])] == []
    assert len(alike) == 7

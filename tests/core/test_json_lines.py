"""JSON Lines with exact floats: what was written is read, and what could not come back is not
written.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim.core import json_lines
from ampsim.core.files import DamagedFileError
from tests.examples import examples

TEXT = st.text().filter(lambda text: text not in {"inf", "-inf", "nan"})
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=examples(ms=8))
@given(VALUES)
def test_line_round_trip(value: Any) -> None:
    line = json_lines.encode(value)
    assert "\n" not in line
    assert repr(json_lines.decode(line)) == repr(value)
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_numpy_values_become_plain_json() -> None:
    value = {
        "a": np.array([1.5, np.inf, np.nan]),
        "b": np.float32(0.1),
        "c": (1, np.int64(2)),
        "d": np.bool_(True),
    }
    assert (
        json_lines.encode(value)
        == '{"a":[1.5,"inf","nan"],"b":0.10000000149011612,"c":[1,2],"d":true}'
    )


@pytest.mark.parametrize("text", ["inf", "-inf", "nan"])
def test_text_that_reads_as_float_raises(text: str) -> None:
    with pytest.raises(
        ValueError, match=f"text '{text}': expected text that does not read as a number"
    ):
        json_lines.encode({"arm": text})


def test_non_string_key_raises() -> None:
    with pytest.raises(TypeError, match="key 1 of type int"):
        json_lines.encode({"a": [{1: 2}]})


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinity_round_trip(value: float) -> None:
    assert json_lines.decode(json_lines.encode({"threshold": value})) == {
        "threshold": value
    }


@pytest.mark.parametrize("line", ["{not json}", "[1, 2]", "", "[" * 100_000, "3"])
def test_damaged_line_is_reported(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"a":"inf"}}\n{line}\n{{}}\n')
    objects = json_lines.read_objects(path)
    assert next(objects) == (1, {"a": math.inf})
    with pytest.raises(DamagedFileError, match=r"x\.jsonl, line 2: "):
        next(objects)

"""Golden traces: the machine does what other scalers did, to the last bit; damaged files are
refused.
"""

import dataclasses
import gzip
import json
import math
from pathlib import Path

import pytest

from ampsim import dialects
from ampsim.core.files import DamagedFileError
from ampsim.core.recorded_runs import Raised, Trace, read

RECORDED = Path(__file__).parent.parent / "traces" / "recorded.jsonl.gz"
TRACES = list(read(RECORDED))
TRACE = Trace(
    "torch.amp.GradScaler",
    {"init": 4.0, "interval": 2},
    (False, False, True),
    (4.0, 8.0, 4.0),
)


@pytest.mark.parametrize("system", dialects.names())
def test_state_machine_matches_recorded_traces(system: str) -> None:
    traces = [trace for trace in TRACES if trace.system == system]
    assert traces
    differing = [
        f"{dict(trace.params)}: {m}" for trace in traces if (m := trace.mismatch())
    ]
    assert not differing


@pytest.mark.parametrize(
    ("change", "update"),
    [
        ({"scale": (4.0, 8.0, 8.0)}, 2),
        ({"found_inf": (False, False, False)}, 2),
        ({"scale": (4.0, 8.0), "raised": Raised(2, "Exception", "x")}, 2),
        ({"params": {"init": 4.0, "interval": 3}}, 1),
        ({"scale": (4.0, 8.0 * (1 + 2**-52), 4.0)}, 1),
    ],
)
def test_single_wrong_bit_is_mismatch(change: dict[str, object], update: int) -> None:
    assert TRACE.mismatch() is None
    wrong = dataclasses.replace(TRACE, **change)
    assert wrong.mismatch().startswith(f"update {update}: ")
    empty = dataclasses.replace(TRACE, found_inf=(), scale=())
    assert empty.mismatch() is not None


def test_a_missing_raise_is_a_mismatch() -> None:
    gives_up = next(trace for trace in TRACES if trace.raised)
    silent = dataclasses.replace(gives_up, raised=None, scale=(*gives_up.scale, 1.0))
    assert "the state machine raised" in silent.mismatch()
    other_text = dataclasses.replace(
        gives_up, raised=dataclasses.replace(gives_up.raised, msg="?")
    )
    assert "the state machine raised" in other_text.mismatch()


RECORD = {
    "system": TRACE.system,
    "params": TRACE.params,
    "found_inf": [0, 0, 1],
    "scale": [scale.hex() for scale in TRACE.scale],
}


@pytest.mark.parametrize("scale", ["65536.0", "0x1p+16", 65536, 65536.0])
def test_scales_are_read_in_any_form(scale: object) -> None:
    record = {**RECORD, "scale": [scale, "8", "inf"]}
    assert Trace.from_record(record).scale == (65536.0, 8.0, math.inf)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("{", ""),
        ("[]", "list"),
        ("[" * 200_000, ""),
        ("\ufffd\udcff", "0xff"),
        (json.dumps({"system": "x"}), "found_inf, params, scale"),
        (
            json.dumps({"provenance": {}}),
            "found_inf, params, scale",
        ),  # which is the first line's
        (json.dumps({**RECORD, "system": 5}), "system 5"),
        (json.dumps({**RECORD, "params": []}), "params"),
        (json.dumps({**RECORD, "found_inf": [0, 2, 0]}), "found_inf"),
        (json.dumps({**RECORD, "scale": RECORD["scale"][:2]}), "scale: expected 3"),
        (json.dumps({**RECORD, "scale": ["0x1", "zz", "0x1"]}), "scale 'zz'"),
        (json.dumps({**RECORD, "scale": ["0x1", "0x1p+99999", "0x1"]}), "99999"),
        (json.dumps({**RECORD, "scale": ["0x1", True, "0x1"]}), "scale True"),
        (json.dumps({**RECORD, "is_async": [True] * 4}), "is_async: expected 3"),
        (json.dumps({**RECORD, "raised": {"step": 1}}), ""),
    ],
)
def test_damaged_line_is_reported(tmp_path: Path, line: str, shown: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(
        (json.dumps(RECORD) + "\n" + line + "\n").encode(errors="surrogateescape")
    )
    with pytest.raises(DamagedFileError, match=f"line 2: .*{shown}"):
        list(read(file))


def test_truncated_file_raises(tmp_path: Path) -> None:
    whole = tmp_path / "t.jsonl.gz"
    data = gzip.compress((json.dumps(RECORD) + "\n").encode() * 3)
    for length in range(len(data)):
        whole.write_bytes(data[:length])
        with pytest.raises(DamagedFileError):
            list(read(whole))


def test_corrupted_byte_raises(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl.gz"
    data = bytearray(gzip.compress(json.dumps(RECORD).encode()))
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(DamagedFileError, match="line 1"):
        list(read(file))

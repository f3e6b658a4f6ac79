"""Golden traces: the machine does what other scalers did, to the last bit; damaged files are refused."""

import dataclasses
import gzip
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ampsim import dialects
from ampsim.cli import app
from ampsim.core.files import DamagedFileError
from ampsim.core.trace import Raised, Trace, read, write

TRACES = Path(__file__).parent.parent / "traces"
WHOLE = Path(__file__).parents[3] / "shared" / "golden" / "peers.jsonl.gz"
TRACE = Trace("torch.amp.GradScaler", {"init": 4.0, "interval": 2}, (False, False, True), (4.0, 8.0, 4.0))


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.jsonl")), ids=lambda p: p.stem)
def test_the_machine_repeats(path: Path) -> None:
    differing = [f"{t.system} {dict(t.params)}: {m}" for t in read(path) if (m := t.mismatch())]
    assert not differing


def test_the_selection_holds_every_dialect() -> None:
    assert {t.system for path in TRACES.glob("*.jsonl") for t in read(path)} == set(dialects.names())


@pytest.mark.skipif(not WHOLE.exists(), reason=f"{WHOLE.name} is not here; the selection in tests/traces is")
def test_the_whole_collection_repeats() -> None:
    result = CliRunner().invoke(app, ["traces", "check", str(WHOLE)])
    matching, total = re.fullmatch(r"(\d+) of (\d+) match", result.output.strip()).groups()
    assert matching == total
    assert int(total) > 4000
    assert result.exit_code == 0


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_round_trip_in_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    traces = list(read(TRACES / "the_scaler_gives_up.jsonl")) + list(read(TRACES / "updates_that_arrive_late.jsonl"))
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    write(first, traces, {"origin": "test"})
    write(second, read(first), {"origin": "test"})
    assert list(read(second)) == traces
    assert first.read_bytes() == second.read_bytes()
    assert suffix != ".jsonl.gz" or first.read_bytes()[4:8] == bytes(4)  # no time is in it
    assert sorted(p.name for p in tmp_path.iterdir()) == [first.name, second.name]  # no temporary file is left


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": (4.0, 8.0, 8.0)}, "update 2: expected 8.0, the machine says 4.0"),
        ({"found_inf": (False, False, False)}, "update 2: expected 4.0, the machine says 8.0"),
        ({"scale": (4.0, 8.0), "raised": Raised(2, "Exception", "x")}, "update 2: expected Exception at update 2"),
        ({"params": {"init": 4.0, "interval": 3}}, "update 1: expected 8.0, the machine says 4.0"),
        ({"scale": (4.0, 8.0 * (1 + 2**-52), 4.0)}, "update 1: expected"),
    ],
)
def test_a_single_wrong_bit_is_a_mismatch(tmp_path: Path, change: dict[str, object], said: str) -> None:
    assert TRACE.mismatch() is None
    wrong = dataclasses.replace(TRACE, **change)
    assert wrong.mismatch().startswith(said)
    write(tmp_path / "t.jsonl", [TRACE, wrong])
    result = CliRunner().invoke(app, ["traces", "check", str(tmp_path / "t.jsonl")])
    assert result.exit_code == 1
    assert result.output.startswith("1 of 2 match")
    assert said in result.output


def test_a_trace_of_no_updates_is_no_match(tmp_path: Path) -> None:
    write(tmp_path / "t.jsonl", [TRACE, dataclasses.replace(TRACE, found_inf=(), scale=())])
    result = CliRunner().invoke(app, ["traces", "check", str(tmp_path / "t.jsonl")])
    assert result.exit_code == 1
    assert result.output.startswith("1 of 2 match")
    assert "no updates: expected at least one; record some, or leave the trace out" in result.output


def test_a_scaler_may_give_up_at_its_first_update() -> None:
    system, given = "deepspeed.DynamicLossScaler", {"init": 1.0, "delayed_shift": 1}
    said = "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
    assert Trace(system, given, (True,), (), raised=Raised(0, "Exception", said)).mismatch() is None


def test_a_missing_raise_is_a_mismatch() -> None:
    gives_up = next(t for t in read(TRACES / "the_scaler_gives_up.jsonl"))
    silent = dataclasses.replace(gives_up, raised=None, scale=(*gives_up.scale, 1.0))
    assert "the machine raised" in silent.mismatch()
    other_text = dataclasses.replace(gives_up, raised=dataclasses.replace(gives_up.raised, msg="?"))
    assert "the machine raised" in other_text.mismatch()


RECORD = TRACE.to_record()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: Expecting property name"),
        ("[]", "line 2: expected a JSON object, found list"),
        (json.dumps({**RECORD, "found_inf": [0, 2, 0]}), "line 2: found_inf: expected a list of 0 and 1"),
        (json.dumps({**RECORD, "scale": RECORD["scale"][:2]}), "line 2: scale: expected 3 values"),
        (json.dumps({**RECORD, "scale": [1.0, 2.0, 3.0]}), "line 2: scale 1.0: expected a hexadecimal float"),
        (json.dumps({**RECORD, "scale": ["0x1", "zz", "0x1"]}), "line 2: invalid hexadecimal"),
        (json.dumps({**RECORD, "is_async": [True]}), "line 2: is_async: expected 3 flags, found 1"),
        (json.dumps({**RECORD, "is_async": [True] * 4}), "line 2: is_async: expected 3 flags, found 4"),
        (json.dumps({"system": "x"}), "line 2: found_inf, params, scale missing"),
        (json.dumps({**RECORD, "raised": {"step": 1}}), "line 2: "),
        (json.dumps({**RECORD, "system": 5}), "line 2: system 5: expected the name of a dialect"),
        pytest.param("[" * 200_000, "line 2: nested too deep", id="deep"),
        pytest.param('{"notes":' * 200_000, "line 2: nested too deep", id="deep notes"),
        ("\ufffd\udcff", "line 2: 'utf-8' codec can't decode byte 0xff"),
        (json.dumps({"provenance": {}}), "line 2: found_inf, params, scale, system missing"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes((json.dumps(RECORD) + "\n" + line + "\n").encode(errors="surrogateescape"))
    with pytest.raises(DamagedFileError, match=r"restore the file") as error:
        list(read(file))
    assert said in str(error.value)
    assert str(file) in str(error.value)
    result = CliRunner().invoke(app, ["traces", "check", str(file)])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_a_file_cut_anywhere_is_refused_or_shorter(tmp_path: Path) -> None:
    whole = tmp_path / "t.jsonl.gz"
    write(whole, [TRACE] * 3)
    data = whole.read_bytes()
    for length in range(len(data)):
        whole.write_bytes(data[:length])
        with pytest.raises(DamagedFileError):
            list(read(whole))


def test_bytes_changed_in_a_gzip_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl.gz"
    data = bytearray(gzip.compress(json.dumps(RECORD).encode()))
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(DamagedFileError, match="line 1: cut off or damaged"):
        list(read(file))


@pytest.mark.parametrize(
    ("change", "said"),
    [({"system": "torch.amp.GradScale"}, "unknown dialect"), ({"params": {"int": 1}}, "has no parameter 'int'")],
)
def test_an_unknown_dialect_or_parameter_is_wrong_use(tmp_path: Path, change: dict[str, object], said: str) -> None:
    write(tmp_path / "t.jsonl", [dataclasses.replace(TRACE, **change)])
    result = CliRunner().invoke(app, ["traces", "check", str(tmp_path / "t.jsonl")])
    assert result.exit_code == 2
    assert said in result.output
    assert "did you mean" in result.output


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        result = CliRunner().invoke(app, ["traces", "check", str(path)])
        assert result.exit_code == 2
        assert str(path) in result.output
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DamagedFileError, match="holds no trace"):
        list(read(tmp_path / "empty.jsonl"))

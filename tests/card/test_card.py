"""`ampsim card` writes a file that it can verify, and goes on where it stopped."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from ampsim.card import run
from ampsim.card.verify import read
from ampsim.cli import app


def card(*arguments: str) -> int:
    return CliRunner().invoke(app, ["card", *arguments]).exit_code


def test_a_card_is_written_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = {"a": lambda device: iter([{"seen": 1}]), "b": lambda device: iter([{"seen": 2}])}
    monkeypatch.setattr(run, "PROBES", probes)
    path = tmp_path / "card.jsonl"
    command = ["--device", "cpu", "--out", str(path)]
    assert card(*command) == 0
    assert [(each["probe"], each["seen"]) for each in read(path)[1:]] == [("a", 1), ("b", 2)]
    before = path.read_bytes()
    assert card(*command) == 0
    assert path.read_bytes() == before  # nothing was left to do

    flipped = bytearray(before)
    flipped[len(before) // 2] ^= 1
    path.write_bytes(flipped)
    assert card("verify", str(path)) == 2

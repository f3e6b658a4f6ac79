"""Digests of the bits that a processor gives."""

from pathlib import Path

from ampsim.core import json_lines
from experiments.runner import kernel_digests


def test_a_difference_is_counted_and_named(tmp_path: Path) -> None:
    known = tmp_path / "kernel_digests.jsonl"
    row = {"cpu": "X", "settings": {}, "bits": {"exp": "a", "sum": "b", "old": "d"}}
    known.write_text(json_lines.encode(row) + "\n")
    (said,) = kernel_digests.compare({"exp": "a", "sum": "c", "new": "e"}, known)
    assert said.startswith("1 of 2 operations equal those on X")
    assert said.endswith("; different: sum")

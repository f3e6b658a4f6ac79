"""Sweeps over files of traces: the rows of a sweep in memory, without the memory."""

from pathlib import Path

import numpy as np
import pytest

from ampsim import Rule, dialects
from ampsim.core.replay.stream import sweep_files
from ampsim.core.replay.sweep import sweep

TRACE = np.exp2(np.random.default_rng(2).normal(15, 2, 400))
RULES = [
    dialects.get("megatron.core.DynamicGradScaler"),
    Rule(init_scale=2.0**14, growth_interval=3, delay=2),
    Rule(init_scale=2.0**14, growth_interval=7, hysteresis=2),
]


@pytest.mark.parametrize("chunk", [7, 64, 399])
def test_chunks_give_the_whole_sweep(chunk: int, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, TRACE)
    (swept,) = sweep_files(RULES, [path], chunk=chunk)
    assert swept.steps == 400
    assert swept.rows.tolist() == sweep(RULES, TRACE).tolist()
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(ValueError, match=r"a\.npy: ends after 398 of 400 steps"):
        list(sweep_files(RULES, [path], chunk=chunk))

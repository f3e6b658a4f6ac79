"""What two ranks do, cell by cell; a script without ampsim says the same of drawn cells."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import ranks_cells
from experiments.ranks_cells import Cell, Seen
from figures import derived_numbers as q
from figures import results

RUN = results.load("ranks_cells")
CELLS = {
    Cell(**{name: cell[name] for name in Cell.__dataclass_fields__}): cell["ranks"]
    for cell in RUN.records[0]["cells"]
}
TORCHS = [cell for cell in CELLS if cell.scaler == "torch"]
DRAWN = random.Random(0).sample(TORCHS, 4)  # noqa: S311
LOST = Cell("plain", "SGD", "fused", "unscale_", "both", "torch")


def rank(**changes: object) -> dict[str, object]:
    return {**Seen("", "", True, True, 1.0, 1024.0)._asdict(), **changes}


@pytest.mark.parametrize(
    ("second", "overflow", "outcome"),
    [
        ({}, False, "right"),
        ({}, True, "wrong"),
        ({"moved": False, "scale": 512.0}, True, "parted"),
        ({"finite": False}, True, "infinite"),
        ({"raised": "step"}, False, "raised"),
        ({"raised": "step", "finite": False}, True, "raised infinite"),
    ],
)
def test_outcome_is_of_worst_rank(
    second: dict[str, object], overflow: bool, outcome: str
) -> None:
    assert q.rank_outcome([rank(), rank(**second)], overflow=overflow) == outcome


RUNNER = """
import functools, os, runpy, sys, torch.distributed as dist
meet, store, kept = dist.init_process_group, dist.FileStore(sys.argv[2] + ".store", 2), []
for path in sys.argv[2:]:
    print("cell", flush=True)
    own = dist.PrefixStore(path, store)
    dist.init_process_group = functools.partial(meet, store=own, rank=int(sys.argv[1]), world_size=2)
    kept.append(runpy.run_path(path))  # DDP's end may wait for a thread that waits for the interpreter
os._exit(0)
"""


@pytest.mark.deep
def test_scripts_reproduce_sampled_cells(tmp_path: Path) -> None:
    cells = [LOST, *DRAWN]
    paths = [tmp_path / f"{n}.py" for n in range(len(cells))]
    for path, cell in zip(paths, cells, strict=True):
        text = ranks_cells.script(cell)
        assert "ampsim" not in text
        path.write_text(text)
    started = [
        subprocess.Popen(  # noqa: S603
            [sys.executable, "-W", "ignore", "-c", RUNNER, str(each), *map(str, paths)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for each in range(2)
    ]
    for number, process in enumerate(started):
        said = process.communicate()[0].split("cell\n")[1:]
        assert process.returncode == 0
        for cell, lines in zip(cells, said, strict=True):
            seen = Seen(*CELLS[cell][number])
            *error, end = lines.splitlines()
            assert bool(error) == bool(seen.raised)
            assert seen.error.partition(": ")[2] in "".join(error)
            assert end.startswith(f"{number} {seen.scale} ")
            assert ("inf" in end or "nan" in end) == (not seen.finite), (cell, end)

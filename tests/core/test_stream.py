"""Sweeps over files of traces: the rows of a sweep in memory, without the memory."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ampsim import Rule, dialects
from ampsim.core.policies import Headroom
from ampsim.core.replay.stream import steps, sweep_files
from ampsim.core.replay.sweep import sweep

TRACE = np.exp2(np.random.default_rng(2).normal(15, 2, 400))
RULES = [
    *(dialects.get(name) for name in dialects.names() if name.startswith(("roundpipe", "torch.", "megatron.core"))),
    *(Rule(init_scale=2.0**14, growth_interval=interval, delay=delay) for interval in (3, 50) for delay in (0, 2)),
    Rule(init_scale=2.0**14, growth_interval=7, hysteresis=2),
]


def save(folder: Path, **traces: object) -> list[Path]:
    for name, trace in traces.items():
        np.save(folder / f"{name}.npy", trace)  # type: ignore[arg-type]
    return [folder / f"{name}.npy" for name in traces]


@pytest.mark.parametrize("chunk", [1, 7, 64, 399, 400, 1000])
def test_a_stream_of_chunks_is_the_sweep_to_the_last_bit(chunk: int, tmp_path: Path) -> None:
    traces = {"a": TRACE, "b": TRACE[:77].astype(np.float32), "c": TRACE[:1]}
    done = list(sweep_files(RULES, save(tmp_path, **traces), chunk=chunk))
    assert [(swept.path.stem, swept.steps) for swept in done] == [("a", 400), ("b", 77), ("c", 1)]
    for swept in done:
        assert swept.rows.tolist() == sweep(RULES, traces[swept.path.stem]).tolist()


def test_a_policy_and_scales_that_are_no_powers_of_two_are_streamed_too(tmp_path: Path) -> None:
    rules = [Headroom(), Rule(growth_factor=1.1, backoff_factor=0.7, growth_interval=2)]
    (done,) = sweep_files(rules, save(tmp_path, a=TRACE), chunk=60)
    expected = sweep(rules, TRACE)
    for name in ("skips", "skip_rate", "scale"):
        assert done.rows[name].tolist() == expected[name].tolist()
    np.testing.assert_allclose(done.rows["mean_log2_scale"], expected["mean_log2_scale"], rtol=1e-13)


def test_processes_change_nothing(tmp_path: Path) -> None:
    paths = save(tmp_path, a=TRACE, b=TRACE[::-1], c=TRACE[:9])
    one, two = (sorted(sweep_files(RULES[:2], paths, jobs=jobs)) for jobs in (1, 2))
    assert [swept.rows.tolist() for swept in one] == [swept.rows.tolist() for swept in two]


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from ampsim import Rule
from ampsim.core.replay.stream import sweep_files

folder, room, chunk = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rules = [Rule(growth_interval=interval) for interval in (500, 2000)]
list(sweep_files(rules, [folder / "warm" / "warm.npy"]))  # what is loaded lazily
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
paths = sorted(folder.glob("*.npy"))
try:
    np.load(paths[0])
except MemoryError:
    print("one trace does not fit")
for swept in sorted(sweep_files(rules, paths, chunk=chunk)):
    print(swept.steps, swept.rows.tolist())
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's limits")
def test_a_folder_larger_than_memory_is_swept_within_it(tmp_path: Path) -> None:
    trace = np.resize(np.exp2(np.random.default_rng(3).normal(24, 2, 2**16)), 2**22)  # 32 MiB
    (first,) = save(tmp_path, a=trace)
    for name in "bcdefgh":
        (tmp_path / f"{name}.npy").hardlink_to(first)
    (tmp_path / "warm").mkdir()
    save(tmp_path / "warm", warm=trace[:5000])
    room, chunk = 24 * 2**20, 2**18
    assert 8 * trace.nbytes > 10 * room
    command = [sys.executable, "-c", LIMITED, str(tmp_path), str(room), str(chunk)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    assert done.returncode == 0, done.stderr
    expected = sweep([Rule(growth_interval=interval) for interval in (500, 2000)], trace).tolist()
    assert done.stdout.splitlines() == ["one trace does not fit", *[f"{len(trace)} {expected}"] * 8]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.ones((2, 3)), r"a\.npy: float64 of shape \(2, 3\): expected float32 or float64 of shape \(steps,\)"),
        (np.ones(0), r"a\.npy: float64 of shape \(0,\): expected"),
        (np.ones(3, int), r"a\.npy: int64 of shape \(3,\): expected"),
        (np.ones(3, ">f8"), r"a\.npy: >f8 of shape \(3,\): expected"),
        (b"step,ceiling\n", r"a\.npy: no \.npy file \(.*\): expected one that numpy\.save wrote"),
        (b"", r"a\.npy: no \.npy file"),
        (np.array([1.0, 2.0, 3.0, -1.0]), r"a\.npy, from step 2: ceilings\[1\]=-1\.0: expected a number >= 0"),
    ],
)
def test_what_is_no_trace_is_named(content: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        save(tmp_path, a=content)
    with pytest.raises(ValueError, match=message):
        list(sweep_files([Rule()], [path], chunk=2))


def test_a_trace_that_is_cut_short_is_named(tmp_path: Path) -> None:
    whole = io.BytesIO()
    np.save(whole, TRACE)
    path = tmp_path / "a.npy"
    path.write_bytes(whole.getvalue()[:-12])
    assert steps(path) == 400
    with pytest.raises(ValueError, match=r"a\.npy: ends after 398 of 400 steps: expected a whole file; write it again"):
        list(sweep_files([Rule()], [path], chunk=150))

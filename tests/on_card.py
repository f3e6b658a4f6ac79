"""What a card is asked to do, in parts of at most nine minutes, the most valuable first.

`python -m tests.on_card gpu-1` runs one, and `make gpu-1` is that.

A part is rows, one after the other; the lanes of a row run side by side, the stages of a lane one after the other. A
stage is a process with a log and a time limit, which ends it as Ctrl-C does: what is done is kept. After each stage the
logs and the data of this device, whatever its name, are one archive `$OUT/gpu-N.tgz`. Nothing is installed: beside
torch, numpy, ml_dtypes, hypothesis and pytest what is needed lies in `.gpu-kit`, which `make gpu-kit` fills.
`--dry` tries all of it on the CPU, with a few steps each.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
KIT = ROOT / ".gpu-kit"
PYTEST = ["pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--show-capture=no", "-o", "junit_family=xunit1"]
PYTEST += ["-o", "faulthandler_timeout=120", "--durations=15"]
NO_GRAPHS = "not graph and not capture and not compile"  # torch's sanitizer sees what torch launches
JAX = [f"tests/jax/test_{name}.py" for name in ("gpu", "dlpack", "exact", "finite", "loss_scale", "grad")]
SHORT = ["--seeds", "0"]
_packing = threading.Lock()


class Stage(NamedTuple):
    name: str
    seconds: int
    command: list[str]  # after `python -m`
    env: dict[str, str] = {}  # noqa: RUF012 - never written


class Here(NamedTuple):
    """Where a part runs: the stages depend on it."""

    part: str
    slug: str  # of the device
    dry: bool

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    @property
    def logs(self) -> Path:
        return Path("build") / self.part

    @property
    def data(self) -> Path:
        return Path("experiments/data") / self.slug

    def card(self, seconds: int, minutes: float) -> Stage:
        options = ["--minutes", "0.1" if self.dry else str(minutes), "--device", self.device]
        return Stage("card", seconds, ["ampsim", "card", *options, "--out", str(self.logs / "card.jsonl")])

    def tests(self, seconds: int, name: str, *paths: str, **env: str) -> Stage:
        found = ["tests/torch/test_gpu.py", "tests/probe/test_gpu.py"] if self.dry else list(paths)
        marks = ["-m", "not gpu" if self.dry else "gpu", f"--junitxml={self.logs / name}.xml"]
        return Stage(name, seconds, [*PYTEST, *marks, *found], {} if self.dry else env)

    def jax(self, seconds: int) -> Stage:
        command = [*PYTEST, f"--junitxml={self.logs / 'jax.xml'}", *(JAX[:1] if self.dry else JAX)]
        env = {"JAX_PLATFORMS": "cpu" if self.dry else "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        return Stage("jax", seconds, command, env)

    def data_of(self, seconds: int, stems: str, *options: str, out: str = "") -> Stage:
        """Run experiments; with `out`, one that is made shorter, into a file of that name."""
        told = ["--smoke"] if self.dry else [*options, *(["--out", f"{self.data / out}.jsonl"] if out else [])]
        name = out or stems.split()[0]
        return Stage(name, seconds, ["experiments", *stems.split(), "--device", self.device, *told])

    def short(self, seconds: int, stem: str, jobs: int) -> Stage:
        return self.data_of(seconds, stem, "--jobs", str(jobs), *SHORT, out=stem)


def rows(here: Here) -> list[list[list[Stage]]]:
    """Return the stages of a part."""
    sanitizer = {"TORCH_CUDA_SANITIZER": "1"}
    return {
        "gpu-1": [
            [[here.card(230, 3)]],  # alone, as it measures time
            [[here.tests(300, "tests", "tests/torch", "tests/probe")], [here.short(300, "gpt_fp16", 2)]],
        ],
        "gpu-2": [
            [
                [here.tests(270, "sanitizer", "-k", NO_GRAPHS, "tests/torch/test_gpu.py", **sanitizer)],
                [here.data_of(270, "scale_crash device_claims exponent_heatmap", "--jobs", "4", "--force")],
            ],
            [
                [here.jax(250)],
                [here.short(90, "resnet_fp16", 6), here.short(80, "static_sweep", 6), here.short(80, "async_depth", 2)],
            ],
        ],
        "gpu-3": [
            [[here.data_of(130, "overhead", "--force", "--trials", "2", out="overhead_short")]],
            [[here.tests(160, "tests", "tests/torch", "tests/probe")]],  # again, after what part 1 had mended
        ],
        "gpu-4": [
            [[here.data_of(470, "overflow_storm policies formats rules_trained", "--jobs", "6")]],
        ],
    }[here.part]  # fmt: skip


def limit(here: Here) -> int:
    """Return the seconds that a part may take."""
    return sum(max(sum(stage.seconds for stage in lane) for lane in row) for row in rows(here))


def run(here: Here, out: Path) -> int:
    """Run a part; return the exit status."""
    shutil.rmtree(here.logs, ignore_errors=True)
    here.logs.mkdir(parents=True)
    for row in rows(here):
        with ThreadPoolExecutor(len(row)) as lanes:
            for _ in lanes.map(lambda lane: [run_stage(here, stage, out) for stage in lane], row):
                pass
    failed = here.logs / "failed"
    print(failed.read_text() if failed.exists() else f"{here.part}: all stages ended well", end="")
    return failed.exists()


def run_stage(here: Here, stage: Stage, out: Path) -> None:
    """Run a stage within its limit, note how it ended, and pack what there is."""
    command = [sys.executable, "-m", *stage.command]
    with (here.logs / f"{stage.name}.log").open("w") as log:
        process = subprocess.Popen(  # noqa: S603
            command, cwd=ROOT, env={**environment(), **stage.env}, stdout=log, stderr=log, start_new_session=True
        )
        status = ended(process, stage.seconds)
    print("\n".join([f"{stage.name}: status {status}", *tail(here.logs / f"{stage.name}.log")]), flush=True)
    if status:
        with (here.logs / "failed").open("a") as failed:
            failed.write(f"{stage.name}: status {status}\n")
    pack(here, out)


def ended(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Wait for a process; interrupt it when its time is over, and kill what is left of it 10 seconds later."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait() or 124


def environment() -> dict[str, str]:
    """Return what every stage finds: one thread, as more change fp16 results, and the kit."""
    commit = (KIT / "commit").read_text().strip() if (KIT / "commit").exists() else ""
    found = {"PYTHONPATH": f"{ROOT}{os.pathsep}{KIT}", "PYTHONUNBUFFERED": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    found |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HYPOTHESIS_PROFILE": "dev"}
    return {**os.environ, **found, **({"AMPSIM_COMMIT": commit} if commit else {})}


def tail(log: Path, lines: int = 12) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-lines:]


def pack(here: Here, out: Path) -> None:
    """Put the logs and this device's data into one archive, in place of the one before."""
    with _packing:
        out.mkdir(parents=True, exist_ok=True)
        new = out / f"{here.part}.tmp"
        with tarfile.open(new, "w:gz") as archive:
            for folder in (here.logs, here.data):
                if folder.exists():
                    archive.add(folder)
        new.replace(out / f"{here.part}.tgz")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.on_card", description="Run one part of what a card is asked."
    )
    parser.add_argument("part", choices=["gpu-1", "gpu-2", "gpu-3", "gpu-4"])
    parser.add_argument("--dry", action="store_true", help="on the CPU, a few steps each")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(KIT)]
    from experiments.runner.device import slug

    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a background job of a shell ignores it, and so would they
    here = Here(options.part, slug("cpu" if options.dry else "cuda"), options.dry)
    return run(here, Path(os.environ.get("OUT") or "build/gpu").absolute())


if __name__ == "__main__":
    sys.exit(main())

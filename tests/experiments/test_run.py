"""The runner, on experiments that take no time; every real experiment is in test_contract.py."""

import contextlib
import errno
import io
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ampsim.runs.record import data_file
from experiments import runner
from experiments.__main__ import main as experiments_main
from experiments.runner import device, everything, pool, provenance, settings
from experiments.runner.experiment import Experiment
from tests.experiments import tiny

ROOT = Path(__file__).parents[2]
# Another commit may be made meanwhile.
TIMES = ("date", "unit_seconds", "argv", "commit", "dirty")

KILLED = """
import os, signal, sys
from pathlib import Path
import experiments
from ampsim.runs.record import data_file
from experiments.runner import journal
from experiments import runner
from experiments.runner import experiment

experiment.FOLDER = Path(sys.argv[0]).parent
experiments.__path__.append(str(experiment.FOLDER))
append = journal.Journal.append

def kill_after(journal, unit, value):
    append(journal, unit, value)
    if len(journal.done) == 2:
        with journal.part.open("ab") as file:
            file.write(b'{"unit":"power 2, se')  # the third line, torn
        os.kill(os.getpid(), signal.SIGKILL)

journal.Journal.append = kill_after
if __name__ == "__main__":
    runner.main("tiny", sys.argv[1:])
"""


@pytest.fixture
def path(folder: Path) -> Path:
    """Where the experiment's data goes."""
    return folder / "x.jsonl"


def run(path: Path, *more: str) -> int:
    return runner.main("tiny", ["--jobs", "1", "--out", str(path), *more])


def timeless(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    origin, rows = data_file.read(path)
    return {key: value for key, value in origin.items() if key not in TIMES}, rows


def broken_by(
    error: Callable[[], BaseException], arm: int, seed: int
) -> Callable[..., Any]:
    """Return a `run` that raises in one unit."""
    module = Experiment("tiny").module
    original = module.run

    def run(config: Any, value: Any, number: int, *rest: Any) -> Any:
        if (value.power, number) == (arm, seed):
            raise error()
        return original(config, value, number, *rest)

    return run


def test_data_file_records_provenance(path: Path) -> None:
    assert run(path) == 0
    origin, rows = data_file.read(path)
    assert rows[1] == {
        "arm": "power 1",
        "seed": 1,
        "settings": {"power": 1},
        "loss": [1.1] * 3,
    }
    wanted = {
        "script",
        "argv",
        "commit",
        "dirty",
        "config",
        "seeds",
        "inputs_sha256",
        "versions",
        "platform",
    }
    assert (
        wanted | {"cpu", "device", "threads", "date", "unit_seconds", "source_sha256"}
        <= origin.keys()
    )
    assert "kernels" in origin
    assert {"python", "torch", "numpy"} <= origin["versions"].keys()


def test_killed_run_resumes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unbroken, script = path.with_name("unbroken.jsonl"), path.with_name("_killed.py")
    script.write_text(KILLED)
    run(unbroken)
    command = [sys.executable, str(script), "--jobs", "1", "--out", str(path)]
    environment = {"PYTHONPATH": str(ROOT)}
    dead = subprocess.run(command, env=environment, capture_output=True, check=False)  # noqa: S603
    assert dead.returncode == -9, dead.stderr
    assert not path.exists()
    module, ran = Experiment("tiny").module, []
    original = module.run
    monkeypatch.setattr(
        module, "run", lambda *unit: ran.append(unit[:3]) or original(*unit)
    )
    assert run(path) == 0
    assert len(ran) == 2  # of 4
    assert timeless(path) == timeless(unbroken)
    assert not list(path.parent.glob("*.part"))


def test_interrupt_keeps_finished_units(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            Experiment("tiny").module, "run", broken_by(KeyboardInterrupt, 1, 1)
        )
        assert run(path) == 130
    assert not path.exists()
    assert run(path, "--factor", "7") == 0  # a typo takes nothing away
    capsys.readouterr()
    assert run(path) == 0
    assert "resumed; 1 of 4" in capsys.readouterr().out


def test_changed_library_resumes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = path.parent / "library"
    library.mkdir()
    monkeypatch.setattr(provenance, "LIBRARY", library)
    with monkeypatch.context() as patch:
        patch.setattr(
            Experiment("tiny").module, "run", broken_by(KeyboardInterrupt, 1, 1)
        )
        assert run(path) == 130
    (library / "machine.py").write_text("INITIAL_SCALE = 2.0**15\n")
    capsys.readouterr()
    assert run(path) == 0
    assert "resumed" not in capsys.readouterr().out


def test_finished_data_is_reused_while_valid(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reused(*more: str) -> bool:
        assert run(path, *more) == 0
        return "reused 4 units from " in capsys.readouterr().out

    assert not reused()
    before = path.read_bytes()
    assert reused()
    assert path.read_bytes() == before
    assert not reused("--force")
    assert not reused("--factor", "7")
    assert not reused()
    monkeypatch.setattr(
        Experiment("tiny").module, "inputs", lambda: {"digits": "another file"}
    )
    assert not reused()


def test_damaged_data_is_not_overwritten(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text("{}\n")
    assert run(path) == 1
    assert f"{path}, line 1: " in capsys.readouterr().err
    assert path.read_text() == "{}\n"


def test_failed_unit_keeps_other_results(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        for seed in (0, 1):
            no_room = broken_by(
                lambda: MemoryError("no room for 3 numbers\nand more about it"), 1, seed
            )
            patch.setattr(Experiment("tiny").module, "run", no_room)
        assert run(path) == 1
    error = capsys.readouterr().err
    assert "2 of 4 units failed: power 1, seed 0; power 1, seed 1" in error
    assert "MemoryError: no room for 3 numbers" in error
    assert not path.exists()
    assert run(path) == 0
    assert "resumed; 2 of 4" in capsys.readouterr().out
    run(path.with_name("unbroken.jsonl"))
    assert timeless(path) == timeless(path.with_name("unbroken.jsonl"))


def test_nan_loss_is_recorded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Experiment("tiny").module, "run", lambda *_: {"loss": [math.nan]}
    )
    assert run(path) == 0
    rows = timeless(path)[1]
    assert len(rows) == 4
    assert all(map(math.isnan, rows[0]["loss"]))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--factor", "3"], "factor=3.0"),
        (["--seeds", "0"], "--out FILE"),
        (["--device", "cuda"], "device=cuda: expected cpu"),
    ],
)
def test_invalid_arguments_are_rejected(
    argv: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner.main("tiny", argv) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "data").exists()


@pytest.mark.parametrize(
    ("room", "kept"), [(2, 3), (4, 4)]
)  # of a third unit only the confirmation is missing
def test_full_disk_keeps_finished_units(
    room: int,
    kept: int,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    units = iter([None] * room)

    def fsync(handle: int) -> None:
        if next(units, handle):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        assert run(path) == 1
    assert "[Errno 28] No space left on device" in capsys.readouterr().err
    assert run(path) == 0
    assert f"resumed; {kept} of 4" in capsys.readouterr().out


def test_missing_device_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(
        runner.UsageError, match=r"device=cuda: torch .* finds no CUDA device"
    ):
        device.require("cuda")


@pytest.mark.parametrize(
    "argv", [["--widht", "3"], ["--jobs", "0"], ["--device", "tpu"]]
)
def test_invalid_option_exits_with_2(
    argv: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = runner.main("tiny", argv)
    except SystemExit as stop:  # from the parser, where there is no such field
        status = stop.code
    assert status == 2
    assert argv[0].strip("-") in capsys.readouterr().err


SETTINGS = """
from typing import Annotated, NamedTuple

class Size(NamedTuple):
    layers: int
    width: int

@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 3
    lr: float = 0.1
    static_log2: tuple[int, ...] = (0, 4)
    warm_up: Annotated[int, runner.BEFORE_THE_END] = 1
    depths: Annotated[tuple[int, ...], runner.FROM_0] = (0, 1)
    split: tuple[tuple[int, float], ...] = ((2, 0.5),)
    size: Size = Size(1, 2)
    kinds: Annotated[tuple[str, ...], runner.one_of(("relu", "tanh"))] = ("relu",)

SMOKE = Config()
"""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--steps 0", "steps=0"),
        ("--seeds -1", "seeds=(-1,)"),
        ("--seeds 1 1", "seeds=(1, 1)"),
        ("--seeds", "seeds=()"),
        ("--lr nan", "lr=nan"),
        ("--lr inf", "lr=inf"),
        ("--lr 0", "lr=0.0"),
        ("--static-log2 0 2000", "static_log2=(0, 2000)"),
        ("--steps 1", "warm_up=1"),
        ("--depths 0 -1", "depths=(0, -1)"),
        ("--split 2 0.5 0 0.5", "split=((2, 0.5), (0, 0.5))"),
        ("--size.width -3", "size=Size(layers=1, width=-3)"),
        ("--kinds relu silu", "kinds=('relu', 'silu'): expected one of relu, tanh"),
    ],
)
def test_invalid_setting_is_rejected(
    argv: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write(folder, "many")
    source = (
        (folder / "many.py").read_text().replace("SMOKE = Config(steps=1)\n", SETTINGS)
    )
    (folder / "many.py").write_text(source)
    out = folder / "out" / "x.jsonl"
    assert runner.main("many", [*argv.split(), "--out", str(out)]) == 2
    assert f"many: error: {message}" in capsys.readouterr().err
    assert not out.parent.exists()


def test_a_missing_package_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write(
        folder, "poor", 'REQUIRES = ("no_such_package",)\nimport no_such_package'
    )
    assert runner.main("poor", []) == 2
    assert "no_such_package" in capsys.readouterr().err


def test_unknown_experiment_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert experiments_main(["scale_crush"]) == 2
    error = capsys.readouterr().err
    assert "'scale_crush'" in error
    assert "'scale_crash'" in error


@pytest.fixture
def three(folder: Path) -> Path:
    """Three experiments: one that measures time, one that repeats, one that cannot run here."""
    tiny.write(
        folder,
        "clock",
        "import itertools\nimport time\nREPEATS = False  # its first number changes\ncounter = itertools.count()",
    )
    source = (folder / "clock.py").read_text()
    (folder / "clock.py").write_text(
        source.replace("config.factor**arm.power", "next(counter)")
    )
    tiny.write(folder, "poor", 'REQUIRES = ("no_such_package",)')
    return folder


def everything_in_this_process(argv: list[str]) -> int:
    return everything.main([*argv, "--jobs", "1"])


def test_reproduce_leaves_the_committed_data_alone(
    three: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, here = three / "data" / "cpu", three / "build" / "here" / "data" / "cpu"
    assert everything_in_this_process([]) == 0
    assert "skipped: poor: requires no_such_package" in capsys.readouterr().out
    committed = {path.name: path.read_bytes() for path in data.iterdir()}
    monkeypatch.setattr(provenance, "now", lambda: "later")
    assert everything_in_this_process(["--reproduce"]) == 0
    assert {path.name: path.read_bytes() for path in data.iterdir()} == committed
    assert {path.name for path in here.iterdir()} == {"tiny.jsonl", "clock.jsonl"}
    assert "1 of the 1 comparable files" in tables("records")
    other = (
        (here / "tiny.jsonl").read_bytes().replace(b"1.01", b"1.5")
    )  # of another processor
    (here / "tiny.jsonl").write_bytes(other)
    assert "0 of the 1 comparable files" in tables("records")
    tables("adopt")
    assert data_file.read(data / "tiny.jsonl") == data_file.read(here / "tiny.jsonl")


@pytest.mark.parametrize("powers", ["(2, 1)", "(2, 1, 3)", "(2,)"])
def test_reproduction_copies_the_units_own_records(folder: Path, powers: str) -> None:
    source = tiny.SOURCE.format(stem="tiny", constants='RECOMPUTED = ("power 1",)')
    (folder / "tiny.py").write_text(source)
    assert runner.main("tiny", ["--jobs", "1"]) == 0
    (folder / "tiny.py").write_text(source.replace("(1, 2)}", f"{powers}}}"))
    sys.modules.pop("experiments.tiny")
    assert runner.main("tiny", ["--jobs", "1", "--reproduce"]) == 0
    _, rows = data_file.read(folder / "build" / "here" / "data" / "cpu" / "tiny.jsonl")
    units = Experiment("tiny").units(Experiment("tiny").module.Config())
    assert [row["arm"] for row in rows] == [unit.arm for unit in units]
    for row in rows:
        assert row["loss"][0] == 0.1 ** row["settings"]["power"] + row["seed"]


def tables(*argv: str) -> str:
    """Return what a command about a reproduction prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert experiments_main(argv) == 0
    return out.getvalue()


def test_all_stops_at_first_failure(
    three: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (three / "data" / "cpu").mkdir(parents=True)
    (three / "data" / "cpu" / "clock.jsonl").write_text("{}\n")
    assert everything_in_this_process([]) == 1
    captured = capsys.readouterr()
    assert "clock.jsonl, line 1: " in captured.err
    assert not (three / "data" / "cpu" / "tiny.jsonl").exists()
    assert experiments_main(["clock", "tiny", "--jobs", "1"]) == 1  # named ones go on
    assert (three / "data" / "cpu" / "tiny.jsonl").exists()


@pytest.mark.parametrize(
    ("condition", "good", "bad"),
    [
        (settings.COUNT, (1, 9), (0, -1)),
        (settings.POSITIVE, (5e-324, 1e308), (0.0, math.inf, math.nan)),
        (settings.FROM_0, (0.0, 1e308), (-5e-324, math.inf, math.nan)),
        (settings.BEFORE_THE_END, (0, 2), (-1, 3)),
        (settings.EXPONENT, (-126, 127), (-127, 128)),
        (settings.SEED, (0, 2**32 - 1), (-1, 2**32)),
    ],
)
def test_setting_conditions_include_their_bounds(condition, good, bad) -> None:
    config = SimpleNamespace(steps=3)
    assert [condition.holds(value, config) for value in (*good, *bad)] == [True] * len(
        good
    ) + [False] * len(bad)


def test_timed_experiment_uses_torch_kernels(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMPSIM_KERNELS", "common")
    kernels = {}
    for stem in ("tiny", "clock"):
        seen = lambda *_: {"loss": [0.0], "kernels": os.environ["AMPSIM_KERNELS"]}  # noqa: E731
        monkeypatch.setattr(Experiment(stem).module, "run", seen)
        assert everything.main(["--jobs", "1"], [stem]) == 0
        kernels[stem] = data_file.read(three / "data" / "cpu" / f"{stem}.jsonl")[1][0][
            "kernels"
        ]
    assert kernels == {"tiny": "common", "clock": "own"}


def job() -> pool.Job:
    """One quick unit of `census`, which imports no framework."""
    census = Experiment("census")
    return pool.Job(
        "census", census.module.SMOKE, census.units(census.module.SMOKE)[0], "cpu"
    )


class Endless:
    """Never lets the process that unpickles it go on."""

    def __reduce__(self) -> tuple[Any, ...]:
        return signal.pause, ()


class Fatal:
    """Ends the process that unpickles it, as a lack of memory would."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (9,)


def test_unit_that_raises_fails_alone() -> None:
    good = job()
    with pool.Workers() as workers:
        jobs = [good._replace(stem="no_such_experiment"), good, good]
        ended = list(workers.run(jobs, 2))
    (failed,) = (unit for unit in ended if isinstance(unit, pool.Failed))
    assert failed.reason.startswith(
        "ModuleNotFoundError: No module named 'experiments.no_such_experiment'"
    )
    assert sum(isinstance(unit, pool.Done) for unit in ended) == 2


def test_workers_outlive_an_ended_process() -> None:
    good = job()
    with pool.Workers() as workers:
        assert isinstance(next(workers.run([good], 2)), pool.Done)
        (failed,) = workers.run([good._replace(unit=Fatal())], 2)
        assert isinstance(failed, pool.Failed)
        assert failed.reason == "a worker process ended"
        assert isinstance(next(workers.run([good], 2)), pool.Done)


def test_workers_end_only_their_own_processes() -> None:
    good = job()
    with pool.Workers() as workers:
        (before,) = workers.run([good], 2)
        with pool.Workers() as others:
            (other,) = others.run([good], 2)
        (after,) = workers.run([good], 2)
    assert all(isinstance(unit, pool.Done) for unit in (before, other, after))


def test_interrupted_run_ends_its_processes() -> None:
    endless = job()._replace(config=Endless())
    with pool.Workers() as workers:
        units = workers.run([job(), endless], 2)
        assert isinstance(next(units), pool.Done)
        units.close()
        assert not active_children()


ORPHANED = """
from experiments.runner import pool
from tests.experiments.test_run import Endless, job
if __name__ == "__main__":
    with pool.Workers() as workers:
        for unit in workers.run([job(), job()._replace(config=Endless())], 2):
            print("a unit is done", flush=True)
"""


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(ORPHANED)
    parent = subprocess.Popen(  # noqa: S603
        [sys.executable, str(tmp_path / "parent.py")],
        env={"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    with parent.stdout as out:
        assert out.readline() == b"a unit is done\n"
        parent.kill()
        assert out.read() == b""  # the workers hold the other end until they end
    parent.wait()


def test_experiment_source_includes_its_imports() -> None:
    folder = ROOT / "experiments"
    found = {
        path.relative_to(folder).as_posix()
        for path in provenance.sources(folder / "sigmoid_underflow.py")
    }
    assert {
        "sigmoid_underflow.py",
        "models/sigmoid_mlp.py",
        "training/digits_data.py",
        "training/fp16.py",
    } <= found
    assert not any("gpt_fp16" in name or "runner" in name for name in found)


def test_a_gpu_has_its_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    assert device.slug("cuda") == "nvidia-h200"
    assert device.slug("cpu") == "cpu"


PROSE = '''"""What is asked?"""

SEEDS = {"steps": [1, 2][0], **{}}  # a comment


class Config:
    """A docstring."""

    rate: float = 0.1
    """A field's."""


def run(config, *, seed=None):
    """Another."""
    return f"{config.rate:.1f} {SEEDS['steps']}"
'''


def test_source_digest_ignores_only_prose(folder: Path) -> None:
    def digest(*changes: tuple[str, str]) -> str:
        text = PROSE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (folder / "prose.py").write_text(text)
        return provenance.source_sha256("prose")

    before = digest()
    words = [
        ("What is", "Who has"),
        ("a comment", "no comment"),
        ("A docstring.", "X"),
        ("A field's.", ""),
    ]
    assert (
        digest(*words, ('    """Another."""\n', ""), ("[1, 2]", "[\n    1,\n    2,\n]"))
        == before
    )
    for change in [
        ("0.1\n", "0.2\n"),
        ("1, 2", "2, 1"),
        (".1f", ".2f"),
        ("=None", "=0"),
        ("rate:", "rates:"),
    ]:
        assert digest(change) != before, change

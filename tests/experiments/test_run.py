"""The runner, tried on experiments that take no time; what every real experiment keeps is in test_contract.py."""

import ast
import contextlib
import errno
import hashlib
import io
import math
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import experiments
from ampsim import records
from experiments import runner
from experiments.__main__ import main as experiments_main
from experiments.runner import cli, device, everything, execute, pool, progress, provenance, settings
from experiments.runner.experiment import Experiment, stems
from tests import warm
from tests.experiments import tiny

ROOT = Path(__file__).parents[2]
TIMES = ("date", "unit_seconds", "argv")

KILLED = """
import os, signal, sys
from pathlib import Path
import experiments
from ampsim import records
from experiments import runner
from experiments.runner import experiment

experiment.FOLDER = Path(sys.argv[0]).parent
experiments.__path__.append(str(experiment.FOLDER))
append = records.Journal.append

def kill_after(journal, unit, value):
    append(journal, unit, value)
    if len(journal.done) == 2:
        with journal.part.open("ab") as file:
            file.write(b'{"unit":"power 2, se')  # the third line, torn
        os.kill(os.getpid(), signal.SIGKILL)

records.Journal.append = kill_after
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
    origin, rows = records.read(path)
    return {key: value for key, value in origin.items() if key not in TIMES}, rows


def broken_by(error: Callable[[], BaseException], arm: int, seed: int) -> Callable[..., Any]:
    """Return a `run` that raises in one unit."""
    module = Experiment("tiny").module
    original = module.run

    def run(config: Any, value: Any, number: int, *rest: Any) -> Any:
        if (value.power, number) == (arm, seed):
            raise error()
        return original(config, value, number, *rest)

    return run


def test_a_record_names_its_unit_and_settings_and_the_provenance_what_made_it(path: Path) -> None:
    assert run(path) == 0
    origin, rows = records.read(path)
    assert rows[1] == {"arm": "power 1", "seed": 1, "settings": {"power": 1}, "loss": [1.1] * 3}
    wanted = {"script", "argv", "commit", "dirty", "config", "seeds", "inputs_sha256", "versions", "platform"}
    assert wanted | {"cpu", "device", "threads", "date", "unit_seconds", "source_sha256"} <= origin.keys()
    assert {"claims_sha256", "kernels", "bits"} <= origin.keys()
    assert {"python", "torch", "numpy"} <= origin["versions"].keys()


def test_a_run_killed_in_the_middle_goes_on_and_ends_with_the_same_data(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unbroken, script = path.with_name("unbroken.jsonl"), path.with_name("_killed.py")
    script.write_text(KILLED)
    run(unbroken)
    # Two workers do the first half, this process does the other: how many there are changes no result either.
    command = [warm.python(), str(script), "--jobs", "2", "--out", str(path)]
    # Returns only when nobody holds the pipes any more: orphaned workers would make it time out.
    dead = subprocess.run(  # noqa: S603 - our own script
        command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, timeout=300, check=False
    )
    assert dead.returncode == -9, dead.stderr
    assert not path.exists()
    capsys.readouterr()
    assert run(path) == 0
    assert "resumed, 2 of 4 units are done" in capsys.readouterr().out
    assert timeless(path) == timeless(unbroken)
    assert not list(path.parent.glob("*.part"))


def test_ctrl_c_keeps_what_is_done_and_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Experiment("tiny").module, "run", broken_by(KeyboardInterrupt, 1, 1))
        assert run(path) == 130
    (part,) = path.parent.glob("*.part")
    assert f"stopped; 1 of 4 units are kept in {part}" in capsys.readouterr().out
    assert run(path, "--factor", "7") == 0  # a typo takes nothing away
    assert f"other settings kept in {part}: config.factor: 0.1 then, 7.0 now" in capsys.readouterr().out
    assert run(path) == 0
    assert "resumed, 1 of 4" in capsys.readouterr().out


def test_finished_data_is_reused_until_something_that_matters_differs(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reused(*more: str) -> bool:
        assert run(path, *more) == 0
        return "reused, 4 units, from " in capsys.readouterr().out

    assert not reused()
    before = path.read_bytes()
    assert reused()
    assert path.read_bytes() == before
    assert not reused("--force")
    assert not reused("--factor", "7")
    assert not reused()
    monkeypatch.setattr(Experiment("tiny").module, "inputs", lambda: {"digits": "another file"})
    assert not reused()


def test_a_changed_source_is_mentioned_and_the_data_still_reused(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(path)
    monkeypatch.setattr(provenance, "source_sha256", lambda stem: "other")
    capsys.readouterr()
    assert run(path) == 0
    assert "its source has changed since; --force runs it again" in capsys.readouterr().out


def test_the_table_is_printed_after_a_run_and_when_its_data_is_reused_but_not_after_a_smoke_run(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert run(path) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[-2] == "mean of 4 records"
        assert lines[-1].startswith("tiny: measured on ")
    assert runner.main("tiny", ["--smoke"]) == 0
    assert "mean of" not in capsys.readouterr().out


def test_damaged_data_is_named_and_not_overwritten(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text("{}\n")
    assert run(path) == 1
    assert f"{path}, line 1: " in capsys.readouterr().err
    assert path.read_text() == "{}\n"


def test_failed_units_exit_with_1_and_the_others_go_on_and_are_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        for seed in (0, 1):
            no_room = broken_by(lambda: MemoryError("no room for 3 numbers\nand more about it"), 1, seed)
            patch.setattr(Experiment("tiny").module, "run", no_room)
        assert run(path) == 1
    error = capsys.readouterr().err
    assert "power 1, seed 0 failed, the others go on: MemoryError: no room for 3 numbers; expected enough" in error
    assert "2 of 4 units failed: power 1, seed 0; power 1, seed 1. The others are kept in " in error
    assert "Traceback" in error
    assert not path.exists()
    assert run(path) == 0
    assert "resumed, 2 of 4" in capsys.readouterr().out
    run(path.with_name("unbroken.jsonl"))
    assert timeless(path) == timeless(path.with_name("unbroken.jsonl"))


def test_a_nan_loss_is_a_record_like_any_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Experiment("tiny").module, "run", lambda *_: {"loss": [math.nan]})
    assert run(path) == 0
    rows = timeless(path)[1]
    assert len(rows) == 4
    assert all(map(math.isnan, rows[0]["loss"]))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--factor", "3"], "factor=3.0: expected the default 0.1 for "),
        (["--seeds", "0"], "to keep the result of other settings pass --out FILE"),
        (["--device", "cuda"], "device=cuda: expected cpu for this experiment; pass --device cpu"),
    ],
)
def test_wrong_use_is_refused_with_value_expectation_and_cure(
    argv: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner.main("tiny", argv) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "data").exists()


@pytest.mark.parametrize(("out", "kind"), [(".", "folder"), ("/dev/null", "device"), ("/dev/full", "device")])
def test_an_out_that_is_no_file_is_refused(
    out: str, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path(out).exists():
        pytest.skip(f"no {out} here")
    assert runner.main("tiny", ["--jobs", "1", "--out", out]) == 2
    assert f"tiny: error: out={out}: expected a file, not a {kind}; pass --out FILE" in capsys.readouterr().err


@pytest.mark.parametrize(("room", "kept"), [(2, 3), (4, 4)])  # of a third unit only the confirmation is missing
def test_a_full_disk_is_a_sentence_and_what_was_finished_is_kept(
    room: int, kept: int, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    units = iter([None] * room)

    def fsync(handle: int) -> None:
        if next(units, handle):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        assert run(path) == 1
    error = capsys.readouterr().err
    assert "tiny: error: [Errno 28] No space left on device: " in error
    assert "expected data and output that can be written" in error
    assert "Traceback" not in error
    assert run(path) == 0
    assert f"resumed, {kept} of 4" in capsys.readouterr().out


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(runner.UsageError, match="device=cuda: expected a CUDA device"):
        device.require("cuda")


def test_a_card_is_described_with_its_driver_where_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    found = device.describe("cuda")
    driver = found.pop("driver")
    assert found == {"type": "cuda", "name": "NVIDIA H200", "capability": "9.0", "cuda": torch.version.cuda}
    assert driver is None or "NVRM" in driver


@pytest.mark.parametrize("argv", [["--widht", "3"], ["--jobs", "0"], ["--device", "tpu"]])
def test_an_unknown_field_or_bad_value_exits_with_2(
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
    share: Annotated[float, runner.SHARE] = 0.0
    split: tuple[tuple[int, float], ...] = ((2, 0.5),)
    size: Size = Size(1, 2)
    kinds: Annotated[tuple[str, ...], runner.one_of(("relu", "tanh"))] = ("relu",)
    shape: Annotated[str, runner.like("[0-9]+x[0-9]+", "2x32")] = "2x32"

SMOKE = Config()
"""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--steps 0", "steps=0: expected a whole number of at least 1; the default is 3"),
        ("--seeds -1", "seeds=(-1,): expected a seed from 0 to 2^32 - 1; the default is (0, 1, 2, 3, 4)"),
        ("--seeds 1 1", "seeds=(1, 1): expected one or more values, no two alike; "),
        ("--seeds", "seeds=(): expected one or more values, no two alike; "),
        ("--lr nan", "lr=nan: expected a finite number above 0; the default is 0.1"),
        ("--lr inf", "lr=inf: "),
        ("--lr 0", "lr=0.0: "),
        (
            "--static-log2 0 2000",
            "static_log2=(0, 2000): expected the exponent of a normal float32, from -126 to 127; ",
        ),
        ("--steps 1", "warm_up=1: expected a step from 0 and below steps; "),
        ("--depths 0 -1", "depths=(0, -1): expected a finite number from 0; "),
        ("--share nan", "share=nan: expected a share from 0 to 1; "),
        ("--split 2 0.5 0 0.5", "split=((2, 0.5), (0, 0.5)): expected a whole number of at least 1; "),
        ("--split 2 nan", "split=((2, nan),): expected a finite number above 0; "),
        ("--size.width -3", "size=Size(layers=1, width=-3): expected a whole number of at least 1; "),
        ("--kinds relu silu", "kinds=('relu', 'silu'): expected one of relu, tanh; "),
        ("--shape 2x", "shape=2x: expected a text like 2x32; "),
    ],
)
def test_settings_that_no_run_could_want_are_refused(
    argv: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write(folder, "many")
    source = (folder / "many.py").read_text().replace("SMOKE = Config(steps=1)\n", SETTINGS)
    (folder / "many.py").write_text(source)
    out = folder / "out" / "x.jsonl"
    assert runner.main("many", [*argv.split(), "--out", str(out)]) == 2
    assert f"many: error: {message}" in capsys.readouterr().err
    assert not out.parent.exists()


def test_help_tells_the_question_and_every_field(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        runner.main("tiny", ["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "How is experiment tiny run?" in text
    options = ("--device", "--smoke", "--jobs", "--force", "--reproduce", "--out", "--steps", "--seeds", "--factor")
    assert all(option in text for option in options)


def test_a_missing_package_is_named_before_anything_is_imported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write(folder, "poor", 'REQUIRES = ("no_such_package",)\nimport no_such_package')
    for argv in ([], ["--help"]):
        assert runner.main("poor", argv) == 2
        assert "poor needs no_such_package: expected it to be installed; pip install" in capsys.readouterr().err


def test_the_list_names_every_experiment_and_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert experiments_main([]) == 0
    text = capsys.readouterr().out
    assert all(stem in text and Experiment(stem).question in text for stem in stems())


def test_an_unknown_experiment_exits_with_2_and_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert experiments_main(["scale_crush"]) == 2
    error = capsys.readouterr().err
    assert "'scale_crush'" in error
    assert "did you mean 'scale_crash'?" in error
    assert error.count("\n") == 1


# ------------------------------------------------------------------------------------------------ all of them


@pytest.fixture
def three(folder: Path) -> Path:
    """Three experiments: one that measures time, one that repeats, one that cannot run here."""
    tiny.write(
        folder,
        "clock",
        "import itertools\nimport time\nREPEATS = False  # its first number changes\ncounter = itertools.count()",
    )
    source = (folder / "clock.py").read_text()
    (folder / "clock.py").write_text(source.replace("config.factor**arm.power", "next(counter)"))
    tiny.write(folder, "poor", 'REQUIRES = ("no_such_package",)')
    return folder


def everything_in_this_process(argv: list[str]) -> int:
    return everything.main([*argv, "--jobs", "1"])


def test_reproduce_says_what_it_does_and_leaves_the_committed_data_alone(
    three: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, here = three / "data" / "cpu", three / "build" / "here" / "data" / "cpu"
    assert everything_in_this_process([]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 experiments with 1 worker processes, about 2 minutes")
    assert "left out: poor, needs no_such_package: pip install" in text
    assert "made for the first time" in text
    committed = {path.name: path.read_bytes() for path in data.iterdir()}
    monkeypatch.setattr(provenance, "now", lambda: "later")
    assert everything_in_this_process(["--reproduce"]) == 0
    text = capsys.readouterr().out
    assert "equal to the data of" in text
    assert "measured anew" in text
    assert {path.name: path.read_bytes() for path in data.iterdir()} == committed
    assert {path.name for path in here.iterdir()} == {"tiny.jsonl", "clock.jsonl"}
    assert everything_in_this_process(["--reproduce"]) == 0
    assert "2 are up to date" in capsys.readouterr().out
    shown = tables("records")
    assert "1 of the 1 files that can be compared are equal" in shown
    assert re.search(r"clock +│ +4 │ +0 │ measures time", shown)
    (here / "tiny.jsonl").write_bytes((here / "tiny.jsonl").read_bytes().replace(b"1.01", b"1.5"))  # another processor
    shown = tables("records")
    assert "0 of the 1 files that can be compared are equal" in shown
    assert re.search(r"tiny +│ +4 │ +3 │ differs", shown)
    assert tables("adopt").splitlines() == ["clock: written", "tiny: written"]
    assert records.read(data / "tiny.jsonl") == records.read(here / "tiny.jsonl")


def test_a_reproduction_is_resumed_and_its_data_made_anew_where_the_source_has_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Experiment("tiny").module, "run", broken_by(KeyboardInterrupt, 1, 1))
        assert everything_in_this_process(["--reproduce"]) == 130
    assert everything_in_this_process(["--reproduce"]) == 0
    assert "tiny: resumed, 1 of 4 units are done" in capsys.readouterr().out
    monkeypatch.setattr(provenance, "source_sha256", lambda stem: "other")
    assert everything_in_this_process(["--reproduce"]) == 0
    assert "4 units in 0 s" in capsys.readouterr().out


def tables(*argv: str) -> str:
    """Return what a command about a reproduction prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert experiments_main(argv) == 0
    return out.getvalue()


def test_equal_records_of_another_source_are_written_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner.main("tiny", ["--jobs", "1"]) == 0
    monkeypatch.setattr(provenance, "source_sha256", lambda stem: "other")
    assert runner.main("tiny", ["--jobs", "1", "--force"]) == 0
    assert "to the last bit, written to" in capsys.readouterr().out
    assert records.read_provenance(folder / "data" / "cpu" / "tiny.jsonl")["source_sha256"] == "other"


def test_all_stops_at_the_first_that_fails(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (three / "data" / "cpu").mkdir(parents=True)
    (three / "data" / "cpu" / "clock.jsonl").write_text("{}\n")
    assert everything_in_this_process([]) == 1
    captured = capsys.readouterr()
    assert "clock.jsonl, line 1: " in captured.err
    assert not (three / "data" / "cpu" / "tiny.jsonl").exists()
    with pytest.raises(SystemExit) as stop:
        everything.main(["--width", "3"])
    assert stop.value.code == 2


def test_those_that_are_named_run_whatever_fails(
    three: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (three / "data" / "cpu").mkdir(parents=True)
    (three / "data" / "cpu" / "clock.jsonl").write_text("{}\n")
    monkeypatch.setenv("AMPSIM_COMMIT", "a copy's")
    assert experiments_main(["clock", "tiny", "--jobs", "1"]) == 1
    assert "poor" not in capsys.readouterr().out
    assert records.read_provenance(three / "data" / "cpu" / "tiny.jsonl")["commit"] == "a copy's"


@pytest.mark.parametrize("argv", [["--device", "cuda"], ["--force", "--device=cuda"]])
def test_all_leaves_out_what_does_not_run_on_the_device(
    argv: list[str], three: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert everything.main(argv) == 0
    assert "left out: tiny, does not run on cuda" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("condition", "good", "bad"),
    [
        (settings.COUNT, (1, 9), (0, -1)),
        (settings.POSITIVE, (5e-324, 1e308), (0.0, math.inf, math.nan)),
        (settings.FROM_0, (0.0, 1e308), (-5e-324, math.inf, math.nan)),
        (settings.SHARE, (0.0, 1.0), (-0.1, 1.1)),
        (settings.BEFORE_THE_END, (0, 2), (-1, 3)),
        (settings.EXPONENT, (-126, 127), (-127, 128)),
        (settings.SEED, (0, 2**32 - 1), (-1, 2**32)),
    ],
)
def test_a_setting_may_be_what_its_words_say_to_the_ends(condition, good, bad) -> None:
    config = SimpleNamespace(steps=3)
    assert [condition.holds(value, config) for value in (*good, *bad)] == [True] * len(good) + [False] * len(bad)


def test_as_many_processes_run_as_are_asked_for_or_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, on_cpu in ((None, 1), (1, 1), (2, 2), (64, 2)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        asked = ({}, {"smoke": True}, {"device": "cuda"}, {"jobs": 5}, {"jobs": 5, "smoke": True})
        assert [execute.Options(**each).processes for each in asked] == [on_cpu, 1, 1, 5, 5]


def test_what_is_up_to_date_takes_no_time_unless_it_is_forced(three: Path) -> None:
    assert everything_in_this_process([]) == 0
    it = Experiment("tiny")
    taken = records.read_provenance(three / "data" / "cpu" / "tiny.jsonl")["unit_seconds"]
    given = ({}, {"force": True, "jobs": 1}, {"smoke": True}, {"force": True, "smoke": True})
    assert [everything.seconds(it, execute.Options(**each)) for each in given] == [0.0, taken, 1.0, 1.0]


def test_what_measures_time_is_not_expected_to_end_sooner_with_more_workers(three: Path) -> None:
    options = execute.Options(jobs=4)
    assert [everything.seconds(Experiment(stem), options) for stem in ("tiny", "clock")] == [15.0, 60.0]
    assert everything.seconds(Experiment("clock"), execute.Options(jobs=4, shard="1/3")) == 20.0


def test_whatever_imports_a_clock_of_the_experiments_measures_time() -> None:
    assert {name: Experiment(name).measures_time for name in ("probe_overhead", "explain_faults")} == {
        "probe_overhead": True, "explain_faults": False,
    }  # fmt: skip


def test_what_measures_time_has_its_own_workers_and_kernels_and_leaves_no_environment(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    def run(run: execute.Run, workers: pool.Workers, bar: object) -> execute.Outcome:
        seen[run.stem] = workers, os.environ["AMPSIM_KERNELS"], "MKL_CBWR" in os.environ
        os.environ["AMPSIM_LEFT"] = "behind"
        return execute.Outcome(0, "")

    monkeypatch.setattr(cli, "execute", run)
    for name, value in {"AMPSIM_KERNELS": "common", **experiments.KERNELS}.items():
        monkeypatch.setenv(name, value)
    with pool.Workers() as workers:
        for stem in ("tiny", "clock"):
            everything.run_one(Experiment(stem), [], workers, None)
            assert "AMPSIM_LEFT" not in os.environ
    assert seen["tiny"] == (workers, "common", True)
    assert seen["clock"][0] is not workers
    assert seen["clock"][1:] == ("own", False)
    assert os.environ["MKL_CBWR"] == "COMPATIBLE"


# ------------------------------------------------------------------------------------------------ workers


def job() -> pool.Job:
    """One quick case of `theory`, which imports numpy alone."""
    theory = Experiment("theory")
    (unit,) = [unit for unit in theory.units(theory.module.SMOKE) if unit.arm == "T4: 3 bits, 1 step, G=50"]
    return pool.Job("theory", theory.module.SMOKE, unit, "cpu")


class Fatal:
    """Ends the process that unpickles it, as a lack of memory would."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (9,)


def test_workers_with_the_same_kernels_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pool.Workers() as workers, pool.Workers(workers.answers) as others:
        said = workers.ask(os.getpid, processes=2)
        assert others.ask(os.getpid, processes=2) == said != os.getpid()
        monkeypatch.setenv("AMPSIM_KERNELS", "others")
        assert others.ask(os.getpid, processes=2) != said


def test_workers_stay_until_their_context_ends_and_one_that_raises_or_dies_fails_its_unit_alone() -> None:
    good = job()
    jobs = [
        good._replace(stem="no_such_experiment"),
        good,
        good._replace(unit=Fatal()),
        good._replace(unit=Fatal(), stem="x"),
        good,
    ]
    with pool.Workers() as workers:
        assert [type(done) for done in workers.run([good], 2, lambda unit, step: None)] == [pool.Done]
        (first,) = workers._idle
        assert first.process.is_alive()
        done = list(workers.run(jobs, 2, lambda unit, step: None))
        left = [worker.process for worker in workers._idle]
    assert not any(process.is_alive() for process in [first.process, *left])
    reasons = sorted(unit.reason for unit in done if isinstance(unit, pool.Failed))
    assert len(done) == 5
    assert reasons[0].startswith("ModuleNotFoundError: No module named 'experiments.no_such_experiment'")
    assert reasons[1:] == ["its process ended with exit code 9"] * 2


def test_the_source_of_an_experiment_is_what_it_imports() -> None:
    folder = ROOT / "experiments"
    found = {path.relative_to(folder).as_posix() for path in provenance.sources(folder / "theory.py")}
    rooms = {f"theorems/{name}.py" for name in ("__init__", "case", "pathwise", "simulate", "stochastic")}
    assert found == {"theory.py", *rooms}
    found = {path.relative_to(folder).as_posix() for path in provenance.sources(folder / "sigmoid_underflow.py")}
    assert {"sigmoid_underflow.py", "models/sigmoid_mlp.py", "training/digits_data.py", "training/fp16.py"} <= found
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


def test_words_do_not_make_data_stale_and_numbers_do(folder: Path) -> None:
    def digest(*changes: tuple[str, str]) -> str:
        text = PROSE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (folder / "prose.py").write_text(text)
        return provenance.source_sha256("prose")

    before = digest()
    words = [("What is", "Who has"), ("a comment", "no comment"), ("A docstring.", "X"), ("A field's.", "")]
    assert digest(*words, ('    """Another."""\n', ""), ("[1, 2]", "[\n    1,\n    2,\n]")) == before
    for change in [("0.1\n", "0.2\n"), ("1, 2", "2, 1"), (".1f", ".2f"), ("=None", "=0"), ("rate:", "rates:")]:
        assert digest(change) != before, change
    said = provenance.essence(ast.parse(PROSE))
    assert hashlib.sha256(said.encode()).hexdigest()[:12] == "49f9359576e0"  # with every version of Python


def test_the_cpu_time_of_a_unit_has_that_of_processes_it_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "times", lambda: os.times_result((1.0, 2.0, 4.0, 8.0, 16.0)))
    assert pool.cpu_seconds() == 15.0


def test_the_time_left_is_told_once_a_hundredth_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = progress.Bar(1000.0)
    bar.expect(100.0)
    bar.count("slow", units=10, steps=100, done=0)
    for steps, seconds in ((1, 20.0), (99, 40.0)):
        now[0] = seconds
        bar.step("first", steps)
    assert capsys.readouterr().out.splitlines() == ["slow: 0 of 10 units; 0 %, 20 s", "slow: 0 of 10 units; 1 %, 40 s"]
    now[0] = 60.0
    bar.finish("first")
    assert capsys.readouterr().out == "slow: 1 of 10 units; 1 %, 60 s, 5940 s left\n"


def test_without_git_a_run_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert provenance._git("rev-parse", "HEAD") is None

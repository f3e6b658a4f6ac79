import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ampsim import records
from experiments import interop, runner, scale_crash
from experiments.__main__ import main as experiments_main
from experiments.runner import device, everything, execute, pool, provenance
from experiments.runner.experiment import Experiment, stems

ROOT = Path(__file__).parents[2]
SMALL = ["--steps", "3", "--blocks", "1", "--lrs", "0.05", "--jobs", "1"]  # two arms
TIMES = ("date", "unit_seconds", "argv")

KILLED = """
import os, signal, sys
from ampsim import records
from experiments import runner

append = records.Journal.append

def kill_after(journal, unit, value):
    append(journal, unit, value)
    if len(journal.done) == 2:
        with journal.part.open("ab") as file:
            file.write(b'{"unit":"fp32 lr=0.05, se')  # the third line, torn
        os.kill(os.getpid(), signal.SIGKILL)

records.Journal.append = kill_after
if __name__ == "__main__":
    runner.main("scale_crash", sys.argv[1:])
"""


def small(path: Path, *more: str) -> int:
    return runner.main("scale_crash", [*SMALL, "--seeds", "0", "1", "--out", str(path), *more])


def timeless(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    provenance, rows = records.read(path)
    return {key: value for key, value in provenance.items() if key not in TIMES}, rows


@pytest.mark.parametrize("stem", stems())
def test_smoke_runs_end_to_end_outside_of_data(stem: str, capsys: pytest.CaptureFixture[str]) -> None:
    if Experiment(stem).missing_packages:
        pytest.skip(f"{stem} needs its peers: pip install -c constraints.txt 'ampsim[peers]'")
    assert runner.main(stem, ["--smoke"]) == 0
    path = Path(capsys.readouterr().out.split("written to ")[1].strip())
    assert not path.is_relative_to(runner.DATA)
    provenance, rows = records.read(path)
    assert rows
    every = 10 if stem == "interop" else 1
    steps = len(range(0, provenance["config"]["steps"], every))
    assert all(len(row["loss"]) == steps for row in rows if "loss" in row)
    wanted = {"script", "argv", "commit", "dirty", "config", "seeds", "inputs_sha256", "versions", "platform"}
    assert wanted | {"cpu", "device", "threads", "date"} <= provenance.keys()
    assert {"python", "torch", "numpy"} <= provenance["versions"].keys()


def test_a_run_killed_in_the_middle_goes_on_and_ends_with_the_same_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unbroken, broken, script = tmp_path / "unbroken.jsonl", tmp_path / "broken.jsonl", tmp_path / "killed.py"
    script.write_text(KILLED)
    small(unbroken)
    # Two workers do the first half, this process does the other: how many there are changes no result either.
    command = [sys.executable, str(script), *SMALL, "--jobs", "2", "--seeds", "0", "1", "--out", str(broken)]
    # Returns only when nobody holds the pipes any more: orphaned workers would make it time out.
    dead = subprocess.run(  # noqa: S603 - our own script
        command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, timeout=300, check=False
    )
    assert dead.returncode == -9, dead.stderr
    assert not broken.exists()
    capsys.readouterr()
    assert small(broken) == 0
    assert "resumed, 2 of 4 units are done" in capsys.readouterr().out
    assert timeless(broken) == timeless(unbroken)
    assert not broken.with_name("broken.jsonl.part").exists()


def test_ctrl_c_keeps_what_is_done_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = scale_crash.run

    def interrupted(config: Any, arm: Any, seed: int, *rest: Any) -> Any:
        if seed == 1:
            raise KeyboardInterrupt
        return run(config, arm, seed, *rest)

    monkeypatch.setattr(scale_crash, "run", interrupted)
    path = tmp_path / "x.jsonl"
    assert small(path) == 130
    assert f"stopped; 1 of 4 units are kept in {path}.part" in capsys.readouterr().out
    monkeypatch.undo()
    assert small(path) == 0
    assert "resumed, 1 of 4" in capsys.readouterr().out


def test_finished_data_is_reused_until_something_that_matters_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.jsonl"

    def reused(*more: str) -> bool:
        assert small(path, *more) == 0
        return "reused, 4 units, from " in capsys.readouterr().out

    assert not reused()
    before = path.read_bytes()
    assert reused()
    assert path.read_bytes() == before
    assert not reused("--force")
    assert not reused("--growth-interval", "7")
    assert not reused()
    monkeypatch.setattr(scale_crash, "inputs", lambda: {"digits": "another file"})
    assert not reused()


def test_a_changed_source_is_mentioned_and_the_data_still_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small(tmp_path / "x.jsonl")
    monkeypatch.setattr(provenance, "source_sha256", lambda stem: "other")
    capsys.readouterr()
    assert small(tmp_path / "x.jsonl") == 0
    assert "its source has changed since; --force runs it again" in capsys.readouterr().out


def test_the_table_of_an_experiment_is_printed_after_the_run_and_when_its_data_is_reused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--steps", "40", "--warmup", "10", "--growth-intervals", "5", "--jobs", "1"]
    for _ in range(2):
        assert runner.main("theory_real", [*argv, "--out", str(tmp_path / "x.jsonl")]) == 0
        text = capsys.readouterr().out
        assert "mean log2 S" in text
        assert text.splitlines()[-1].startswith("theory_real: measured on ")
    assert runner.main("theory_real", ["--smoke"]) == 0
    assert "mean log2 S" not in capsys.readouterr().out


def test_damaged_data_is_named_and_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n")
    assert small(path) == 1
    assert f"{path}, line 1: " in capsys.readouterr().err
    assert path.read_text() == "{}\n"


def test_a_failed_unit_exits_with_1_and_the_others_go_on_and_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = scale_crash.run

    def without_memory(config: Any, arm: Any, seed: int, *rest: Any) -> Any:
        if (arm.dtype, seed) == ("float32", 0):
            raise MemoryError("no room for 3 numbers\nand more about it")
        return run(config, arm, seed, *rest)

    path = tmp_path / "x.jsonl"
    monkeypatch.setattr(scale_crash, "run", without_memory)
    assert small(path) == 1
    error = capsys.readouterr().err
    assert "fp32 lr=0.05, seed 0 failed, the others go on: MemoryError: no room for 3 numbers; expected enough" in error
    assert "1 of 4 units failed: fp32 lr=0.05, seed 0. The others are kept in " in error
    assert "Traceback" in error
    assert not path.exists()
    monkeypatch.undo()
    assert small(path) == 0
    assert "resumed, 3 of 4" in capsys.readouterr().out
    small(tmp_path / "unbroken.jsonl")
    assert timeless(path) == timeless(tmp_path / "unbroken.jsonl")


def test_a_nan_loss_is_a_record_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_crash, "cross_entropy", lambda logits, y: logits.sum() * float("nan"))
    assert small(tmp_path / "x.jsonl") == 0
    rows = timeless(tmp_path / "x.jsonl")[1]
    assert len(rows) == 4
    assert all(map(math.isnan, rows[0]["loss"]))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--width", "32"], "width=32: expected the default 64 for "),
        (["--seeds", "0"], "to keep the result of other settings pass --out FILE"),
        (["--device", "cuda"], "device=cuda: expected a CUDA device"),
    ],
)
def test_wrong_use_is_refused_with_value_expectation_and_cure(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert runner.main("scale_crash", argv) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("stem", ["threads", "interop", "adversary"])
def test_an_experiment_of_the_host_refuses_cuda(stem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(stem, ["--device", "cuda"]) == 2
    assert "device=cuda: expected cpu for this experiment; pass --device cpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["--widht", "3"], ["--steps", "0"], ["--jobs", "0"], ["--seeds", "1", "1"], ["--device", "tpu"]]
)
def test_an_unknown_field_or_bad_value_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        runner.main("scale_crash", argv)
    assert stop.value.code == 2
    assert argv[0].strip("-") in capsys.readouterr().err


@pytest.mark.parametrize("stem", stems())
def test_help_tells_the_question_and_every_field(stem: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: Any = runner.main(stem, ["--help"])
    except SystemExit as stop:
        status = stop.code
    if status == 2:  # what it imports is not there
        assert Experiment(stem).missing_packages
        assert "expected it to be installed; pip install" in capsys.readouterr().err
        return
    assert status == 0
    text = capsys.readouterr().out
    assert Experiment(stem).question[:40] in text
    assert all(option in text for option in ("--device", "--smoke", "--jobs", "--force", "--out", "--steps", "--seeds"))


def test_the_list_names_every_experiment_and_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert experiments_main([]) == 0
    text = capsys.readouterr().out
    assert all(stem in text and Experiment(stem).question in text for stem in stems())
    assert all(Experiment(stem).question.endswith("?") for stem in stems())


def test_an_unknown_experiment_exits_with_2_and_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert experiments_main(["scale_crush"]) == 2
    error = capsys.readouterr().err
    assert "'scale_crush'" in error
    assert "did you mean 'scale_crash'?" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("stem", stems())
def test_the_committed_data_is_up_to_date(
    stem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if missing := Experiment(stem).missing_packages:
        assert runner.main(stem, []) == 2
        assert f"needs {' and '.join(missing)}: expected it to be installed; pip" in capsys.readouterr().err
        return
    if "cpu" not in Experiment(stem).devices:
        assert runner.main(stem, []) == 2
        assert "device=cpu: expected cuda for this experiment; pass --device cuda" in capsys.readouterr().err
        return
    monkeypatch.setattr(execute, "perform", lambda *_: pytest.fail("the committed data is missing or stale"))
    assert runner.main(stem, []) == 0
    assert f"{stem}: reused" in capsys.readouterr().out


def test_all_runs_one_after_the_other_and_stops_at_the_first_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(everything, "alone", lambda stem, argv: pytest.fail("nothing is timed here"))
    monkeypatch.setattr(Experiment, "repeats", True)
    monkeypatch.setattr(everything, "run_one", lambda stem, argv, workers: started.append(stem) or len(started) // 3)
    monkeypatch.setattr(Experiment, "missing_packages", property(lambda self: ["a_peer"] * (self.stem == stems()[1])))
    assert experiments_main(["all", "--smoke"]) == 1
    assert started == [stems()[0], *stems()[2:4]]
    with pytest.raises(SystemExit) as stop:
        experiments_main(["all", "--width", "3"])
    assert stop.value.code == 2


@pytest.mark.parametrize("options", [["--device", "cuda"], ["--force", "--device=cuda"]])
def test_all_leaves_out_what_does_not_run_on_the_device(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    timed: list[str] = []
    monkeypatch.setattr(everything, "alone", lambda stem, argv: timed.append(stem))
    monkeypatch.setattr(everything, "run_one", lambda stem, argv, workers: started.append(stem))
    monkeypatch.setattr(Experiment, "missing_packages", [])
    assert experiments_main(["all", *options]) == 0
    assert set(stems()) - {*started, *timed} >= {"threads", "theory", "adversary"}
    assert {"scale_crash", "gpt_fp16"} <= set(started)
    assert "overhead" in timed


def test_workers_stay_from_one_run_to_the_next_and_end_with_their_context() -> None:
    config = interop.SMOKE
    job = pool.Job("interop", config, runner.Unit(interop.arms(config)[0], 0), "cpu")
    with pool.Workers() as workers:
        for _ in range(2):
            assert [type(done) for done in workers.run([job], 2, lambda unit, step: None)] == [pool.Done]
            (worker,) = workers._idle
            assert worker.process.is_alive()
        assert worker.job is not None
    assert not worker.process.is_alive()


def test_what_measures_time_has_its_own_process(capfd: pytest.CaptureFixture[str]) -> None:
    assert everything.alone("scale_crash", []) == 0
    assert "scale_crash: reused, 50 units" in capfd.readouterr().out


def test_the_source_of_an_experiment_is_what_it_imports() -> None:
    folder = ROOT / "experiments"
    found = {path.relative_to(folder).as_posix() for path in provenance.sources(folder / "theory.py")}
    rooms = {f"theorems/{name}.py" for name in ("__init__", "case", "pathwise", "simulate", "stochastic")}
    assert found == {"theory.py", *rooms}
    found = {path.relative_to(folder).as_posix() for path in provenance.sources(folder / "sigmoid_underflow.py")}
    assert {"sigmoid_underflow.py", "models/sigmoid_mlp.py", "training/digits_data.py", "training/fp16.py"} <= found
    assert not any("gpt_fp16" in name or "runner" in name for name in found)


class Fatal:
    """Ends the process that unpickles it, as a lack of memory would."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (9,)


def test_a_worker_that_raises_or_dies_fails_its_unit_and_no_other() -> None:
    good = pool.Job("interop", interop.SMOKE, runner.Unit(interop.arms(interop.SMOKE)[0], 0), "cpu")
    jobs = [
        good._replace(stem="no_such_experiment"),
        good._replace(unit=Fatal()),
        good,
        good._replace(unit=Fatal(), stem="x"),
        good,
    ]
    with pool.Workers() as workers:
        done = list(workers.run(jobs, 2, lambda unit, step: None))
    failed = [unit for unit in done if isinstance(unit, pool.Failed)]
    assert len(done) == 5
    reasons = sorted(unit.reason for unit in failed)
    assert reasons[0].startswith("ModuleNotFoundError: No module named 'experiments.no_such_experiment'")
    assert reasons[1:] == ["its process ended with exit code 9"] * 2


def test_a_gpu_has_its_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    assert device.slug("cuda") == "nvidia-h200"
    assert device.slug("cpu") == "cpu"

"""The table of engines agrees with the data, the checks see seeded faults, and the reports
reproduce.
"""

import dataclasses
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ampsim.runs.record import data_file

torch = pytest.importorskip("torch", reason="pip install 'ampsim[torch]'")
from torch.multiprocessing.spawn import start_processes  # noqa: E402

from experiments import engines  # noqa: E402
from experiments.engine_drivers import ENGINES, READ, checks, torch_loops  # noqa: E402
from experiments.engine_drivers.job import Job, Result  # noqa: E402

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evaluation-engines.md"
REPORTS = ROOT / "experiments" / "data" / "reports"
ROWS = {
    row["arm"]: row
    for row in data_file.read(ROOT / "experiments/data/cpu/engines.jsonl")[1]
}


def test_page_shows_recorded_results() -> None:
    lines = PAGE.read_text().splitlines()
    assert ROWS.keys() == ENGINES.keys() | READ.keys()
    for name, row in ROWS.items():
        if name in READ:
            assert f"| {name} | {row['version']} | {row['note']} |" in lines
            continue
        assert list(row["checks"]) == [check.__name__ for check in checks.CHECKS]
        assert list(row["rank_checks"]) == [
            check.__name__ for check in checks.RANK_CHECKS
        ]
        one, two = row["settled_scales"]
        on_one = [name, row["version"], *row["checks"].values()]
        on_two = [name, *row["rank_checks"].values()]
        on_two.append("passed" if one == two else "failed")
        assert f"| {' | '.join(on_one)} |" in lines
        assert f"| {' | '.join(on_two)} |" in lines


@pytest.mark.deep
@pytest.mark.parametrize("name", ENGINES)
def test_installed_engine_gives_recorded_outcomes(name: str) -> None:
    if importlib.util.find_spec(ENGINES[name].module) is None:
        pytest.skip(f"needs {ENGINES[name].package}: make engines")
    row = engines.run(engines.Config(), engines.Arm(name), 0, "cpu", print)
    for column in ("checks", "rank_checks", "settled_scales"):
        assert row[column] == ROWS[name][column]


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_torch_passes(check: checks.Check) -> None:
    assert check(torch_loops.grad_scaler)


def divided_twice(job: Job) -> Result:
    """Clip by a norm that depends on the loss scale, and step by a gradient that does."""
    batches = tuple((inputs, targets / job.scale) for inputs, targets in job.batches)
    return torch_loops.grad_scaler(dataclasses.replace(job, batches=batches))


def forgets_scale(job: Job) -> Result:
    return dataclasses.replace(
        torch_loops.grad_scaler(job), scale=job.scale * 2.0**-job.start
    )


def moves_in_skips(job: Job) -> Result:
    ended = torch_loops.grad_scaler(job)
    if ended.scale < job.scale:
        ended.parameters[0].add_(1.0)
    return ended


def divides_by_the_grown_scale(job: Job) -> Result:
    """Halve the gradient of each step in which the scale grows."""
    half = 0.5 if job.interval == 1 else 1.0
    batches = [(inputs, targets * half) for inputs, targets in job.batches]
    return torch_loops.grad_scaler(dataclasses.replace(job, batches=tuple(batches)))


def test_seeded_faults_fail() -> None:
    assert not checks.growing_scale_leaves_gradients_whole(divides_by_the_grown_scale)
    assert not checks.gradients_do_not_depend_on_loss_scale(divided_twice)
    assert not checks.clipping_does_not_depend_on_loss_scale(divided_twice)
    assert not checks.skipped_step_changes_nothing(moves_in_skips)
    assert not checks.resume_is_exact(forgets_scale)


def without_reduction(job: Job) -> Result:
    return torch_loops.grad_scaler(job, lambda model: model)


def summed_in_fp16(job: Job) -> Result:
    """Add gradients up in fp16 before they are divided, which takes a bit per two ranks."""

    def hook(
        _: object, bucket: torch.distributed.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        half = bucket.buffer().half()
        done = torch.distributed.all_reduce(half, async_op=True).get_future()
        size = torch.distributed.get_world_size()
        return done.then(lambda sums: sums.value()[0].float() / size)

    def wrap(model: torch.nn.Module) -> torch.nn.Module:
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        parallel.register_comm_hook(None, hook)
        return parallel

    return torch_loops.grad_scaler(job, wrap)


RANK_LOOPS: tuple[Callable[[Job], Result], ...] = (
    torch_loops.grad_scaler,
    without_reduction,
    summed_in_fp16,
)


def on_rank(rank: int, folder: str) -> None:
    """Write the outcomes of each loop on one rank."""
    store = Path(folder, "store").as_uri()
    torch.distributed.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=2
    )
    outcomes = [
        [*[check(train) for check in checks.RANK_CHECKS], checks.settled_scale(train)]
        for train in RANK_LOOPS
    ]
    Path(folder, str(rank)).write_text(json.dumps(outcomes))
    torch.distributed.barrier()  # no rank leaves while the other still uses its connection
    torch.distributed.destroy_process_group()


def test_rank_checks_see_seeded_faults(tmp_path: Path) -> None:
    start_processes(on_rank, (str(tmp_path),), 2, start_method="spawn")
    outcomes = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    one = checks.settled_scale(torch_loops.grad_scaler)
    for correct, alone, lossy in outcomes:
        assert correct == [True, True, True, True, True, one]
        assert alone[:2] == [False, False]  # each rank has its own gradients
        assert not alone[4]
        assert lossy == [True, True, True, True, True, one / 2]
    assert not outcomes[0][1][3]  # the rank without the overflow steps


DEFECTS = {
    "deepspeed_stage0": ("deepspeed", "stage 0: moved by 0.005859375, expected 1.5"),
    "deepspeed_growth": (
        "deepspeed",
        "stage 1: scale 16.0 -> 32.0, moved by 0.125, expected 0.25",
    ),
    "fabric_resume": (
        "lightning",
        "scaler in the state: False; scale 32768.0 -> 65536.0",
    ),
    "slime_double_unscale": (
        "megatron",
        "prepare_grads() first: True; gradient 0.5, step 0.00048828125",
    ),
    "torch_group_outlives_destroy": (
        "torch",
        "imported first: False; gloo threads left: True",
    ),
    "verl_resume": ("verl", "scale 32768.0 -> 65536.0"),
}


@pytest.mark.parametrize("name", [path.stem for path in sorted(REPORTS.glob("*.py"))])
def test_report_reproduces_defect(name: str) -> None:
    module, line = DEFECTS[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}: make engines")
    command = [sys.executable, str(REPORTS / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert line in done.stdout

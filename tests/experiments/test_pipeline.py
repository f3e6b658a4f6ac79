"""The pipeline example passes its check, and the check sees seeded faults."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="pip install 'ampsim[torch]'")
from torch import nn  # noqa: E402
from torch.multiprocessing.spawn import start_processes  # noqa: E402

# Before a process group exists: torch.distributed.nn, which this imports, has default arguments
# that keep the group after `destroy_process_group`. Its threads would still run when the
# interpreter ends, and abort.
sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))
import check_pipeline  # noqa: E402
import pipeline  # noqa: E402

CLIPS = (
    0.1,
    1e6,
)  # below and above the gradient norm, so that wrong norms and wrong factors show
FAULTS = (
    "none",
    "each stage skips alone",
    "each stage clips alone",
    "a constant factor",
)


def batch() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=generator), torch.randn(
        8, 4, generator=generator
    )


def overflow() -> tuple[Any, Any]:
    """Return a batch in which the third micro-batch overflows, in the last stage alone.

    At a scale of 1024, two gradients of about 51200 add up to more than fp16 holds in the last
    stage's bias, and stay finite in the first stage.
    """
    inputs, targets = batch()
    inputs[4:6] *= 0.1
    targets[4:6, 0] = 200.0
    return inputs, targets


def seed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "each stage skips alone":
        monkeypatch.setattr(pipeline, "PipelineScaler", torch.amp.GradScaler)
    elif fault == "each stage clips alone":
        monkeypatch.setattr(pipeline, "clip", nn.utils.clip_grad_norm_)
    elif fault == "a constant factor":
        scale = torch.amp.GradScaler.scale
        monkeypatch.setattr(
            pipeline.PipelineScaler, "scale", lambda *given: 2 * scale(*given)
        )


def stage(rank: int, folder: str) -> None:
    """Check one stage with each schedule, clip, and fault, and write the problems."""
    store = Path(folder, "store").as_uri()
    torch.distributed.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=2
    )
    found = {}
    for fault in FAULTS:
        for name in pipeline.SCHEDULES:
            for max_norm in CLIPS:
                with pytest.MonkeyPatch.context() as monkeypatch:
                    seed(fault, monkeypatch)
                    found[f"{fault}, {name}, {max_norm}"] = check_pipeline.problems(
                        partial(pipeline.train, name),
                        pipeline.layers,
                        pipeline.sgd,
                        pipeline.loss,
                        [batch()],
                        overflow(),
                        max_norm,
                    )
    Path(folder, str(rank)).write_text(json.dumps(found))
    torch.distributed.barrier()  # no stage leaves while the other still uses its connection
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the problems of both stages, per fault, schedule, and clip."""
    folder = tmp_path_factory.mktemp("pipeline")
    start_processes(stage, (str(folder),), 2, start_method="spawn")  # type: ignore[no-untyped-call]
    first, second = (json.loads((folder / str(rank)).read_text()) for rank in range(2))
    return {case: first[case] + second[case] for case in first}


@pytest.mark.parametrize("name", pipeline.SCHEDULES)
def test_pipeline_has_no_problems(name: str, found: dict[str, list[str]]) -> None:
    for max_norm in CLIPS:
        assert not found[f"none, {name}, {max_norm}"]


@pytest.mark.parametrize("fault", FAULTS[1:])
@pytest.mark.parametrize("name", pipeline.SCHEDULES)
def test_check_sees_seeded_faults(
    name: str, fault: str, found: dict[str, list[str]]
) -> None:
    assert any(found[f"{fault}, {name}, {max_norm}"] for max_norm in CLIPS)

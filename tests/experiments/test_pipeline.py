"""The pipeline example equals one process in float32, and its stages skip together."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="pip install 'ampsim[torch]'")
from torch import nn  # noqa: E402
from torch.multiprocessing.spawn import start_processes  # noqa: E402

PATH = Path(__file__).parents[2] / "docs" / "examples" / "pipeline.py"
Ended = dict[Any, tuple[list[Any], list[float]]]
SCHEDULES = ("GPipe", "1F1B")
CLIPS = (0.1, 1e6)  # below and above the gradient norm, so that wrong norms and wrong factors show


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("pipeline_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pipeline_example"] = module
    spec.loader.exec_module(module)
    return module


def batches(overflow: bool) -> list[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(1)
    given = [
        (torch.randn(8, 4, generator=generator), torch.randn(8, 4, generator=generator))
        for _ in range(2)
    ]
    if overflow:
        # The third micro-batch alone: at a scale of 1024, two gradients of about 51200 add up to more
        # than fp16 holds in the last stage's bias, and stay finite in the first stage.
        given[1][0][4:6] *= 0.1
        given[1][1][4:6, 0] = 200.0
    return given


# Before a process group exists: torch.distributed.nn, which this imports, has default arguments that keep the
# group after `destroy_process_group`. Its threads would still run when the interpreter ends, and abort.
EXAMPLE = load_example()
Run = tuple[str, float, float, bool, int]  # schedule, loss scale, clip, overflow, batches


def runs() -> list[Run]:
    equal = [(scale, clip, False, 2) for scale in (2.0**6, 2.0**12) for clip in CLIPS]
    skips = [(2.0**10, CLIPS[0], True, 2), (2.0**10, CLIPS[0], False, 1)]
    return [(name, *case) for name in SCHEDULES for case in equal + skips]


def stage(rank: int, folder: str) -> None:
    """Train one stage in each run, and write its parameters and loss scale."""
    store = Path(folder, "store").as_uri()
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    ended = []
    for name, scale, clip, overflow, count in runs():
        values, end = EXAMPLE.train(name, batches(overflow)[:count], scale, clip)
        ended.append([[value.tolist() for value in values], end])
    Path(folder, str(rank)).write_text(json.dumps(ended))
    torch.distributed.barrier()  # no stage leaves while the other still uses its connection
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Return, per run, the parameters of both stages and the loss scale of each."""
    folder = tmp_path_factory.mktemp("pipeline")
    start_processes(stage, (str(folder),), 2, start_method="spawn")  # type: ignore[no-untyped-call]
    stages = [json.loads((folder / str(rank)).read_text()) for rank in range(2)]
    results = {}
    for run, first, second in zip(runs(), *stages, strict=True):
        parameters = [torch.tensor(value) for value in first[0] + second[0]]
        results[run] = parameters, [first[1], second[1]]
    return results


def one_process(clip: float) -> list[Any]:
    """Train both stages in float32 without a scaler."""
    model = nn.Sequential(*EXAMPLE.layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in batches(overflow=False):
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return [value.detach() for value in model.parameters()]


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_pipeline_equals_one_process(name: str, clip: float, ended: Ended) -> None:
    start = [value.detach() for layer in EXAMPLE.layers() for value in layer.parameters()]
    for scale in (2.0**6, 2.0**12):
        made, _ = ended[name, scale, clip, False, 2]
        for before, value, expected in zip(start, made, one_process(clip), strict=True):
            assert (value - expected).norm() <= 0.02 * (expected - before).norm()


@pytest.mark.parametrize("name", SCHEDULES)
def test_stages_skip_together(name: str, ended: Ended) -> None:
    skipped, scales = ended[name, 2.0**10, CLIPS[0], True, 2]
    without, _ = ended[name, 2.0**10, CLIPS[0], False, 1]
    assert scales == [512.0, 512.0]
    assert all(map(torch.equal, skipped, without))

"""What only a CUDA device can show. `make gpu` runs the tests marked gpu; the others dry-run the same functions."""

import pytest
import torch
from torch import Tensor, nn

from ampsim.probe import Histogram, Probe, Row, counting
from tests.probe.helpers import same
from tests.torch.helpers import no_waits

gpu = pytest.mark.gpu
STEPS = 3


def mlp(device: str) -> nn.Sequential:
    """Small and large parameters; one of them empty."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 300), nn.ReLU(), nn.Linear(300, 300), nn.Sigmoid(), nn.Linear(300, 4))
    model.register_parameter("empty", nn.Parameter(torch.empty(0)))
    return model.to(device)


def backward(model: nn.Module, inputs: tuple[Tensor, Tensor], scale: float) -> None:
    x, y = inputs
    with torch.autocast(x.device.type, torch.float16):
        logits = model(x) + model.get_parameter("empty").sum()
        loss = nn.functional.cross_entropy(logits.float(), y)
    (loss * scale).backward()


def watched(device: str, **options: bool) -> tuple[list[Row], list[dict[str, Tensor]]]:
    """Rows of some steps in which nothing waited, and the gradients."""
    model, scale, grads = mlp(device), 2.0**10, []
    inputs = torch.randn(8, 16, device=device), torch.randint(0, 4, (8,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    with Probe(model, scale=scale, **options) as probe:
        backward(model, inputs, scale)  # compiles
        probe.drain()
        with no_waits(device):
            for _ in range(STEPS):
                optimizer.zero_grad()
                backward(model, inputs, scale)
                grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
                optimizer.step()
                probe.step()
    return probe.drain(), [{name: grad / scale for name, grad in step.items()} for step in grads]


def of_parameters(device: str, **options: bool) -> None:
    rows, grads = watched(device, **options)
    mine = [row for row in rows if row.kind == "parameter"]
    assert [row.step for row in mine] == sorted(row.step for row in mine)
    assert len(mine) == STEPS * 7
    for row in mine:
        same(row.histogram, Histogram.of(grads[row.step][row.name].cpu()))
    if options.get("activations"):
        sizes = {row.name: row.histogram.size for row in rows if row.kind == "activation" and row.step == 1}
        assert sizes == {"0": 2400, "1": 2400, "2": 2400, "3": 2400, "4": 32}


def drains_what_has_arrived(device: str) -> None:
    """Without waiting, in whatever portions; in the end all."""
    model, inputs = mlp(device), (torch.randn(8, 16, device=device), torch.randint(0, 4, (8,), device=device))
    rows: list[Row] = []
    with Probe(model) as probe:
        for _ in range(STEPS):
            model.zero_grad()
            backward(model, inputs, 1.0)
            probe.step()
            with no_waits(device):
                rows += probe.drain(wait=False)
    rows += probe.drain()
    assert [row.step for row in rows] == [step for step in range(STEPS) for _ in range(7)]


@pytest.mark.parametrize("activations", [False, True])
def test_dry_run_of_parameters(activations: bool) -> None:
    of_parameters("cpu", activations=activations)


@gpu
@pytest.mark.parametrize("activations", [False, True])
def test_on_cuda_the_counts_are_the_cpus_and_nothing_waits(activations: bool) -> None:
    of_parameters("cuda", activations=activations)


@gpu
def test_on_cuda_without_triton_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "counter_of_many", lambda _: None)
    monkeypatch.setattr("ampsim.probe.batch.counter_of_many", lambda _: None)
    of_parameters("cuda", activations=True)


def test_dry_run_of_draining() -> None:
    drains_what_has_arrived("cpu")


@gpu
def test_on_cuda_what_has_arrived_is_drained_without_waiting() -> None:
    drains_what_has_arrived("cuda")


@gpu
@pytest.mark.parametrize("dtype", counting.DTYPES)
def test_on_cuda_a_large_tensor(dtype: torch.dtype) -> None:
    values = (torch.randn(5_000_011) * 1e-4).to(dtype)
    same(Histogram.of(values.cuda()), Histogram.of(values))


@gpu
def test_on_cuda_gradients_of_another_stream() -> None:
    model, inputs = mlp("cuda"), (torch.randn(8, 16, device="cuda"), torch.randint(0, 4, (8,), device="cuda"))
    torch.cuda.synchronize()
    with Probe(model) as probe, torch.cuda.stream(torch.cuda.Stream()):
        backward(model, inputs, 1.0)
        probe.step()
    rows = probe.drain()
    torch.cuda.synchronize()
    for row in rows:
        grad = model.get_parameter(row.name).grad
        assert grad is not None
        same(row.histogram, Histogram.of(grad.cpu()))

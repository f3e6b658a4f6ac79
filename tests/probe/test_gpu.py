"""What only a CUDA device can show. `make gpu` runs the tests marked gpu; the CPU runs them dry."""

import pytest
import torch
from torch import nn

from ampsim.probe import Histogram, Probe, counting
from tests.probe.helpers import same
from tests.torch.helpers import no_waits

gpu = pytest.mark.gpu
on_both = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
STEPS, SCALE = 3, 2.0**10


class Training:
    """A model with small, large, and empty parameters."""

    def __init__(self, device):
        torch.manual_seed(0)
        layers = (
            nn.Linear(16, 300),
            nn.ReLU(),
            nn.Linear(300, 300),
            nn.Sigmoid(),
            nn.Linear(300, 4),
        )
        self.model = nn.Sequential(*layers)
        self.model.register_parameter("empty", nn.Parameter(torch.empty(0)))
        self.model.to(device)
        self.x, self.y = (
            torch.randn(8, 16).to(device),
            torch.randint(0, 4, (8,)).to(device),
        )

    def backward(self):
        self.model.zero_grad()
        with torch.autocast(self.x.device.type, torch.float16):
            logits = self.model(self.x) + self.model.get_parameter("empty").sum()
            loss = nn.functional.cross_entropy(logits.float(), self.y)
        (loss * SCALE).backward()

    def are_counted(self, rows):
        assert len(rows) == 7
        for row in rows:
            grad = self.model.get_parameter(row.name).grad.cpu() / SCALE
            same(row.histogram, Histogram.of(grad))


@on_both
def test_counts_match_cpu_without_waiting(device):
    training, rows = Training(device), []
    with Probe(training.model, scale=SCALE, activations=True) as probe:
        training.backward()
        probe.drain()
        with no_waits(device):
            for _ in range(STEPS):
                training.backward()
                probe.step()
    rows += probe.drain()
    mine = [row for row in rows if row.kind == "parameter"]
    assert [row.step for row in mine] == [
        step for step in range(STEPS) for _ in range(7)
    ]
    training.are_counted(mine[-7:])
    last = [row for row in rows if row.kind == "activation" and row.step == STEPS - 1]
    sizes = {row.name: row.histogram.size for row in last}
    assert sizes == {"0": 2400, "1": 2400, "2": 2400, "3": 2400, "4": 32}


@gpu
@pytest.mark.parametrize("dtype", counting.DTYPES)
def test_counts_of_large_tensor_match_cpu(dtype):
    values = (torch.randn(5_000_011) * 1e-4).to(dtype)
    same(Histogram.of(values.cuda()), Histogram.of(values))


@gpu
def test_gradients_of_another_stream():
    training = Training("cuda")
    torch.cuda.synchronize()
    with (
        Probe(training.model, scale=SCALE) as probe,
        torch.cuda.stream(torch.cuda.Stream()),
    ):
        training.backward()
        probe.step()
    rows = probe.drain()
    torch.cuda.synchronize()
    training.are_counted(rows)

"""The probe on real models, with real fp16 backward passes."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ampsim.core.formats import E4M3
from ampsim.core.machine import Rule
from ampsim.core.replay.thresholds import replay_thresholds
from ampsim.probe import GradientRecord, Histogram, Probe, overflow_thresholds
from ampsim.torch import GradScaler
from tests.probe.helpers import same


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(16, 32),
        nn.ReLU(inplace=True),
        nn.Linear(32, 32),
        nn.Sigmoid(),
        nn.Linear(32, 4),
    )


def loss_of(
    model: nn.Module, seed: int = 0, *, fp16: bool = True, size: float = 1.0
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x, y = (
        torch.randn(8, 16, generator=generator),
        torch.randint(0, 4, (8,), generator=generator),
    )
    with torch.autocast("cpu", torch.float16, enabled=fp16):
        return size * nn.functional.cross_entropy(model(x), y)


def probed(
    scale: float, *, fp16: bool = True, told: Any = None, **options: Any
) -> list[GradientRecord]:
    model = mlp()
    with Probe(model, scale=scale if told is None else told, **options) as probe:
        (loss_of(model, fp16=fp16) * scale).backward()
        probe.step()
    return probe.drain()


def are_gradients(
    rows: list[GradientRecord], model: nn.Module, scale: float = 1.0
) -> None:
    """The rows are the histograms of the model's gradients, divided by the scale."""
    for row in rows:
        grad = model.get_parameter(row.name).grad
        assert grad is not None
        same(row.histogram, Histogram.of(grad / scale))


@pytest.mark.parametrize(
    ("fp16", "scale"), [(False, 512.0), (True, 512.0), (False, 1700.0)]
)
def test_histograms_match_gradients(fp16: bool, scale: float) -> None:
    """A power of two moves the histogram, any other scale is divided out in float32."""
    model = mlp()
    with Probe(model, scale=scale) as probe:
        (loss_of(model, fp16=fp16) * scale).backward()
    rows = probe.drain()
    assert sorted(row.name for row in rows) == sorted(dict(model.named_parameters()))
    are_gradients(rows, model, scale)


@pytest.mark.parametrize("activations", [False, True])
def test_power_of_two_scale_is_exact(activations: bool) -> None:
    reference = probed(1.0, fp16=False, activations=activations)
    for exponent in (-10, 3, 16, 40):
        rows = probed(2.0**exponent, fp16=False, activations=activations)
        assert [row.name for row in rows] == [row.name for row in reference]
        for one, other in zip(rows, reference, strict=True):
            same(one.histogram, other.histogram)


def test_activation_gradients_are_recorded() -> None:
    rows = {
        row.name: row
        for row in probed(256.0, activations=True)
        if row.kind == "activation"
    }
    # Half of a ReLU's inputs get no gradient, all of a sigmoid's get one.
    assert rows["0"].histogram.counts[0] > 50
    assert rows["3"].histogram.counts[0] < 10


def test_reused_module_counts_add_up() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.lstm = nn.Linear(4, 4), nn.LSTM(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out, (h, _) = self.lstm(self.linear(self.linear(x)))
            return out.sum() + h.sum()

    model = Twice()
    with Probe(model, activations=True) as probe:
        model(torch.randn(5, 2, 4)).backward()
    sizes = {
        row.name: row.histogram.size
        for row in probe.drain()
        if row.kind == "activation"
    }
    assert sizes == {"linear": 2 * 5 * 2 * 4, "lstm[0]": 5 * 2 * 3}


class Several(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x * 2, x * 3, x.double()


def test_float64_outputs_are_not_counted() -> None:
    model = nn.Sequential(nn.Linear(2, 1), Several())
    with Probe(model, activations=True) as probe:
        sum(each.sum() for each in model(torch.ones(3, 2))).backward()
    sizes = {
        row.name: row.histogram.size
        for row in probe.drain()
        if row.kind == "activation"
    }
    assert sizes == {"0": 3, "1[0]": 3, "1[1]": 3}


def test_cleared_gradient_is_ignored() -> None:
    """As an optimizer clears it that steps within the backward pass."""
    model = nn.Linear(2, 1)
    with Probe(model) as probe:
        model.weight.register_post_accumulate_grad_hook(
            lambda param: setattr(param, "grad", None)
        )
        model(torch.ones(3, 2)).sum().backward()
    assert [row.name for row in probe.drain()] == ["bias"]


def test_only_every_nth_step_is_sampled() -> None:
    model = mlp()
    with Probe(model, every=3, activations=True) as probe:
        for step in range(7):
            assert probe.sampling == (step % 3 == 0)
            loss_of(model).backward()
            probe.step()
    assert sorted({row.step for row in probe.drain()}) == [0, 3, 6]
    assert probe.drain() == []


def test_late_backward_is_not_counted() -> None:
    model = nn.Linear(2, 1)
    with Probe(model, every=2, activations=True) as probe:
        loss = model(torch.ones(3, 2)).sum()  # hooks are put on in the forward pass
        probe.step()
        loss.backward()
        probe.step()
        assert probe.drain() == []


def test_closed_probe_records_nothing() -> None:
    model = mlp()
    probe = Probe(model, activations=True)
    loss_of(model).backward()
    probe.step()
    assert {row.kind for row in probe.drain()} == {"parameter", "activation"}
    probe.close()
    probe.close()
    loss_of(model).backward()
    assert probe.drain() == []
    assert not any(param._post_accumulate_grad_hooks for param in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_accumulated_gradient_is_counted() -> None:
    model = mlp()
    with Probe(model) as probe:
        loss_of(model, 0).backward()
        loss_of(model, 1).backward()
    are_gradients(probe.drain(), model)


def test_frozen_parameters_are_excluded() -> None:
    model = mlp()
    model[0].requires_grad_(requires_grad=False)
    with Probe(model) as probe:
        loss_of(model).backward()
    assert {row.name.split(".")[0] for row in probe.drain()} == {"2", "4"}


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        raise ArithmeticError


def test_backward_after_failed_backward_is_complete() -> None:
    model = mlp()
    with Probe(model) as probe:
        with pytest.raises(ArithmeticError):
            model[2:](Fails.apply(model[:2](torch.ones(1, 16)))).sum().backward()
        model.zero_grad()
        loss_of(model).backward()
    rows = probe.drain()
    assert len(rows) == 6
    are_gradients(rows, model)


def test_nested_backward_is_recorded() -> None:
    model = mlp()
    x, y = torch.randn(8, 16, requires_grad=True), torch.randint(0, 4, (8,))
    with Probe(model) as probe:
        hidden = checkpoint(model[:3], x, use_reentrant=True)
        nn.functional.cross_entropy(
            model[3:](hidden) + model[2](hidden).mean(), y
        ).backward()
    rows = probe.drain()
    assert len(rows) == 6
    are_gradients(rows, model)


def test_histograms_follow_backward_callbacks() -> None:
    """As DistributedDataParallel averages its gradients there."""
    model = mlp()
    last = model[0].weight

    def average() -> None:
        for param in model.parameters():
            assert param.grad is not None
            param.grad.mul_(0.3)

    with Probe(model) as probe:
        last.register_post_accumulate_grad_hook(
            lambda _: torch.autograd.Variable._execution_engine.queue_callback(average)
        )
        loss_of(model).backward()
        are_gradients(probe.drain(), model)


def test_write_after_backward_is_not_counted() -> None:
    model = mlp()
    with Probe(model) as probe:
        loss_of(model).backward()
        nn.utils.clip_grad_value_(model.parameters(), 1e-3)
        probe.step()
    for row, expected in zip(probe.drain(), probed(1.0), strict=True):
        same(row.histogram, expected.histogram)


def test_sparse_gradient_values_are_counted() -> None:
    embedding = nn.Embedding(10, 3, sparse=True)
    with Probe(embedding) as probe:
        embedding(torch.tensor([1, 1, 7])).sum().backward()
    (row,) = probe.drain()
    assert (row.histogram.size, row.histogram.largest) == (6, 2.0)


@pytest.mark.parametrize(
    ("options", "error", "value"),
    [
        ({"every": 0}, ValueError, "every=0"),
        ({"scale": "x"}, TypeError, "scale='x'"),
        ({"scale": 0}, ValueError, "scale=0"),
        ({"scale": math.nan}, ValueError, "scale=nan"),
        ({"scale": math.inf}, ValueError, "scale=inf"),
    ],
)
def test_invalid_option_raises_with_value(options: Any, error: Any, value: str) -> None:
    with pytest.raises(error, match=value):
        Probe(mlp(), **options)


def test_non_float32_module_raises() -> None:
    with pytest.raises(TypeError, match=r"0.weight is torch.float64"):
        Probe(mlp().double())


def test_no_parameters_raises() -> None:
    with pytest.raises(ValueError, match="expected at least one"):
        Probe(nn.ReLU())


def overflows(scale: float, size: float) -> bool:
    model = mlp()
    (loss_of(model, size=size) * scale).backward()
    return not all(
        bool(param.grad.isfinite().all())
        for param in model.parameters()
        if param.grad is not None
    )


@pytest.mark.parametrize("size", [1.0, 2.0**10, 2.0**-6])
def test_threshold_matches_fp16_run(size: float) -> None:
    """Probed at a scale far below, where fp16 rounds otherwise; rounding may move it by one binade
    at most.
    """
    model = mlp()
    scale = 2.0**6 / size
    with Probe(model, scale=scale, activations=True) as probe:
        (loss_of(model, size=size) * scale).backward()
    (threshold,) = overflow_thresholds(probe.drain())
    assert not overflows(threshold / 2, size)
    assert overflows(threshold * 4, size)
    last = max(k for k in range(-20, 60) if not overflows(2.0**k, size))
    assert abs(math.log2(threshold) - last) <= 1


def train(scaler: Any, steps: int) -> tuple[list[bool], list[GradientRecord]]:
    """A run with a real scaler: which steps it skipped, and what the probe saw."""
    model, skipped = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Probe(model, scale=scaler) as probe:
        for step in range(steps):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, step)).backward()
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            skipped.append(scaler.get_scale() < before)
            probe.step()
    return skipped, probe.drain()


@pytest.mark.parametrize("make", [GradScaler, torch.amp.GradScaler])
def test_threshold_replay_matches_run(make: Any) -> None:
    rule = {"init_scale": 2.0**26, "growth_interval": 3}
    skipped, rows = train(make("cpu", **rule), 24)
    trace = overflow_thresholds(rows)
    assert trace.shape == (24,)
    assert 0 < sum(skipped) < 24
    replayed = replay_thresholds(Rule(**rule), trace)
    assert replayed.skipped.tolist() == np.flatnonzero(skipped).tolist()


def test_overflowed_step_has_threshold_bound() -> None:
    assert overflow_thresholds(probed(2.0**30)).tolist() == [2.0**29]
    assert overflow_thresholds(probed(1.5 * 2.0**30)).tolist() == [2.0**30]


class Told(NamedTuple):
    """A scaler that has gone wrong."""

    scale: float

    def get_scale(self) -> float:
        return self.scale


@pytest.mark.parametrize(("scale", "threshold"), [(0.0, 0.0), (math.inf, 2.0**127)])
def test_scale_without_reciprocal_bounds_threshold(
    scale: float, threshold: float
) -> None:
    rows = probed(scale, told=Told(scale))
    assert {row.scale for row in rows} == {scale}
    assert overflow_thresholds(rows).tolist() == [threshold]


def test_thresholds_take_minimum_per_step() -> None:
    histograms = {
        value: Histogram.of(torch.tensor([value])) for value in (0.0, 0.5, 1.0, 4.0)
    }
    steps = ((4, 1.0), (2, 0.0), (4, 4.0), (4, 0.5))
    rows = [
        GradientRecord(step, "parameter", "", 1.0, histograms[value])
        for step, value in steps
    ]
    assert overflow_thresholds(rows).tolist() == [math.inf, 2.0**13]
    assert overflow_thresholds(rows, E4M3).tolist() == [
        math.inf,
        2.0**6,
    ]  # 4 * 2^7 is above 464
    assert overflow_thresholds([]).shape == (0,)

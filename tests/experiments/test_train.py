"""An arm is what its name says, and the loop is the one that everybody writes by hand."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from ampsim import Rule, replay
from ampsim.torch import GradScaler
from experiments.training import fp16, loop
from experiments.training.loop import (
    BF16,
    FP32,
    UNSCALED,
    Arm,
    Log,
    Step,
    dynamic,
    static,
    train,
)
from experiments.training.tasks import Batch, Task, make
from tests.examples import examples

ARMS = {  # name -> arm, dtype, fixed scale, first scale, growth interval
    "fp32": (FP32, "float32", 1.0, 1.0, None),
    "bf16": (BF16, "bfloat16", 1.0, 1.0, None),
    "unscaled": (UNSCALED, "float16", 1.0, 1.0, None),
    "static 2^16": (static(16), "float16", 2.0**16, 2.0**16, None),
    "static 2^-12": (static(-12), "float16", 2.0**-12, 2.0**-12, None),
    "dynamic": (dynamic(), "float16", None, 2.0**16, 50),
    "dynamic G=200": (dynamic(200), "float16", None, 2.0**16, 200),
    "init 2^32": (dynamic(init_log2=32), "float16", None, 2.0**32, 50),
    "init 2^-3": (dynamic(init_log2=-3), "float16", None, 2.0**-3, 50),
}


def task(seed: int = 0) -> Task:
    """A small network that learns to add up; its first gradients are about 1."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Batch:
        x = torch.randn(16, 8, generator=generator)
        return x, x.sum(dim=1, keepdim=True)

    return Task(model, draw, mse_loss, draw())


def adam(of: Task) -> torch.optim.Optimizer:
    return torch.optim.Adam(of.model.parameters(), lr=1e-2, eps=1e-15)


def run(arm: Arm, steps: int, factor: float = 1.0) -> tuple[list[Step], Tensor]:
    """All steps, and the parameters they lead to."""
    made = task()
    steps_made = list(arm.train(made, adam(made), steps, factor=factor))
    return steps_made, fp16.flat_parameters(made.model)


# ---------------------------------------------------------------------------------------------------
# the arms


@pytest.mark.parametrize("name", ARMS)
@pytest.mark.parametrize("loss", ["mean", "share"])
def test_arm_makes_its_scaler(name: str, loss: Any) -> None:
    made, dtype, fixed, first, interval = ARMS[name]
    arm = dataclasses.replace(made, loss=loss)
    scaler = arm.scaler("cpu")
    assert (arm.dtype, arm.fixed, scaler.get_scale()) == (dtype, fixed, first)
    assert scaler.is_enabled() == (dtype == "float16")
    if interval:
        assert scaler.get_growth_interval() == interval


@pytest.mark.parametrize(
    ("arm", "factor"),
    [
        ("unscaled", 1.0),
        ("sum", 256.0),
        ("global fp32", 2.0**-14),
        ("global dynamic", 2.0**-14),
    ],
)
def test_loss_factor_matches_reduction(arm: str, factor: float) -> None:
    assert loop.usual_arms(16, (), ())[arm].factor(256, 2**22) == factor


# ---------------------------------------------------------------------------------------------------
# the loop


def test_float32_loop_equals_plain_loop() -> None:
    _, parameters = run(FP32, 7)
    plain = task()
    optimizer = adam(plain)
    for _ in range(7):
        x, y = plain.draw()
        optimizer.zero_grad()
        mse_loss(plain.model(x), y).backward()
        optimizer.step()
    assert torch.equal(parameters, fp16.flat_parameters(plain.model))


def test_fp16_loop_equals_torch_loop() -> None:
    made, plain = task(), task()
    ours = train(
        made, adam(made), GradScaler("cpu", init_scale=2.0**20, growth_interval=3), 20
    )
    optimizer, scaler = (
        adam(plain),
        torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3),
    )
    for step in ours:
        x, y = plain.draw()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = mse_loss(plain.model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        assert (step.scale, step.loss) == (scaler.get_scale(), loss.item())
        assert (
            torch.equal(step.gradient, fp16.flat_gradient(plain.model))
            or step.found_inf
        )
        scaler.step(optimizer)
        scaler.update()
    assert torch.equal(
        fp16.flat_parameters(made.model), fp16.flat_parameters(plain.model)
    )


def test_reference_replays_dynamic_arms() -> None:
    steps, _ = run(dynamic(init_log2=32), 60)
    found = [step.found_inf for step in steps]
    assert any(found)
    assert not all(found)
    rule = Rule(init_scale=2.0**32, growth_interval=50)
    assert [step.scale for step in steps] == [
        2.0**32,
        *replay(rule, found).tolist()[:-1],
    ]


def test_high_static_scale_skips_every_step() -> None:
    steps, parameters = run(static(40), 5)
    assert all(step.found_inf and step.scale == 2.0**40 for step in steps)
    assert torch.equal(parameters, fp16.flat_parameters(task().model))


@given(st.integers(-30, 16))
def test_loss_factor_acts_as_loss_scale(k: int) -> None:
    (scaled,), (shared,) = run(static(k), 1)[0], run(UNSCALED, 1, factor=2.0**k)[0]
    assert torch.equal(scaled.gradient, shared.gradient)
    assert (scaled.loss, shared.scale) == (
        shared.loss,
        1.0,
    )  # a factor is no part of what is recorded


@given(st.integers(4, 12))
def test_power_of_two_scales_are_equivalent(
    k: int,
) -> None:
    assert torch.equal(run(static(k), 3)[1], run(static(8), 3)[1])


def test_nan_loss_is_skipped() -> None:
    made = dataclasses.replace(
        task(), criterion=lambda out, y: mse_loss(out, y) * math.nan
    )
    before = fp16.flat_parameters(made.model)
    steps = list(dynamic().train(made, adam(made), 4))
    assert all(step.found_inf and math.isnan(step.loss) for step in steps)
    assert [step.scale for step in steps] == [2.0**16, 2.0**15, 2.0**14, 2.0**13]
    assert torch.equal(fp16.flat_parameters(made.model), before)


# ------------------------------------------------------------------------------------------------
# what goes with it


@settings(max_examples=examples(ms=1.5))
@given(st.integers(1, 400), st.floats(1e-6, 1.0))
def test_learning_rate_stays_then_decays(steps: int, lr: float) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=99.0)
    rates = []
    for step in range(steps + 1):
        loop.cool(optimizer, lr, step, steps)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[: 2 * steps // 3 + 1] == pytest.approx([lr] * (2 * steps // 3 + 1))
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 0
    assert min(rates[:-1]) > 0
    assert rates[-2] == pytest.approx(lr * min(1, 3 / steps))


def test_accuracy_counts_largest_logits() -> None:
    made = make("resnet", 0, "cpu", 4)
    x, y = made.test
    assert loop.accuracy(made) == pytest.approx(
        (made.model(x).argmax(dim=1) == y).double().mean().item(), abs=1e-6
    )
    eye = Task(
        nn.Identity(),
        made.draw,
        cross_entropy,
        (torch.eye(4), torch.tensor([0, 1, 3, 3])),
    )
    assert loop.accuracy(eye) == 0.75


def step(
    number: int, gradient: list[float], loss: float = 1.0, scale: float = 1.0
) -> Step:
    values = torch.tensor(gradient)
    nothing: Any = None
    return Step(number, loss, scale, values, not bool(values.isfinite().all()), nothing)


def test_log_counts_backward_gradients() -> None:
    log = Log(count_every=2)
    for number, gradient in enumerate(
        [[0.0, 1.0, 2.0**-26, 1.0], [math.inf, 1.0, 0.0, 0.0], [1.0] * 4]
    ):
        log.add(step(number, gradient, loss=1 / 3))
    row = log.record()
    assert (row["zero"], row["counted_steps"], row["found_inf"]) == (
        [0.5, 0.0],
        [0, 2],
        [1],
    )
    assert row["loss"] == [0.333333] * 3


@settings(max_examples=examples(ms=2))
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=20),
    st.integers(1, 5),
)
def test_log_columns_restore_scales_and_skips(
    steps: list[tuple[int, bool]], every: int
) -> None:
    log = Log(every)
    for number, (bits, bad) in enumerate(steps):
        log.add(step(number, [math.nan if bad else 1.0], scale=2.0**bits))
    row = log.record()
    scale, changes = math.nan, dict(map(tuple, row["scale_changes"]))
    for number, (bits, bad) in enumerate(steps):
        scale = changes.get(number, scale)
        assert (scale, number in row["found_inf"]) == (2.0**bits, bad)
    assert row["counted_steps"] == list(range(0, len(steps), every))
    assert len(row["zero"]) == len(row["counted_steps"])

"""The pipeline with a real optimizer thread: late by k exactly, and the same bits on every
schedule.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ampsim.core import pipeline
from ampsim.core.machine import Rule
from ampsim.torch import GradScaler
from experiments import async_depth
from experiments.async_depth import Delay, Pipe
from experiments.training import digits_data, fp16, tasks
from experiments.training.loop import train

SMALL = async_depth.Config(steps=24, interval=2, init_log2=22, lr_cpu=0.05)


def make_task() -> tasks.Task:
    generator = fp16.prepare(0)
    model = nn.Sequential(
        nn.Linear(digits_data.PIXELS, 8), nn.ReLU(), nn.Linear(8, digits_data.CLASSES)
    )
    return tasks.digits(model, generator, "cpu", 8)


@pytest.fixture
def pipes() -> Iterator[Any]:
    """A maker of pipelines that are closed at the end."""
    made: list[Pipe] = []

    def make(delay: Delay) -> Pipe:
        made.append(Pipe(make_task(), delay, SMALL, "cpu"))
        return made[-1]

    yield make
    for pipe in made:
        pipe.close()


def trained(pipe: Pipe) -> Pipe:
    for _ in range(SMALL.steps):
        pipe.iterate()
    pipe.finish()
    return pipe


def test_depth_0_equals_plain_loop(pipes: Any) -> None:
    pipe, task = trained(pipes(Delay(0, 0))), make_task()
    optimizer = torch.optim.Adam(
        task.model.parameters(), lr=SMALL.lr_cpu, eps=SMALL.eps, fused=True
    )
    scaler = GradScaler("cpu", 2.0**SMALL.init_log2, growth_interval=SMALL.interval)
    steps = [
        (step.loss, step.scale, step.found_inf)
        for step in train(task, optimizer, scaler, SMALL.steps)
    ]
    assert list(zip(pipe.losses, pipe.scales, pipe.found_inf, strict=True)) == steps
    assert torch.equal(
        fp16.flat_parameters(pipe.task.model), fp16.flat_parameters(task.model)
    )


@pytest.mark.parametrize("k", [1, 3])
def test_first_iterations_use_initial_weights(k: int, pipes: Any) -> None:
    pipe, task = trained(pipes(Delay(k, k))), make_task()
    with torch.no_grad(), fp16.autocast("cpu", fp16=True):
        still = [task.loss().item() for _ in range(SMALL.steps)]
    clean = pipe.found_inf.index(False)  # no step before it moves anything
    assert pipe.losses[: clean + k + 1] == still[: clean + k + 1]
    assert pipe.losses[clean + k + 1] != still[clean + k + 1]


@pytest.mark.parametrize(
    "delay", [Delay(0, 0), Delay(2, 2), Delay(2, 2, latest=True), Delay(3, 0)]
)
def test_scales_match_pipeline_model(delay: Delay, pipes: Any) -> None:
    pipe = trained(pipes(delay))
    rule = Rule(2.0**SMALL.init_log2, growth_interval=SMALL.interval)
    assert (
        pipe.scales
        == pipeline.trajectory(rule, delay.scale, pipe.found_inf)[: SMALL.steps]
    )
    assert pipe.skipped == pipe.found_inf
    assert 4 < sum(pipe.found_inf) < SMALL.steps


def test_latest_schedule_gives_same_bits(pipes: Any) -> None:
    late, behind = pipes(Delay(3, 3, latest=True)), []
    for _ in range(SMALL.steps):
        late.iterate()
        behind.append(len(late.losses) - len(late.skipped))
    late.finish()
    assert min(behind[3:]) >= 3  # no step was made that could wait
    assert late.digest() == trained(pipes(Delay(3, 3))).digest()
    assert late.digest() != trained(pipes(Delay(2, 2))).digest()


def test_losses_agree_until_overflows_differ(pipes: Any) -> None:
    late, plain = trained(pipes(Delay(3, 0))), trained(pipes(Delay(0, 0)))
    assert late.scales != plain.scales
    first = next(
        i for i in range(SMALL.steps) if late.found_inf[i] != plain.found_inf[i]
    )
    assert late.losses[: first + 1] == plain.losses[: first + 1]

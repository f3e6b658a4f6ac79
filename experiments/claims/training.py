"""Predictions about training on a card, from its emulation; see `experiments.device_claims`.

The card trains the models of `experiments.emulated_cuda`, in their sizes for a CPU. On a CPU the
emulation takes the card's place, with CUDA's autocast lists and Hopper's matrix unit.
"""

import copy
import functools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from math import log2
from statistics import fmean
from typing import NamedTuple

from ampsim import Rule
from experiments.claims.claim import Claim, into, within
from experiments.training import fp16, small_runs, tasks, thresholds
from experiments.training.loop import Step
from experiments.training.small_runs import RECIPES, differentiate
from experiments.training.tasks import Task

CLAIMS: dict[str, Claim] = {}
claim = into(CLAIMS)
STEPS, GROWTH_INTERVAL = 60, 10
# A run near a crash depends on every rounding, so its scales are not compared.
COMPARED = [name for name in RECIPES if name != "residual12"]


def card(name: str, device: str) -> small_runs.Place:
    """Return what surrounds the arithmetic of a card: on a CPU, its emulation."""
    if device != "cpu":
        return nullcontext
    from experiments.emulated_cuda import Arm  # it needs numba, which a card's machine may lack

    return Arm(name, "cuda", "hopper", GROWTH_INTERVAL).active


def train(name: str, device: str, place: small_runs.Place) -> Iterator[tuple[Task, Step]]:
    """Train a model on a device; its first scale is a threshold that the CPU computes."""
    batch, lr = RECIPES[name]
    task = tasks.make(name, 0, "cpu", batch)
    first = thresholds.threshold(task, task.draw(), 16)
    rule = Rule(2.0**first, growth_interval=GROWTH_INTERVAL)
    task = replace(task, model=task.model.to(device))
    for step in small_runs.train(task, lr, rule, STEPS, place):
        yield task, step


class Comparison(NamedTuple):
    """A card beside the CPU."""

    differing: int  # steps at the CPU's weights and scale in which one of the two overflows alone
    skips: int  # of the card's own run, minus those of the CPU's
    log2_scale: float  # the mean of the card's own run, minus that of the CPU's


@functools.cache
def compare(name: str, device: str) -> Comparison:
    """Train on the CPU, with the card beside it, and then on the card."""
    place, cpu, differing = card(name, device), [], 0
    for task, step in train(name, "cpu", nullcontext):
        there = replace(task, model=copy.deepcopy(task.model).to(device))
        x, y = step.batch
        with place():
            _, gradient = differentiate(there, (x.to(device), y.to(device)), step.scale)
        differing += fp16.all_finite(gradient) == step.found_inf
        cpu.append(step)
    own = [step for _, step in train(name, device, place)]
    skips = sum(step.found_inf for step in own) - sum(step.found_inf for step in cpu)
    means = [fmean(log2(step.scale) for step in run) for run in (own, cpu)]
    return Comparison(differing, skips, means[0] - means[1])


@claim(
    "At equal weights and scale a card overflows where the CPU does. Steps of six models in which "
    "one of the two overflows alone, of 360 (less than 0.5 %):",
    within(0, 1),
)
def overflows_at_equal_weights(device: str) -> object:
    return sum(compare(name, device).differing for name in RECIPES)


@claim(
    "Trained on its own, a card skips as many of 60 steps as the CPU, give or take one.",
    dict.fromkeys(COMPARED, within(-1, 1)),
)
def skips_in_training(device: str) -> object:
    return {name: compare(name, device).skips for name in COMPARED}


@claim(
    "Trained on its own, a card has the CPU's mean log2 scale within 0.1 bit, in the mean of five "
    "models.",
    within(-0.1, 0.1),
)
def scale_in_training(device: str) -> object:
    return fmean(compare(name, device).log2_scale for name in COMPARED)

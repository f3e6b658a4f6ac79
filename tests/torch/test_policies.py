"""A scaler made with a policy: its scales are the policy's replay."""

import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ampsim.core.policies import (
    Deduplicated,
    Headroom,
    LogMax,
    Observation,
    Policy,
    Probe,
)
from ampsim.core.replay.fold import replay
from ampsim.torch import GradScaler

KINDS = ["fused", "fused clip", "plain", "plain clip"]
few = settings(
    max_examples=max(10, settings().max_examples // 3)
)  # an example is a training loop
POLICIES: list[Any] = [
    Deduplicated(init_scale=2.0**10, growth_interval=2),
    Probe(init_scale=2.0**10, growth_interval=2),
    Headroom(init_scale=2.0**10, interval=2),
    LogMax(init_scale=2.0**10, beta1=0.5, beta2=0.5),
]
# The true gradients of a step: both elements' magnitudes; inf is an overflow whatever the scale.
grads = st.sampled_from(
    [(1.0, 1.0), (0.5, 3.0), (-7.0, 0.0), (0.0, 0.0), (1.0, math.inf), (math.nan, 2.0)]
)
histories = st.lists(grads, min_size=1, max_size=14)


class Loop:
    """A loop over given gradients, which notes the scale of each iteration."""

    def __init__(
        self, policy: Policy, optimizer: str = "fused", clip: bool = False
    ) -> None:
        self.weight, self.policy, self.clip = nn.Parameter(torch.zeros(2)), policy, clip
        fused = {"fused": True} if optimizer == "fused" else {}
        self.optimizer = torch.optim.SGD([self.weight], lr=2.0**-20, **fused)
        self.scaler = GradScaler("cpu", policy=policy)
        self.scales: list[float] = []
        self.seen: list[Observation] = []

    def run(self, history: Any) -> None:
        for values in history:
            scale = self.scaler.scale(torch.ones(())).item()
            self.weight.grad = grad = torch.tensor(values) * scale
            before = self.weight.detach().clone()
            self.scales.append(scale)
            self.seen.append(seen_of(grad, scale))
            if self.clip:
                self.scaler.unscale_and_clip_(self.optimizer, 1e9)
            self.scaler.step(self.optimizer)
            is_unchanged = bool(self.seen[-1]) or not grad.any()
            assert torch.equal(self.weight, before) == is_unchanged
            self.scaler.update()


def seen_of(grad: torch.Tensor, scale: float) -> Observation:
    """As the scaler should see it."""
    amax = (grad / scale).abs().max().item()
    return Observation(not math.isfinite(amax), amax)


@few
@given(st.sampled_from(POLICIES), st.sampled_from(KINDS), histories)
def test_scales_equal_policy_replay(policy: Any, kind: str, history: Any) -> None:
    loop = Loop(policy, kind.split()[0], clip="clip" in kind)
    loop.run(history)
    replayed: list[Any] = loop.seen
    assert loop.scales == [policy.init_scale, *replay(policy, replayed)][: len(history)]


@few
@given(st.sampled_from(POLICIES), histories, st.integers(0, 14), st.booleans())
def test_resume_is_exact(policy: Any, history: Any, cut: int, pickled: bool) -> None:
    unbroken, broken = Loop(policy), Loop(policy)
    for loop in (unbroken, broken):
        loop.run(history[:cut])
    if pickled:
        broken.scaler = pickle.loads(pickle.dumps(broken.scaler))  # noqa: S301
    else:
        saved = broken.scaler.state_dict()
        broken.scaler = GradScaler("cpu", policy=policy)
        broken.scaler.load_state_dict(saved)
    for loop in (unbroken, broken):
        loop.run(history[cut:])
    assert broken.scales == unbroken.scales
    assert broken.scaler.state_dict() == unbroken.scaler.state_dict()


def test_overridden_scale_becomes_base() -> None:
    loop = Loop(Probe(init_scale=4.0, growth_interval=2))
    loop.scaler.scale(torch.ones(()))
    loop.scaler.update(64.0)
    loop.run([(1.0, 1.0)] * 4)
    assert loop.scales == [64, 64, 128, 128]


@pytest.mark.parametrize(
    "options",
    [
        {"policy": Probe(delay=2)},
        {"policy": Probe(), "growth_interval": 5},
        {"policy": Probe(), "max_scale": 4.0},
        {"policy": "LogMax"},
    ],
)
def test_options_conflicting_with_policy_raise(options: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"policy=|delay=0"):
        GradScaler("cpu", **options)


def test_state_of_other_policy_raises() -> None:
    saved = GradScaler("cpu", policy=Probe()).state_dict()
    with pytest.raises(ValueError, match=r"'Probe'.*'Headroom'"):
        GradScaler("cpu", policy=Headroom()).load_state_dict(saved)


@pytest.mark.parametrize(
    ("grads", "scale"),
    [
        ((2.0, 1.0), 2.0**13),  # 2 * 2^13 <= 65504 / 2 < 2 * 2^14
        ((1.0, 2.0), 2.0**13),
        ((1.0, 1.0), 2.0**14),
        ((1.0, math.inf), 2.0**15),
        ((math.inf, 1.0), 2.0**15),
    ],
)
def test_two_optimizers_make_one_observation(grads: Any, scale: float) -> None:
    scaler = GradScaler("cpu", policy=Headroom(init_scale=2.0**16, margin=1))
    scaler.scale(torch.ones(()))
    for grad in grads:
        weight = nn.Parameter(torch.zeros(1))
        weight.grad = torch.tensor([grad * 2.0**16])
        scaler.step(torch.optim.SGD([weight], lr=0.1))
    scaler.update()
    assert scaler.get_scale() == scale


@pytest.mark.parametrize(
    "state", [None, "gone", [1e300, 0], [0.0, 0], [2.0**16, -1], {}]
)
def test_invalid_state_dict_changes_nothing(state: Any) -> None:
    scaler = GradScaler("cpu", policy=Deduplicated())
    before = scaler.state_dict()
    with pytest.raises((TypeError, ValueError), match=r"expected .*; (load|pass)"):
        scaler.load_state_dict(
            {k: v for k, v in {**before, "state": state}.items() if v != "gone"}
        )
    assert scaler.state_dict() == before

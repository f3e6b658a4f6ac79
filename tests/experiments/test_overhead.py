"""Both ways do the same work, the ratios are what the times give, and nothing here asserts a time."""

import pytest
import torch

from experiments import overhead


@pytest.mark.parametrize("size", ["7x300", "3x20000", "gpt2-1x16"])
def test_all_ways_give_the_same_step(size: str) -> None:
    stepped = {}
    for arm in ("torch clip", "ours clip", "ours unscale"):
        torch.manual_seed(0)
        trial = overhead.Trial(size, "cpu")
        before = [p.detach().clone() for p in trial.params]
        trial.once(arm, "cpu")
        moved = [p.detach() - b for p, b in zip(trial.params, before, strict=True)]
        stepped[arm] = (trial.total, [p.grad for p in trial.params], moved)
    exact = (
        sum(
            float((1e-3 * trial.pattern[: p.numel()]).double().square().sum()) for p in trial.params
        )
        ** 0.5
    )
    norm, grads, moves = stepped.pop("torch clip")
    rtol = (
        2 * abs(norm.item() / exact - 1) + 1e-6
    )  # clip_grad_norm_ loses digits in a tensor of 800,000
    for arm, (our_norm, our_grads, our_moves) in stepped.items():
        assert our_norm.item() == pytest.approx(exact, rel=rtol if arm == "ours unscale" else 1e-6)
        torch.testing.assert_close(our_grads, grads, rtol=rtol, atol=0.0)
        torch.testing.assert_close(our_moves, moves, rtol=1e-4, atol=1e-9)


def test_summary_uses_medians_above_backward() -> None:
    times = {
        "backward": [1.0, 1.0, 1.0],
        "bare": [2.0, 2.0, 9.0],
        "torch clip": [6.0, 6.0, 1.0],
        "ours clip": [4.0] * 3,
    }
    times |= {"torch": [5.0] * 3, "ours": [3.0] * 3, "floor": [3.5] * 3}
    row = overhead.summary([times])
    assert row["ratios"] == {
        "ours clip cost": [2.0], "ours clip whole": [1.667],
        "ours plain cost": [3.0], "ours plain whole": [2.0], "ours / floor cost": [1.333], "ours / floor whole": [1.2],
    }  # fmt: skip
    assert (row["microseconds"]["bare"], row["backward"]) == ([1e6], [1e6])

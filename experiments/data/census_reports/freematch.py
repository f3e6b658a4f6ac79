"""The length of a clipped step does not depend on the loss scale."""

import torch


def step(scale: float) -> float:
    """Return how far one step moves a parameter whose gradient is shorter than the limit."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer, scaler = (
        torch.optim.SGD([weight], lr=1.0),
        torch.amp.GradScaler("cpu", init_scale=scale),
    )
    scaler.scale(0.5 * weight.sum()).backward()
    torch.nn.utils.clip_grad_norm_(
        [weight], 1.0
    )  # as the loop has it: nothing was unscaled
    scaler.step(optimizer)
    scaler.update()
    return abs(weight.item())


def test_a_gradient_within_the_limit_is_not_clipped_at_any_scale() -> None:
    moved = {scale: step(scale) for scale in (1.0, 65536.0)}
    assert moved[65536.0] == moved[1.0] == 0.5, moved

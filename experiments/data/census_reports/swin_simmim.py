"""A window of two micro-batches, with clipping, can be stepped with."""

import torch


def test_a_window_of_two_micro_batches_makes_one_step() -> None:
    weight, window = torch.nn.Parameter(torch.zeros(1)), 2
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), torch.amp.GradScaler("cpu")
    for index in range(window):
        scaler.scale(0.5 * weight.sum() / window).backward()
        scaler.unscale_(optimizer)  # as the loop has it: per micro-batch
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
        if (index + 1) % window == 0:
            scaler.step(optimizer)
            optimizer.zero_grad()
            scaler.update()
    assert weight.item() == -0.5

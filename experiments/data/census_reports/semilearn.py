"""A step that the scaler skips leaves the schedule alone."""

import torch


def test_a_skipped_step_leaves_the_learning_rate_alone() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), torch.amp.GradScaler("cpu")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()  # so that torch does not warn of a schedule that comes first
    scaler.scale(weight.sum() * float("inf")).backward()  # an overflow
    scaler.step(optimizer)
    scaler.update()
    schedule.step()  # as the loop has it: in every iteration
    assert weight.item() == 1.0  # the step was skipped
    assert schedule.get_last_lr() == [1.0]

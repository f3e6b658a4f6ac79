"""A step that the scaler skips leaves the average of the parameters alone."""

import torch


def test_a_skipped_step_leaves_the_teacher_alone() -> None:
    student, teacher = torch.nn.Parameter(torch.ones(1)), torch.zeros(1)
    optimizer, scaler = torch.optim.SGD([student], lr=1.0), torch.amp.GradScaler("cpu")
    scaler.scale(student.sum() * float("inf")).backward()  # an overflow
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():  # as the loop has it: in every iteration
        teacher.mul_(0.996).add_(0.004 * student)
    assert student.item() == 1.0  # the step was skipped
    assert teacher.item() == 0.0, teacher

"""What several test files of the scaler share."""

import math

import torch

INF, NAN = math.inf, math.nan


def an_optimizer(*values, kind=torch.optim.SGD, dtype=torch.float32, **options):
    """Return a parameter and an optimizer of it."""
    param = torch.nn.Parameter(torch.tensor(values or (1.0, 2.0), dtype=dtype))
    return param, kind([param], **{"lr": 0.5, **options})

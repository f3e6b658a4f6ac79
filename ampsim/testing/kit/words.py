"""The words that a check of scalers may ask for by a parameter's name: an optimizer, and what is done with it.

Nobody imports this file. Each example of a check runs the definitions that it asks for, with
`make` and the traits beside them, and the test that is printed begins with the same ones.
"""

# mypy: ignore-errors

import math
from contextlib import contextmanager, suppress

import torch

param = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([param], lr=0.125, momentum=0.9, foreach=False)


def loss_scale(scaler):  # returns what a loss is multiplied by
    return float(scaler.scale(torch.ones(())))


def iterate(scaler, found_inf):  # returns the scale that it used
    scale = float(scaler.scale(torch.ones(())))
    param.grad = torch.tensor([scale, scale, math.inf if found_inf else scale])
    scaler.step(optimizer)
    scaler.update()
    return scale


def run(scaler, found_inf):  # returns the scale before each update, and after the last one
    used = [iterate(scaler, each) for each in [*found_inf, *[False] * delay]]
    return [*used, loss_scale(scaler)][delay:]


def applied(
    scaler, gradients, fused=False, unscales=False
):  # these are scaled; returns by what parameters move
    weights = torch.nn.Parameter(torch.zeros(len(gradients)))
    optimizer = torch.optim.SGD([weights], lr=1.0, fused=fused)
    scaler.scale(torch.ones(()))
    weights.grad = torch.tensor(gradients)
    if unscales:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return (-weights).tolist()


def held():  # every bit of the parameter and of the optimizer's state
    return repr(
        [param.tolist(), *(each.tolist() for each in optimizer.state.get(param, {}).values())]
    )


def falls(scale):  # returns a scaler that overflows have led to this scale, if they can
    scaler, overflows = make(init_scale=1.0, backoff_factor=2.0**-16), 0
    while loss_scale(scaler) > scale and overflows < 9 * repeats:
        with suppress(*gives_up):
            iterate(scaler, True)
        overflows += 1
    return scaler


params = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
optimizers = [torch.optim.SGD([each], lr=0.125, momentum=0.9, foreach=False) for each in params]


def iterate_all(scaler, overflows):  # one flag per optimizer; returns the scale that it used
    scale = float(scaler.scale(torch.ones(())))
    for each, overflow in zip(params, overflows):
        each.grad = torch.tensor([scale, scale, math.inf if overflow else scale])
    for each in optimizers:
        scaler.step(each)
    scaler.update()
    return scale


def ready():  # returns a scaler whose optimizer has clean gradients and may be stepped
    scaler = make(growth_interval=3)
    param.grad = torch.full((3,), float(scaler.scale(torch.ones(()))))
    return scaler


@contextmanager
def refused(scaler, words):  # in these words; and nothing has changed
    before = scaler.get_scale(), held(), str(param.grad)
    try:
        yield
    except Exception as error:
        assert repr(error) == words or not drop_in, f"it raised {error!r}, expected {words}"
    else:
        raise AssertionError(f"it was accepted, expected it to raise torch's {words}")
    assert (scaler.get_scale(), held(), str(param.grad)) == before, (
        "it raised, but gradients or the scale changed"
    )

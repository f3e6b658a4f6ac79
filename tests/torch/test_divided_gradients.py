"""A gradient is divided by the loss scale once: the tags that show it."""

import copy

import pytest
import torch

from ampsim.torch.gradients import divided


def optimizer_of(*params):
    return torch.optim.SGD(params, lr=0.1)


@pytest.fixture
def shared():
    """One parameter with a gradient, in two optimizers; the second has another parameter too."""
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    for param in params:
        param.grad = torch.ones(2)
    return optimizer_of(params[0]), optimizer_of(*params), params


def test_marked_gradients_are_left_out(shared):
    one, two, (_, own) = shared
    key = divided.new_key()
    assert divided.undivided(two, key) is None
    divided.mark(one, key)
    (rest,) = divided.undivided(two, key)
    assert rest is own
    assert divided.undivided(two, divided.new_key()) is None  # of the next iteration


def test_new_gradients_are_undivided(shared):
    one, two, (param, _) = shared
    key = divided.new_key()
    divided.mark(one, key)
    param.grad = torch.ones(2)
    assert divided.undivided(two, key) is None


def test_written_gradients_raise(shared):
    one, two, (param, _) = shared
    key = divided.new_key()
    divided.mark(one, key)
    param.grad.mul_(0.5)
    with pytest.raises(RuntimeError, match="and then written"):
        divided.undivided(two, key)


@pytest.mark.parametrize("skipped", [False, True])
def test_skipped_fused_step_divides_nothing(shared, skipped):
    one, two, _ = shared
    key = divided.new_key()
    divided.mark(one, key, found_inf=torch.tensor(float(skipped)))
    assert (divided.undivided(two, key) is None) == skipped


def test_marked_gradients_can_be_saved(shared, tmp_path):
    one, _, (param, _) = shared
    divided.mark(one, divided.new_key())
    copy.deepcopy(param.grad)
    torch.save(param.grad, tmp_path / "grad.pt")
    assert torch.load(tmp_path / "grad.pt", weights_only=True).equal(param.grad)

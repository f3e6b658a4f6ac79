"""A group that was found right once: whatever may change behind its back is looked at again, gradients always."""

import copy
import gc
import weakref

import pytest
import torch

from ampsim.torch.gradients import adam
from ampsim.torch.gradients.collect import numbers
from ampsim.torch.step.known_group import KnownGroup, Read


def known(contiguous=True):
    """Return an optimizer of three parameters that has stepped once, and what is known of its group."""
    params = [torch.nn.Parameter(torch.ones(2, 3) if contiguous else torch.ones(3, 2).t()) for _ in range(3)]
    optimizer = torch.optim.AdamW(params, fused=True)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    group, lists = optimizer.param_groups[0], [[] for _ in range(6)]
    optimizer._init_group(group, *lists)
    params, grads, exp_avgs, exp_avg_sqs, _, steps = lists
    tensors = adam.Tensors(grads, params, exp_avgs, exp_avg_sqs, steps)
    assert KnownGroup.fits(group, tensors) == contiguous
    return optimizer, KnownGroup(optimizer, group, tensors, adam.Addresses.of(tensors))


def second(optimizer):
    return optimizer.param_groups[0]["params"][1]


def state(optimizer):
    return optimizer.state[second(optimizer)]


def last(optimizer):
    return optimizer.state[optimizer.param_groups[0]["params"][-1]]


def put(optimizer, name, value):
    state(optimizer)[name] = value


def swapped(tensor):
    tensor.data = tensor.data.clone()


def shrunk(param):
    param.grad, param.data = None, param.data[:1]
    param.grad = torch.ones(1, 3)


def with_grad(optimizer, grad):
    second(optimizer).grad = None
    if grad is not None and grad.dtype is not torch.float32:
        second(optimizer).grad_dtype = None
    second(optimizer).grad = grad


CHANGES = {
    "a parameter's memory": lambda o: swapped(second(o)),
    "a parameter's order": lambda o: setattr(second(o), "data", second(o).data.as_strided((2, 3), (1, 2))),
    "a moment's memory": lambda o: swapped(state(o)["exp_avg"]),
    "a count's memory": lambda o: swapped(state(o)["step"]),
    "the last moment": lambda o: last(o).popitem(),
    "a moment": lambda o: put(o, "exp_avg_sq", state(o)["exp_avg_sq"].clone()),
    "a count": lambda o: put(o, "step", state(o)["step"].clone()),
    "a parameter's state": lambda o: o.state.__setitem__(second(o), dict(state(o))),
    "two states": lambda o: o.state.update({second(o): o.state[o.param_groups[0]["params"][0]]}),
    "all states": lambda o: o.load_state_dict(copy.deepcopy(o.state_dict())),
    "no state": lambda o: o.state.clear(),
    "another parameter": lambda o: o.param_groups[0]["params"].__setitem__(1, torch.nn.Parameter(torch.ones(2, 3))),
    "one more": lambda o: o.param_groups[0]["params"].append(torch.nn.Parameter(torch.ones(1))),
    "one less": lambda o: o.param_groups[0]["params"].pop(),
    "no gradient": lambda o: with_grad(o, None),
    "a gradient in float16": lambda o: with_grad(o, torch.ones(2, 3, dtype=torch.float16)),
    "a gradient in another order": lambda o: with_grad(o, torch.ones(3, 2).t()),
    "a gradient of another kind": lambda o: with_grad(o, torch.nn.Parameter(torch.ones(2, 3))),
    "a smaller parameter in its place": lambda o: shrunk(second(o)),
    "a sparse gradient": lambda o: with_grad(o, torch.ones(2, 3).to_sparse()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_has_changed_is_looked_at_again(change):
    optimizer, group = known()
    assert group.again(optimizer)
    change(optimizer)
    assert group.again(optimizer) is None


def test_new_gradients_are_taken_with_their_addresses():
    optimizer, group = known()
    for _ in range(2):
        params = optimizer.param_groups[0]["params"]
        for param in params:
            param.grad = torch.ones(2, 3)
        tensors, addresses = group.again(optimizer)
        assert all(grad is param.grad for grad, param in zip(tensors.grads, params, strict=True))
        assert addresses == adam.Addresses.of(tensors)


def test_of_two_groups_each_is_known():
    optimizer, group = known()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    optimizer.param_groups[1]["params"][0].grad = torch.ones(1)
    optimizer.step()
    assert group.again(optimizer)
    state(optimizer)["exp_avg"] = torch.ones(2, 3)
    assert group.again(optimizer) is None


def test_a_group_with_gaps_or_with_a_parameter_that_has_no_gradient_is_not_known():
    known(contiguous=False)
    optimizer, group = known()
    tensors, _ = group.again(optimizer)
    assert not KnownGroup.fits({"params": [*tensors.params, torch.ones(1)]}, tensors)


def test_what_is_known_goes_with_its_optimizer():
    optimizer, group = known()
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    assert group


def test_counts_that_nobody_else_wrote_are_kept_together():
    optimizer, group = known()
    steps = [each["step"] for each in optimizer.state.values()]
    given = []

    def launch(counts):
        given.append(counts)
        torch._foreach_add_(steps, 1.0)
        return torch.stack(steps)

    assert group.step(launch)
    assert group.step(launch)
    assert given[0] is None
    assert given[1].tolist() == [2.0] * 3
    steps[1].fill_(7.0)
    assert group.step(launch)
    assert given[2] is None
    assert not group.step(lambda counts: None)
    assert group.step(launch)
    assert given[3].tolist() == [4.0, 8.0, 4.0]


def test_a_part_of_what_was_read_is_of_some_gradients():
    grads = [torch.ones(size) for size in (2, 3, 5)]
    read, part = (
        Read(each, numbers(torch.Tensor.numel, each), numbers(torch.Tensor.data_ptr, each), True)
        for each in (grads, grads[1:])
    )
    assert read.part(1, 3) == part

"""Gradients that are DTensors, as those of FSDP2: flags are made local before they are recorded."""

import pytest
import torch

from tests.torch.helpers import run_script

if not torch.distributed.is_available():
    pytest.skip("torch without torch.distributed", allow_module_level=True)

SCRIPT = """
import itertools, torch, torch.distributed as d
from unittest import mock
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
from ampsim.torch import GradScaler, config
from ampsim.torch.gradients import unscale
from ampsim.torch.state.device import DeviceVersion

d.init_process_group("gloo", store=d.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))


def run(sharded, kind, fused, clips, found, options):
    start = torch.arange(1.0, 5.0)
    param = torch.nn.Parameter(distribute_tensor(start, mesh, [Shard(0)]) if sharded else start)
    optimizer = kind([param], lr=0.1, fused=fused)
    scaler = GradScaler("cpu", **{"init_scale": 8.0, **options})
    for value in (1.0, found, 2.0):
        loss = (param * value).sum()
        scaler.scale(loss.full_tensor() if sharded else loss).backward()
        if clips:
            norm = scaler.unscale_and_clip_(optimizer, 1.0)
            assert type(norm) is torch.Tensor, type(norm)
        scaler.step(optimizer)
        for flag in scaler._records.outcome(scaler._iterations.current().index).flags:
            assert type(flag) is torch.Tensor, type(flag)
        scaler.update()
        optimizer.zero_grad()
    value = param.detach()
    return value.full_tensor() if sharded else value, scaler.get_scale()


def all_of_them():
    kinds = (torch.optim.SGD, torch.optim.AdamW)
    options = ({}, {"exact_torch": True}, {"capturable": True}, {"init_scale": 0.5})
    for kind, fused, clips, found, given in itertools.product(kinds, (False, True), (False, True), (1.0, INF), options):
        given = {"growth_interval": 2, **given}
        if fused and kind is torch.optim.SGD:  # torch has no fused SGD of DTensors
            continue
        case = (kind, fused, clips, found)
        whole, sharded = run(False, *case, given), run(True, *case, given)
        torch.testing.assert_close(sharded[0], whole[0], rtol=1e-6, atol=0)
        assert sharded[1] == whole[1], (case, given, sharded, whole)


INF = float("inf")
"""


@pytest.mark.parametrize("on_device", [False, True])
def test_steps_and_scales_are_those_of_plain_gradients(on_device):
    emulated = """
with mock.patch.object(unscale, "on_host", lambda *_: False), \\
        mock.patch.object(config, "version_class", lambda *_, **__: DeviceVersion):
    all_of_them()
"""
    run_script(SCRIPT + (emulated if on_device else "all_of_them()\n"))

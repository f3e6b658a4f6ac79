"""Gradients that are DTensors, as those of FSDP2: flags are made local before they are recorded."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.torch.helpers import run_script

if not torch.distributed.is_available():
    pytest.skip("torch without torch.distributed", allow_module_level=True)

SCRIPT = """
import itertools, torch, torch.distributed as d
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
from ampsim.torch import GradScaler

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
        for flag in scaler._found_inf_per_device(optimizer).values():
            assert type(flag) is torch.Tensor, type(flag)
        scaler.update()
        optimizer.zero_grad()
    value = param.detach()
    return value.full_tensor() if sharded else value, scaler.get_scale()


def all_of_them():
    kinds = (torch.optim.SGD, torch.optim.AdamW)
    options = ({}, {"check_at_step": True}, {"init_scale": 0.5})
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


def test_sharded_steps_equal_plain_steps():
    run_script(f"{SCRIPT}\nall_of_them()")


PROCESS = """
import itertools, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from ampsim.torch import GradScaler

RANK = {rank}
dist.init_process_group("gloo", init_method="file://{store}", rank=RANK, world_size=2)
mesh = dist.init_device_mesh("cpu", (2,))
x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def run(sharded, fused, how, group):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    for part in (net[0], net[2], net) if sharded else ():
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, fused=fused)
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=2, group=group)
    scales = []
    for overflows in (False, True, False, False):
        scaler.scale(net(x).square().mean()).backward()
        grad = net[2].weight.grad
        if overflows and not sharded:
            grad[-1, -1] = float("inf")
        elif overflows and RANK == 1:  # in its half alone
            grad.to_local()[-1, -1] = float("inf")
        if how == "unscale_":
            scaler.unscale_(optimizer)
            flags = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
            assert [bool(flag) for flag in flags] == [overflows], (RANK, flags)
        elif how == "unscale_and_clip_":
            scaler.unscale_and_clip_(optimizer, 0.01)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    params = [param.detach() for param in net.parameters()]
    return scales, [param.full_tensor() for param in params] if sharded else params


ways = ("step", "unscale_", "unscale_and_clip_")
for case in itertools.product((False, True), ways, (None, "world")):
    whole, sharded = run(False, *case), run(True, *case)
    assert sharded[0] == whole[0] == [8.0, 4.0, 4.0, 8.0], (RANK, case, sharded[0])
    torch.testing.assert_close(sharded[1], whole[1], rtol=1e-5, atol=1e-7)
dist.destroy_process_group()
"""


@pytest.mark.deep
def test_fsdp2_overflow_skips_on_both_ranks(tmp_path):
    scripts = [PROCESS.format(rank=rank, store=tmp_path / "store") for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run_script, scripts))

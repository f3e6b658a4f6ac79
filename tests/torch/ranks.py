"""One of two processes in a gloo group; `test_ranks` starts both. RANK STORE HISTORIES"""

import math
import os
import pickle
import random
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

from ampsim.core.machine import Rule, init, update
from ampsim.core.policies import Headroom, Observation
from ampsim.torch import GradScaler

RANK, STORE, HISTORIES = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
INF = float("inf")
KINDS = [
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.SGD, {"fused": True, "momentum": 0.5}),
    (torch.optim.SGD, {}),
]
WAYS = ["step", "unscale_", "unscale_and_clip_"]


def everyones(value):
    """Return what this is on each rank."""
    values = [None, None]
    dist.all_gather_object(values, value)
    return values


def refusal(call):
    try:
        call()
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it was not refused")


def bits(param):
    return param.detach().numpy().tobytes()


class Play:
    """A history that both ranks draw alike.

    For each iteration and optimizer: what each rank finds, None if it has no gradient.
    """

    def __init__(self, seed):
        draw = random.Random(seed)  # noqa: S311
        self.interval = draw.randint(1, 3)
        self.init_scale = draw.choice([0.5, 8.0])
        self.kinds, self.ways = draw.choices(KINDS, k=2), draw.choices(WAYS, k=2)
        cell = lambda: draw.choices([False, True, None], weights=[6, 2, 1])[0]  # noqa: E731
        self.found = [
            [[cell(), cell()] for _ in range(2)] for _ in range(draw.randint(3, 6))
        ]

    def run(self):
        """Let it run on this rank; whatever can be told here must be as the reference says."""
        params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
        pairs = zip(params, self.kinds, strict=True)
        optimizers = [kind([p], lr=0.1, **options) for p, (kind, options) in pairs]
        scaler = GradScaler(
            "cpu", self.init_scale, growth_interval=self.interval, group="world"
        )
        rule = Rule(self.init_scale, growth_interval=self.interval)
        state = init(rule)
        for found in self.found:
            assert scaler.scale(torch.ones(())).item() == state.scale
            self.iterate(scaler, found, params, optimizers)
            state = update(rule, state, any(map(any, found)))
        assert scaler.get_scale() == state.scale
        first, second = everyones(
            (scaler.state_dict(), [len(o.state) > 0 for o in optimizers])
        )
        assert first[0] == second[0], (first, second)

    def iterate(self, scaler, found, params, optimizers):
        before = [bits(param) for param in params]
        for param, ranks in zip(params, found, strict=True):
            scale, param.grad = scaler.scale(torch.ones(())), None
            if ranks[RANK] is not None:
                param.grad = scale * torch.tensor(
                    [1.0, 2.0, INF if ranks[RANK] else 1.0]
                )
        for optimizer, way in zip(optimizers, self.ways, strict=True):
            if way == "unscale_":
                scaler.unscale_(optimizer)
            elif way == "unscale_and_clip_":
                scaler.unscale_and_clip_(optimizer, 0.5)
        for optimizer in optimizers:
            scaler.step(optimizer)
        for optimizer, param, old, ranks in zip(
            optimizers, params, before, found, strict=True
        ):
            assert scaler.last_step.skipped_by(optimizer) == any(ranks)
            assert (bits(param) != old) == (ranks[RANK] is not None and not any(ranks))
            assert param.isfinite().all()
        scaler.update()


def parts_of_one_tensor():
    """Step with gradients like FSDP2's: one small all-reduce per optimizer, whatever the number of
    gradients.
    """
    mesh = init_device_mesh("cpu", (2,))
    for fused, way in ((True, "step"), (True, "unscale_"), (False, "step")):
        params = [
            torch.nn.Parameter(distribute_tensor(torch.ones(n), mesh, [Shard(0)]))
            for n in (2, 4, 5)
        ]
        optimizer = torch.optim.AdamW(params, fused=fused)
        scaler = GradScaler("cpu", 8.0, group="world")
        for overflows in (None, 0, 1, None):
            before = [param.to_local().clone() for param in params]
            scaler.scale(torch.ones(()))
            for param in params:
                param.grad = 8.0 * torch.ones_like(param)
                if overflows == RANK:
                    param.grad.to_local()[-1] = INF
            with CommDebugMode() as collectives:
                if way == "unscale_":
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
            scaler.update()
            assert collectives.get_total_counts() == 1, collectives.get_comm_counts()
            assert scaler.last_step.skipped == (overflows is not None)
            changed = [
                not old.equal(param.to_local())
                for old, param in zip(before, params, strict=True)
            ]
            assert changed == [overflows is None] * 3, changed
        assert scaler.get_scale() == 2.0


def copies_of_one_model():
    """Train by DDP: a batch per rank, one gradient."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    scaler = GradScaler("cpu", 8.0, growth_interval=2, group="world")
    for overflows in (None, 0, None, 1, None, None):
        optimizer.zero_grad()
        scaler.scale(
            model(torch.full((3, 2), INF if overflows == RANK else 1.0 + RANK)).mean()
        ).backward()
        scaler.unscale_and_clip_(optimizer, 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.last_step.skipped == (overflows is not None)
    first, second = everyones(
        ([bits(param) for param in model.parameters()], scaler.state_dict())
    )
    assert first == second
    assert scaler.get_scale() == 4.0


def a_policy_that_needs_amax():
    """Let one rank have the largest gradient, an inf, a NaN or none: both follow the policy on what
    all saw.
    """
    policy = Headroom(init_scale=2.0**10, interval=2)
    for kind, options in KINDS:
        scaler, state = GradScaler("cpu", policy=policy, group="world"), init(policy)
        param = torch.nn.Parameter(torch.ones(3))
        optimizer = kind([param], lr=0.1, **options)
        for both in (
            (1.0, 900.0),
            (3.0, 0.5),
            (None, 900.0),
            (None, 700.0),
            (INF, 1.0),
            (1.0, float("nan")),
            (0.1, 0.2),
            (0.1, 0.1),
        ):
            scale, mine = float(scaler.scale(torch.ones(()))), both[RANK]
            assert scale == state.scale, (scale, state)
            param.grad = (
                None if mine is None else torch.tensor([0.0, 0.0, mine * scale])
            )
            with CommDebugMode() as collectives:
                scaler.step(optimizer)
            scaler.update()
            assert collectives.get_total_counts() == 1, collectives.get_comm_counts()
            seen = [abs(each) for each in both if each is not None]
            found = not all(map(math.isfinite, seen))
            state = update(
                policy, state, Observation(found, INF if found else max(seen))
            )
        first, second = everyones(scaler.state_dict())
        assert first == second, (first, second)


def sharded_scaler_of_torch():
    """Show that torch's adds what ranks found: two that overflow make 2, and a fused kernel looks
    for 1.
    """
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    finite = {}
    for scaler in (
        ShardedGradScaler("cpu", 8.0, process_group=dist.group.WORLD),
        GradScaler("cpu", 8.0, group="world"),
    ):
        param = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([param], lr=0.1, fused=True)
        scaler.scale(torch.ones(()))
        param.grad = torch.tensor([8.0, INF, 8.0])
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        finite[type(scaler).__name__] = bool(param.isfinite().all())
    assert finite == {"ShardedGradScaler": False, "GradScaler": True}, finite


def refusals():
    assert refusal(lambda: GradScaler("cpu", group=7)).startswith("TypeError: group=7")
    scaler = GradScaler("cpu", 8.0, group=dist.group.WORLD)
    state = scaler.state_dict()
    scaler.load_state_dict(state | {"scale": 16.0})
    assert scaler.get_scale() == 16.0
    refusal(lambda: pickle.dumps(scaler))


def scales_that_differ():
    """No rank steps once the scales differ: by a constant, a loaded state, or a new scale."""
    param = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([param], lr=1.0)
    for how in ("growth_interval", "load_state_dict", "update"):
        interval = 2 + RANK if how == "growth_interval" else 2
        group = dist.new_group()
        scaler = GradScaler("cpu", 8.0, growth_interval=interval, group=group)
        if how == "load_state_dict":
            scaler.load_state_dict(scaler.state_dict() | {"_growth_tracker": RANK})

        def iterate(scaler=scaler, how=how):
            for i in range(4):
                param.data.fill_(i)
                param.grad = torch.zeros(1)
                param.grad += scaler.scale(torch.ones(())).item()
                scaler.step(optimizer)
                scaler.update(2.0 + RANK if how == "update" and i == 1 else None)

        text = refusal(iterate)
        assert "and scales" in text, text
        assert param.item() == (1.0 if how == "load_state_dict" else 2.0), (how, param)


def calls_that_differ():
    """Rank 1 leaves out a step, or swaps two: both ranks hear of it and no step takes another's
    flag.
    """
    left_out, swapped = [0, 1], [0, 2, 1]
    for odd, policy in (
        (left_out, None),
        (swapped, None),
        (left_out, Headroom(init_scale=8.0)),
    ):
        for early in (False, True):
            heard, params = zip(
                *everyones(iterations_with(odd, early, policy)), strict=True
            )
            assert all(
                "the ranks did not agree on found_inf" in text for text in heard
            ), heard
            expected = [-1.0, -1.0, 0.0] if odd is left_out else [-1.0, 0.0, 0.0]
            assert params == (expected, expected)


def iterations_with(odd, early, policy):
    """Return what is heard, and the parameters, if rank 1 steps the optimizers `odd` in iteration
    1, else all.
    """
    constants = {"init_scale": 8.0} if policy is None else {"policy": policy}
    scaler = GradScaler("cpu", **constants, group=dist.new_group())
    params = [torch.nn.Parameter(torch.ones(1)) for _ in range(3)]
    optimizers = [torch.optim.SGD([param], lr=1.0) for param in params]

    def iterate():
        for i in range(3):
            for param in params:
                scale = scaler.scale(torch.ones(())).item()
                param.grad = torch.tensor(
                    [INF if i == 2 and RANK == 1 and param is params[0] else scale]
                )
            mine = [optimizers[k] for k in (odd if i == 1 and RANK == 1 else range(3))]
            for optimizer in mine if early else ():
                scaler.unscale_(optimizer)
            for optimizer in mine:
                scaler.step(optimizer)
            scaler.update()

    return refusal(iterate), [param.item() for param in params]


class Bare:
    """The least that an optimizer is; the next one takes its memory, and so its id."""

    def __init__(self, inner):
        self.param_groups, self.step = inner.param_groups, inner.step


def optimizers_that_die():
    """Step a new optimizer in each iteration: rank 0 lets the old ones go, rank 1 keeps them."""
    scaler, kept, optimizer = GradScaler("cpu", 8.0, group="world"), [], None
    param = torch.nn.Parameter(torch.zeros(()))
    for _ in range(4):
        inner, scaled = torch.optim.SGD([param], lr=1.0), scaler.scale(param)
        optimizer = None
        optimizer = Bare(inner)
        scaled.backward()
        scaler.step(optimizer)
        scaler.update()
        scaler.load_state_dict(scaler.state_dict())  # its report kept the optimizer
        param.grad = None
        kept += [optimizer] * RANK
    assert param.item() == -4.0


def a_rank_that_dies():
    """End one rank; nothing can come after."""
    scaler = GradScaler("cpu", 8.0, group="world")
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([param], fused=True)
    scaler.scale(torch.ones(()))
    param.grad = torch.full((2,), 8.0)
    dist.barrier()
    if RANK == 1:
        print("done", flush=True)
        os._exit(0)
    for unscales in (False, True, False):
        if unscales:
            scaler.unscale_(
                optimizer
            )  # its reduction is asynchronous: the step hears of it
        text = refusal(lambda: scaler.step(optimizer))
        assert "the ranks did not agree on found_inf" in text, text
    assert param.tolist() == [1.0, 1.0]


torch.set_num_threads(1)
dist.init_process_group(
    "gloo",
    init_method=f"file://{STORE}",
    rank=RANK,
    world_size=2,
    timeout=timedelta(minutes=2),
)
for seed in range(HISTORIES):
    try:
        Play(seed).run()
    except Exception:
        print(f"history {seed} on rank {RANK}: {vars(Play(seed))}", flush=True)
        raise
parts_of_one_tensor()
copies_of_one_model()
a_policy_that_needs_amax()
sharded_scaler_of_torch()
refusals()
scales_that_differ()
calls_that_differ()
optimizers_that_die()
a_rank_that_dies()
print("done", flush=True)
os._exit(0)  # the group has lost a rank: what it would wait for is gone

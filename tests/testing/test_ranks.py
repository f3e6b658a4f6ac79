"""Checks of ranks: each seeded fault fails its check, and a correct scaler passes."""

import re

import pytest

torch = pytest.importorskip(
    "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
)
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch import distributed as dist  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: E402
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler  # noqa: E402

from ampsim.testing import check_ranks, known_failures, scheduler  # noqa: E402
from ampsim.testing.ranks import checks, judge, processes, threads  # noqa: E402
from ampsim.testing.ranks.scenario import NONE, Scenario, scenarios  # noqa: E402
from ampsim.torch import GradScaler  # noqa: E402
from tests.test_cli import run  # noqa: E402
from tests.testing.rank_bugs import (  # noqa: E402
    WRONG,
    AsksOnlyIfItFound,
    LooksAtItsShard,
    PollsInTurn,
    PollsWhatTheOthersSay,
    Right,
    SumForMax,
)


def torchs(_group):
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)


def ours(group):
    return GradScaler("cpu", init_scale=1024.0, growth_interval=2, group=group)


def sharded(group):
    return ShardedGradScaler(
        "cpu", init_scale=1024.0, growth_interval=2, process_group=group
    )


def broken(make, **options):
    """What is said of each check that is broken, by its name."""
    return {
        each.check.name: each.text
        for each in judge.judge_ranks(make, **options)
        if each.outcome == "failed"
    }


@pytest.mark.parametrize("scaler", WRONG, ids=lambda scaler: scaler.__name__)
def test_bug_fails_its_check(scaler):
    said = broken(scaler, processes=False, checks=[WRONG[scaler]])
    assert said[WRONG[scaler]].startswith(f"{WRONG[scaler]}: ")


def test_polling_fault_needs_late_rank():
    said = broken(PollsInTurn, processes=False, checks=["ranks_agree_on_skips"])[
        "ranks_agree_on_skips"
    ]
    assert "  seen on  threads, rank 1 late" in said


def test_late_rank_fault_is_found():
    options = {
        "processes": False,
        "unsupported": ["optimizers"],  # with two optimizers it fails in any order
        "checks": ["ranks_agree_on_skips"],
    }
    said = broken(PollsWhatTheOthersSay, **options)["ranks_agree_on_skips"]
    assert "  seen on  threads, rank 1 late" in said
    assert not broken(Right, **options)


def test_every_check_can_fail():
    assert {*WRONG.values()} == {*checks.CHECKS}


@pytest.mark.parametrize("make", [ours, Right])
def test_right_scaler_passes_among_threads(make):
    assert {each.outcome for each in check_ranks(make, processes=False)} == {"passed"}


@pytest.mark.deep
@pytest.mark.parametrize("ranks", [2, 4])
def test_right_scaler_passes_among_processes(ranks):
    assert {each.outcome for each in check_ranks(ours, ranks)} == {"passed"}


@pytest.mark.parametrize(
    "parted", [each for each in scenarios(2) if each.parts], ids=lambda each: each.parts
)
def test_ampsim_raises_on_desynchronized_rank(parted):
    records = threads.play_on_threads(ours, parted, 2)
    if parted.parts.startswith("exits"):
        assert [bool(record.waits) for record in records] == [True, False]
    else:
        assert all("did not agree on found_inf" in record.error for record in records)
    assert [len(record.seen) for record in records] == [1, 1]


@pytest.mark.parametrize(
    ("make", "known"),
    [(torchs, known_failures.TORCH_RANKS), (sharded, known_failures.SHARDED_RANKS)],
    ids=["torch", "sharded"],
)
def test_torch_scalers_fail_known_checks(make, known):
    check_ranks(make, expected_failures=known, processes=False)


def test_sharded_scaler_leaves_inf_parameters():
    asked = ["parameters_stay_finite", "no_rank_steps_on_overflow"]
    said = broken(sharded, processes=False, checks=asked)
    assert ["fused SGD" in said[name] for name in asked] == [True, True]
    assert [*broken(sharded, processes=False, unsupported={"fused"})] == [
        "desynchronized_rank_is_detected"
    ]


PARTED = {"no_rank_steps_on_overflow", "ranks_agree_on_skips", "ranks_agree_on_scale"}
UNDER_TORCHS_WRAPPERS = [
    (sharded, "DDP", known_failures.SHARDED_DDP),
    (ours, "FSDP2", {}),
    (LooksAtItsShard, "FSDP2", PARTED),
]


@pytest.mark.parametrize(("make", "gradients", "breaks"), UNDER_TORCHS_WRAPPERS)
def test_wrapped_scaler_fails_known_checks(make, gradients, breaks):
    both, one = frozenset({(0, 0), (1, 0)}), frozenset({(0, 0)})
    todo = [
        Scenario((NONE, both), kernel="AdamW", unscales=True),
        Scenario((NONE, one)),
    ]
    todo += (
        [Scenario((NONE, both), kernel="SGD", unscales=True)]
        if gradients == "DDP"
        else []
    )
    todo += [Scenario((NONE, one), empty=frozenset({1}))]
    played = processes.play_all(make, todo, 2, gradients, 30.0)
    found = {
        check.name
        for check in checks.CHECKS.values()
        for each in todo
        if checks.failure(check, checks.Case(each, played[each], played))
    }
    assert found == {*breaks}


def sums_first(model, group):
    """DistributedDataParallel that sums gradients in float16 and divides the sum."""

    def hook(_, bucket):
        reduced = dist.all_reduce(
            bucket.buffer().half(), group=group, async_op=True
        ).get_future()
        return reduced.then(lambda done: done.value()[0].float() / group.size())

    wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    wrapped.register_comm_hook(None, hook)
    return wrapped


def compresses(model, group):
    wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    wrapped.register_comm_hook(group, default_hooks.fp16_compress_hook)
    return wrapped


def test_sum_before_division_is_found():
    check = ["scale_does_not_depend_on_ranks"]
    options = {
        "checks": check,
        "unsupported": {"fused", "optimizers", "unscale_", "state_dict"},
    }
    assert (
        "the reduction over 2 ranks overflowed"
        in broken(torchs, gradients=sums_first, **options)[check[0]]
    )
    assert not broken(torchs, gradients=compresses, **options)


def test_threads_match_gloo():
    todo = [
        each
        for each in scenarios(2)
        if not each.unscales and each.parts != "does not step optimizer 0"
    ]
    real = processes.play_all(sharded, todo, 2, "sharded", 30.0)
    for scenario in todo:
        records = threads.play_on_threads(sharded, scenario, 2)
        for ours, theirs in zip(records, real[scenario], strict=True):
            assert ours.seen == theirs.seen
            assert ours.error == theirs.error
            assert bool(ours.waits) == bool(theirs.waits)


# what a rank calls, and what it then has of three that bring [1, 4, 0], [2, 3, 0] and [6, 5, 0]
COLLECTIVES = {
    "sum": (lambda mine, group: dist.all_reduce(mine, dist.ReduceOp.SUM, group), ([9, 12, 0],) * 3),
    "mean": (lambda mine, group: dist.all_reduce(mine, dist.ReduceOp.AVG, group), ([3, 4, 0],) * 3),
    "max": (lambda mine, group: dist.all_reduce(mine, dist.ReduceOp.MAX, group), ([6, 5, 0],) * 3),
    "min": (lambda mine, group: dist.all_reduce(mine, dist.ReduceOp.MIN, group), ([1, 3, 0],) * 3),
    "reduce": (
        lambda mine, group: dist.reduce(mine, group=group, group_dst=1), ([1, 4, 0], [9, 12, 0], [6, 5, 0]),
    ),
    "broadcast": (lambda mine, group: dist.broadcast(mine, group=group, group_src=1), ([2, 3, 0],) * 3),
    "all_gather": (
        lambda mine, group: dist.all_gather([*mine.data.split(1)], mine[:1].clone(), group), ([1, 2, 6],) * 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", COLLECTIVES)
def test_thread_collectives_match_torch(call):
    rows = [1.0, 4.0, 0.0], [2.0, 3.0, 0.0], [6.0, 5.0, 0.0]
    brought = [
        torch.tensor(each, requires_grad=True) for each in rows
    ]  # a parameter, too
    collect, expected = COLLECTIVES[call]

    def program(c):
        threads.live_together(
            c, 3, {}, lambda group: collect(brought[group.rank()], group)
        )

    scheduler.run(program)
    assert [has.tolist() for has in brought] == [*expected]


def test_deadlock_names_waiting_rank():
    said = broken(AsksOnlyIfItFound, checks=["no_deadlock"], processes=False)[
        "no_deadlock"
    ]
    assert (
        "rank 0 waits in all_reduce 0 (without rank 1); rank 1 ended iteration 5"
        in said
    )
    alone = Scenario((frozenset(), frozenset({(0, 0)})))
    first, second = processes.play_all(AsksOnlyIfItFound, [alone], 2, "sharded", 30.0)[
        alone
    ]
    assert re.match(r"all_reduce \(rank_bugs.py:\d+ in agree\)", first.waits)
    assert (second.waits, second.error, len(second.seen)) == ("", "", 2)


@pytest.mark.parametrize("ranks", [2, 3])
def test_finding_shows_its_scenario(ranks):
    asked = {
        "checks": ["parameters_stay_finite"],
        "unsupported": {"unscale_"},
        "processes": False,
    }
    said = broken(SumForMax, ranks=ranks, **asked)["parameters_stay_finite"]
    assert f"{ranks}, each with 1 fused SGD optimizer" in said
    assert "inf on rank 0 and 1" in said
    assert "seen on  threads" in said


@pytest.mark.parametrize(
    "scaler",
    [
        lambda device, init_scale, growth_interval, group=None: (
            init_scale, growth_interval, group,
        ),
        lambda device, init_scale, growth_interval, process_group=None: (
            init_scale, growth_interval, process_group,
        ),
        lambda group: (1024.0, 2, group),
    ],
)  # fmt: skip
def test_group_argument_is_passed(scaler, framework):
    framework.Scaler = scaler
    assert judge.find("framework:Scaler")("all") == (1024.0, 2, "all")
    framework.Scaler = lambda device, init_scale, growth_interval: (
        init_scale,
        growth_interval,
    )
    assert judge.find("framework:Scaler")("all") == (1024.0, 2)


def test_expected_failure_shows_its_reason():
    check = "ranks_agree_on_skips"
    asked = {"checks": [check], "processes": False, "expected_failures": {check: "why"}}
    (result,) = check_ranks(torchs, unsupported=["optimizers", "fused"], **asked)
    assert (result.outcome, result.text) == ("xfailed", "why")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ranks": 1}, "ranks=1"),
        ({"gradients": "mine"}, "gradients='mine'"),
        (
            {"gradients": "FSDP2", "processes": False},
            "gradients='FSDP2' with processes=False: expected processes",
        ),
        (
            {"checks": ["ranks_agree_on_skip"]},
            "no check 'ranks_agree_on_skip'; did you mean 'ranks_agree_on_skips'",
        ),
        (
            {"unsupported": {"fuse"}},
            "unsupported='fuse': no such feature; did you mean 'fused'",
        ),
    ],
)
def test_invalid_arguments_are_rejected(wrong, said):
    with pytest.raises(ValueError, match=said):
        check_ranks(Right, **wrong)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (
            ["SkipsLocally"],
            1,
            "ranks_agree_on_skips: rank 0 skipped, rank 1 stepped optimizer 0 (iteration 1)",
        ),
        (["SkipsLocally", "--xfail", "ranks_agree_on_skips"], 0, "1 xfailed"),
        (
            ["Right", "--check", "skips_stay_within_budget"],
            2,
            "'skips_stay_within_budget'",
        ),
    ],
)
def test_command_checks_a_maker(arguments, status, said):
    target, *options = arguments
    code, text = run(
        "check-ranks",
        "--check",
        "ranks_agree_on_skips",
        f"tests.testing.rank_bugs:{target}",
        *options,
    )
    assert (code, said in text) == (status, True), text

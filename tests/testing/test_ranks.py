"""Level 6 of the kit: each planted bug of ranks dies by its law, and a right scaler is not accused."""

import os
import re
import sys
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch import distributed as dist  # noqa: E402
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler  # noqa: E402

from ampsim.testing import check_ranks, conductor, known  # noqa: E402
from ampsim.testing.loop.adapters.frameworks import FRAMEWORKS  # noqa: E402
from ampsim.testing.ranks import judge, laws, processes, threads  # noqa: E402
from ampsim.testing.ranks.gradients import DDP, Replicated, Sharded  # noqa: E402
from ampsim.testing.ranks.scenario import NONE, RankRecord, Scenario, scenarios  # noqa: E402
from ampsim.torch import GradScaler  # noqa: E402
from tests.test_cli import run  # noqa: E402
from tests.testing.rank_bugs import (  # noqa: E402
    WRONG,
    Accelerated,
    AsksOnlyIfItFound,
    LooksAtItsShard,
    PollsInTurn,
    PollsWhatTheOthersSay,
    Right,
    SumForMax,
)


@pytest.fixture(autouse=True)
def few_orders(monkeypatch):
    """Leave to the deep tests most of the orders in which each explored scenario is played."""
    if os.environ.get("AMPSIM_DEEP") != "1":
        monkeypatch.setattr(judge, "LIMIT", 10)


def torchs(_group):
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)


def ours(group):
    return GradScaler("cpu", init_scale=1024.0, growth_interval=2, group=group)


def sharded(group):
    return ShardedGradScaler("cpu", init_scale=1024.0, growth_interval=2, process_group=group)


def broken(make, **options):
    """What is said of each law that is broken, by its name."""
    return {each.check.name: each.text for each in judge.judge_ranks(make, **options) if each.outcome == "failed"}


@pytest.mark.parametrize("scaler", WRONG, ids=lambda scaler: scaler.__name__)
def test_a_planted_bug_dies_by_its_law(scaler, golden):
    said = broken(scaler, processes=False, laws=[WRONG[scaler]])
    assert said[WRONG[scaler]].startswith(f"{WRONG[scaler]}: ")
    golden(said[WRONG[scaler]])


def test_an_order_that_is_not_the_first_one_is_tried():
    said = broken(PollsInTurn, processes=False, laws=["verdicts_agree"])["verdicts_agree"]
    assert "  seen on  threads, rank 1 late" in said


def test_a_rank_that_is_late_changes_nothing():
    options = {"processes": False, "without": ["optimizers"], "laws": ["verdicts_agree"]}  # so that no order is tried
    said = broken(PollsWhatTheOthersSay, **options)["verdicts_agree"]
    assert "  seen on  threads, rank 1 late" in said
    assert not broken(Right, **options)


def test_every_law_has_been_seen_to_fail():
    assert {*WRONG.values()} == {*laws.LAWS}


@pytest.mark.parametrize(
    ("make", "ranks"),
    [(ours, 2), *(pytest.param(*each, marks=pytest.mark.deep) for each in ((ours, 4), (Right, 2), (Right, 4)))],
)
def test_a_right_scaler_is_not_accused_by_threads_or_by_gloo(make, ranks):
    assert {each.outcome for each in check_ranks(make, ranks)} == {"passed"}


@pytest.mark.parametrize("parted", [each for each in scenarios(2) if each.parts], ids=lambda each: each.parts)
def test_where_a_rank_parts_ours_raises_on_every_rank_or_waits_for_the_one_that_ended(parted):
    program = threads.ThreadRun(ours, parted, 2, "sharded")
    conductor.attempt(program)
    if parted.parts.startswith("ends"):
        assert [bool(record.waits) for record in program.records] == [True, False]
    else:
        assert all("did not agree on found_inf" in record.error for record in program.records)
    assert [len(record.seen) for record in program.records] == [1, 1]


@pytest.mark.deep
def test_torchs_scaler_is_right_where_all_ranks_have_the_mean():
    assert not broken(torchs, gradients="replicated", processes=False)


@pytest.mark.parametrize(
    ("make", "known"), [(torchs, known.TORCH_RANKS), (sharded, known.SHARDED_RANKS)], ids=["torch", "sharded"]
)
def test_where_each_rank_has_its_own_torchs_scalers_break_what_is_known(make, known):
    check_ranks(make, expected_failures=known, processes=False)


def test_sharded_grad_scaler_leaves_inf_in_parameters():
    asked = ["parameters_stay_finite", "no_rank_steps_on_an_overflow"]
    said = broken(sharded, processes=False, laws=asked)
    assert ["fused SGD" in said[name] for name in asked] == [True, True]
    assert [*broken(sharded, processes=False, without={"fused"})] == ["a_rank_that_parts_misleads_nobody"]


def test_where_all_ranks_have_the_mean_every_overflow_is_one_on_all_and_sharded_grad_scaler_steps_into_it():
    steps_into_it = {"no_rank_steps_on_an_overflow", "parameters_stay_finite"}
    asked = [*steps_into_it, "verdicts_agree", "scales_agree"]
    assert broken(sharded, gradients="replicated", processes=False, laws=asked).keys() == steps_into_it


UNDER_TORCHS_WRAPPERS = [
    (torchs, "DDP", {}),
    (torchs, "FSDP2", {}),
    (sharded, "DDP", known.SHARDED_DDP),
    (sharded, "FSDP2", known.SHARDED_FSDP2),
    (ours, "DDP", {}),
    (ours, "FSDP2", {}),
]
PARTED = {"no_rank_steps_on_an_overflow", "verdicts_agree", "scales_agree"}


@pytest.mark.parametrize(("make", "gradients", "breaks"), [*UNDER_TORCHS_WRAPPERS, (LooksAtItsShard, "FSDP2", PARTED)])
def test_under_torchs_wrappers_it_breaks_what_is_known(make, gradients, breaks):
    """ThreadRun short scenarios; `deep` plays all of them."""
    both, one = frozenset({(0, 0), (1, 0)}), frozenset({(0, 0)})
    todo = [Scenario((NONE, both), kernel="AdamW", unscales=True), Scenario((NONE, one))]
    todo += [Scenario((NONE, both), kernel="SGD", unscales=True)] if gradients == "DDP" else []
    todo += [Scenario((NONE, one), empty=frozenset({1}))]
    played = processes.play_all(make, todo, 2, gradients, 30.0)
    found = {law.name for law in laws.LAWS.values() for each in todo if law.function(each, played[each], played)}
    assert found == {*breaks}


@pytest.mark.deep
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("make", "gradients", "breaks"), UNDER_TORCHS_WRAPPERS)
def test_under_torchs_wrappers_it_breaks_what_is_known_in_all_scenarios(make, gradients, breaks, ranks):
    check_ranks(make, ranks, gradients=gradients, expected_failures=breaks)


@pytest.mark.deep
@pytest.mark.peer("deepspeed", how=FRAMEWORKS["deepspeed"].install)
@pytest.mark.filterwarnings("ignore")  # of torch, for what DeepSpeed calls
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_of_deepspeed_keeps_the_laws_unless_a_rank_asks_nobody(stage, monkeypatch):
    import deepspeed.comm

    from ampsim.testing.ranks import deepspeed as zero

    def asks_nobody(tensor, *args, **options):
        return None if "MAX" in str(options.get("op")) else reduced(tensor, *args, **options)

    asked = {"gradients": getattr(zero, f"Zero{stage}"), "without": zero.WITHOUT, "limit": 120.0}  # to make an engine
    assert {each.outcome for each in check_ranks(zero.make, **asked)} == {"passed"}
    reduced = deepspeed.comm.all_reduce
    monkeypatch.setattr(deepspeed.comm, "all_reduce", asks_nobody)
    assert broken(zero.make, **asked)  # who skips does not come to the others' gathering of parameters


@pytest.mark.deep
@pytest.mark.peer("accelerate", how=FRAMEWORKS["accelerate"].install)
def test_accelerates_scaler_and_optimizer_keep_the_laws_under_fsdp2():
    check_ranks(Accelerated, gradients="FSDP2", without={"optimizers"})  # each one's step updates: accelerate#439


def test_threads_see_what_gloo_does():
    todo = [each for each in scenarios(2) if not each.unscales]  # with it ours is played in both, above
    real = processes.play_all(sharded, todo, 2, "sharded", 30.0)
    for scenario in todo:
        program = threads.ThreadRun(sharded, scenario, 2, "sharded")
        conductor.attempt(program)
        for ours, theirs in zip(program.records, real[scenario], strict=True):
            assert ours.seen == theirs.seen
            assert ours.error == theirs.error
            assert bool(ours.waits) == bool(theirs.waits)


COLLECTIVES = {  # what a rank calls, and what it then has of three that bring [1, 4, 0], [2, 3, 0] and [6, 5, 0]
    "sum": (lambda mine, group: dist.all_reduce(mine, dist.ReduceOp.SUM, group), ([9, 12, 0],) * 3),
    "mean": (lambda mine, group: dist.all_reduce(mine, dist.ReduceOp.AVG, group), ([3, 4, 0],) * 3),
    "max": (lambda mine, group: dist.all_reduce(mine, dist.ReduceOp.MAX, group), ([6, 5, 0],) * 3),
    "min": (lambda mine, group: dist.all_reduce(mine, dist.ReduceOp.MIN, group), ([1, 3, 0],) * 3),
    "product": (lambda mine, group: dist.all_reduce(mine, dist.ReduceOp.PRODUCT, group), ([12, 60, 0],) * 3),
    "reduce": (
        lambda mine, group: dist.reduce(mine, group=group, group_dst=1), ([1, 4, 0], [9, 12, 0], [6, 5, 0]),
    ),
    "broadcast": (lambda mine, group: dist.broadcast(mine, group=group, group_src=1), ([2, 3, 0],) * 3),
    "all_gather": (
        lambda mine, group: dist.all_gather([*mine.data.split(1)], mine[:1].clone(), group), ([1, 2, 6],) * 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", COLLECTIVES)
def test_a_collective_among_threads_is_that_of_torch(call):
    rows = [1.0, 4.0, 0.0], [2.0, 3.0, 0.0], [6.0, 5.0, 0.0]
    brought = [torch.tensor(each, requires_grad=True) for each in rows]  # a parameter, too
    collect, expected = COLLECTIVES[call]

    def program(c):
        threads.live_together(c, 3, {}, lambda group: collect(brought[group.rank()], group))

    conductor.run(program)
    assert [has.tolist() for has in brought] == [*expected]


@pytest.mark.parametrize("kind", [Sharded, Replicated, DDP])
def test_a_rank_has_its_own_gradients_or_the_mean_to_which_an_empty_one_adds_zeros(kind):
    gradients = {}

    def live(group):
        world = threads.World(group, lambda value: group.share("share", value)[0])
        for empty in (False, True):
            owner = kind(torch.optim.SGD, world, empty=empty and world.rank == 2)
            owner.give(1.0 + world.rank, bad=False, empty=empty and world.rank == 2)
            gradients[empty, world.rank] = {
                None if each.grad is None else each.grad.mean().item() for each in owner.params
            }
        owner.give(1.0, bad=world.rank == 1, empty=False)
        found[world.rank] = [each.grad.isfinite().logical_not().nonzero().tolist() for each in owner.params]

    found = {}
    conductor.run(lambda c: threads.live_together(c, 3, {}, live))
    own = {(empty, rank): {None if empty and rank == 2 else 1.0 + rank} for empty in (False, True) for rank in range(3)}
    assert gradients == (own if kind is Sharded else {each: {1.0 if each[0] else 2.0} for each in own})
    last, row = [[], [[1, 1]]], [[], [[1, 0], [1, 1]]]  # by hand the last number, in a model what the rank owns
    own = {0: [[], []], 1: last, 2: [[], []]}
    assert found == (own if kind is Sharded else dict.fromkeys(range(3), last if kind is Replicated else row))


def test_of_three_ranks_one_alone_ends_before_it_steps():
    parted = Scenario((NONE, NONE), parts="ends before it steps")
    program = threads.ThreadRun(ours, parted, 3, "sharded")
    conductor.attempt(program)
    assert [(len(record.seen), bool(record.waits)) for record in program.records] == [(1, True), (1, True), (1, False)]


class Bare:
    """Has no state dict."""

    def __init__(self, group):
        self.scale = torch.amp.GradScaler("cpu", init_scale=4.0).scale

    def get_scale(self):
        return 4.0

    def step(self, optimizer):
        optimizer.step()

    def update(self):
        pass


def test_a_scaler_without_a_state_dict_is_played():
    program = threads.ThreadRun(Bare, Scenario((NONE, NONE)), 2, "sharded")
    conductor.run(program)
    assert [(record.error, [seen.state for seen in record.seen]) for record in program.records] == [("", ["", ""])] * 2


def test_ranks_that_come_to_collectives_of_two_kinds_wait_for_each_other():
    def live(group):
        dist.broadcast(torch.ones(1), 0, group) if group.rank() else dist.all_reduce(torch.ones(1), group=group)

    meetings = {}
    assert conductor.attempt(lambda c: threads.live_together(c, 2, meetings, live)).stuck
    assert threads.waiting(meetings) == {
        0: "all_reduce 0 (without rank 1)", 1: "broadcast 0 (without rank 0)",
    }  # fmt: skip


def test_a_parameter_that_is_not_finite_is_found_wherever_it_is():
    world = SimpleNamespace(rank=0, size=1)
    for at in (None, 0, 1):
        owner = Sharded(torch.optim.SGD, world, empty=False)
        if at is not None:
            owner.params[at].data.view(-1)[1] = float("inf")
        assert owner.finite() is (at is None)


def test_what_leaves_its_process_is_told_by_its_exception():
    played = processes.play_all(lambda group: sys.exit(3), [Scenario((NONE,))], 2, "sharded", 30.0)
    assert [each.error for each in played[Scenario((NONE,))]] == ["SystemExit: 3"] * 2


def test_who_waits_is_told_for_what_and_for_whom():
    said = broken(AsksOnlyIfItFound, laws=["nobody_waits_for_ever"], processes=False)["nobody_waits_for_ever"]
    assert "rank 0 waits in all_reduce 0 (without rank 1); rank 1 ended iteration 5" in said
    alone = Scenario((frozenset(), frozenset({(0, 0)})))
    first, second = processes.play_all(AsksOnlyIfItFound, [alone], 2, "sharded", 30.0)[alone]
    assert re.match(r"all_reduce \(rank_bugs.py:\d+ in agree\)", first.waits)
    assert (second.waits, second.error, len(second.seen)) == ("", "", 2)


def test_a_finding_says_what_was_played():
    with pytest.raises(AssertionError) as failure:
        check_ranks(SumForMax, laws=["parameters_stay_finite"])
    assert str(failure.value).splitlines() == [
        "parameters_stay_finite: a parameter on rank 0 is inf or NaN (iteration 1)",
        "  law      However many ranks overflow at once, no parameter on any of them becomes inf or NaN.",
        "  ranks    2, each with 1 fused SGD optimizer; step, update",
        "  history  clean, inf on rank 0 and 1, clean, clean, clean",
        "  seen on  threads",
    ]


def test_a_finding_of_three_ranks_says_so():
    said = broken(SumForMax, ranks=3, laws=["parameters_stay_finite"], without={"unscale_"}, processes=False)
    assert "  ranks    3, each with 1 fused SGD optimizer; step, update\n" in said["parameters_stay_finite"]


@pytest.mark.parametrize(
    ("raised", "waits"),
    [
        (RuntimeError("[gloo/transport] Connection closed by peer [127.0.0.1]:1"), True),
        (RuntimeError("Read error: Connection reset by peer"), True),
        (RuntimeError("Timed out waiting 30000ms for recv operation to complete"), True),
        (ValueError("wait timed out after 30000ms"), True),
        (OSError("write: Broken pipe"), True),
        (ValueError("of its own"), False),
        (SystemExit(3), False),
    ],
)
def test_a_rank_that_the_others_have_left_waits(raised, waits, tmp_path, monkeypatch):
    def join(*_, **given):
        asked.append(given)
        raise raised

    asked, records = [], []
    for name in ("stdout", "stderr"):  # which it gives up
        monkeypatch.setattr(sys, name, None)
    monkeypatch.setattr(dist, "init_process_group", join)
    mouth = SimpleNamespace(send=records.append)
    processes._serve(1, Right, [Scenario((NONE,))] * 2, 3, "sharded", 7.0, str(tmp_path), mouth)
    sys.stdout.close()
    place = f"join (test_ranks.py:{join.__code__.co_firstlineno + 2} in join)"
    said = f"{type(raised).__name__}: {raised}"
    assert [(each.error, bool(each.waits)) for each in records] == [("" if waits else said, waits)] * 2, place
    assert [each["init_method"] for each in asked] == [f"file://{tmp_path}/{number}" for number in range(2)]
    assert (asked[0]["rank"], asked[0]["world_size"], asked[0]["timeout"].total_seconds()) == (1, 3, 7.0)


def test_a_story_has_each_event_in_its_place():
    overflows = (NONE, frozenset({(0, 0), (1, 1)}), NONE)
    assert dict(Scenario(overflows, optimizers=2, resumes=2, empty=frozenset({1})).story(2)) == {
        "ranks": "2, each with 2 optimizers; step, update",
        "empty": "no gradients on rank 1",
        "history": "clean, inf on rank 0 optimizer 0 and 1 optimizer 1, all resume from rank 0's state dict, clean",
    }


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ranks": 1}, "ranks=1"),
        ({"gradients": "mine"}, "gradients='mine'"),
        ({"gradients": "FSDP2", "processes": False}, "gradients='FSDP2' with processes=False: expected processes"),
        ({"laws": ["verdicts"]}, "no law 'verdicts'; did you mean 'verdicts_agree'"),
        ({"without": {"fuse"}}, "without='fuse': no such feature; did you mean 'fused'"),
    ],
)
def test_wrong_use_is_refused(wrong, said, golden):
    with pytest.raises(ValueError, match=said) as refused:
        check_ranks(Right, **wrong)
    golden(str(refused.value))


def test_the_command_holds_a_maker_to_the_laws_of_ranks(golden):
    asked = ["check-ranks", "--law", "verdicts_agree"]
    code, text = run(*asked, "tests.testing.rank_bugs:SkipsLocally")
    assert (code, "\nverdicts_agree: rank 0 skipped, rank 1 stepped optimizer 0 (iteration 1)\n" in text) == (1, True)
    assert "tests.testing.rank_bugs:SkipsLocally: 1 failed of 1 checks" in text
    golden(text)
    assert run(*asked, "tests.testing.rank_bugs:SkipsLocally", "--xfail", "verdicts_agree")[0] == 0
    assert run(*asked, "tests.testing.rank_bugs:Right", "--without", "fused")[0] == 0
    assert run("check-ranks", "--law", "skip_budget", "tests.testing.rank_bugs:Right")[0] == 2


def test_a_rank_whose_process_has_ended_is_said_to_have_ended() -> None:
    answers, mouth = Pipe(duplex=False)
    mouth.close()
    assert processes._next_record(answers, 0.0) == RankRecord(error="ended its process")

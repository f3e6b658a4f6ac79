"""Write the shortest failure of a law of ranks as a pytest file: gloo processes, and what was seen on each of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ampsim.testing import conductor
from ampsim.testing.emit.text import Text, written
from ampsim.testing.law import Law
from ampsim.testing.ranks.judge import STEPS, chosen, find
from ampsim.testing.ranks.scenario import Make, Overflows, RankRecord, Scenario, scenarios
from ampsim.testing.ranks.threads import ThreadRun

IMPORTS = ("import torch", "import torch.distributed as dist", "import torch.multiprocessing as mp")
OPTIMIZERS = {
    "": "torch.optim.SGD([param], lr=0.125, momentum=0.9)",
    "SGD": "torch.optim.SGD([param], lr=0.125, momentum=0.9, fused=True)",
    "AdamW": "torch.optim.AdamW([param], lr=0.125, fused=True)",
}
# A line that begins with a word and | stands where that is asked for.
TRAIN = """
def train(rank, queue, store, history{resumes}):  # puts what was seen after each update, and what was raised
    limit = timedelta(seconds=30)  # of a rank that waits for another one
    dist.init_process_group("gloo", init_method=f"file://{{store}}", rank=rank, world_size={ranks}, timeout=limit)
    dist.barrier()  # nobody leaves while another one is still connecting
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range({optimizers})]
    optimizers = [{optimizer} for param in params]
    scaler = {make}
    seen, error = [], ""
    try:
        for {each}:
resumes|            if number == resumes:
resumes|                saved = [scaler.state_dict()]
resumes|                dist.broadcast_object_list(saved, src=0)
resumes|                scaler = {make}
resumes|                scaler.load_state_dict(saved[0])
            used = float(scaler.scale(torch.ones(())))
            for i, param in enumerate(params):
                param.grad = {none}torch.full_like(param, used)
                if (rank, i) in overflows:
                    param.grad[-1] = math.inf
ends|            if {parts}:
ends|                break
moved|            before = [param.tolist() for param in params]
            for optimizer in optimizers{order}:
unscales|                scaler.unscale_(optimizer)
                scaler.step(optimizer)
            scaler.update()
moved|            moved = [param.tolist() != old for param, old in zip(params, before)]
            seen.append({record})
    except Exception as raised:
        error = repr(raised)
    queue.put((rank, seen, error))
    dist.destroy_process_group()


def run(*args):  # returns what each rank has seen, and what each has raised
    queue = mp.get_context("fork").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(train, (queue, f"{{folder}}/store", *args), nprocs={ranks}, start_method="fork")
    _, seen, errors = zip(*sorted(queue.get() for _ in range({ranks})))
    return seen, errors
"""
RAISED = "_, errors = run({history})\nassert not any(errors), errors"
AGREED = "(first, *others), _ = run({history})\nfor seen in others:\n    assert seen == first"
EACH = "ranks, _ = run({history})\nfor seen in ranks:\n    "
SKIPPED = EACH + "assert not any(moved[i] for moved, overflows in zip(seen, {history}) for _, i in overflows)"
COUNTED = '[int(each.state[param]["step"]) if each.state else 0 for param, each in zip(params, optimizers)]'
TAKEN = "counted, moved = zip(*seen)\n    assert counted[-1] == [sum(column) for column in zip(*moved)]"
TEMPLATES = {  # what others call it; what is put down per update; the test
    "nobody_waits_for_ever": ("hang all_reduce overflow", "None", RAISED),
    "no_rank_raises": ("raises error on ranks", "None", RAISED),
    "a_rank_without_gradients_takes_part": ("no gradients on a rank", "None", RAISED),
    "no_rank_steps_on_an_overflow": ("steps on inf, only one rank skips", "moved", SKIPPED),
    "a_rank_that_parts_misleads_nobody": ("rank leaves out step, found_inf of another one", "moved", SKIPPED),
    "parameters_stay_finite": (
        "inf nan parameters after step",
        "all(bool(param.isfinite().all()) for param in params)",
        EACH + "assert all(seen)",
    ),
    "verdicts_agree": ("one rank skips step, others do not", "moved", AGREED),
    "clean_steps_are_taken": ("skips step without inf", "moved", EACH + "assert all(all(seen[i]) for i in {clean})"),
    "scales_agree": ("scale differs between ranks", "(used, scaler.get_scale(), scaler.state_dict())", AGREED),
    "step_counts_agree": ("optimizer step count differs between ranks", f"({COUNTED}, moved)", EACH + TAKEN),
    "one_overflow_on_ranks_is_one_overflow": (
        "scale backs off once per rank",
        "scaler.get_scale()",
        "ranks, _ = run({history})\nexpected, _ = run({joined})\nassert ranks == expected",
    ),
    "resume_with_one_ranks_file_is_invisible": (
        "load_state_dict on ranks",
        "scaler.get_scale()",
        "ranks, _ = run({history}, {resumes})\nexpected, _ = run({history}, 0)\nassert ranks == expected",
    ),
}


def write(name: str, target: str, ranks: int) -> tuple[str, bool]:
    """Return a pytest file that fails as the scalers of several ranks break a law, and whether by an exception: False.

    Each rank's gradients are its own, and are set by hand.

    Args:
        name: the law's.
        target: what `ampsim.testing.ranks.judge.find` takes.
        ranks: of the group.

    Raises:
        ValueError: the law holds for ranks that are threads, or there is no such law.
    """
    (law,) = chosen([name])
    make, text = find(target)
    found = _shortest(law, make, ranks)
    if found is None:
        raise ValueError(f"{name} holds for {target}: there is nothing to emit")
    scenario, seen = found
    module, _, path = target.partition(":")
    imported = f"from {module} import {path.partition('.')[0]}"
    words = f"{path} found_inf {'fused ' * bool(scenario.kernel)}{TEMPLATES[name][0]}, all_reduce, distributed"
    issue = law.issue if module.partition(".")[0] in law.issue else ""
    about = Text(name, seen, law.law, issue, f"To search upstream first: {words}.")
    head, test = [_train(law, scenario, ranks, text)], [_test(law, scenario, ranks)]
    return written(about, [*IMPORTS, imported], test, head), False


def _shortest(law: Law, make: Make, ranks: int) -> tuple[Scenario, str] | None:
    """Return the shortest history, of the first scenario, that breaks the law among threads, and what is seen then."""
    with conductor.one_core():
        for scenario in scenarios(ranks):
            if _broken(law, make, ranks, scenario):
                return next(
                    (shorter, seen) for shorter in _shortened(scenario) if (seen := _broken(law, make, ranks, shorter))
                )
    return None


def _shortened(scenario: Scenario) -> Iterator[Scenario]:
    """Yield the scenario with ever more of its history."""
    history = scenario.overflows
    for length in range(1, len(history) + 1):
        for start in (1, 0):
            part = history[start : start + length]
            if any(part) and scenario.resumes < len(part):
                yield replace(scenario, overflows=part)


def _broken(law: Law, make: Make, ranks: int, scenario: Scenario) -> str:
    """Return how a scenario breaks the law, which may ask for others beside it."""
    played: dict[Scenario, Sequence[RankRecord]] = {}
    for each in (
        scenario.joined(ranks), replace(scenario, resumes=0), replace(scenario, empty=frozenset()), scenario
    ):  # fmt: skip
        if each not in played:
            program = ThreadRun(make, each, ranks, "sharded")
            conductor.attempt(program, max_steps=STEPS)
            played[each] = program.records
    return law.function(scenario, played[scenario], played) or ""


def _train(law: Law, scenario: Scenario, ranks: int, make: str) -> str:
    """Return what a rank does, and what starts the ranks."""
    _, record, _ = TEMPLATES[law.name]
    counts = law.name == "step_counts_agree" and not scenario.kernel  # which torch's SGD does not
    parts = f"(rank, number) == ({ranks - 1}, 1)"
    order = {"leaves out optimizer 0": "[1:]", "steps in another order": "[::-1]"}.get(scenario.parts, "")
    numbered = scenario.resumes or scenario.parts
    asked = {
        "resumes": scenario.resumes, "ends": scenario.parts.startswith("ends"), "moved": "moved" in record,
        "unscales": scenario.unscales,
    }  # fmt: skip
    lines = [line.rpartition("|") for line in TRAIN.splitlines()]
    return "\n".join(line for when, _, line in lines if not when or asked[when]).format(
        ranks=ranks,
        resumes=", resumes" * bool(scenario.resumes),
        optimizers=scenario.optimizers,
        optimizer="torch.optim.AdamW([param], lr=0.125)" if counts else OPTIMIZERS[scenario.kernel],
        make=make,
        each="number, overflows in enumerate(history)" if numbered else "overflows in history",
        none=f"None if rank in {sorted(scenario.empty)} else " if scenario.empty else "",
        parts=parts,
        order=f"{order} if {parts} else optimizers" if order else "",
        record=record,
    )


def _test(law: Law, scenario: Scenario, ranks: int) -> str:
    return TEMPLATES[law.name][-1].format(
        history=_history(scenario.overflows),
        joined=_history(scenario.joined(ranks).overflows),
        resumes=scenario.resumes,
        clean=[number for number, overflows in enumerate(scenario.overflows) if not overflows],
    )


def _history(overflows: Sequence[Overflows]) -> str:
    """Write per iteration who overflows: rank and optimizer."""
    return repr([sorted(each) for each in overflows])

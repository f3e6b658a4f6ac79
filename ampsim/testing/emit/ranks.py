"""Write the shortest failure of a law of ranks as a pytest file: gloo processes, and what was seen on each of them."""

import textwrap
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
TRAIN = """
def train(rank, queue, store, history{resumes}):  # puts what was seen after each update, and what was raised
    limit = timedelta(seconds=30)  # of a rank that waits for another one
    dist.init_process_group("gloo", init_method=f"file://{{store}}", rank=rank, world_size={ranks}, timeout=limit)
    dist.barrier()  # nobody leaves while another one is still connecting
{made}
    scaler = {make}
    seen, error = [], ""
    try:
        for {each} in {source}:
{iteration}
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
RESUME = """if number == resumes:
    saved = [scaler.state_dict()]
    dist.broadcast_object_list(saved, src=0)
    scaler = {make}
    scaler.load_state_dict(saved[0])"""
RAISED = "_, errors = run({history})", "assert not any(errors), errors"
AGREED = "(first, *others), _ = run({history})", "for seen in others:", "    assert seen == first"
SKIPPED = (
    "history = {history}",
    "ranks, _ = run(history)",
    "for seen in ranks:",
    "    assert not any(moved[i] for moved, overflows in zip(seen, history) for _, i in overflows)",
)
TEMPLATES: dict[str, tuple[str, str, Sequence[str]]] = {  # what others call it; what is put down per update; the test
    "nobody_waits_for_ever": ("hang all_reduce overflow", "None", RAISED),
    "no_rank_raises": ("raises error on ranks", "None", RAISED),
    "a_rank_without_gradients_takes_part": ("no gradients on a rank", "None", RAISED),
    "no_rank_steps_on_an_overflow": (
        "steps on inf, only one rank skips",
        "moved",
        SKIPPED,
    ),
    "a_rank_that_parts_misleads_nobody": (
        "rank leaves out optimizer step, found_inf of another",
        "moved",
        SKIPPED,
    ),
    "parameters_stay_finite": (
        "inf nan parameters after step",
        "all(bool(param.isfinite().all()) for param in params)",
        ("ranks, _ = run({history})", "for seen in ranks:", "    assert all(seen)"),
    ),
    "verdicts_agree": ("one rank skips step, others do not", "moved", AGREED),
    "clean_steps_are_taken": (
        "skips step without inf",
        "moved",
        ("ranks, _ = run({history})", "for seen in ranks:", "    assert all(all(seen[i]) for i in {clean})"),
    ),
    "scales_agree": ("scale differs between ranks", "(used, scaler.get_scale(), scaler.state_dict())", AGREED),
    "step_counts_agree": (
        "optimizer step count differs between ranks",
        '([int(each.state[param]["step"]) if each.state else 0 for param, each in zip(params, optimizers)], moved)',
        (
            "ranks, _ = run({history})",
            "for seen in ranks:",
            "    counted, moved = zip(*seen)",
            "    assert counted[-1] == [sum(column) for column in zip(*moved)]",
        ),
    ),
    "one_overflow_on_ranks_is_one_overflow": (
        "scale backs off once per rank",
        "scaler.get_scale()",
        ("ranks, _ = run({history})", "expected, _ = run({joined})", "assert ranks == expected"),
    ),
    "resume_with_one_ranks_file_is_invisible": (
        "load_state_dict on ranks",
        "scaler.get_scale()",
        ("ranks, _ = run({history}, {resumes})", "expected, _ = run({history}, 0)", "assert ranks == expected"),
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
    words, _, _ = TEMPLATES[name]
    search = f"To search upstream first: {path} found_inf {'fused ' * bool(scenario.kernel)}{words}."
    issue = law.issue if module.partition(".")[0] in law.issue else ""
    about = Text(name, seen, law.law, issue, f"{search}, {'fused ' * bool(scenario.kernel)}all_reduce, distributed.")
    return written(
        about, [*IMPORTS, imported], _test(law, scenario, ranks), [_train(law, scenario, ranks, text)]
    ), False


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
    optimizer = OPTIMIZERS[scenario.kernel]
    if law.name == "step_counts_agree" and not scenario.kernel:
        optimizer = "torch.optim.AdamW([param], lr=0.125)"  # which counts
    made = [
        f"params = [torch.nn.Parameter(torch.ones(3)) for _ in range({scenario.optimizers})]",
        f"optimizers = [{optimizer} for param in params]",
    ]
    empty = f"rank in {sorted(scenario.empty)}" if scenario.empty else ""
    parts, numbered = f"(rank, number) == ({ranks - 1}, 1)", bool(scenario.resumes or scenario.parts)
    order = {"leaves out optimizer 0": "[1:]", "steps in another order": "[::-1]"}.get(scenario.parts, "")
    iteration = [
        *([RESUME.format(make=make)] if scenario.resumes else []),
        "used = float(scaler.scale(torch.ones(())))",
        "for i, param in enumerate(params):",
        f"    param.grad = {f'None if {empty} else ' if empty else ''}torch.full_like(param, used)",
        "    if (rank, i) in overflows:",
        "        param.grad[-1] = math.inf",
        *(["before = [param.tolist() for param in params]"] if "moved" in record else []),
        *([f"if {parts}:", "    break"] if scenario.parts == "ends before it steps" else []),
        f"for optimizer in optimizers{order}{f' if {parts} else optimizers' if order else ''}:",
        *(["    scaler.unscale_(optimizer)"] if scenario.unscales else []),
        "    scaler.step(optimizer)",
        "scaler.update()",
        *(["moved = [param.tolist() != old for param, old in zip(params, before)]"] if "moved" in record else []),
    ]
    return TRAIN.format(
        ranks=ranks,
        resumes=", resumes" * bool(scenario.resumes),
        made=textwrap.indent("\n".join(made), " " * 4),
        make=make,
        each="number, overflows" if numbered else "overflows",
        source="enumerate(history)" if numbered else "history",
        iteration=textwrap.indent("\n".join(iteration), " " * 12),
        record=record,
    )


def _test(law: Law, scenario: Scenario, ranks: int) -> list[str]:
    clean = [number for number, overflows in enumerate(scenario.overflows) if not overflows]
    words = {
        "history": _history(scenario.overflows),
        "joined": _history(scenario.joined(ranks).overflows),
        "resumes": scenario.resumes,
        "clean": clean,
    }
    return [line.format(**words) for line in TEMPLATES[law.name][-1]]


def _history(overflows: Sequence[Overflows]) -> str:
    """Write per iteration who overflows: rank and optimizer."""
    return repr([sorted(each) for each in overflows])

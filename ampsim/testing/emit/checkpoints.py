"""Templates of checkpoints: a run that is saved and resumed is the run that was not."""

from collections.abc import Sequence

from ampsim.core.machine import Rule
from ampsim.testing.emit.case import ITERATE, OPTIMIZER, Case, sequence, template
from ampsim.testing.kit.trial import RULE

OTHER = Rule(init_scale=512.0, growth_factor=2.5, backoff_factor=0.3, growth_interval=7)  # a checkpoint overrides it


def _resumed(case: Case, load: Sequence[str], start: Sequence[str] = (), *, before: Sequence[bool] = ()) -> list[str]:
    after = sequence([*case.drawn["after"], *[False] * (case.trial.traits.delay + 1)])
    trained = [f"for found_inf in {sequence(before)}:", "    iterate(found_inf)"] if before else []
    return [
        OPTIMIZER,
        ITERATE,
        *start,
        case.scaler,
        *trained,
        *load,
        f"after = {after}",
        "expected = [iterate(found_inf) for found_inf in after]",
        "scaler = resumed",
        "assert [iterate(found_inf) for found_inf in after] == expected",
    ]


@template
def resume_is_invisible(case: Case) -> Sequence[str]:
    other = case.make(case.trial.traits.possible(OTHER))
    used = ["iterate(False)"] if case.drawn["used"] else []
    start, load = [f"scaler = resumed = {other}", *used], ["resumed.load_state_dict(scaler.state_dict())"]
    return _resumed(case, load, start, before=case.drawn["before"])


@template
def resume_before_first_use_is_invisible(case: Case) -> Sequence[str]:
    start = [f"resumed = {case.make(case.trial.traits.possible(OTHER))}"]
    return _resumed(case, ["resumed.load_state_dict(scaler.state_dict())"], start)


@template
def pickling_is_invisible(case: Case) -> Sequence[str]:
    return _resumed(case, ["resumed = pickle.loads(pickle.dumps(scaler))"], before=case.drawn["before"])


def _trained(case: Case) -> Sequence[str]:
    run = [f"for found_inf in {sequence(case.drawn['before'])}:", "    iterate(found_inf)"]
    return OPTIMIZER, ITERATE, case.scaler, *run, "saved = scaler.state_dict()"


@template
def a_state_dict_is_a_snapshot(case: Case) -> Sequence[str]:
    return (
        *_trained(case),
        "before = repr(saved)",
        f"for found_inf in {sequence(case.drawn['after'])}:",
        "    iterate(found_inf)",
        "assert repr(saved) == before",
    )


@template
def a_state_dict_loads_without_running_code(case: Case) -> Sequence[str]:
    return (
        *_trained(case),
        "file = io.BytesIO()",
        "torch.save(saved, file)",
        "file.seek(0)",
        "assert repr(torch.load(file, weights_only=True)) == repr(saved)",
    )


@template
def a_refused_state_dict_changes_nothing(case: Case) -> Sequence[str]:
    possible = case.trial.traits.possible
    return (
        OPTIMIZER,
        ITERATE,
        f"scaler = {case.make(possible(OTHER))}",
        "iterate(False)",
        "before = scaler.state_dict()",
        f"other = {case.make(possible(RULE))}.state_dict()",
        f'del other["{case.drawn["missing"]}"]',
        "with TestCase().assertRaises(Exception):",
        "    scaler.load_state_dict(other)",
        "assert scaler.state_dict() == before",
    )

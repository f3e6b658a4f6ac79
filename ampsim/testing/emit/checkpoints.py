"""Templates of checkpoints: a run that is saved and resumed is the run that was not."""

from collections.abc import Sequence

from ampsim.testing.emit.case import ITERATE, OPTIMIZER, Case, iterates, sequence, template
from ampsim.testing.kit.strategies import OTHER
from ampsim.testing.kit.trial import RULE

LOAD = ["resumed.load_state_dict(scaler.state_dict())"]


def _other(case: Case) -> str:
    """Return a scaler of other constants, which a checkpoint overrides."""
    return case.make(case.trial.traits.possible(OTHER))


def _resumed(case: Case, load: Sequence[str], start: Sequence[str] = (), *, before: Sequence[bool] = ()) -> list[str]:
    after = sequence([*case.drawn["after"], *[False] * (case.trial.traits.delay + 1)])
    return [
        OPTIMIZER,
        ITERATE,
        *start,
        case.scaler,
        *(iterates(before) if before else []),
        *load,
        f"after = {after}",
        "expected = [iterate(found_inf) for found_inf in after]",
        "scaler = resumed",
        "assert [iterate(found_inf) for found_inf in after] == expected",
    ]


@template
def resume_is_invisible(case: Case) -> Sequence[str]:
    used = ["iterate(False)"] if case.drawn["used"] else []
    return _resumed(case, LOAD, [f"scaler = resumed = {_other(case)}", *used], before=case.drawn["before"])


@template
def resume_before_first_use_is_invisible(case: Case) -> Sequence[str]:
    return _resumed(case, LOAD, [f"resumed = {_other(case)}"])


@template
def pickling_is_invisible(case: Case) -> Sequence[str]:
    return _resumed(case, ["resumed = pickle.loads(pickle.dumps(scaler))"], before=case.drawn["before"])


def _trained(case: Case) -> Sequence[str]:
    return OPTIMIZER, ITERATE, case.scaler, *iterates(case.drawn["before"]), "saved = scaler.state_dict()"


@template
def a_state_dict_is_a_snapshot(case: Case) -> Sequence[str]:
    after = iterates(case.drawn["after"])
    return *_trained(case), "before = repr(saved)", *after, "assert repr(saved) == before"


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
    return (
        OPTIMIZER,
        ITERATE,
        f"scaler = {_other(case)}",
        "iterate(False)",
        "before = scaler.state_dict()",
        f"other = {case.make(case.trial.traits.possible(RULE))}.state_dict()",
        f'del other["{case.drawn["missing"]}"]',
        "with TestCase().assertRaises(Exception):",
        "    scaler.load_state_dict(other)",
        "assert scaler.state_dict() == before",
    )

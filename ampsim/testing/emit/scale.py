"""Templates that look at the scale alone: the trajectory of a history against the reference machine's, in hex."""

import math
from collections.abc import Sequence
from functools import partial

from ampsim.core.laws import HISTORY_LAWS, UPDATE_LAWS
from ampsim.core.machine import init, override, update
from ampsim.testing.emit.case import OPTIMIZER, TEMPLATES, Case, hexadecimal, iterates, number, sequence, template

STREAK = ("overflow_restarts_the_streak", "clean_step_counts_once")  # seen in the scale once it grows
THREE = """params = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
optimizers = [torch.optim.SGD([param], lr=0.125, momentum=0.9, foreach=False) for param in params]

def iterate(overflows):  # one flag per optimizer; returns the scale that it used
    scale = float(scaler.scale(torch.ones(())))
    for param, overflow in zip(params, overflows):
        param.grad = torch.tensor([scale, scale, math.inf if overflow else scale])
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    return scale
"""


def compared(expected: Sequence[float], *, exact: bool = False) -> tuple[str, ...]:
    """Return the lines that hold scales against expected ones: up to rounding, where the law does not ask for bits."""
    written = f"expected = {hexadecimal(expected)}"
    if exact or all(math.frexp(each)[0] in (0.0, 0.5) for each in expected):
        return written, "assert scales == expected"
    return written, "assert all(math.isclose(*pair, rel_tol=1e-6) for pair in zip(scales, expected)), scales"


def _driven(case: Case) -> tuple[str, ...]:
    return case.peer.iterate, case.scaler


def _run(case: Case, found: Sequence[bool]) -> tuple[str, ...]:
    return *_driven(case), f"scales = [iterate(found_inf) for found_inf in {sequence(found)}]"


def _trajectory(case: Case, *, exact: bool = False) -> Sequence[str]:
    found = [*case.drawn["found_inf"], False]
    if case.check.name in STREAK:
        found += [False] * case.rule.growth_interval
    if case.check.name == "scale_stays_finite":
        return *_run(case, found), "assert all(map(math.isfinite, scales)), scales"
    return *_run(case, found), *compared(case.expected(found), exact=exact)


for _law in (*UPDATE_LAWS, *HISTORY_LAWS):
    TEMPLATES[_law.__name__] = _trajectory
TEMPLATES["scale_is_exact_float32"] = partial(_trajectory, exact=True)


@template
def any_optimizer_overflow_backs_off(case: Case) -> Sequence[str]:
    flags = [*case.drawn["flags"], (False, False, False)]
    found = [any(each) for each in flags]
    if case.peer.flags_only:
        return *_run(case, found), *compared(case.expected(found))
    scales = f"scales = [iterate(overflows) for overflows in {sequence(flags)}]"
    return THREE, case.scaler, scales, *compared(case.expected(found))


@template
def micro_batches_are_one_step(case: Case) -> Sequence[str]:
    found, micro = [*case.drawn["found_inf"], False], case.drawn["micro"]
    return (
        *_driven(case),
        "scales = []",
        f"for found_inf in {sequence(found)}:",
        f"    for _ in range({micro}):  # losses per step",
        "        scaler.scale(torch.ones(()))",
        "    scales.append(iterate(found_inf))",
        *compared(case.expected(found)),
    )


@template
def growth_goes_on_when_the_interval_is_lowered(case: Case) -> Sequence[str]:
    lowered, streak = case.drawn["lowered"], case.drawn["streak"]
    return (
        *_driven(case),
        f"for _ in range({streak}):",
        "    iterate(False)",
        f"scaler.set_growth_interval({lowered})",
        f"scales = [iterate(False) for _ in range({lowered + case.trial.traits.delay + 1})]",
        "assert scales[-1] > scales[0], scales",
    )


@template
def scale_stays_normal(case: Case) -> Sequence[str]:
    found = [True] * case.drawn["overflows"] + [False] * (1 + case.trial.traits.delay)
    return *_run(case, found), "assert min(scales) >= 2.0**-126, scales"


@template
def scale_comes_back(case: Case) -> Sequence[str]:
    traits = case.trial.traits
    overflow, settle = [True] * traits.hysteresis, [False] * traits.delay
    start = [False] * case.drawn["growths"] + overflow * case.drawn["overflows"] + settle
    top, floor = traits.max_scale or 2.0**112, traits.min_scale or 0.0
    return (
        *_driven(case),
        *iterates(start),
        f"before, *_, raised = [iterate(found_inf) for found_inf in {sequence([False, *settle, False])}]",
        f"assert raised > before or before >= {number(top)}, (before, raised)",
        f"before, *_, lowered = [iterate(found_inf) for found_inf in {sequence([*overflow, *settle, False])}]",
        f"assert lowered < before or before <= {number(floor)}, (before, lowered)",
    )


@template
def get_scale_is_what_scale_multiplies_by(case: Case) -> Sequence[str]:
    same = "    assert torch.tensor(scaler.get_scale(), dtype=torch.float32) == scaler.scale(torch.ones(()))"
    return *_driven(case), *iterates(case.drawn["found_inf"], same)


@template
def setters_take_effect(case: Case) -> Sequence[str]:
    name, found = case.drawn["name"], [*case.drawn["found_inf"], False]
    value = {"growth_factor": 3.0, "backoff_factor": 0.7}[name]
    gets = [f"assert scaler.get_{name}() == {value}"] if not case.trial.traits.delay else []
    scales = f"scales = [iterate(found_inf) for found_inf in {sequence(found)}]"
    return *_driven(case), f"scaler.set_{name}({value})", *gets, scales, *compared(case.expected(found), exact=True)


@template
def override_keeps_the_streak(case: Case) -> Sequence[str]:
    before, after, new = case.drawn["before"], [*case.drawn["after"], False], case.drawn["new_scale"]
    state, rule, expected = init(case.rule), case.rule, []
    for flag in before:
        state = update(rule, state, flag)
    state = override(rule, state, new)
    for flag in after:
        expected.append(case.trial.seen(state.scale))
        state = update(rule, state, flag)
    return (
        *_driven(case),
        *iterates(before),
        "scaler.scale(torch.ones(()))",
        f"scaler.update({number(new)})",
        f"scales = [iterate(found_inf) for found_inf in {sequence(after)}]",
        *compared(expected, exact=True),
    )


@template
def skip_is_per_optimizer(case: Case) -> Sequence[str]:
    every = case.trial.traits.skips == "all"
    return (
        THREE,
        case.scaler,
        f"for overflows in {sequence(case.drawn['flags'])}:",
        "    before = [param.tolist() for param in params]",
        "    iterate(overflows)",
        "    skipped = [param.tolist() == each for param, each in zip(params, before)]",
        f"    assert skipped == {'[any(overflows)] * 3' if every else 'list(overflows)'}, (overflows, skipped)",
    )


HELD = """
def held():
    return param.tolist(), [each.tolist() for each in optimizer.state[param].values()]
"""


def _steps(case: Case, last: str) -> Sequence[str]:
    return (
        *_driven(case),
        HELD,
        f"for found_inf in {sequence(case.drawn['found_inf'])}:",
        "    before = held()",
        "    iterate(found_inf)",
        f"    assert {last}",
    )


@template
def skipped_step_changes_nothing(case: Case) -> Sequence[str]:
    return _steps(case, "not found_inf or held() == before")


@template
def clean_step_is_taken(case: Case) -> Sequence[str]:
    return _steps(case, "found_inf or held() != before")


@template
def disabled_passes_everything_through(case: Case) -> Sequence[str]:
    unscale = ["    scaler.unscale_(optimizer)"] if case.trial.has("unscale_") else []
    return (
        OPTIMIZER,
        OPTIMIZER.replace("param", "alone").replace("optimizer =", "other ="),
        f"scaler = {case.make(enabled=False)}",
        f"for found_inf in {sequence(case.drawn['flags'])}:",
        "    assert float(scaler.scale(torch.ones(()))) == 1.0 == scaler.get_scale()",
        "    for each in (param, alone):",
        "        each.grad = torch.tensor([3.0, 3.0, math.inf if found_inf else 3.0])",
        *unscale,
        "    scaler.step(optimizer)",
        "    other.step()",
        "    scaler.update()",
        "    assert repr(param.tolist()) == repr(alone.tolist())",
    )

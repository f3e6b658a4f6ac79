"""Write the shortest failure of a loop's check as a pytest file: the runs to compare, of the
user's own make function.
"""

import random
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ampsim.testing.emit.loop_case import Case
from ampsim.testing.emit.text import Text, number, written
from ampsim.testing.load import load
from ampsim.testing.loop.check import LoopCheck
from ampsim.testing.loop.checks import resume, rounding, splitting
from ampsim.testing.loop.checks.scale import PLANS
from ampsim.testing.loop.checks.scaler import GROWTH_INTERVAL as UPDATES_AT
from ampsim.testing.loop.checks.scaler import JUMPS, OTHER
from ampsim.testing.loop.checks.skipped import HIDDEN
from ampsim.testing.loop.judge import chosen, judge_loop, shrink
from ampsim.testing.loop.loop import LoopError
from ampsim.testing.loop.patterns import cause_of
from ampsim.testing.loop.run import Fault
from ampsim.testing.loop.runs import Batch, Make, play, run_class

STAND_IN = """
Loop = namedtuple("Loop", "step state logged split save load", defaults=[None] * 4)  # {module} takes ampsim's
sys.modules["ampsim.testing"] = SimpleNamespace(Loop=Loop)
"""
START = """
def start(scale=2.0**8, growth_interval=2**30):
    {seed}(0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)
    return {make}(scaler), scaler
"""
TRAIN = """
def train(loop, *places{split}):
    for place in places:
        {seed}(1 + place)
        loop.step({batch})
"""


def write(name: str, target: str) -> tuple[str, bool]:
    """Return a standalone pytest file that fails like a loop fails a check, and whether by an exception.

    Args:
        name: the check's.
        target: ``module:make``, whose batches are called ``batches`` in the same module.

    Raises:
        ValueError: The check passes or is skipped, the loop cannot be checked, or there is no such check.
    """
    (check,) = chosen([name])
    if name not in TEMPLATES:
        raise ValueError(f"no standalone test of {name}: {WITHOUT[name]}")
    module, _, path = target.partition(":")
    make: Any = load(target)
    batches: Any = load(f"{module}:batches")
    given = [*(batches() if callable(batches) else batches)]
    if (kind := run_class(make).__module__.rpartition(".")[2]) != "torch":
        raise ValueError(f"{target} is a loop of {kind}: standalone tests support only torch loops")
    try:
        (result,) = judge_loop(make, given, [name])
        if result.outcome == "error":
            raise LoopError(result.text)
        if result.outcome != "failed":
            why = (
                f"passed for {target}"
                if result.outcome == "passed"
                else f"was skipped for {target}: {result.text}"
            )
            raise ValueError(f"{name} {why}; there is no failure to write a test for")
        case = _shortest(check, make, given)
    except LoopError as error:
        raise ValueError(f"{target}: {error}") from error
    lines = TEMPLATES[name](case)
    head = _head(case, module, path, f"batches{'()' * callable(batches)}", "\n".join(lines))
    cause = next(
        (
            line.split(None, 1)[1]
            for line in result.text.splitlines()
            if line.startswith("  cause ")
        ),
        "",
    )
    seen = result.text.partition("\n")[0].removeprefix(f"{name}: ")
    raises = case.broken.seen.startswith("load raised")
    return written(
        Text(name, seen, check.statement, check.issue, cause), ["import torch"], lines, head
    ), raises


def _shortest(check: LoopCheck, make: Make, given: Sequence[Any]) -> Case:
    """Return the counterexample on as few batches as can be."""
    batches = [Batch(place, data) for place, data in enumerate(given)]
    broken = check.function(make, batches)
    left, broken = shrink(check, make, batches, broken, ends_there=False)
    shown = cause_of(check.name, broken)[1] or (
        broken.differences[0] if broken.differences else None
    )
    return Case(make, play(make, left, 1.0), left, broken, shown)


def _head(case: Case, module: str, make: str, batches: str, lines: str) -> list[str]:
    """Return what stands before the test: what makes a loop, and what trains it under the kit's seeds."""
    drawn, batch = _generators(case), f"copy.deepcopy({batches}[place])"
    seeds = "\n".join(f"    {each}(number)" for each in ("torch.manual_seed", *drawn))
    seed, splits = "seed" if drawn else "torch.manual_seed", "split=True" in lines
    return [
        *([STAND_IN.format(module=module).strip("\n")] if _takes_ampsim(module) else []),
        f"from {module} import batches, {make}" + "  # noqa: E402" * _takes_ampsim(module),
        "\n",
        *([f"def seed(number):\n{seeds}\n"] if drawn else []),
        START.format(seed=seed, make=make),
        TRAIN.format(
            seed=seed,
            split=", split=False" * splits,
            batch=f"loop.split({batch}, 2) if split else {batch}" if splits else batch,
        ),
    ]


def _takes_ampsim(module: str) -> bool:
    """Return whether a module imports ampsim, which the test is to do without."""
    return any(
        getattr(value, "__module__", "").startswith("ampsim.")
        for value in vars(sys.modules[module]).values()
    )


def _generators(case: Case) -> list[str]:
    """Return the seeds, beside torch's, of the generators that the last batch drew from."""
    case.run.seed(1 + case.batches[-1].place)
    fresh = [random.getstate(), repr(np.random.get_state())]  # noqa: NPY002 - loops draw from it
    play(case.make, case.batches, 1.0)
    drawn = [random.getstate(), repr(np.random.get_state())]  # noqa: NPY002
    names = ("random.seed", "numpy.random.seed")
    return [
        name for name, before, after in zip(names, fresh, drawn, strict=True) if before != after
    ]


def _scale(case: Case) -> Sequence[str]:
    places, grows = _places(case.batches[: case.broken.step + 1]), "doubles" in case.broken.where
    scale, interval = (
        PLANS[2] if grows else PLANS[0] if case.broken.scale <= PLANS[0][0] else PLANS[1]
    )
    return (
        "loop, scaler = start(1.0)",
        f"train(loop, {places})",
        f"other, its = start({number(scale)}{f', growth_interval={interval}' * grows})",
        f"train(other, {places})",
        f"expected = {case.seen()}",
        case.equal(case.seen("other", "its"), "expected"),
    )


def _planted(case: Case, fault: Fault) -> tuple[list[str], list[str], str]:
    """Return what defines a fault, what plants it in `loop`, and what takes it out again."""
    value = number(fault.value)
    if fault.place == "loss":
        plant = ["scale = scaler.scale", f"scaler.scale = lambda loss: scale(loss) * {value}"]
        return [], plant, "del scaler.scale"
    if fault.place == "output":
        define = [
            "def spoil(module, inputs, output):",
            f"    return output + {value} if next(outputs) == {fault.only} else output\n",
        ]
        register = "torch.nn.modules.module.register_module_forward_hook"
        return define, ["outputs = itertools.count()", f"hooks = [{register}(spoil)]"], HOOKS_GO
    spoil = f"param.grad.view(-1)[-1] = {value}" if fault.name else f"param.grad.mul_({value})"
    params = f"[{case.parameter(fault.name)}]" if fault.name else case.parameters
    if fault.only is None:
        hook = "param.register_post_accumulate_grad_hook(spoil)"
        return (
            ["def spoil(param):", f"    {spoil}\n"],
            [f"hooks = [{hook} for param in {params}]"],
            HOOKS_GO,
        )
    define = [
        "def spoil(passes, param):",
        f"    if next(passes) == {fault.only}:",
        f"        {spoil}\n",
    ]
    hook = "param.register_post_accumulate_grad_hook(partial(spoil, itertools.count()))"
    return define, [f"hooks = [{hook} for param in {params}]"], HOOKS_GO


HOOKS_GO = "for hook in hooks:\n    hook.remove()"


def _skipped(case: Case) -> Sequence[str]:
    broken = case.broken
    if broken.fault is None or not broken.places:
        raise ValueError("no standalone test: this failure needs several skips in a row")
    before, bad, after = (", ".join(map(str, part)) for part in broken.places)
    define, plant, clear = _planted(case, broken.fault)
    begun = [*define, "loop, scaler = start()", *([f"train(loop, {before})"] if before else [])]
    if broken.cause != HIDDEN:
        old = f"copy.deepcopy({case.seen()})" if broken.differences else "scaler.get_scale()"
        asked = (
            case.equal(case.seen(), "before")
            if broken.differences
            else "assert scaler.get_scale() < before"
        )
        return *begun, f"before = {old}", *plant, f"train(loop, {bad})", asked
    return (
        *begun, *plant, f"train(loop, {bad})", clear, f"train(loop, {after})",
        "without = []",
        "for scale in (2.0**8, 2.0**7):",
        "    other, its = start()",
        f"    train(other, {before})",
        '    its.load_state_dict({**its.state_dict(), "scale": scale})',
        f"    train(other, {after})",
        f"    without.append({case.seen('other', 'its')})",
        f"assert any(bool((torch.as_tensor({case.seen()}) == torch.as_tensor(each)).all()) for each in without)",
    )  # fmt: skip


def _resume(case: Case) -> Sequence[str]:
    found = re.search(r"(?:checkpoint of|save\(\) at) batch (\d+)", case.broken.where)
    places = [batch.place for batch in case.batches]
    cut = places.index(int(found[1]) if found else 0) + 1
    after = places[cut : case.broken.step + 1]
    start = f"start(growth_interval={resume.GROWTH_INTERVAL})"
    begun = [f"loop, scaler = {start}", f"train(loop, {_listed(places[:cut])})"]
    save, load = _saving(case)
    if case.broken.cause == resume.SAVING:
        return (
            *begun,
            f"before = copy.deepcopy({case.seen()})",
            save,
            case.equal(case.seen(), "before"),
        )
    loaded = [*begun, save, f"other, its = {start}", *load]
    if not case.broken.differences:
        return loaded  # the last line raises
    trained = ["for each in (loop, other):", f"    train(each, {_listed(after)})"] if after else []
    return (
        *loaded,
        *trained,
        f"expected = {case.seen()}",
        case.equal(case.seen("other", "its"), "expected"),
    )


def _saving(case: Case) -> tuple[str, list[str]]:
    """Return the line that saves `loop`, and those that load into `other`: by the user's functions, or part by part."""
    loop = case.run.loop
    names = [key for key, value in loop.state.items() if hasattr(value, "load_state_dict")]
    listed = repr(names).replace("'", '"')
    save = (
        "loop.save()"
        if loop.save
        else f"[each.state_dict() for each in (*map(loop.state.get, {listed}), scaler)]"
    )
    copied = [
        key for key, value in loop.state.items() if key not in names and case.run.loads(value)
    ]
    load = [
        f"for each, state in zip((*map(other.state.get, {listed}), its), saved):",
        "    each.load_state_dict(state)",
        *(f'other.state["{key}"].data[...] = loop.state["{key}"].data' for key in copied),
    ]
    return f"saved = copy.deepcopy({save})", ["other.load(saved)"] if loop.load else load


def _splitting(case: Case) -> Sequence[str]:
    *earlier, last = case.batches[: case.broken.step + 1]
    if found := re.search(r"with an inf in micro-batch (\d+)", case.broken.where):
        define, plant, _ = _planted(case, Fault(only=int(found[1])))
        asked = f"assert scaler.get_scale() == {number(splitting.SCALE / 2)}, scaler.get_scale()"
        return (
            *define,
            "loop, scaler = start()",
            *plant,
            f"train(loop, {case.batches[-1].place}, split=True)",
            asked,
        )
    whole = ["whole, scaler = start()", *([f"train(whole, {_places(earlier)})"] if earlier else [])]
    parted = ["parted, its = start()", f"train(parted, {_places([*earlier, last])}, split=True)"]
    if case.shown is None or case.shown.name.startswith("scaler."):
        name = case.shown.name if case.shown else "scaler.scale"
        asked = f"assert {case.seen('parted', 'its', name)} == {case.seen('whole', 'scaler', name)}"
        return *whole, f"train(whole, {last.place})", *parted, asked
    far = max(case.broken.differences, key=lambda each: rounding.distance([each]))
    bound = min(rounding.distance([far]) / 2, rounding.MOST)
    before = (
        f"torch.as_tensor(copy.deepcopy({case.seen('whole', name=far.name)}))"
        if far.before is not None
        else "0.0"
    )
    return (
        *whole,
        f"before = {before}",
        f"train(whole, {last.place})",
        *parted,
        f"change = torch.as_tensor({case.seen('whole', name=far.name)}) - before",
        f"apart = torch.as_tensor({case.seen('parted', name=far.name)}) - before - change",
        f"assert apart.double().norm() <= {bound:.1g} * change.double().norm()",
    )


def _learns(case: Case) -> Sequence[str]:
    name = case.broken.seen.partition(" ")[0]
    if name == "no":
        seen = f"[param.tolist() for param in {case.parameters}]"
    elif re.fullmatch(r"(\w+)\.param_groups\.(\d+)\.params\.(\d+)", name):
        seen = f"{case.parameter(name)}.tolist()"
    else:
        seen = f"torch.as_tensor({case.seen(name=name)}).tolist()"
    train = f"train(loop, {_places(case.batches)})"
    return "loop, scaler = start(1.0)", f"before = {seen}", train, f"assert {seen} != before"


def _updates(case: Case) -> Sequence[str]:
    start, train = (
        f"loop, scaler = start(growth_interval={UPDATES_AT})",
        f"train(loop, {_places(case.batches)})",
    )
    if case.broken.cause == OTHER:
        return (
            start, f"train(loop, {_places(case.batches[:1])})",
            "users, scale = [], torch.amp.GradScaler.scale",
            "torch.amp.GradScaler.scale = lambda user, loss: users.append(user) or scale(user, loss)",
            f"train(loop, {_places(case.batches[1:])})",
            "torch.amp.GradScaler.scale = scale",
            "assert all(user is scaler for user in users)",
        )  # fmt: skip
    note = [
        "states.append(scaler.state_dict())",
        "update(*args)",
        "states.append(scaler.state_dict())",
    ]
    begun, asked = (
        [start, "update, states = scaler.update, []\n"],
        ["assert states[2::2] == states[1:-1:2]"],
    )
    if case.broken.cause != JUMPS:
        hook = "register_optimizer_step_pre_hook"
        begun = [
            f"from torch.optim.optimizer import {hook}\n",
            start,
            "update, states, steps = scaler.update, [], []",
        ]
        begun += [f"hook = {hook}(lambda *_: steps.append(1))\n"]
        note, asked = (
            ["states.append(update(*args))"],
            ["hook.remove()", "assert len(states) <= len(steps)"],
        )
    return (
        *begun,
        "def updated(*args):",
        *(f"    {line}" for line in note),
        "\nscaler.update = updated",
        train,
        *asked,
    )


def _listed(places: Sequence[int]) -> str:
    return ", ".join(map(str, places))


def _places(batches: Sequence[Batch]) -> str:
    return _listed([batch.place for batch in batches])


WITHOUT = {"ranks_equal_one_process": "it needs ranks"}
TEMPLATES: dict[str, Callable[[Case], Sequence[str]]] = {
    "gradients_do_not_depend_on_loss_scale": _scale,
    "skipped_step_changes_nothing": _skipped,
    "resume_is_exact": _resume,
    "micro_batches_equal_one_batch": _splitting,
    "step_changes_parameters": _learns,
    "only_update_changes_scaler": _updates,
}

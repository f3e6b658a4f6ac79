"""Write the minimal failure of a check of scalers as a pytest file.

The file has the function that ran, the adapter and the functions that it uses, and the values of
the falsifying example. What the reference state machine expects is a value.
"""

import ast
import inspect
import re
import shlex
from contextlib import suppress
from types import GenericAlias, ModuleType
from typing import Any

from ampsim.core.machine import Rule
from ampsim.testing import examples as generation
from ampsim.testing.alarm import OverdueError
from ampsim.testing.construction import CONSTANTS, arguments_of
from ampsim.testing.emit.text import call, value, written
from ampsim.testing.load import load
from ampsim.testing.scaler_checks import suggest_traits
from ampsim.testing.scaler_checks.adapter import ScalerAdapter
from ampsim.testing.scaler_checks.check import Failure, ScalerCheck, time_limit
from ampsim.testing.scaler_checks.run import chosen
from ampsim.testing.scaler_checks.subject import Subject, find
from ampsim.testing.scaler_checks.traits import Traits

OF_ANNOTATIONS = (
    "collections.abc",
    "typing",
)  # the written file does not evaluate these


def write(
    check: str, target: str, *, examples: int | None = None, **declared: Any
) -> tuple[str, str]:
    """Return a pytest file that fails for a scaler as the check of this name does, and the name of
    the exception that ends it.

    Args:
        check: Name of the check.
        target: ``module:attribute`` of a class with torch's constructor, of ``make(rule)``, or of a
            `Subject`, whose class is used with its traits.
        examples: Maximum number of generated overflow sequences; None follows the hypothesis
            profile.
        declared: Keyword arguments of `Traits`.

    Raises:
        ValueError: The check passes, is skipped for this scaler, or has no standalone test; or
            there is no such check.
    """
    (selected,) = chosen(names=[check])
    subject = find(target, **declared)
    if isinstance(load(target), Subject):
        target = _class_of(subject)
        subject = find(target, **subject.traits.differences())
    if reason := selected.skip_reason(subject):
        raise ValueError(f"{check} is skipped for {target}: {reason}")
    if not selected.has_test:
        raise ValueError(
            f"{check} needs ampsim, so it has no standalone test; run the check"
        )
    subject.try_out()
    chosen_examples = generation.choose(examples)
    failure = selected.falsify(
        subject, chosen_examples, limit=time_limit(chosen_examples.number)
    )
    if failure is None:
        raise ValueError(
            f"{check} passed for {target}; there is no failure to write a test for"
        )
    error = failure.error
    if isinstance(error, OverdueError):
        raise ValueError(
            f"{check}: {error}, and neither would a standalone test"
        ) from error
    ends = type(error).__name__ if isinstance(error, Exception) else "SystemExit"
    broken = isinstance(error, AssertionError)
    return _printed(selected, failure, target), "AssertionError" if broken else ends


def _class_of(subject: Subject) -> str:
    """Return ``module:Class`` of what a Subject makes; raise ValueError if that cannot be imported
    without ampsim.
    """
    made = type(subject.example)
    target = f"{made.__module__}:{made.__qualname__}"
    if target.startswith("ampsim.") or "<" in target:
        options = shlex.join(["CHECK", "MODULE:CLASS", *subject.traits.as_options()])
        raise ValueError(
            f"{subject.name} is a Subject, which needs ampsim; expected a class: ampsim emit-test {options}"
        )
    return target


def _printed(check: ScalerCheck, failure: Failure, target: str) -> str:
    """Return the source of a check with what it uses and the values of the falsifying example."""
    example = failure.example
    function = check.printed or check.function
    if check.printed:  # run it once, for the answers of the reference
        with suppress(Exception):
            function(example, **failure.values)
    found = _sources(function)
    source = "\n".join(found.values())
    is_bounded = "case.construct(" not in source
    traits = example.subject.traits if is_bounded else Traits()
    module, _, path = target.partition(":")
    name = path.partition(".")[0]
    found |= {
        name: f"from {module} import {name}",
        "SimpleNamespace": "from types import SimpleNamespace",
        "math": "import math",
        "torch": "import torch",
        "make": _maker(path, load(target), traits),
    }
    declared = {
        name: getattr(example.traits, name)
        for name in vars(Traits())
        if f"traits.{name}" in source
    }
    body = [f"case = ScalerAdapter(make, {call('SimpleNamespace', declared)})"]
    settings = _rule_settings(example.traits)
    if example.answers and settings:
        body.append(f"# Expected of a rule with {settings}:")
    for name, answer in example.answers.items():
        body.append(f"case.{name} = lambda *_, **__: {value(answer)}")
    body.append(call(function.__name__, failure.values, "case"))
    first = check.message(failure, generation.choose()).partition("\n")[0]
    seen = first.removeprefix(f"{check.name}: ")
    return written(check, seen, [*found.values()], body)


def _rule_settings(traits: Traits) -> str:
    """Write the settings of the reference state machine that torch's scaler does not have."""
    changes = traits.differences()
    shown = {name: changes[name] for name in changes if hasattr(Rule(), name)}
    if "hysteresis" in shown:
        shown["hysteresis_reset"] = traits.hysteresis_reset
    return suggest_traits.written(shown)


def _sources(function: Any) -> dict[str, str]:
    """Return by name what the file defines or imports: a check, the adapter, and what they use."""
    of_check = {"ScalerAdapter": ""}
    _add(function, _undecorated(function), of_check)
    found = dict[str, str]()  # the adapter comes first
    _add(ScalerAdapter, _adapter_for("\n".join(of_check.values())), found)
    for name, text in of_check.items():
        found.setdefault(name, text)
    return found


def _add(definition: Any, text: str, found: dict[str, str]) -> None:
    """Add what a definition uses of ampsim, and imports of the rest, before its source."""
    nodes = ast.walk(ast.parse(text))
    space = vars(inspect.getmodule(definition))
    names = {each.id for each in nodes if isinstance(each, ast.Name)}
    found[definition.__name__] = ""  # it may use itself
    for name in sorted(names & space.keys() - found.keys()):
        used = space[name]
        home = getattr(used, "__module__", "")
        if isinstance(used, GenericAlias):
            continue  # of annotations too
        if isinstance(used, ModuleType):
            found[name] = f"import {name}"
        elif getattr(used, "__name__", "") != name:
            found[name] = f"{name} = {value(used)}"
        elif home.startswith("ampsim."):
            _add(used, _undecorated(used), found)
        elif home not in OF_ANNOTATIONS:
            found[name] = f"from {home} import {name}"
    del found[definition.__name__]
    found[definition.__name__] = text.rstrip()


def _undecorated(definition: Any) -> str:
    text = inspect.getsource(definition)
    return text[max(0, text.find(f"def {definition.__name__}(")) :]


def _adapter_for(text: str) -> str:
    """Return the source of the adapter's class, with the methods that a text needs."""
    members = {
        name: getattr(it, "fget", it) for name, it in vars(ScalerAdapter).items()
    }
    methods = {
        name: inspect.getsource(it)
        for name, it in members.items()
        if inspect.isfunction(it)
    }
    needed = list[str]()
    more = ["__init__"]
    while more:
        needed += more
        text += "\n".join(methods[name] for name in more)
        used = {*re.findall(r"\b(?:case|self)\.(\w+)", text)}
        more = [name for name in methods if name in used and name not in needed]
    kept = [source for name, source in methods.items() if name in needed]
    return "\n".join(["class ScalerAdapter:", *kept])


def _maker(path: str, target: Any, traits: Traits) -> str:
    """Write a function of constants that makes a scaler, as the checks do: within its bounds."""
    arguments = arguments_of(target)
    if arguments is not None:
        defaults = arguments(Rule())
        passed = "**constants"
    else:
        defaults = {name: getattr(Rule(), name) for name in CONSTANTS}
        passed = "SimpleNamespace(**constants)"
        if "enabled" in inspect.signature(target).parameters:
            passed += ', enabled=given.get("enabled", True)'
    lines = [
        "def make(**given):",
        f"    constants = {value(defaults)}",
        "    constants |= {name: given[name] for name in constants.keys() & given}",
    ]
    if "factors" in traits.unsupported:
        lines += ["    constants |= dict(growth_factor=2.0, backoff_factor=0.5)"]
    if traits.powers_of_two:
        lines += ['    for key in ("init_scale", "growth_factor", "backoff_factor"):']
        lines += ["        constants[key] = 2.0 ** round(math.log2(constants[key]))"]
    low = traits.min_scale or 0.0
    top = traits.within(2.0**127)
    if (low, top) != (0.0, 2.0**127):
        bounds = f"min({value(top)}, max({value(low)}, constants['init_scale']))"
        lines += [f"    constants['init_scale'] = {bounds}"]
    return "\n".join([*lines, f"    return {path}({passed})"])

"""Write the minimal failure of a check of scalers as a pytest file.

The file has the function that ran, the adapter and the functions that it uses, and the values of
the falsifying example. What the reference state machine expects is a value.
"""

import ast
import inspect
import shlex
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

from ampsim.core.machine import Rule
from ampsim.testing import examples as generation
from ampsim.testing.alarm import OverdueError
from ampsim.testing.construction import CONSTANTS, arguments_of
from ampsim.testing.emit.text import Text, value, written
from ampsim.testing.load import load
from ampsim.testing.scaler_checks import suggest_traits
from ampsim.testing.scaler_checks.adapter import ScalerAdapter
from ampsim.testing.scaler_checks.check import Failure, ScalerCheck, time_limit
from ampsim.testing.scaler_checks.run import chosen
from ampsim.testing.scaler_checks.subject import Subject, find
from ampsim.testing.scaler_checks.traits import Traits


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
    example, function = failure.example, check.printed or check.function
    if check.printed:  # run it once, for the answers of the reference
        with suppress(Exception):
            function(example, **failure.values)
    parts, imports = sources(function)
    source = "\n".join(parts)
    module, _, path = target.partition(":")
    traits = {name: value(getattr(example.traits, name)) for name in vars(Traits())}
    declared = [
        f"{name}={text}" for name, text in traits.items() if f"traits.{name}" in source
    ]
    bounded = "case.construct(" not in source
    parts.append(
        _maker(path, load(target), example.subject.traits if bounded else Traits())
    )
    body = [f"case = ScalerAdapter(make, SimpleNamespace({', '.join(declared)}))"]
    if example.answers and (settings := _rule_settings(example.traits)):
        body.append(f"# Expected of a rule with {settings}:")
    for name, answer in example.answers.items():
        body.append(f"case.{name} = lambda *_, **__: {value(answer)}")
    arguments = [f"{name}={value(each)}" for name, each in failure.values.items()]
    body.append(f"{function.__name__}({', '.join(['case', *arguments])})")
    first = check.message(failure, generation.choose()).partition("\n")[0]
    seen = first.removeprefix(f"{check.name}: ")
    about = Text(check.name, seen, check.statement, check.issue)
    imports.add(f"from {module} import {path.partition('.')[0]}")
    return written(about, sorted(imports), body, parts)


def _rule_settings(traits: Traits) -> str:
    """Write the settings of the reference state machine that torch's scaler does not have."""
    shown = {
        name: each
        for name, each in traits.differences().items()
        if hasattr(Rule(), name)
    }
    if "hysteresis" in shown:
        shown["hysteresis_reset"] = traits.hysteresis_reset
    return suggest_traits.written(shown)


def sources(function: Any) -> tuple[list[str], set[str]]:
    """Return the sources of a check, of the adapter, and of what these use of ampsim, in order, and
    lines of imports.
    """
    parts, known = list[str](), {"ScalerAdapter"}
    imports = {"import math", "import torch", "from types import SimpleNamespace"}

    def add(definition: Any, text: str) -> None:
        known.add(definition.__name__)
        space = vars(inspect.getmodule(definition))
        names = {
            each.id for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Name)
        }
        for name in sorted(names & space.keys() - known):
            need(name, space[name])
        parts.append(text.rstrip())

    def need(name: str, used: Any) -> None:
        home = getattr(used, "__module__", "")
        if isinstance(used, ModuleType):
            imports.add(f"import {name}")
        elif getattr(used, "__name__", "") != name:
            parts.append(f"{name} = {value(used)}")
            known.add(name)
        elif home.startswith("ampsim."):
            add(used, _undecorated(used))
        else:
            imports.add(f"from {home} import {name}")

    add(function, _undecorated(function))
    count = len(parts)
    add(ScalerAdapter, _pruned(ScalerAdapter, "\n".join(parts)))
    return [*parts[count:], *parts[:count]], imports  # annotations name the adapter


def _undecorated(definition: Any) -> str:
    text = inspect.getsource(definition)
    return text[max(0, text.find(f"def {definition.__name__}(")) :]


def _pruned(kind: type, text: str) -> str:
    """Return the source of a class without the methods that neither a text nor the rest of it uses."""
    lines = inspect.getsource(kind).splitlines()
    (tree,) = ast.parse("\n".join(lines)).body
    assert isinstance(tree, ast.ClassDef)  # noqa: S101
    methods = {
        each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)
    }
    used, needed = {"__init__"}, {each.attr for each in _attributes(text)}
    while needed := needed & methods.keys() - used:
        used |= needed
        needed = {each.attr for name in needed for each in _attributes(methods[name])}
    kept = [f"class {kind.__name__}:"]
    for name, method in methods.items():
        if name in used:
            decorators = method.decorator_list
            first = decorators[0].lineno if decorators else method.lineno
            kept += [*lines[first - 1 : method.end_lineno], ""]
    return "\n".join(kept)


def _attributes(code: str | ast.AST) -> Iterator[ast.Attribute]:
    tree = ast.parse(code) if isinstance(code, str) else code
    return (each for each in ast.walk(tree) if isinstance(each, ast.Attribute))


def _maker(path: str, target: Any, traits: Traits) -> str:
    """Write a function of constants that makes a scaler, as the checks do: within its bounds."""
    arguments = arguments_of(target)
    if arguments is None:
        defaults: dict[str, Any] = {each: getattr(Rule(), each) for each in CONSTANTS}
        call = "SimpleNamespace(**constants)"
        if "enabled" in inspect.signature(target).parameters:
            call += ', enabled=given.get("enabled", True)'
    else:
        defaults, call = arguments(Rule()), "**constants"
    lines = [
        "def make(**given):",
        f"    constants = {value(defaults)}",
        "    constants |= {name: given[name] for name in constants.keys() & given}",
        *_within_bounds(traits),
        f"    return {path}({call})",
    ]
    return "\n".join(lines)


def _within_bounds(traits: Traits) -> list[str]:
    """Return the lines that bring constants within what the traits declare."""
    lines: list[str] = []
    if "factors" in traits.unsupported:
        lines += ["    constants |= dict(growth_factor=2.0, backoff_factor=0.5)"]
    if traits.powers_of_two:
        lines += ['    for key in ("init_scale", "growth_factor", "backoff_factor"):']
        lines += ["        constants[key] = 2.0 ** round(math.log2(constants[key]))"]
    low, top = traits.min_scale or 0.0, traits.within(2.0**127)
    if (low, top) != (0.0, 2.0**127):
        bounds = f"min({value(top)}, max({value(low)}, constants['init_scale']))"
        lines += [f"    constants['init_scale'] = {bounds}"]
    return lines

"""Write the minimal failure of a check of scalers as a pytest file.

The file has the function that ran, the adapter and the functions that it uses, and the values of
the falsifying example. What the reference state machine expects is a value.
"""

import ast
import inspect
import shlex
from contextlib import suppress
from types import ModuleType
from typing import Any

from ampsim.core.machine import Rule
from ampsim.testing import examples as generation
from ampsim.testing.alarm import OverdueError
from ampsim.testing.emit.text import Text, value, written
from ampsim.testing.load import load
from ampsim.testing.scaler_checks.adapter import ScalerAdapter
from ampsim.testing.scaler_checks.check import Failure, ScalerCheck, time_limit
from ampsim.testing.scaler_checks.construction import CONSTANTS, arguments_of
from ampsim.testing.scaler_checks.run import chosen
from ampsim.testing.scaler_checks.subject import Subject, find
from ampsim.testing.scaler_checks.traits import Traits


def write(
    check: str, target: str, *, examples: int | None = None, **declared: Any
) -> tuple[str, bool]:
    """Return a pytest file that fails for a scaler as the check of this name does, and whether by
    an exception.

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
    raised = not isinstance(error, AssertionError) or " raised " in str(error)
    return _printed(selected, failure, target), raised


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
    parts, imports = sources(ScalerAdapter, function)
    source = "\n".join(parts)
    module, _, path = target.partition(":")
    traits = {name: value(getattr(example.traits, name)) for name in vars(Traits())}
    declared = [
        f"{name}={text}" for name, text in traits.items() if f"traits.{name}" in source
    ]
    used = inspect.getsource(function)
    makers = [
        name
        for name in ("make", "construct")
        if name == "make" or ".construct(" in used
    ]
    parts += [
        _maker(name, path, load(target), example.subject.traits) for name in makers
    ]
    body = [f"case = ScalerAdapter(make, SimpleNamespace({', '.join(declared)}))"]
    body += ["case.construct = construct"] * (len(makers) > 1)
    for name, answer in example.answers.items():
        body.append(f"case.{name} = lambda *_, **__: {value(answer)}")
    arguments = [f"{name}={value(each)}" for name, each in failure.values.items()]
    body.append(f"{function.__name__}({', '.join(['case', *arguments])})")
    first = check.message(failure, generation.choose()).partition("\n")[0]
    about = Text(
        check.name, first.removeprefix(f"{check.name}: "), check.statement, check.issue
    )
    imports |= {
        f"from {module} import {path.partition('.')[0]}",
        "import math",
        "import torch",
    }
    imports |= {"from types import SimpleNamespace"}
    return written(about, sorted(imports), body, parts)


def sources(*definitions: Any) -> tuple[list[str], set[str]]:
    """Return the sources of functions and classes with what they use of ampsim, in order, and lines
    of imports.
    """
    parts, imports, known = list[str](), set[str](), set[str]()

    def add(definition: Any) -> None:
        known.add(definition.__name__)
        text = inspect.getsource(definition)
        if inspect.isfunction(definition):  # without its decorators
            text = text[text.index(f"def {definition.__name__}(") :]
        space = vars(inspect.getmodule(definition))
        names = {
            node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)
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
            add(used)
        else:
            imports.add(f"from {home} import {name}")

    for each in definitions:
        if each.__name__ not in known:
            add(each)
    return parts, imports


def _maker(name: str, path: str, target: Any, traits: Traits) -> str:
    """Write a function of constants that makes a scaler, as the checks do: within its bounds."""
    arguments = arguments_of(target)
    constants: dict[str, Any] = {each: getattr(Rule(), each) for each in CONSTANTS}
    call, names = "SimpleNamespace(**constants)", {*constants}
    if arguments is None:
        if "enabled" in inspect.signature(target).parameters:
            call += ', enabled=constants.pop("enabled", True)'
    else:
        by_place, by_name = arguments(Rule())
        call = "*constants.values()" if by_place else "**constants"
        names = {"device", *constants} if by_place else {*by_name}
        constants = {"device": "cpu", **constants}
    lines = [
        f"def {name}(**constants):",
        *(_within_bounds(traits) if name == "make" else ()),
    ]
    defaults = {each: default for each, default in constants.items() if each in names}
    lines.append(f"    constants = {value(defaults)} | constants")
    if not names >= {*CONSTANTS}:  # the scaler takes no such argument
        taken = sorted(names)
        lines.append(
            f"    constants = {{each: constants[each] for each in {taken} if each in constants}}"
        )
    return "\n".join([*lines, f"    return {path}({call})"])


def _within_bounds(traits: Traits) -> list[str]:
    """Return the lines that bring constants within what the traits declare."""
    lines: list[str] = []
    if "factors" in traits.unsupported:
        lines += ["    constants |= dict(growth_factor=2.0, backoff_factor=0.5)"]
    if traits.powers_of_two:
        lines += [
            '    for key in {*constants} & {"init_scale", "growth_factor", "backoff_factor"}:'
        ]
        lines += ["        constants[key] = 2.0 ** round(math.log2(constants[key]))"]
    bounds = (
        traits.possible(Rule(init_scale=2.0**127)).init_scale,
        traits.min_scale or 0.0,
    )
    if bounds != (2.0**127, 0.0):
        top, low = map(value, bounds)
        lines += [
            f'    constants["init_scale"] = min({top}, max({low}, constants.get("init_scale", 2.0**16)))'
        ]
    return lines

"""Write the minimal failure of a check of scalers as a pytest file.

The file has the function that ran, the functions and the methods of the adapter that it uses, and the
values of the falsifying example. What the reference state machine expects is a value.
"""

import ast
import inspect
from collections.abc import Callable
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
from ampsim.testing.scaler_checks.drop_in import missing_features_are_declared
from ampsim.testing.scaler_checks.run import THREADS, chosen
from ampsim.testing.scaler_checks.subject import Subject, find
from ampsim.testing.scaler_checks.traits import Traits


def write(
    check: str, target: str, *, examples: int | None = None, **declared: Any
) -> tuple[str, bool]:
    """Return a pytest file that fails for a scaler as the check of this name does, and whether by an exception.

    Args:
        check: Name of the check.
        target: ``module:attribute`` of a class with torch's constructor or of ``make(rule)``.
        examples: Maximum number of generated overflow sequences; None follows the hypothesis profile.
        declared: Keyword arguments of `Traits`.

    Raises:
        ValueError: The check passes, is skipped for this scaler, or has no standalone test; or there is no such check.
    """
    (selected,) = chosen(names=[check])
    subject = find(target, **declared)
    if isinstance(load(target), Subject):
        raise ValueError(
            f"{target} is a Subject, which needs ampsim: name the class, and declare traits with --trait"
        )
    if reason := selected.skip_reason(subject):
        raise ValueError(f"{check} is skipped for {target}: {reason}")
    if selected.level == THREADS or selected is missing_features_are_declared:
        raise ValueError(f"{check} needs ampsim, so it has no standalone test; run the check")
    subject.try_out()
    chosen_examples = generation.choose(examples)
    failure = selected.falsify(subject, chosen_examples, limit=time_limit(chosen_examples.number))
    if failure is None:
        raise ValueError(f"{check} passed for {target}; there is no failure to write a test for")
    error = failure.error
    if isinstance(error, OverdueError):
        raise ValueError(f"{check}: {error}, and neither would a standalone test") from error
    raised = not isinstance(error, AssertionError) or " raised " in str(error)
    return _printed(selected, failure, target), raised


def _printed(check: ScalerCheck, failure: Failure, target: str) -> str:
    """Return the source of a check with what it uses and the values of the falsifying example."""
    example, function = failure.example, check.printed or check.function
    if check.printed:  # run it once, for the answers of the reference
        with suppress(Exception):
            function(example, **failure.values)
    parts, imports = sources(function, example.answers)
    source = "\n".join(parts)
    module, _, path = target.partition(":")
    traits = {name: value(getattr(example.traits, name)) for name in vars(Traits())}
    declared = [f"{name}={text}" for name, text in traits.items() if f"traits.{name}" in source]
    makers = [name for name in ("make", "construct") if f".{name}(" in source]
    parts += [_maker(name, path, load(target), example.subject.traits) for name in makers]
    body = [f"case = {ScalerAdapter.__name__}({makers[0]}, SimpleNamespace({', '.join(declared)}))"]
    body += ["case.construct = construct"] * (makers == ["make", "construct"])
    arguments = [f"{name}={value(each)}" for name, each in failure.values.items()]
    body.append(f"{function.__name__}({', '.join(['case', *arguments])})")
    first = check.message(failure, generation.choose()).partition("\n")[0]
    about = Text(check.name, first.removeprefix(f"{check.name}: "), check.statement, check.issue)
    imports |= {f"from {module} import {path.partition('.')[0]}"}
    imports |= {"import math"} if "math." in "".join([*parts, *body]) else set()
    imports |= {"import torch", "from types import SimpleNamespace"}
    return written(about, sorted(imports), body, parts)


def sources(function: Callable[..., Any], answers: dict[str, Any]) -> tuple[list[str], set[str]]:
    """Return the sources of a function and of what it uses of ampsim, in order, and the lines of imports.

    Args:
        function: A function of a `ScalerAdapter`.
        answers: Method of the adapter -> the value that it returns.
    """
    parts, imports, known = list[str](), set[str](), set[str]()

    def add(definition: Any) -> None:
        text = _source(definition, function, answers)
        names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        space = vars(inspect.getmodule(definition))
        for name in sorted(names & space.keys() - known):
            known.add(name)
            need(name, space[name])
        parts.append(text)

    def need(name: str, used: Any) -> None:
        home = getattr(used, "__module__", "")
        if isinstance(used, ModuleType):
            imports.add(f"import {name}")
        elif getattr(used, "__name__", "") != name:
            parts.append(f"{name} = {value(used)}")
        elif home.startswith("ampsim."):
            add(used)
        else:
            imports.add(f"from {home} import {name}")

    known.add(function.__name__)
    add(function)
    return parts, imports


def _source(definition: Any, function: Callable[..., Any], answers: dict[str, Any]) -> str:
    """Return a function without its decorators, or the adapter with the methods that a function uses."""
    lines, _ = inspect.getsourcelines(definition)
    node: Any = ast.parse("".join(lines)).body[0]
    if definition is not ScalerAdapter:
        return "".join(lines[node.lineno - 1 :]).rstrip()
    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    used, attributes = {"__init__"}, _attributes(ast.parse(inspect.getsource(function)))
    while new := attributes & methods.keys() - used:
        used |= new
        attributes |= {name for each in new for name in _attributes(methods[each])}
    summary = (ast.get_docstring(node) or "").partition("\n")[0]
    texts = [lines[0].rstrip(), f'    """{summary}"""']
    for name, method in methods.items():
        if name in used and name.startswith("expected_"):  # None if the check failed before
            answer = value(answers.get(name))
            texts.append(f"    def {name}(self, *_, **__):\n        return {answer}")
        elif name in used:
            first = min([method.lineno, *(each.lineno for each in method.decorator_list)])
            texts.append("".join(lines[first - 1 : method.end_lineno]).rstrip())
    return "\n\n".join(["\n".join(texts[:2]), *texts[2:]])


def _attributes(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


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
    lines = [f"def {name}(**constants):", *(_within_bounds(traits) if name == "make" else ())]
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
    bounds = traits.possible(Rule(init_scale=2.0**127)).init_scale, traits.min_scale or 0.0
    if bounds != (2.0**127, 0.0):
        top, low = map(value, bounds)
        lines += [
            f'    constants["init_scale"] = min({top}, max({low}, constants.get("init_scale", 2.0**16)))'
        ]
    return lines

"""Write the shortest failure of a check of scalers as a pytest file: the check itself, and nothing of ampsim in it."""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from ampsim.core.machine import Rule
from ampsim.testing.alarm import OverdueError
from ampsim.testing.emit.text import Text, value, written
from ampsim.testing.kit.check import EXAMPLES, ScalerCheck
from ampsim.testing.kit.example import TRAITS, WORDS, Example
from ampsim.testing.kit.judge import THREADS, chosen
from ampsim.testing.kit.subject import CONSTANTS, Subject, Traits, arguments_of, find
from ampsim.testing.load import load
from ampsim.testing.source import Definition, body


def write(
    check: str, target: str, *, examples: int = EXAMPLES, **declared: Any
) -> tuple[str, bool]:
    """Return a pytest file that fails for a scaler as the check of this name does, and whether by an exception.

    Args:
        check: name of the check.
        target: ``module:attribute`` of a class with torch's constructor or of ``make(rule)``.
        examples: maximum number of generated overflow sequences.
        declared: keyword arguments of `Traits`.

    Raises:
        ValueError: The check passes, is skipped for this scaler, or has no standalone test; or there is no such check.
    """
    (asked,) = chosen(names=[check])
    subject = find(target, **declared)
    if isinstance(load(target), Subject):
        raise ValueError(
            f"{target} is a Subject, which needs ampsim: name the class, and declare traits with --trait"
        )
    if missing := asked.lacks(subject):
        raise ValueError(f"{check} is skipped for {target}: unsupported: {missing}")
    if asked.level == THREADS:
        raise ValueError(
            f"{check} needs the thread scheduler, so it has no standalone test; use --schedule"
        )
    subject.try_out()
    example, error = asked.shortest(subject, examples)
    if example is None:
        raise ValueError(f"{check} passed for {target}; there is no failure to write a test for")
    if isinstance(error, OverdueError):
        raise ValueError(f"{check}: {error}, and neither would a standalone test") from error
    raised = not isinstance(error, AssertionError) or " raised " in str(error)
    seen = asked.message(example, error).partition("\n")[0].removeprefix(f"{check}: ")
    return _printed(asked, example, seen, target), raised


def _printed(check: ScalerCheck, example: Example, seen: str, target: str) -> str:
    """Return the source of a check with its adapter functions and the values of the falsifying example.

    Args:
        check: the failed check.
        example: the minimal falsifying example.
        seen: the observed failure.
        target: ``module:attribute`` of the scaler.
    """
    module, _, path = target.partition(":")
    imports = ["import torch", f"from {module} import {path.partition('.')[0]}"]
    function = check.proof or check.function
    values = {**example.drawn} | {
        name: derive(example.traits, **example.drawn) for name, derive in check.derives.items()
    }
    asked = inspect.signature(function).parameters
    defined = WORDS.asked(asked)
    read = {*asked, *(name for each in defined.values() for name in each.names)}
    settings = {name: getattr(example.traits, name) for name in TRAITS} | {
        "repeats": example.repeats
    }
    head = [
        "\n".join(_assigned({name: value(each) for name, each in settings.items() if name in read}))
    ]
    makers = [name for name in ("make", "construct") if name in read]
    head += [_maker(name, path, load(target), example.traits) for name in makers]
    lines = _assigned({name: value(each) for name, each in values.items() if name in asked})
    head += [
        "\n".join("\n".join(each.lines) for each in group)
        for group in _together([*defined.values()])
    ]
    return written(
        Text(check.name, seen, check.statement, check.issue),
        imports,
        [*lines, textwrap.dedent("\n".join(body(function)))],
        ["\n\n\n".join(text for text in head if text)],
    )


def _assigned(texts: Mapping[str, str]) -> list[str]:
    """Return lines that give names their values, in one line where they are short."""
    short = [name for name, text in texts.items() if len(text) <= 10]
    long = [f"{name} = {text}" for name, text in texts.items() if name not in short]
    return [f"{', '.join(short)} = {', '.join(texts[name] for name in short)}"] * bool(short) + long


def _together(definitions: list[Definition]) -> list[list[Definition]]:
    """Return definitions as they are to stand, with assignments in a row together."""
    return [
        [*group]
        for _, group in groupby(definitions, lambda each: isinstance(each.node, ast.Assign) or each)
    ]


def _maker(name: str, path: str, found: Any, traits: Traits) -> str:
    """Write a function of constants that makes a scaler, as the kit does: within its bounds."""
    lines = [f"def {name}(**constants):", *(_within_bounds(traits) if name == "make" else ())]
    parameters = inspect.signature(found).parameters
    arguments, defaults = arguments_of(found), {each: getattr(Rule(), each) for each in CONSTANTS}
    if arguments is None:
        lines += [f"    rule = {value(defaults)} | constants"]
        enabled = ', enabled=rule.pop("enabled", True)' * ("enabled" in parameters)
        return "\n".join([*lines, f"    return {path}(SimpleNamespace(**rule){enabled})"])
    by_place, by_name = arguments(Rule())
    if by_place:
        lines += [f"    constants = {value({'device': 'cpu', **defaults})} | constants"]
        return "\n".join([*lines, f"    return {path}(*constants.values())"])
    own = {key: each.default for key, each in parameters.items()}
    if differ := {
        key: each for key, each in defaults.items() if key in by_name and own.get(key) != each
    }:
        lines += [f"    constants = {value(differ)} | constants"]
    if missing := [key for key in CONSTANTS if key not in by_name]:
        lines += [
            f"    constants = {{key: each for key, each in constants.items() if key not in {missing}}}"
        ]
    device = 'device="cpu", ' if "device" in by_name else ""
    return "\n".join([*lines, f"    return {path}({device}**constants)"])


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

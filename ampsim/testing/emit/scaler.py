"""Write the shortest failure of a check as a pytest file: about twenty lines, and nothing of ampsim in them."""

import importlib
import re
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ampsim.testing.emit import calls, numerics, scale  # noqa: F401  register the templates
from ampsim.testing.emit.case import TEMPLATES, WIDTH, Case
from ampsim.testing.emit.peers import PEERS, adapted, as_text
from ampsim.testing.kit.check import EXAMPLES, Check
from ampsim.testing.kit.judge import THREADS, chosen
from ampsim.testing.kit.subject import Subject, Traits, find, load
from ampsim.testing.kit.trial import Trial

STANDARD = ("io", "math", "pickle")
NAMES = {"TestCase": "from unittest import TestCase", "SimpleNamespace": "from types import SimpleNamespace"}


def emit_scaler_test(law: str, target: str, *, examples: int = EXAMPLES, **declared: Any) -> tuple[str, bool]:
    """Return a pytest file that fails for a scaler as the check of this name does, and whether by an exception.

    Args:
        law: a check's name.
        target: ``module:attribute`` of a class with torch's constructor or of ``make(rule)``, or a name in `PEERS`.
        examples: histories, at most.
        declared: as `Traits` takes it.

    Raises:
        ValueError: the law holds, is not asked of this scaler, or has no short test; or there is no such check.
    """
    (check,) = chosen(names=[law])
    if target in PEERS:
        peer, read = PEERS[target]
        subject = replace(adapted(peer, read, target), traits=Traits(**declared))
    else:
        subject = find(target, **declared)
        found = load(target)
        if isinstance(found, Subject):
            raise ValueError(
                f"{target} is a Subject, which needs ampsim: name the class, and declare traits by --trait"
            )
        peer = as_text(target, found)
    if missing := check.lacks(subject):
        raise ValueError(f"{law} is not asked of {target}: it is without {missing}")
    if check.level == THREADS:
        raise ValueError(f"{law} needs the conductor, which orders threads: no short test says that; see --schedule")
    if law not in TEMPLATES:
        raise ValueError(f"{law} has no template of a short test")
    subject.try_out()
    seen, trial, drawn = _shortest(check, subject, examples)
    if not seen:
        raise ValueError(f"{law} holds for {target}: there is nothing to emit")
    case = Case(peer, check, trial, drawn, seen)
    raises = seen.startswith("raised ")
    return written(law, case.seen, check.law, check.issue, peer.imports, TEMPLATES[law](case)), raises


def _shortest(check: Check, subject: Subject, examples: int) -> tuple[str, Trial, Mapping[str, Any]]:
    """Return what the shortest failing example saw, its trial and what was drawn; "" where the law holds."""
    last: list[Any] = []

    def function(trial: Trial, **drawn: Any) -> None:
        last[:] = [trial, drawn]
        check.function(trial, **drawn)

    try:
        replace(check, function=function)(subject, examples=examples)
    except AssertionError as error:
        return str(error).partition("\n")[0].removeprefix(f"{check.name}: "), *last
    return "", *last


def written(law: str, seen: str, statement: str, issue: str, imports: str, body: Any) -> str:
    """Write the file: what is broken and why it matters, the imports, one test."""
    code = "\n".join(body).strip("\n")
    lines = sorted(imports.splitlines(), key=lambda line: line.startswith("from"))
    used = [f"import {name}" for name in STANDARD if re.search(rf"\b{name}\.", code)]
    used += [line for name, line in sorted(NAMES.items()) if name in code]
    about = textwrap.fill(statement, WIDTH)
    issue = f"\nReported before: {issue}" if issue else ""
    seen = re.sub(r"\x1b\[\d*m", "", seen)
    head = textwrap.fill(textwrap.shorten(f"{law}: {seen}", 2 * WIDTH, placeholder=" ..."), WIDTH)
    doc = f'"""{head}\n\n{about}{issue}\nSeen with {versions(imports)}.\n"""'
    body = textwrap.indent(code, "    ", lambda line: bool(line.strip()))
    return "\n".join([doc, "", *used, *[""] * bool(used), *lines, "", "", f"def test_{law}():", body, ""])


def versions(imports: str) -> str:
    """Return the packages that import lines name, with their versions."""
    tops = dict.fromkeys(line.split()[1].partition(".")[0] for line in imports.splitlines())
    found = {top: getattr(importlib.import_module(top), "__version__", None) for top in tops}
    return ", ".join(f"{top} {version}" for top, version in found.items() if version) or "its version of today"

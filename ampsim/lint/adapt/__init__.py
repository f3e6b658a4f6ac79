"""Writes what `ampsim check-loop` needs, from the source of a loop: its own order of calls, and stand-ins around it.

Of the statements of an iteration those are kept that a rule looks at, the conditions on the way to them, and what they
are computed from. A forward pass becomes a small loss of a small model, a setting what the file says or what leads to
the scaler's step; each says in a comment what it stands for. What cannot be read is marked with TODO.
"""

import ast

from ampsim.lint.adapt.module import Module
from ampsim.lint.adapt.text import OWN
from ampsim.lint.source import UnreadableError, parse
from ampsim.lint.walk import traces_of


def adapt(text: str, path: str, line: int | None = None) -> tuple[str, list[str]]:
    """Return a module with ``make(scaler)`` for the loop of a source, and its marks.

    Args:
        text: of the source.
        path: of it, as it is named in the module.
        line: in the loop that is meant; None is the first with a scaler's step.

    Raises:
        UnreadableError: the source is no Python, or no scaler steps in it, or not around this line.
    """
    source = parse(text)
    if source is not None:
        for node in source.nodes:  # names of the module's own
            for name in {"id", "arg", "name"} & {*getattr(node, "_fields", ())}:
                if getattr(node, name) in OWN and not isinstance(node, ast.alias):
                    setattr(node, name, f"{getattr(node, name)}_")
        source.traces += traces_of(source)
    for trace in source.traces if source else ():
        for step in [*trace.of("step"), *(each for each in trace.of("bare") if trace.scaled(each))]:
            made = Module(source, trace, step, path)  # type: ignore[arg-type]
            place = made.place
            if line is None or getattr(place, "lineno", 0) <= line <= (getattr(place, "end_lineno", 0) or 0):
                return made.module(), made.todo
    where = f" around line {line}" if line else ""
    raise UnreadableError(f"no scaler.step(optimizer) is seen{where}; expected a loop with torch's GradScaler")

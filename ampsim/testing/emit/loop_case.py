"""A broken check of a loop on its shortest batches, and how code reaches what the loop holds."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampsim.testing.loop.check import Broken
from ampsim.testing.loop.run import Run
from ampsim.testing.loop.runs import Batch, Make
from ampsim.testing.loop.state import LOGGED, Difference

EXACT = "rtol=0, atol=0"


@dataclass(frozen=True)
class Case:
    """A broken check of a loop, on the shortest list of batches.

    Attributes:
        make: the user's.
        run: one on those batches, in which names are looked up.
        batches: on which the check is broken.
        broken: what was seen.
        shown: the array that differs and is compared; None where none does.
    """

    make: Make
    run: Run
    batches: Sequence[Batch]
    broken: Broken
    shown: Difference | None

    @property
    def parameters(self) -> str:
        """An expression for the parameters that a loop trains."""
        state = self.run.loop.state.items()
        parts = [
            f'*loop.state["{key}"].parameters()'
            for key, value in state
            if hasattr(value, "named_parameters")
        ]
        groups = [
            (key, index)
            for key, value in state
            for index in range(len(getattr(value, "param_groups", ())))
        ]
        parts = parts or [
            f'*loop.state["{key}"].param_groups[{index}]["params"]' for key, index in groups
        ]
        return f"[{', '.join(parts)}]" if len(parts) > 1 else parts[0].removeprefix("*")

    def parameter(self, name: str) -> str:
        """Return an expression for one of them."""
        owner, _, rest = name.partition(".")
        if found := re.fullmatch(r"param_groups\.(\d+)\.params\.(\d+)", rest):
            return f'loop.state["{owner}"].param_groups[{found[1]}]["params"][{found[2]}]'
        return f'loop.state["{owner}"].get_parameter("{rest}")'

    def equal(self, seen: str, expected: str) -> str:
        """Return the line that compares two arrays, or two values that are not arrays."""
        arrays = (self.shown.left, self.shown.right) if self.shown else ()
        if all(array is not None and array.dtype.kind in "biuf" for array in arrays):
            return f"torch.testing.assert_close({seen}, {expected}, {EXACT})"
        return f"assert {seen} == {expected}"

    def seen(self, loop: str = "loop", scaler: str = "scaler", name: str = "") -> str:
        """Return an expression for an array of a loop; by default for the one that is shown."""
        name = name or (self.shown.name if self.shown else "")
        owner, _, rest = name.partition(".")
        if owner == "scaler":
            return f'{scaler}.state_dict()["{rest}"]'
        if owner == LOGGED and self.run.loop.logged:
            found = _reached(self.run.loop.logged(), rest, f"{loop}.logged()")
        else:
            found = _reached(dict(self.run.loop.state), name, f"{loop}.state")
        if found is None:
            raise ValueError(f"{name} has no short expression: give it its own name in state")
        return found


def _reached(value: Any, rest: str, text: str) -> str | None:
    """Return how an array is reached from a value, given its dotted name below it."""
    if hasattr(value, "state_dict"):
        value, text = value.state_dict(), f"{text}.state_dict()"
    elif callable(value):
        value, text = value(), f"{text}()"
    if not rest:
        return text
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    for key, each in value.items() if isinstance(value, Mapping) else ():
        if f"{rest}.".startswith(f"{key}."):
            word = f'"{key}"' if isinstance(key, str) else repr(key)
            if found := _reached(each, rest[len(str(key)) + 1 :], f"{text}[{word}]"):
                return found
    return None

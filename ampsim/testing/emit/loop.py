"""Write a failure of a loop's check as a pytest file that runs the check on the user's own make
function.
"""

from typing import Any

from ampsim.testing.emit.text import Text, written
from ampsim.testing.load import load
from ampsim.testing.loop.judge import chosen, judge_loop
from ampsim.testing.loop.loop import LoopError


def write(name: str, target: str) -> str:
    """Return a pytest file that fails as a loop fails a check; it needs ampsim, as the loop does.

    Args:
        name: the check's.
        target: ``module:make``, whose batches are called ``batches`` in the same module.

    Raises:
        ValueError: The check does not fail, the loop cannot be checked, or there is no such check.
    """
    (check,) = chosen([name])
    module, _, path = target.partition(":")
    make: Any = load(target)
    batches: Any = load(f"{module}:batches")
    given = batches() if callable(batches) else batches
    try:
        (result,) = judge_loop(make, given, [name])
    except LoopError as error:
        raise ValueError(f"{target}: {error}") from error
    if result.outcome == "error":
        raise ValueError(f"{target}: {result.text}")
    if result.outcome != "failed":
        why = f": {result.text}" if result.text else ""
        raise ValueError(
            f"{name} {result.outcome} for {target}{why}; there is no failure to write"
        )
    first, *lines = result.text.splitlines()
    causes = [line.split(None, 1)[1] for line in lines if line.startswith("  cause ")]
    about = Text(
        name, first.removeprefix(f"{name}: "), check.statement, check.issue, *causes
    )
    imports = [
        f"from {module} import batches, {path}",
        "from ampsim.testing import check_loop",
    ]
    called = "batches()" if callable(batches) else "batches"
    return written(about, imports, [f'check_loop({path}, {called}, ["{name}"])'])

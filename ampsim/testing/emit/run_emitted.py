"""To run what was written where ampsim cannot be imported: a test that does not fail there shows
nothing.
"""

import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampsim.testing.check import Check

_RUN = """
import sys
sys.path.insert(0, "")
source = sys.stdin.read()
if "import ampsim" not in source and "from ampsim" not in source:
    sys.modules["ampsim"] = None  # as if it were not installed
names = {}
exec(compile(source, "emitted test", "exec"), names)
(test,) = [value for name, value in names.items() if name.startswith("test_")]
try:
    test()
except BaseException as error:
    ended = "AssertionError" if isinstance(error, AssertionError) else type(error).__name__
    print("ENDED", ended, *str(error).splitlines()[:1], flush=True)
else:
    print("ENDED passed", flush=True)
"""


def emit(target: str, check: str, *, limit: float = 300.0, **options: Any) -> str:
    """Return a pytest file that imports the target alone, and was seen to fail where ampsim cannot
    be imported.

    Args:
        target: ``module:attribute`` of a scaler, or of a loop's ``make``.
        check: by its name; one that scalers and loops have is a loop's where the module has
            ``batches``.
        limit: seconds that the written test may take; 0 is no limit.
        options: of `ampsim.testing.emit.scaler.write`.

    Raises:
        ValueError: the check holds, is not asked of this target, or has no short test; or there is
            no such check.
    """
    from ampsim.testing.check import require_known
    from ampsim.testing.emit import scaler
    from ampsim.testing.load import load
    from ampsim.testing.loop.checks import CHECKS as LOOP_CHECKS
    from ampsim.testing.scaler_checks import CHECKS

    require_known({**LOOP_CHECKS, **CHECKS}, [check])
    load(target)
    has_batches = hasattr(sys.modules[target.partition(":")[0]], "batches")
    if check in LOOP_CHECKS and (has_batches or check not in CHECKS):
        source = loop_test(LOOP_CHECKS[check], target)
        ends = "AssertionError"
    else:
        source, ends = scaler.write(check, target, **options)
    require_failure(source, ends, limit)
    return source


def loop_test(check: "Check", target: str) -> str:
    """Return a pytest file that runs a check on a loop; it needs ampsim, as the loop does.

    Args:
        check: A check of loops.
        target: ``module:make``, whose batches are called ``batches`` in the same module.
    """
    from ampsim.testing.emit.text import written
    from ampsim.testing.load import load

    module, _, path = target.partition(":")
    batches = "batches()" if callable(load(f"{module}:batches")) else "batches"
    imports = [
        f"from {module} import batches, {path}",
        "from ampsim.testing import check_loop",
    ]
    call = f'check_loop({path}, {batches}, ["{check.name}"])'
    return written(check, f"fails for {target}", imports, [call])


def require_failure(source: str, ends: str, limit: float) -> None:
    """Run a test in a process of its own, without ampsim unless the test names it; raise ValueError
    unless it fails.

    Args:
        source: of a file with one test.
        ends: name of the exception that should end the test.
        limit: seconds; 0 is no limit.
    """
    command = [sys.executable, "-c", _RUN]
    try:
        done = subprocess.run(  # noqa: S603
            command,
            input=source,
            capture_output=True,
            text=True,
            timeout=limit or None,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"the standalone test did not end within {limit:g} s; run the check itself"
        ) from None
    printed = [line for line in done.stdout.splitlines() if line.startswith("ENDED ")]
    *_, last = ["nothing", *done.stderr.strip().splitlines(), *printed]
    ended = last.removeprefix("ENDED ")
    if "ampsim" in ended and "ModuleNotFoundError" in ended:
        raise ValueError(
            f"the target imports ampsim ({ended}), but a standalone test runs without ampsim: "
            "expected a target without it, such as the scaler's own class with torch's methods"
        )
    if not ended.startswith(ends):
        raise ValueError(
            f"the standalone test ended with {ended}, expected {ends}: it shows no failure"
        )

"""To run what was written where ampsim cannot be imported: a test that does not fail there shows
nothing.
"""

import subprocess
import sys
from typing import Any

_RUN = """
import sys
sys.path.insert(0, "")
if sys.argv[1:]:
    sys.modules["ampsim"] = None  # as if it were not installed
names = {}
exec(compile(sys.stdin.read(), "emitted test", "exec"), names)
(test,) = [value for name, value in names.items() if name.startswith("test_")]
try:
    test()
except BaseException as error:
    failed = isinstance(error, AssertionError)
    print("ENDED", "AssertionError" if failed else type(error).__name__, *str(error).splitlines()[:1], flush=True)
else:
    print("ENDED", flush=True)
"""


def run_apart(source: str, limit: float) -> tuple[str | None, str]:
    """Run a test in a process of its own, without ampsim unless the test names it.

    Args:
        source: of a file with one test.
        limit: seconds; 0 is no limit.

    Returns:
        by what it ended, the exception's name and the first line of its text, "" where it passed,
        None where it never began; and the last line that the process said beside.
    """
    apart = [] if "import ampsim" in source or "from ampsim" in source else ["apart"]
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", _RUN, *apart],
        input=source, capture_output=True, text=True, timeout=limit or None, check=False,
    )  # fmt: skip
    ended = [
        line.removeprefix("ENDED").strip()
        for line in done.stdout.splitlines()
        if line.startswith("ENDED")
    ]
    return ended[-1] if ended else None, (
        done.stderr.strip().splitlines() or ["nothing"]
    )[-1]


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
    from ampsim.testing.check import chosen
    from ampsim.testing.emit import loop, scaler
    from ampsim.testing.load import load
    from ampsim.testing.loop.judge import CHECKS as LOOP_CHECKS
    from ampsim.testing.scaler_checks import CHECKS

    chosen({**LOOP_CHECKS, **CHECKS}, [check])  # refuses an unknown one
    load(target)
    feeds = hasattr(sys.modules[target.partition(":")[0]], "batches")
    if check in LOOP_CHECKS and (feeds or check not in CHECKS):
        source, raises = loop.write(check, target), False
    else:
        source, raises = scaler.write(check, target, **options)
    require_failure(source, raises=raises, limit=limit)
    return source


def require_failure(source: str, *, raises: bool, limit: float) -> None:
    """Run a test in a process of its own, without ampsim where it does not name it; raise
    ValueError unless it fails.

    Args:
        source: of a file with one test.
        raises: whether the failure is an exception of the framework's own, and not of an assertion.
        limit: seconds; 0 is no limit.
    """
    try:
        ended, last = run_apart(source, limit)
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"the standalone test did not end within {limit:g} s; run the check itself"
        ) from None
    said = ended or last
    if "ampsim" in said and "ModuleNotFoundError" in said:
        raise ValueError(
            f"the target imports ampsim ({said}), but a standalone test runs without ampsim: expected a target without "
            "it, such as the scaler's own class with torch's methods"
        )
    if ended == "":
        raise ValueError(
            "the standalone test passes, although the check fails; please report this with the test"
        )
    if ended is None or (not raises and not said.startswith("AssertionError")):
        what = "the check's call should raise" if raises else "an assertion should fail"
        raise ValueError(
            f"the standalone test ended in another way, but {what}: {said}"
        )

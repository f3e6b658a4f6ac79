"""To run what was written where ampsim cannot be imported: a test that does not fail there shows nothing."""

import subprocess
import sys

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
except AssertionError:
    sys.exit(17)
"""
FAILED = 17  # the exit status of an AssertionError


def require_failure(source: str, *, raises: bool, limit: float) -> None:
    """Run a test in a process of its own, without ampsim where it does not name it; raise ValueError unless it fails.

    Args:
        source: of a file with one test.
        raises: whether the failure is an exception of the peer's own, and not of an assertion.
        limit: seconds; 0 is no limit.
    """
    apart = [] if "import ampsim" in source or "from ampsim" in source else ["apart"]
    command = [sys.executable, "-c", _RUN, *apart]
    try:
        done = subprocess.run(  # noqa: S603  our own text
            command, input=source, capture_output=True, text=True, timeout=limit or None, check=False
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"the short test did not end within {limit:g} s; the kit's own check has to show it") from None
    last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    if "ampsim" in last and "ModuleNotFoundError" in last:
        raise ValueError(
            f"the target imports ampsim ({last}), and the test is for a project that has none; expected a target "
            "without it, such as the scaler's own class with torch's methods"
        )
    if not done.returncode:
        raise ValueError("the short test passes: it does not show what the kit's own check sees; report that with it")
    if done.returncode != FAILED and not raises:
        raise ValueError(f"the short test ended with exit status {done.returncode}, where it should fail: {last}")

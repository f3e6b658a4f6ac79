"""To run what was written where ampsim cannot be imported: a test that does not fail there shows nothing."""

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
except AssertionError:
    sys.exit(17)
"""
FAILED = 17  # the exit status of an AssertionError


def emit(target: str, law: str, *, ranks: int = 2, limit: float = 300.0, **options: Any) -> str:
    """Return a pytest file that imports the target alone, and was seen to fail where ampsim cannot be imported.

    Args:
        target: ``module:attribute`` of a scaler, of a loop's ``make``, or of what makes the scaler of a rank.
        law: by its name; one that scalers and loops have is a loop's where the module has ``batches``.
        ranks: of the group, for a law of ranks.
        limit: seconds that the written test may take; 0 is no limit.
        options: of `ampsim.testing.emit.scaler.write`.

    Raises:
        ValueError: the law holds, is not asked of this target, or has no short test; or there is no such law.
    """
    from ampsim.testing.emit import loop, scaler
    from ampsim.testing.emit import ranks as of_ranks
    from ampsim.testing.kit.laws import LAWS
    from ampsim.testing.kit.subject import load
    from ampsim.testing.law import chosen
    from ampsim.testing.loop.judge import LAWS as LOOP_LAWS
    from ampsim.testing.ranks.laws import LAWS as RANK_LAWS

    chosen({**RANK_LAWS, **LOOP_LAWS, **LAWS}, [law])  # refuses an unknown one
    load(target)
    feeds = hasattr(sys.modules[target.partition(":")[0]], "batches")
    if law in LOOP_LAWS and (feeds or law not in LAWS):
        source, raises = loop.write(law, target)
    elif law in RANK_LAWS:
        source, raises = of_ranks.write(law, target, ranks)
    else:
        source, raises = scaler.write(law, target, **options)
    require_failure(source, raises=raises, limit=limit)
    return source


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

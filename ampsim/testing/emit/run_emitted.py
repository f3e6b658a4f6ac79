"""To run what was written where ampsim cannot be imported: a test that does not fail there shows nothing."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

_RUN = """
import json, sys
sys.path.insert(0, "")
if sys.argv[1:]:
    sys.modules["ampsim"] = None  # as if it were not installed
for source in json.load(sys.stdin):
    names = {}
    exec(compile(source, "emitted test", "exec"), names)
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    try:
        test()
    except BaseException as error:
        failed = isinstance(error, AssertionError)
        print("ENDED", "AssertionError" if failed else type(error).__name__, *str(error).splitlines()[:1], flush=True)
    else:
        print("ENDED", flush=True)
"""


def run_apart(sources: Sequence[str], *, limit: float = 0.0, python: str = "", **given: Any) -> tuple[list[str], str]:
    """Run tests one after the other in one process, without ampsim unless one names it.

    Args:
        sources: of files with one test each.
        limit: seconds; 0 is no limit.
        python: the interpreter; "" is the one that runs this.
        given: to `subprocess.run`.

    Returns:
        by what each ended, the exception's name and the first line of its text, "" where it passed; and the last line
        that the process said beside, of which tests that never began are a part.
    """
    apart = [] if any("import ampsim" in each or "from ampsim" in each for each in sources) else ["apart"]
    done = subprocess.run(  # noqa: S603  our own text
        [python or sys.executable, "-c", _RUN, *apart],
        input=json.dumps(sources), capture_output=True, text=True, timeout=limit or None, check=False, **given,
    )  # fmt: skip
    lines = [line.removeprefix("ENDED").strip() for line in done.stdout.splitlines() if line.startswith("ENDED")]
    return lines, (done.stderr.strip().splitlines() or ["nothing"])[-1]


def emit(target: str, law: str, *, limit: float = 300.0, **options: Any) -> str:
    """Return a pytest file that imports the target alone, and was seen to fail where ampsim cannot be imported.

    Args:
        target: ``module:attribute`` of a scaler, or of a loop's ``make``.
        law: by its name; one that scalers and loops have is a loop's where the module has ``batches``.
        limit: seconds that the written test may take; 0 is no limit.
        options: of `ampsim.testing.emit.scaler.write`.

    Raises:
        ValueError: the law holds, is not asked of this target, or has no short test; or there is no such law.
    """
    from ampsim.testing.emit import loop, scaler
    from ampsim.testing.kit.laws import LAWS
    from ampsim.testing.law import chosen
    from ampsim.testing.load import load
    from ampsim.testing.loop.judge import LAWS as LOOP_LAWS

    chosen({**LOOP_LAWS, **LAWS}, [law])  # refuses an unknown one
    load(target)
    feeds = hasattr(sys.modules[target.partition(":")[0]], "batches")
    if law in LOOP_LAWS and (feeds or law not in LAWS):
        source, raises = loop.write(law, target)
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
    try:
        ended, last = run_apart([source], limit=limit)
    except subprocess.TimeoutExpired:
        raise ValueError(f"the short test did not end within {limit:g} s; the kit's own check has to show it") from None
    said = ended[0] if ended else last
    if "ampsim" in said and "ModuleNotFoundError" in said:
        raise ValueError(
            f"the target imports ampsim ({said}), and the test is for a project that has none; expected a target "
            "without it, such as the scaler's own class with torch's methods"
        )
    if ended == [""]:
        raise ValueError("the short test passes: it does not show what the kit's own check sees; report that with it")
    if not ended or (not raises and not said.startswith("AssertionError")):
        what = "the law's call should raise" if raises else "an assertion should fail"
        raise ValueError(f"the short test ended otherwise, where {what}: {said}")

"""Run a script in a child process, and report what breaks."""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampsim.testing.alarm import CannotJudgeError
from ampsim.testing.check import (
    Check,
    Result,
    chosen,
    described,
    raise_findings,
    require_known,
    settled,
)
from ampsim.testing.judge import NotApplicableError
from ampsim.testing.script_checks import checks as _checks  # noqa: F401
from ampsim.testing.script_checks import skip_checks as _skip_checks  # noqa: F401
from ampsim.testing.script_checks.check import CHECKS, Finding
from ampsim.testing.script_checks.child import Settings
from ampsim.testing.script_checks.observation import Observation

if TYPE_CHECKING:
    from ampsim.testing.lines import Place

TIME_LIMIT = 600.0  # seconds
GRACE = 60.0  # seconds beyond the time limit for starting and ending, until the child is killed
ENVIRONMENT = {  # one thread survives a fork; compilation and trackers are left out
    "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "WANDB_MODE": "disabled",
}  # fmt: skip
TAIL = 2000  # characters of the script's output that an error shows


class ScriptError(ValueError):
    """Nothing could be checked: the script raised, has no enabled scaler, or takes no step."""


def check_script(
    script: str, arguments: Sequence[str] = (), **options: Any
) -> list[Result]:
    """Run a training script unchanged for a few steps, and run the checks on what it does.

    The script runs in a child process. After a few steps, one iteration is run several times from
    the same state: unchanged, at another loss scale, and with an inf in a gradient.

    Args:
        script: Path of a .py file.
        arguments: Its command-line arguments.
        options: See `judge_script`.

    Returns:
        One result per check.

    Raises:
        AssertionError: There are findings; the text has all of them.
        ScriptError: Nothing could be checked; the text has the reason and the fix.
        ValueError: There is no such check, or no such script.
    """
    results, _ = judge_script(script, arguments, **options)
    return raise_findings(results)


def judge_script(
    script: str,
    arguments: Sequence[str] = (),
    *,
    steps: int = 140,
    on_cpu: bool = False,
    time_limit: float = TIME_LIMIT,
    checks: Collection[str] | None = None,
    expected: Mapping[str, str] | None = None,
) -> tuple[list[Result], Observation]:
    """Run a script as `check_script` does, and return its results and what was observed.

    Args:
        script: Path of a .py file.
        arguments: Its command-line arguments.
        steps: Steps of an optimizer after which the script is ended; at least 1.
        on_cpu: Run a script that asks for CUDA on the CPU.
        time_limit: Seconds for the script, and a quarter of it for each repeated iteration.
        checks: Names of the checks to run; None for all.
        expected: Why a check is expected to fail, by its name.

    Returns:
        The results, and what was observed. A check that fails for several causes has one result per
        cause.

    Raises:
        ScriptError: Nothing could be checked; the text has the reason and the fix.
        CannotJudgeError: The time limit ended the script before its first step.
        ValueError: There is no such check, or no such script.
    """
    wanted = chosen(CHECKS, checks)
    require_known(CHECKS, expected)
    if not Path(script).is_file():
        raise ValueError(
            f"{script}: no such file; expected the path of a training script"
        )
    settings = Settings(script, tuple(arguments), steps, on_cpu, time_limit)
    run = observe_script(settings)
    if on_cpu and "Half" in run.error:
        # The script casts inputs to fp16 itself, as only autocast allows.
        run = observe_script(replace(settings, autocast=True))
    results = [*judge(run, script, wanted, expected or {})]
    if not any(result.outcome == "failed" for result in results):
        _require_enough(run, script, on_cpu=on_cpu)
    return results, run


def observe_script(settings: Settings) -> Observation:
    """Run a script in a child process."""
    with tempfile.TemporaryDirectory(prefix="ampsim-") as name:
        folder = Path(name).resolve()
        settings = replace(settings, folder=folder)
        output = _run_child(settings)
        written = folder / "observation"
        if written.exists():
            observation: Observation = pickle.loads(written.read_bytes())  # noqa: S301
            return observation
    raise ScriptError(
        f"{settings.script}: the process of the script ended without a record; it was killed, left by os._exit, "
        f"or replaced itself. Run the script that it starts\n{output[-TAIL:]}"
    )


def _run_child(settings: Settings) -> str:
    """Run a script in a child process that leaves its record in a folder, and return its output."""
    path = settings.folder / "settings"
    log = settings.folder / "output"
    path.write_bytes(pickle.dumps(settings))
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "ampsim.testing.script_checks.child", str(path)]
    with log.open("w") as stream, suppress(subprocess.TimeoutExpired):
        limit = 2 * settings.time_limit + GRACE  # the trials have a share of their own
        subprocess.run(  # noqa: S603
            command, env=environment, stdout=stream, stderr=stream, timeout=limit
        )
    return log.read_text(errors="replace")


def judge(
    run: Observation, target: str, checks: Sequence[Check], expected: Mapping[str, str]
) -> Iterator[Result]:
    """Run checks on an observation and yield their results, one per cause."""
    for check in checks:
        reason = expected.get(check.name)
        try:
            found = [*check.function(run)]
        except NotApplicableError as error:
            yield Result(check, target, "skipped", str(error))
            continue
        causes: dict[tuple[Place, str], Finding] = {}
        for finding in found:
            causes.setdefault((finding.where, finding.cause), finding)
        # The last result is the one in the table.
        for finding in sorted(causes.values(), key=lambda each: not each.excuse):
            excuse = finding.excuse or reason
            yield Result(check, target, *settled(check, _text(check, finding), excuse))
        if not found:
            yield Result(check, target, *settled(check, None, reason))


def _text(check: Check, finding: Finding) -> str:
    order = "; ".join(dict.fromkeys(map(str, finding.order)))
    caller, library = finding.where
    made = f"{library} makes this call, in what {caller} starts; it may be the library's defect"
    story = [
        ("order", order),
        ("cause", finding.cause),
        ("library", made if library else ""),
    ]
    return described(check, f"{finding.where}: {finding.seen}", story)


def _require_enough(run: Observation, script: str, *, on_cpu: bool) -> None:
    """Raise an error if nothing could be checked."""
    if run.error:
        hint = (
            ""
            if on_cpu or "CUDA" not in run.error
            else "\nTo run it on the CPU: --on-cpu"
        )
        found = ", in which no check fails" if run.steps else ""
        raise ScriptError(f"{script}: {run.raised}{found}\n{run.error[-TAIL:]}{hint}")
    if run.steps and run.of_kind("scale"):
        return
    if run.ended == "time limit":
        advice = "raise --time-limit, or pass less data"
        raise CannotJudgeError(f"{script}: no step within the time limit; {advice}")
    if run.of_kind("scale"):
        raise ScriptError(
            f"{script}: no optimizer steps; expected a step before the script ends"
        )
    made = f"; the one made at {run.disabled[0]} is disabled" if run.disabled else ""
    raise ScriptError(
        f"{script}: no scaler was seen that scales a loss{made}; expected an enabled torch.amp.GradScaler or a "
        "subclass. Pass the script's own option for fp16, and --on-cpu if it asks for CUDA"
    )

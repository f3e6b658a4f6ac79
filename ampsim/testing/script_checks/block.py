"""Check the training that a block of code does, in a notebook, under a launcher, or in a test."""

import tempfile
import traceback
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from ampsim.testing.check import Result, chosen, raise_findings
from ampsim.testing.script_checks.check import CHECKS
from ampsim.testing.script_checks.report import ScriptReport
from ampsim.testing.script_checks.run import judge
from ampsim.testing.script_checks.session import Session

NAME = "training"  # the target of the results
LIMIT = 60.0  # seconds for each repeated iteration


class Checked:
    """What `checked` has found.

    Attributes:
        results: One result per check; empty until the block ends.
        report: The same as a report; None until the block ends.
    """

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.report: ScriptReport | None = None


@contextmanager
def checked(
    *,
    steps: int = 140,
    raises: bool = True,
    checks: Collection[str] | None = None,
) -> Iterator[Checked]:
    """Check the training in a block, as `ampsim.testing.check_script` checks a script.

    One iteration is repeated in forks of this process, which end before the block does. Where a
    process cannot be forked (CUDA, other systems than Linux), the checks that compare iterations
    are skipped.

    >>> import torch
    >>> from ampsim.testing import checked
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> scaler = torch.amp.GradScaler("cpu")
    >>> with checked(raises=False) as found:
    ...     for _ in range(8):
    ...         optimizer.zero_grad()
    ...         scaler.scale(model(torch.randn(4, 2)).square().mean()).backward()
    ...         scaler.unscale_(optimizer)
    ...         scaler.update()  # scaler.step(optimizer) is missing
    >>> [result.check.name for result in found.results if result.outcome == "failed"]
    ['step_changes_parameters']

    Args:
        steps: Steps of an optimizer after which nothing more is recorded; at least 1.
        raises: Whether the end of the block raises an error for findings.
        checks: Names of the checks to run; None for all.

    Yields:
        Checked: The results, once the block has ended.

    Raises:
        AssertionError: At the end of the block, with `raises`: there are findings; the text has all
            of them.
        ValueError: There is no such check.
    """
    __tracebackhide__ = True  # for pytest
    wanted = chosen(CHECKS, checks)
    result = Checked()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the threads of a pool do not survive a fork
    with (
        tempfile.TemporaryDirectory(prefix="ampsim-") as folder,
        ExitStack() as patches,
    ):
        session = Session(
            Path(folder), steps=steps, limit=LIMIT, on_enough=patches.close
        )
        patches.enter_context(session.recorder.install())
        error = ""
        try:
            yield result
        except BaseException:
            error = traceback.format_exc()
            raise
        finally:
            patches.close()
            torch.set_num_threads(threads)
            run = session.observation("error" if error else "end", error)
            result.results = [*judge(run, NAME, wanted, {})]
            result.report = ScriptReport(result.results, run)
    if raises:
        raise_findings(result.results)

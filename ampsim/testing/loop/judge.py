"""Run the checks of a training loop: validate the loop, and report."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ampsim.testing import check as checks_of
from ampsim.testing.alarm import OverdueError, alarm, place
from ampsim.testing.check import BrokenError, Check, Result, described, raise_findings
from ampsim.testing.judge import judged
from ampsim.testing.loop.check import Broken
from ampsim.testing.loop.checks import CHECKS
from ampsim.testing.loop.loop import LoopError
from ampsim.testing.loop.play import Batch, Make, play
from ampsim.testing.loop.state import differences

FEWEST = 3
TRIED_AT = 2.0**8
LIMIT = 600.0  # seconds per check, which runs the loop a dozen times


def check_loop(
    make: Make,
    batches: Iterable[Any],
    checks: Sequence[str] | None = None,
    *,
    expected_failures: Mapping[str, str] | None = None,
    limit: float | None = None,
) -> list[Result]:
    """Run the checks on a training loop and raise if one fails.

    >>> import torch
    >>> from ampsim.testing import Loop, check_loop
    >>> def make(scaler):
    ...     torch.manual_seed(0)
    ...     model = torch.nn.Linear(2, 1)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    ...     def step(batch):
    ...         optimizer.zero_grad()
    ...         scaler.scale(model(batch).square().mean()).backward()
    ...         scaler.step(optimizer)
    ...         scaler.update()
    ...     return Loop(step, {"model": model, "optimizer": optimizer})
    >>> results = check_loop(make, torch.ones(3, 4, 2))
    >>> sorted({result.outcome for result in results})  # skipped: of arguments that Loop lacks
    ['passed', 'skipped']

    Args:
        make: ``make(scaler)`` builds all objects from scratch, seeds them, and returns a `Loop`
            that uses the given scaler. The checks set the scale. The scaler is torch's GradScaler
            on the CPU, or an instance of the class that annotates the parameter: a class with
            torch's methods and constructor arguments, a `LossScale` or ``DynamicScale`` of
            `ampsim.jax`, flax's ``DynamicScale``, or jmp's ``DynamicLossScale``.
        batches: at least 3 arguments of ``step``; each step gets a copy, under its own seed.
        checks: names in `CHECKS`; None for all.
        expected_failures: name of a check -> reason, with a link. Strict: a check that passes is a
            finding.
        limit: seconds per check; None for ten minutes, 0 for no limit, e.g. in a debugger. A check
            that takes longer is a finding. `check_scaler` explains where limits apply.

    Returns:
        list[Result]: One result per check.

    Raises:
        AssertionError: A check failed; the text has all findings.
        LoopError: The loop cannot be checked: two runs differ, it ignores the scaler, it has no
            state to compare, or it raised an exception, whose text and line are in the text.
        ValueError: No check has this name.
    """
    __tracebackhide__ = True  # for pytest
    asked = judge_loop(make, batches, checks, expected=expected_failures, limit=limit)
    results = [*asked]
    errors = [each.text for each in results if each.outcome == "error"]
    if errors and not any(each.is_finding for each in results):
        raise LoopError(errors[0])
    try:
        return raise_findings(results)
    except AssertionError as error:
        skipped = [each for each in results if each.outcome == "skipped"]
        left = [f"{each.check.name} skipped: {each.text}" for each in skipped]
        raise AssertionError("\n".join([f"{error}\n", *left])) from None


def chosen(checks: Collection[str] | None = None) -> list[Check]:
    """Return the checks of these names, or all; raise ValueError for an unknown name."""
    return checks_of.chosen(CHECKS, checks)


def judge_loop(
    make: Make,
    batches: Iterable[Any],
    checks: Sequence[str] | None = None,
    *,
    expected: Mapping[str, str] | None = None,
    name: str = "",
    limit: float | None = None,
) -> Iterator[Result]:
    """Yield the result of each check, as `check_loop` returns it, without raising for a failure.

    If the loop raises in a check, the outcome is error, and the other checks still run.
    """
    asked = chosen(checks)
    expected = expected or {}
    checks_of.require_known(CHECKS, expected)
    limit = LIMIT if limit is None else limit
    numbered = [Batch(number, data) for number, data in enumerate(batches)]
    name = name or _name(make)
    try:
        with alarm(limit):
            _try_out(make, numbered)
    except OverdueError as error:
        raise LoopError(
            f"the loop {error}, in {place(error)}: expected a run of {len(numbered)} batches to end"
        ) from None
    for check in asked:
        reason = expected.get(check.name)
        try:
            yield judged(
                check,
                name,
                partial(_ask, check, make, numbered),
                reason,
                limit,
            )
        except LoopError as error:
            yield Result(check, name, "error", str(error))


def begin_judging(
    find: Callable[[], tuple[Make, Iterable[Any]]],
    expected: Mapping[str, str],
    name: str,
    limit: float,
) -> Callable[[Sequence[str]], Iterator[Result]]:
    """Load a loop's maker and its batches; return a function of names that runs those checks: see
    `testing.child`.

    That function raises ValueError for a loop that cannot be checked.
    """
    make, batches = find()

    def judge(names: Sequence[str]) -> Iterator[Result]:
        try:
            yield from judge_loop(
                make, batches, names, expected=expected, name=name, limit=limit
            )
        except LoopError as error:
            raise ValueError(f"{name}: {error}") from error

    return judge


def _name(make: Make) -> str:
    return getattr(make, "__name__", "loop")


def _try_out(make: Make, batches: Sequence[Batch]) -> None:
    """Raise LoopError if no check can run on the loop."""
    if len(batches) < FEWEST:
        raise LoopError(f"{len(batches)=}: expected at least {FEWEST}")
    first = play(make, batches, TRIED_AT)
    second = play(make, batches, TRIED_AT)
    if not first.states[-1]:
        raise LoopError(
            "state is empty: expected the model, the optimizer, and all other training state"
        )
    if not first.used:
        raise LoopError(
            "the scaler was never used: expected make(scaler) to use the given scaler"
        )
    for step, (left, right) in enumerate(zip(first.states, second.states, strict=True)):
        if found := differences(left, right):
            raise LoopError(_not_the_same(step, str(found[0])))


def _not_the_same(step: int, difference: str) -> str:
    if step == 0:
        return (
            f"two calls of make differ before the first batch: {difference}; expected make to seed, and to build the "
            "model, the optimizer, and all other state from scratch"
        )
    return (
        f"two runs of step differ after batch {step - 1}: {difference}; expected equal bits. Usual fixes: draw "
        "random numbers from the default generator of torch, numpy, or Python, which is seeded before each step; build "
        "in make all objects that step changes; call torch.use_deterministic_algorithms(True)"
    )


def _ask(check: Check, make: Make, batches: Sequence[Batch]) -> None:
    """Run a check; raise BrokenError for a failure."""
    try:
        verdict = check.function(make, batches)
    except LoopError as error:
        if isinstance(error.__cause__, SystemExit):
            raise BrokenError(described(check, str(error))) from error
        raise LoopError(f"{check.name}: {error}") from error.__cause__
    if verdict is not None:
        raise BrokenError(message(check, verdict))


def message(check: Check, broken: Broken) -> str:
    """Return the text of a failure: check, observation, and the usual cause."""
    first = str(broken.differences[0]) if broken.differences else broken.seen
    also = [each.name for each in broken.differences[1:4]]
    more = len(broken.differences) - 1 - len(also)
    story = [
        ("cause", broken.cause),
        ("also", ", ".join(also) + (f" and {more} more" if more > 0 else "")),
    ]
    return described(check, f"{first}, {broken.where}", story)

"""Generated examples of a check, and the minimal one that fails.

To generate an example takes hypothesis about as long as to run it, and many come twice. So the
examples of equal strategies are generated once in a process, for all scalers and checks, and each
runs once. If one fails, hypothesis runs the check: it generates the same ones up to that one, and
shrinks it.

The number of examples, the phases, and whether they are the same each time follow the hypothesis
profile that is loaded. Without one there are `DEFAULT` examples, the same each time.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, core, given, seed, settings
from hypothesis.strategies import SearchStrategy, booleans

DEFAULT = 60  # examples without a profile
SEED = 1  # of examples that are the same each time
Strategies = tuple[
    tuple[str, SearchStrategy[object]], ...
]  # by the names of parameters
Values = Mapping[str, object]


class Examples(NamedTuple):
    """How many examples are generated, at most, and from which seed."""

    number: int
    seed: int

    @property
    def is_default(self) -> bool:
        """Whether a run without arguments and profiles generates these examples."""
        return self == Examples(DEFAULT, SEED)


def choose(count: int | None = None, of_seed: int | None = None) -> Examples:
    """Return these examples; what is None follows the profile, and ``--hypothesis-seed``."""
    profile = _profile()
    is_plain = profile == settings.get_profile("default")
    if count is None:
        count = DEFAULT if is_plain else profile.max_examples
    if of_seed is None:
        of_seed = core.global_force_seed
    if of_seed is None:
        of_seed = SEED if is_plain or profile.derandomize else _random_seed()
    return Examples(count, of_seed)


def _profile() -> settings:
    profile = settings.default
    assert profile is not None  # noqa: S101
    return profile


@cache  # one for all checks, so that they share what is generated
def _random_seed() -> int:
    return random.SystemRandom().getrandbits(32)


def run(
    example: Callable[..., None],
    strategies: Strategies,
    examples: Examples,
    first: Sequence[Values] = (),
    last: Sequence[Values] = (),
    *,
    shrinks: bool = True,
) -> None:
    """Call `example` with each of `first`, then with generated values, then with each of `last`.

    Args:
        example: Takes the values by name. The last call that raises has the minimal values.
        strategies: Strategies of the values; if there are none, there is one example.
        examples: How many are generated.
        first: Minimal examples.
        last: Examples that take long; left out of runs of fewer than `DEFAULT` examples.
        shrinks: Whether to look for the minimal example that fails.

    Raises:
        Exception: What the first example that fails raises, or the minimal one.
    """
    for values in first:
        example(**values)
    if not strategies:
        example()
        return
    passed = set()
    try:
        for name, values in generated(strategies, examples).items():
            example(**values)
            passed.add(name)
    except (Exception, SystemExit):

        def run_again(**values: object) -> None:
            if repr(values) not in passed:
                example(**values)

        if shrinks:
            _test(run_again, strategies, examples)
        raise  # also if the second time it passed
    for values in last if examples.number >= DEFAULT else ():
        example(**values)


@cache
def generated(strategies: Strategies, examples: Examples) -> Mapping[str, Values]:
    """Return the generated values, each once, by how they are written."""
    found: dict[str, Values] = {}
    _test(lambda **values: found.setdefault(repr(values), values), strategies, examples)
    return found


def _test(
    function: Callable[..., object], strategies: Strategies, examples: Examples
) -> None:
    def run_one(**values: object) -> None:
        function(**values)

    profile = _profile()
    chosen = settings(
        max_examples=examples.number,
        phases=[
            phase for phase in (Phase.generate, Phase.shrink) if phase in profile.phases
        ],
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    seed(examples.seed)(chosen(given(**dict(strategies))(run_one)))()


@cache
def warm_up() -> None:
    """Do what takes seconds when a process does it first, so that no scaler's time limit pays.

    An alarm in the middle of an import would leave half of a module behind, too.
    """
    import torch

    param = torch.nn.Parameter(torch.ones(()))
    torch.optim.SGD([param]).step()  # imports torch's compiler
    generated((("flag", booleans()),), Examples(1, SEED))

"""The pytest options of the checks: ``--ampsim-examples`` and ``--ampsim-seed``.

pytest loads this module in each run once ampsim is installed, so it imports pytest only.
"""

from collections.abc import Mapping

import pytest

chosen: dict[
    str, int
] = {}  # the options of this run, by the names of `parametrize_with_checks`
HELP: Mapping[str, str] = {
    "examples": "generated examples per check of scalers, at most; replaces examples= and the profile",
    "seed": "seed of the examples of checks of scalers; replaces seed= and --hypothesis-seed",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("ampsim", "checks of loss scalers")
    for name, text in HELP.items():
        group.addoption(f"--ampsim-{name}", type=int, metavar="N", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the options for decorators, which run before any test is collected.

    Raises:
        pytest.UsageError: Fewer than one example.
    """
    options = {name: config.getoption(f"--ampsim-{name}") for name in HELP}
    chosen.update({name: value for name, value in options.items() if value is not None})
    if chosen.get("examples", 1) < 1:
        raise pytest.UsageError(
            f"--ampsim-examples {chosen['examples']}: expected at least 1"
        )


def pytest_report_header() -> list[str]:
    """Show what was chosen."""
    return [f"ampsim: {name}={value}" for name, value in chosen.items()]

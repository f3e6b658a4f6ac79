"""One browser for every test of a page: starting it costs more than most of them."""

from collections.abc import Iterator

import pytest

from tests.diagnose.browser import Browser


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return the browser's tab, in the size and at the page that the last test left."""
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser

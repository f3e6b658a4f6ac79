"""A page holds everything it needs, and nothing that a run's names say becomes markup."""

import base64
import json
from html import escape
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ampsim.diagnose.page.page import assemble, packed, to_json

HOSTILE = ["</script><script>alert(1)</script>", "<!--<script>", "\ud800", "\u2028", "&lt;", "]]>", "\0", '"\\']


class Parts(HTMLParser):
    """Collects the tags of a page and the text of its data."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.data, self._in_data = [], "", False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in_data = ("id", "data") in attrs

    def handle_endtag(self, tag):
        self._in_data = False

    def handle_data(self, data):
        self.data += data if self._in_data else ""


def shape(page):
    return [tag for tag, _ in Parts(page).tags]


@given(st.text())
@example(HOSTILE[0])
@example(HOSTILE[1])
@example(HOSTILE[2])
def test_data_comes_back_whatever_its_strings_are_and_adds_no_markup(text):
    page = assemble("t", [], {text: [text]}, "")
    parts = Parts(page)
    assert json.loads(parts.data) == {text: [text]}
    assert shape(page) == shape(assemble("t", [], {}, ""))
    assert not set("<>&") & set(to_json(text))


@pytest.mark.parametrize("title", HOSTILE)
def test_a_title_is_text(title):
    page = assemble(title, [], {}, escape(title))
    assert shape(page) == shape(assemble("t", [], {}, ""))
    page.encode()


def test_a_page_loads_nothing_and_is_small():
    page = assemble("t", ["one()", "two()"], {}, "<h1>t</h1>")
    for tag, attrs in Parts(page).tags:
        assert "src" not in attrs, tag
        assert attrs.get("href", "data:,").startswith("data:")
    assert "default-src 'none'" in page
    assert page.index("uPlot=") < page.index("<script>one()") < page.index("<script>two()")
    assert "Permission is hereby granted" in page
    assert len(page.encode()) < 100_000


@pytest.mark.parametrize("script", ["'</SCRIPT>'", "<!-- x"])
def test_a_script_that_would_end_early_is_refused(script):
    with pytest.raises(ValueError, match="expected neither"):
        assemble("t", [script], {}, "")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(ValueError, match="JSON"):
        assemble("t", [], [value], "")


def test_arrays_come_back_with_inf_and_nan():
    values = np.array([0.1, np.inf, np.nan, 65536.0, 1e300])
    [(kind, text)] = packed(values).items()
    expected = [0.1, np.inf, np.nan, 65536.0, np.inf]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(text), kind), np.float32(expected))
    [(kind, text)] = packed(values, "float64").items()
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(text), kind), values)

"""One page of HTML that opens anywhere: it loads nothing, and it trusts none of the names that it
shows.

The browser is told to load nothing from anywhere, so that a mistake cannot become a request.
"""

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from string import Template

from ampsim.core.output import printable

HERE = Path(__file__).parent


def shown(text: str) -> str:
    """Return text from outside for HTML, with invisible characters as escape codes."""
    return escape(printable(text))


def assemble(title: str, scripts: Sequence[str], data: object, body: str) -> str:
    """Return a page: body, in which the caller has escaped what others wrote, data, and the
    scripts.

    Raises:
        ValueError, TypeError: data that is no JSON, such as inf, or a script that would end early.
    """
    for script in scripts:
        if "</script" in script.lower() or "<!--" in script:
            raise ValueError(
                "a script with '</script' or '<!--': expected neither; write '<\\/script' in a "
                "string"
            )
    page = Template(asset("page.html")).substitute(
        title=shown(title),
        style=asset("page.css"),
        body=body,
        data=to_json(data),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )
    return page.encode(
        errors="replace"
    ).decode()  # a lone surrogate in a name could not be written


def to_json(data: object) -> str:
    """Return JSON that no HTML parser mistakes for markup, whatever its strings are."""
    text = json.dumps(
        data, allow_nan=False, separators=(",", ":")
    )  # ASCII, so that a lone surrogate is harmless
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def asset(name: str) -> str:
    """Return the text of a file beside this one."""
    return (HERE / name).read_text(encoding="utf-8")

"""Show the examples and tables of docstrings as they stand there, and their lists as lists."""

import re
import textwrap
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> (?:.|\n)*?(?=\n\n|\n?\Z)", re.MULTILINE)
TABLE = re.compile(r"^=+ +=[= ]+\n(?:.+\n?)+", re.MULTILINE)
LIST = re.compile(
    r"^(?!\w+:$)(?! |[*-] |\d+\. )(.*\S)\n(?=( *)(?:[*-]|1\.) )((?:.+\n?)+)", re.MULTILINE
)
"""A list right below its paragraph, where Markdown would see none. What is below one word is a section of its own."""


def apart(found: re.Match[str]) -> str:
    """Return a paragraph and its list, with a blank line between them and the list at the margin."""
    return f"{found[1]}\n\n{textwrap.dedent(found[3])}"


class Fenced(griffe.Extension):
    """Puts each example and table between fences, and a blank line above each list, when a docstring has been read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
            text = TABLE.sub(lambda found: f"```text\n{found[0].rstrip()}\n```\n", text)
            obj.docstring.value = LIST.sub(apart, text)

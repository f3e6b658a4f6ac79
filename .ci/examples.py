"""Keep the examples, tables, and lists of docstrings intact on the documentation site."""

import re
import textwrap
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> (?:.|\n)*?(?=\n\n|\n?\Z)", re.MULTILINE)
TABLE = re.compile(r"^=+ +=[= ]+\n(?:.+\n?)+", re.MULTILINE)
LIST = re.compile(
    r"^(?!\w+:$)(?! |[*-] |\d+\. )(.*\S)\n(?=( *)(?:[*-]|1\.) )((?:.+\n?)+)",
    re.MULTILINE,
)
"""A list without a blank line above it, which Markdown does not recognize. A single word starts a section instead."""


def separate_list(match: re.Match[str]) -> str:
    """Put a blank line between a paragraph and its list, and dedent the list."""
    return f"{match[1]}\n\n{textwrap.dedent(match[3])}"


class Fenced(griffe.Extension):
    """Fences each example and table of a docstring, and adds a blank line above each list."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function, or attribute."""
        if obj.docstring:
            text = obj.docstring.value.replace("::\n\n", ":\n\n")  # a literal block
            text = EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", text)
            text = TABLE.sub(lambda match: f"```text\n{match[0].rstrip()}\n```\n", text)
            obj.docstring.value = LIST.sub(separate_list, text)

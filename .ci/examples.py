"""Show the examples of docstrings, which stand between paragraphs, as code, and their lists as lists."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> (?:.|\n)*?(?=\n\n|\n?\Z)", re.MULTILINE)


LIST = re.compile(r"^((?! *(?:\d+\.|[*-]) ).*\S)\n( *(?:1\.|[*-]) )", re.MULTILINE)
"""The beginning of a list right below its paragraph, where Markdown would see none."""


class Fenced(griffe.Extension):
    """Puts each example between fences, and a blank line above each list, when a docstring has been read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
            obj.docstring.value = LIST.sub(r"\1\n\n\2", text)

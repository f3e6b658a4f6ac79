"""Show the examples of docstrings, which stand between paragraphs, as code."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> (?:.|\n)*?(?=\n\n|\n?\Z)", re.MULTILINE)


class Fenced(griffe.Extension):
    """Put each example between fences when a docstring has been read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)

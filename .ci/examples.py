"""Keep the examples of docstrings intact on the documentation site."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> (?:.|\n)*?(?=\n\n|\n?\Z)", re.MULTILINE)


class Fenced(griffe.Extension):
    """Fences each example of a docstring, and removes the marks of literal blocks."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function, or attribute."""
        if obj.docstring:
            text = obj.docstring.value.replace("::\n\n", ":\n\n")
            text = EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", text)
            obj.docstring.value = text

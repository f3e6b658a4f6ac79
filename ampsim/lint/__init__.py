"""Static checks of training loops: ``ampsim lint train.py`` reads loops without running them.

`lint(source)` returns the findings in the text of one file. Behind it, `source` parses and
indexes a file, `walk` goes through its functions once and lists what happens as `events`,
`bindings` resolves names, `rules` has one function per rule, `engine` runs the rules on a text, and
`run` on files. This package imports only the standard library, because a lint run should end before
torch would be imported.
"""

from ampsim.lint.engine import RULES, Finding, Rule, lint
from ampsim.lint.source import UnreadableError

__all__ = ["RULES", "Finding", "Rule", "UnreadableError", "lint"]

"""Static checks of training loops: ``ampsim lint train.py`` reads loops without running them.

`source` parses a file. `walk` goes through its functions and records events in the order of execution. `frame` resolves
names. `rules` has one function per rule, and `engine` runs the rules. This package imports only the standard library,
because a lint run should end before torch would be imported.
"""

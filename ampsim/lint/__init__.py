"""Reads training loops without running them, and names what breaks a check: ``ampsim lint train.py``.

`source` parses a file, `walk` goes through its functions and notes the events in the order in which they happen, and
`frame` knows what names stand for there; `rules` has a function per rule, and `engine` asks them. The standard library
is all that it may know: it starts before torch would have.
"""

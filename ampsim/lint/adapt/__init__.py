"""Writes what `ampsim check-loop` needs, from the source of a loop: its own order of calls, and stand-ins around it.

Of the statements of an iteration those are kept that a rule looks at, the conditions on the way to them, and what they
are computed from. A forward pass becomes a small loss of a small model, a setting what the file says or what leads to
the scaler's step; each says in a comment what it stands for. What cannot be read is marked with TODO.
"""

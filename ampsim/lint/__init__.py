"""Reads training loops without running them, and names what breaks a law: ``ampsim lint train.py``.

`source` reads a file, `trace` walks its loops into events in the order in which they happen, `rules` has one file per
rule, and `registry` lists them. The standard library is all that it may know: it starts before torch would have.
"""

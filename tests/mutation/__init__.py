"""Mutation tests: change one expression at a time in `ampsim`, and see which test fails.

``python -m tests.mutation`` (``make mutants``) draws a sample of mutants by a seed, runs for each the tests that reach
its line, and writes what killed it, or that nothing did. A survivor asks for a test, or for an argument in
`equivalent.py` that no test can tell it from the code. ``before.jsonl`` is the sample of seed 13 before its survivors
were looked at, ``seed-13.jsonl`` after; the seeds beyond it had not been drawn when the tests were written.
"""

"""Mutation tests: change one expression at a time in `ampsim`, and see which test fails.

``python -m tests.mutation`` (``make mutants``) draws a sample of mutants by a seed, runs for each the tests that reach
its line, and writes what killed it, or that nothing did, into ``seed-<seed>.jsonl``. A survivor asks for a test, or for
an argument in `equivalent.py` that no test can tell it from the code. ``before`` is what a mutant's first run found.
"""

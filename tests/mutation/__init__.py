"""Mutation tests: change one expression at a time in a room of `ampsim` or in the runner, and see which test fails.

``python -m tests.mutation`` (``make mutants``) draws a sample of mutants by a seed, runs for each the tests that reach
its line, and writes what killed it, or that nothing did, into ``seed-<seed>.jsonl``. A survivor asks for a test, or for
an argument in `equivalent.py` that no test can tell it from the code. ``before`` is what a mutant's first run found.

Seed 13 is the sample that tests were written for; core's and JAX's mutants of seed 14 were drawn afterwards, so that
their ``before`` is the rate that a stranger's bug meets.
"""

import os

os.environ.setdefault("AMPSIM_KERNELS", "own")  # as tests/conftest.py: before `experiments` is imported, which reads it

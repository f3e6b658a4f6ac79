"""The paper: text, the numbers in it, and what builds it. See `python -m paper --help`."""

"""A card, looked at: probes of a CUDA device that make one file, and what judges such a file.

A probe is a generator: it yields what it has found so far, again and again, and is left when its time is over. `run`
has the table of them, `file` keeps what they found, `verify` replays and judges it by `claims`, which were frozen
before. The room knows no card by name, and nothing of `experiments`.
"""

"""A card, looked at: probes of a CUDA device that make one file, and what judges such a file.

One file per kind of probe. `run` puts them in order and shares out the time, `file` keeps what they found, `verify`
replays and judges it by `claims`, which were frozen before. It knows no card by name, and nothing of `experiments`.
"""

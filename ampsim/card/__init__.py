"""A card, looked at: probes of a CUDA device that make one file, and what judges such a file.

`run` gives each of `probes` its time; `verify`, which needs no torch, holds the file, replays it, and judges it by
`claims`, which were frozen before. The room knows no card by name, nothing of `experiments`.
"""

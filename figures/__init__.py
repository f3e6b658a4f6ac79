"""The figures: `figures/<stem>.py` reads `experiments/data/` and draws `<stem>.svg`.

`python -m figures` draws all of them. `python -m figures --check` compares them with the committed
files. This package imports only `ampsim.core`, matplotlib, and numpy. Each module has `DATA` (stems
of the data files it reads) and `plot`, which takes one `results.Result` per stem and returns the
figure.
"""

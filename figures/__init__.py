"""The paper's figures: `figures/<stem>.py` reads `experiments/data/` and gives `<stem>.svg`.

`python -m figures` renders all, `python -m figures --check` compares with what is committed. Imports
`ampsim.core`, matplotlib and numpy only. Each module has `DATA` (stems of the data files it reads) and `plot`, which
takes one `results.Result` per stem and returns the figure.
"""

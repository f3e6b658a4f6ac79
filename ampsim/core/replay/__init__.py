"""Replay of rules and policies over recorded runs.

`fold` replays an overflow sequence. `thresholds` replays the overflow thresholds of a run; `engine`
is its inner loop. `sweep` replays many rules.
"""

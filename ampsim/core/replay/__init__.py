"""What a rule would have done over a recorded run: by folding, over thresholds, from event to event, for many rules.

`fold` replays overflows, `thresholds` the scales that would not have overflowed, `engine` is the loop below it, and
`sweep` does many rules. It knows rules and numbers, and not where a trace came from.
"""

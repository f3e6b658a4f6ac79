"""Floor 0: what a loss scaler does, as pure functions. Standard library and numpy only.

Read `machine` first, then `laws`, then `dialects`; `protocol` adds optimizers around the machine.
"""

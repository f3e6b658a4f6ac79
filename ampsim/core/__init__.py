"""Loss scalers as pure functions. Depends only on the standard library and numpy.

Read `machine` first, then `properties`, then `dialects`. `policies` are state machines without the
backoff rule. `replay` runs a rule or a policy over a recorded overflow sequence.
"""

"""Floor 0: what a loss scaler does, as pure functions. Standard library and numpy only.

Read `machine` first, then `properties`, then `dialects`. `policies` are machines outside the
backoff family, `replay` runs either over a recorded history, and `torch_model` adds torch's
optimizers and refusals around the machine.
"""

"""Callbacks that record the runs of trainers: one module per framework, which imports only its own
framework.

accelerate needs none: `ampsim.runs.watch` takes the scaler from the prepared optimizer.
"""

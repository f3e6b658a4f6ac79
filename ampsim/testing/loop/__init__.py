"""Checks of training loops. They need no reference run, because multiplying by a power of two is
exact.
"""

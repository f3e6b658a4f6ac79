"""The room that judges a training loop: checks that need no reference run, as multiplying by a
power of two is exact.
"""

"""Trains real networks on real data: tasks, one loop, and what fp16 did to a gradient. It knows no
experiment.
"""

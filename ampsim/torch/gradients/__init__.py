"""Reads and writes of gradients. Nothing here knows tickets, locks, or a scaler's state."""

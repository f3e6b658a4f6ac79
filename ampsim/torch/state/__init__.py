"""Versions of the scale: their device, and how an update computes the next one."""

"""Checks of a whole training script, which is run unchanged under instrumentation."""

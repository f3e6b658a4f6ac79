"""Findings: one function each, from the evidence of a run to a `Finding` or None."""

"""Runs an experiment: command line, units, worker processes, journal, provenance. It knows no experiment by name."""

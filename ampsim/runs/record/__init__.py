"""Recording: watched loops, run files, and the data files of experiments."""

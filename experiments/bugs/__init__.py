"""What is wrong on purpose: training loops with one bug each, as in public threads. Tests plant
them, too.
"""

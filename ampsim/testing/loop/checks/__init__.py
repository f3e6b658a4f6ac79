"""One check per file: a function of a loop's maker and of batches that returns the failure, or
None.
"""

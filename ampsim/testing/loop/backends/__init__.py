"""One file per framework, which alone imports it: how its runs are made, and what the checks ask of
them.
"""

"""Pages of HTML that need nothing else: the frame and the style that they share, and the parts of a
report.
"""

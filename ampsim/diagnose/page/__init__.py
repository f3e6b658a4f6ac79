"""Pages of HTML that need nothing else: the frame, the style and the plotting library that they share."""

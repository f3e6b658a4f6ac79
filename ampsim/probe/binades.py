"""Where a float32 number is counted: the index of its binade, and the masks that find it in the
number's bits.
"""

SMALLEST = -149
LARGEST = 127
"""Exponents of float32's lowest subnormal and highest binade; binade e is [2^e, 2^(e+1))."""
ZERO = 0
INF = LARGEST - SMALLEST + 2
NAN = LARGEST - SMALLEST + 3
"""Indices into the counts; binade e has index ``e - SMALLEST + 1``."""
BINS = NAN + 1
FIRST_NORMAL = 24  # index of 2^-126; the 23 subnormal binades come before it
MAGNITUDE = 0x7FFFFFFF
INF_BITS = 0x7F800000

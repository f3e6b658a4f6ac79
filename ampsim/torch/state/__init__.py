"""Versions of the scale: where one lives and how the next one is made. This room knows no optimizer's step."""

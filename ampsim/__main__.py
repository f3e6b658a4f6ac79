"""``python -m ampsim`` is the same program as ``ampsim``."""

from ampsim.cli import main

main()

"""``python -m ampsim.lint`` is ``ampsim lint``."""

import sys

from ampsim.lint.command import main

sys.exit(main())

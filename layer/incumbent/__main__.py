"""``python -m incumbent``: the command line (`incumbent.cli`)."""

import sys

from incumbent.cli import main

sys.exit(main())

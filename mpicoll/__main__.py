"""``python -m mpicoll`` is ``mpicoll``."""

import sys

from mpicoll.cli import main

sys.exit(main())

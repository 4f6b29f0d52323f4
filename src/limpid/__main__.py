"""`python -m limpid`, the same as `limpid`."""

import sys

from limpid.cli import main

sys.exit(main())

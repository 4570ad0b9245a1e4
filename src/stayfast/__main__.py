"""`python -m stayfast`."""

import sys

from stayfast.cli import main

sys.exit(main())

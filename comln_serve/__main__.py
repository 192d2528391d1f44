"""`python -m comln_serve` is the command `comln-serve`."""

import sys

from comln_serve.entry import main

sys.exit(main())

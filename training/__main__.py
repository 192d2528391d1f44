"""`python -m training` is `comln-train`; `torchrun -m training fit ...` starts it in several processes."""

import sys

from training.entry import main

sys.exit(main())

"""`python -m training` is `comln-train`: what `torchrun -m training fit ...` starts."""

import sys

from training.entry import main

sys.exit(main())

"""comln-serve: few-shot adaptation of image classifiers by gradient flow, over HTTP."""

import os
from importlib.metadata import version

# ONNX Runtime since 1.29 sends usage data to Microsoft and keeps a device id in the home folder. It
# reads this variable once, when it is imported, which no module does before this one has run.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = version("comln-serve")

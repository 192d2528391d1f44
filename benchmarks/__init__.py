"""Measurements of the server and the trainer, each beside an alternative."""

import comln_serve as comln_serve  # turns off ONNX Runtime's telemetry before it is imported

"""Offline trainer: meta-learns embedding, start and amount of adaptation; exports bundles."""

import comln_serve as comln_serve  # turns off ONNX Runtime's telemetry before it is imported

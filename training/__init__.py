"""Offline trainer: meta-learns the embedding, the start and the horizon of adaptation; exports bundles."""

import comln_serve as comln_serve  # turns off ONNX Runtime's telemetry before it is imported

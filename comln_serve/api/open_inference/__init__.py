"""The Open Inference Protocol, version 2. Each classifier is one of the protocol's models.

Triton's and KServe's clients speak it: https://github.com/kserve/open-inference-protocol. Triton's
extensions for binary tensors and for classification are supported. Requests run as `/predict` does.
"""

"""The Open Inference Protocol, version 2, in which a classifier is a model.

What Triton's and KServe's clients speak: https://github.com/kserve/open-inference-protocol, with
Triton's extensions for binary tensors and for classification. Requests run as `/predict` does.
"""

"""Classifiers as files for other programs: a whole ONNX graph, or the head alone.

`onnx_file` is not imported here: it needs the `onnx` package, which the server loads only for the
first export.
"""

from comln_serve.export.head_file import head_file
from comln_serve.export.metadata import FORMAT_VERSION, metadata

__all__ = ["FORMAT_VERSION", "head_file", "metadata"]

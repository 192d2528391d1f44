"""Classifiers as files for other programs: a whole ONNX graph, or the head alone.

Nothing is imported here: `onnx_file` needs the `onnx` package, which the server loads only for the
first export.
"""

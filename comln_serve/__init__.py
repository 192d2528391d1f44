"""comln-serve: few-shot adaptation of image classifiers by gradient flow, over HTTP."""

from importlib.metadata import version

__version__ = version("comln-serve")

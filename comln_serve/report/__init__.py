"""Adapts heads, judges the classifiers by their support images, and reports on them."""

from comln_serve.report.adapt import Adaptation, adapt
from comln_serve.report.duplicates import find_among
from comln_serve.report.make import make_report
from comln_serve.report.unknown import similarity

__all__ = ["Adaptation", "adapt", "find_among", "make_report", "similarity"]

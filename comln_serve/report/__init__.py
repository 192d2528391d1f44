"""Reports on a classifier from its support images, and what predictions take from them."""

from comln_serve.report.adapt import Adaptation, adapt
from comln_serve.report.content import HeldOutReport, HorizonChoice, Report, Suspect
from comln_serve.report.make import make_report
from comln_serve.report.reading import report_of, temperature, unknown_threshold
from comln_serve.report.unknown import similarity

__all__ = [
    "Adaptation",
    "HeldOutReport",
    "HorizonChoice",
    "Report",
    "Suspect",
    "adapt",
    "make_report",
    "report_of",
    "similarity",
    "temperature",
    "unknown_threshold",
]

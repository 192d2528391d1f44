"""The bundle: the contract between trainer and server."""

from comln_serve.bundle.calibration import Calibration
from comln_serve.bundle.head import Head, SolverSettings
from comln_serve.bundle.load import Bundle, BundleError, find_bundles, load_bundle
from comln_serve.bundle.manifest import AccuracyEntry, ComparisonEntry, Manifest

__all__ = [
    "AccuracyEntry",
    "Bundle",
    "BundleError",
    "Calibration",
    "ComparisonEntry",
    "Head",
    "Manifest",
    "SolverSettings",
    "find_bundles",
    "load_bundle",
]

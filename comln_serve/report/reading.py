"""What a prediction takes from a classifier's report and its model's calibration."""

from comln_serve.bundle import Calibration
from comln_serve.classifier import ClassifierInfo
from comln_serve.report.content import Report


def report_of(classifier: ClassifierInfo) -> Report | None:
    """A classifier's report, None where it has none."""
    return None if classifier.report is None else Report.model_validate(classifier.report)


def temperature(classifier: ClassifierInfo, calibration: Calibration | None) -> float | None:
    """What the logits are divided by; None where the classifier's probabilities are uncalibrated:

    the model is, or it was adapted to a horizon of the caller's, for which nothing was measured.
    """
    if calibration is None or not _own_horizon(classifier):
        return None
    return calibration.temperature_of(classifier.examples)


def unknown_threshold(classifier: ClassifierInfo, calibration: Calibration | None) -> float | None:
    """Similarity under which an image is unknown; None where neither report nor model says: what
    was measured of the model holds for a horizon of its own only.
    """
    report = report_of(classifier)
    if report is not None and report.unknown_threshold is not None:
        return report.unknown_threshold
    if calibration is None or not _own_horizon(classifier):
        return None
    return calibration.unknown_of(classifier.examples)


def _own_horizon(classifier: ClassifierInfo) -> bool:
    report = classifier.report
    return report is None or bool(report.get("own_horizon", True))

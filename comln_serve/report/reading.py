"""Reads temperature and threshold from a classifier's report and its model's calibration."""

from comln_serve.bundle import Calibration
from comln_serve.domain.classifier import ClassifierInfo
from comln_serve.report.content import Report


def report_of(classifier: ClassifierInfo) -> Report | None:
    """A classifier's report; None if it has none."""
    return None if classifier.report is None else Report.model_validate(classifier.report)


def temperature(classifier: ClassifierInfo, calibration: Calibration | None) -> float | None:
    """The temperature that the logits are divided by; None if the model is not calibrated, or if
    the horizon does not follow the model's own rule, for which the calibration was measured.
    """
    if calibration is None or not _own_horizon(classifier):
        return None
    return calibration.temperature_of(classifier.examples)


def unknown_threshold(classifier: ClassifierInfo, calibration: Calibration | None) -> float | None:
    """Similarity below which an image is unknown: the report's, else the model's if the horizon
    follows its own rule, else None.
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

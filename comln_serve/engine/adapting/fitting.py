"""Adapts a head to a support set, and reports on the result."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Timer

import numpy as np
from numpy.typing import NDArray

from comln_serve.bundle.head import HorizonRule
from comln_serve.domain.classifier import Classifier, HeldOutInfo, softmax
from comln_serve.domain.reference import new_id
from comln_serve.domain.support import MIN_CLASSES, SupportSet
from comln_serve.engine.cancellation import Cancellation
from comln_serve.engine.clock import StageClock
from comln_serve.engine.models import Model
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.flow import FlowError
from comln_serve.report import adapt, make_report
from comln_serve.storage import utc_now


def fit(
    model: Model,
    support: SupportSet,
    horizon: float | HorizonRule | None,
    max_seconds: float,
    clock: StageClock,
    cancellation: Cancellation,
) -> Classifier:
    """Make a new classifier without a name, with its report: adapt a model's head to a support set.

    Args:
        horizon: T, or the rule that sets it; None: the model's own rule.
        max_seconds: for solve and report together. A report that takes longer is cut or left out.
        cancellation: ends the solve when it is raised.

    Raises:
        ServiceError: CANNOT_ADAPT; CLIENT_GONE.
    """
    check_classes(support.labels, model)
    head = model.bundle.head
    phi = support.embeddings.reshape(len(support), -1, model.bundle.manifest.embedding_size)  # (M, V, d)
    labels, classes = support.classes, support.class_indices()
    rule = head.horizon_rule if horizon is None else horizon
    with raised_after(max_seconds) as late, cancellation.calling(partial(late.fill, True)):
        try:
            adaptation = adapt(
                head, phi, classes, len(labels), hashes=support.hashes, horizon=rule, cancel=late, stage=clock.stage
            )
        except FlowError as error:
            cancellation.check()
            raise _cannot_adapt(error, rule, max_seconds) from error
    own_horizon = rule == head.horizon_rule
    if head.horizon_rule == "learned":  # another rule may have chosen the learned T
        own_horizon = adaptation.horizon == adaptation.learned
    report = make_report(
        adaptation,
        classes,
        labels,
        own_horizon=own_horizon,
        numbers=support.numbers,
        calibration=model.bundle.manifest.calibration,
    )
    held_out = report.held_out
    W = adaptation.solution.W.astype(np.float32)
    probabilities = softmax(phi[:, 0].astype(np.float64) @ W.T.astype(np.float64))
    of_truth = probabilities[np.arange(len(classes)), classes]
    weights = head.example_weights(classes, len(labels))
    return Classifier(
        id=new_id(),
        name=None,
        model=model.name,
        embedder_sha256=model.embedder_sha256,
        head_sha256=model.bundle.head_sha256,
        labels=labels,
        examples=tuple(int(n) for n in np.bincount(classes, minlength=len(labels))),
        horizon=adaptation.horizon,
        horizon_rule=rule if isinstance(rule, str) else "given",
        support_loss=float(-(weights * np.log(np.maximum(of_truth, 1e-300))).sum()),
        support_accuracy=float((probabilities.argmax(axis=1) == classes).mean()),
        created_at=utc_now(),
        held_out=None if held_out is None else HeldOutInfo(accuracy=held_out.accuracy, judged=held_out.judged),
        report=report,
        thumbnails=support.thumbnails_by_class(),
        W=W,
    )


@contextmanager
def raised_after(seconds: float) -> Generator[NDArray[np.bool_], None, None]:
    """A (1,) array, which compiled code can read: another thread sets it to True after `seconds`, if the block still
    runs.
    """
    flag = np.zeros(1, dtype=np.bool_)
    timer = Timer(seconds, flag.fill, (True,))
    timer.daemon = True  # a process that ends does not wait for it
    timer.start()
    try:
        yield flag
    finally:
        timer.cancel()


def _cannot_adapt(error: FlowError, horizon: float | HorizonRule, max_seconds: float) -> ServiceError:
    more = ""
    if "max_steps" in str(error):
        more = " (which is the model's own, in its bundle)"
    elif "cancelled" in str(error):
        more = f", send fewer images, or have the operator raise max_solve_seconds, which is {max_seconds:g}"
    return ServiceError(
        ErrorCode.CANNOT_ADAPT, f"These images cannot be adapted to as asked: {error}{more}.", horizon=horizon
    )


def check_classes(labels: Sequence[str], model: Model) -> None:
    """Check that the model can be adapted to a support set with these labels (M,).

    Raises:
        ServiceError: CANNOT_ADAPT.
    """
    ways, needed = len(set(labels)), model.bundle.head.ways
    if not labels:
        raise ServiceError(
            ErrorCode.CANNOT_ADAPT,
            "No support image was received. Send at least one image of each of two or more classes.",
            received_images=0,
        )
    if ways < MIN_CLASSES:
        raise ServiceError(
            ErrorCode.CANNOT_ADAPT,
            f"All support images ({len(labels)}) carry the label {labels[0]!r}. A classifier needs "
            "at least two classes; send images of a second one.",
            received_classes=1,
            least_classes=MIN_CLASSES,
        )
    if needed is not None and ways != needed:
        raise ServiceError(
            ErrorCode.CANNOT_ADAPT,
            f"Model {model.name!r} is tied to {needed} classes; received {ways}. Send exactly "
            f"{needed}, or use a model with a zero or prototype start.",
            received_classes=ways,
            needed_classes=needed,
        )

"""The calls of the clients that predict, as coroutines on a `Session`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from comln_serve.client.asking import ask_for, ask_partially
from comln_serve.client.chain import path_of
from comln_serve.client.cuts import Cuts, OnBad
from comln_serve.client.errors import ComlnError, IncompleteError, InterruptedPredicting
from comln_serve.client.evaluation import Evaluation, as_classes, evaluation_of, labels_by_image
from comln_serve.client.folders import Folder, read_class_folders, read_folder
from comln_serve.client.images import ImageSource, Prepared, sources
from comln_serve.client.results import Classifier, PredictAnswer, Prediction, Predictions, Reference, Rejected
from comln_serve.client.session import Request, Session

_PREDICTED = 64  # images classified at a time: little is lost if the next of thousands fail, and progress is seen


class PredictingCalls:
    """Calls of a client that predict."""

    _session: Session

    async def predict(
        self,
        images: Sequence[ImageSource],
        classifier: Reference,
        *,
        top_k: int = 5,
        unknown: bool = False,
        all_views: bool = False,
        on_bad: OnBad = "raise",
        progress: bool | None = False,
    ) -> Predictions:
        """Classify images.

        Args:
            images: as in `adapt`.
            top_k: how many of the likeliest classes to list, at most 100.
            unknown: say of each image whether it is unlike every class.
            all_views: look at each image in all the views that the model takes of support images: somewhat more
                accurate, for as many times the server's work.
            on_bad: "raise" at an image that cannot be used, or "skip" it.
            progress: show a bar on standard error; None: if that is a terminal.

        Raises:
            BadImageError: an image cannot be used.
            IncompleteError: it failed after some of several requests, or the classifier was changed between them;
                `result` has what they answered.
            InterruptedPredicting (a KeyboardInterrupt): the same on Ctrl-C.
        """
        cuts = Cuts(self._session, sources(images), on_bad, show=progress, most=_PREDICTED)
        return await _predict(cuts, classifier, top_k=top_k, unknown=unknown, all_views=all_views)

    async def predict_folder(
        self,
        folder: Folder,
        classifier: Reference,
        *,
        top_k: int = 5,
        unknown: bool = False,
        all_views: bool = False,
        on_bad: OnBad = "skip",
        progress: bool | None = None,
    ) -> Predictions:
        """`predict` for all images of a folder, and of the folders in it. Raises InputError if there are none.

        Args:
            on_bad, progress: as in `adapt_folder`.
        """
        images, skipped = await self._session.call(read_folder, folder)
        cuts = Cuts(self._session, images, on_bad, skipped, show=progress, most=_PREDICTED)
        return await _predict(cuts, classifier, top_k=top_k, unknown=unknown, all_views=all_views)

    async def evaluate(
        self,
        images: Sequence[ImageSource],
        labels: Sequence[str],
        classifier: Reference,
        *,
        unknown: bool = False,
        all_views: bool = False,
        on_bad: OnBad = "raise",
        progress: bool | None = False,
    ) -> Evaluation:
        """Classify labelled images and compare. Those that the classifier was adapted to say nothing about new ones.

        Args:
            images, all_views, on_bad, progress: as in `predict`, which raises the same errors.
            labels: one for each image, of the classifier's classes, or InputError is raised.
            unknown: count the images found unlike every class, too. Images of other classes can be among them then.
        """
        cuts = Cuts(self._session, sources(images, labels), on_bad, show=progress, most=_PREDICTED)
        remedy = "Correct the labels"
        return await _evaluate(cuts, classifier, remedy=remedy, unknown=unknown, all_views=all_views)

    async def evaluate_folder(
        self,
        folder: Folder,
        classifier: Reference,
        *,
        unknown: bool = False,
        all_views: bool = False,
        on_bad: OnBad = "skip",
        progress: bool | None = None,
    ) -> Evaluation:
        """`evaluate` for a folder of class folders, `folder/<class>/<image>`, as `adapt_folder` reads it, but a class
        folder without an image is skipped.

        Args:
            on_bad, progress: as in `adapt_folder`.
        """
        images, skipped = await self._session.call(read_class_folders, folder, every_class=False)
        cuts = Cuts(self._session, images, on_bad, skipped, show=progress, most=_PREDICTED)
        remedy = f"Rename or move the folders: a label is a folder's path below {folder}"
        return await _evaluate(cuts, classifier, remedy=remedy, unknown=unknown, all_views=all_views)


async def _predict(
    cuts: Cuts, classifier: Reference, *, top_k: int, revision: int | None = None, **flags: bool
) -> Predictions:
    """Classify all images by one revision of one classifier.

    Args:
        revision: that it must be; None: that of the first answer.
        flags: `unknown`, `all_views` and `examples` of POST /predict.
    """
    path_of(classifier)  # raises before images are read
    by = classifier.id if isinstance(classifier, Classifier) else classifier
    fields = {"top_k": str(top_k), **{name: bool(flag) for name, flag in flags.items()}, "partial": cuts.partial}
    answers: list[PredictAnswer] = []
    found: list[Prediction] = []

    async def send_cut(cut: Sequence[Prepared], _more: bool) -> tuple[Rejected, ...]:
        nonlocal by, revision
        images = [item.content for item in cut]
        request = Request("POST", "/predict", fields={"classifier": by, **fields}, images=images)
        answer, rejected = await ask_partially(cuts.session, PredictAnswer, request)
        if revision not in (None, answer.revision):  # its classes may be others now
            raise ComlnError(
                f"{answer.classifier} was changed meanwhile: its revision was {revision} and is {answer.revision}. "
                "Begin again, so that one revision classifies all images"
            )
        # All by the classifier that answered first, should the name be promoted meanwhile.
        by, revision = answer.classifier, answer.revision
        answers.append(answer)
        pairs = zip(answer.predictions, cut, strict=True)
        found.extend(replace(one, image=item.name) for one, item in pairs if one is not None)
        return rejected

    def result() -> Predictions:
        stages = dict.fromkeys(stage for answer in answers for stage in answer.timings_ms)
        timings = {stage: sum(answer.timings_ms.get(stage, 0.0) for answer in answers) for stage in stages}
        first = answers[0]
        return Predictions(
            classifier=first.classifier,
            predictions=tuple(found),
            calibrated=first.calibrated,
            unknown_threshold=first.unknown_threshold,
            timings_ms=timings,
            skipped=tuple(cuts.skipped),
        )

    try:
        with cuts.bar("predicting"):
            await cuts.send(send_cut)
    except (KeyboardInterrupt, ComlnError) as error:
        if not answers:
            raise
        so_far: dict[str, Any] = {"done": cuts.done, "total": cuts.total, "result": result()}
        if isinstance(error, KeyboardInterrupt):
            raise InterruptedPredicting(**so_far) from None
        message = f"Predicting ended after {cuts.done} of {cuts.total} images: {error}"
        raise IncompleteError(message, error, **so_far) from error
    return result()


async def _evaluate(cuts: Cuts, classifier: Reference, *, remedy: str, unknown: bool, all_views: bool) -> Evaluation:
    given = labels_by_image(cuts.images)
    known = await ask_for(cuts.session, Classifier, Request("GET", path_of(classifier)))
    labels = as_classes(given, known.labels, unknown=unknown, remedy=remedy)
    flags = {"unknown": unknown, "all_views": all_views, "examples": True}
    found = await _predict(cuts, known, top_k=1, revision=known.revision, **flags)
    return evaluation_of(found, labels, known)

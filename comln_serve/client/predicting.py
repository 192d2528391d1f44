"""The calls of the clients that predict, as coroutines on a `Runtime`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from comln_serve.client.asking import Session, ask_for, ask_partially
from comln_serve.client.chain import path_of
from comln_serve.client.cuts import Cuts, OnBad
from comln_serve.client.errors import ComlnError, IncompleteError, InterruptedPredicting
from comln_serve.client.evaluation import Evaluation, as_classes, evaluation_of, labels_by_image
from comln_serve.client.folders import Folder, read_class_folders, read_folder
from comln_serve.client.images import ImageSource, Prepared, Source, sources
from comln_serve.client.request import Request
from comln_serve.client.results import Classifier, PredictAnswer, Prediction, Predictions, Rejected

_PREDICTED = 64  # images classified at a time: little is lost if the next of thousands fail, and progress is seen


class PredictingCalls:
    """Calls of a client that predict."""

    _session: Session

    async def predict(
        self,
        images: Sequence[ImageSource],
        classifier: str | Classifier,
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
            classifier: id, name, name@version, or what a call returned.
            top_k: how many of the likeliest classes to list, at most 100.
            unknown: say of each image whether it is unlike every class.
            all_views: look at each image in all the views that the model takes of support images: somewhat more
                accurate, for as many times the server's work.
            on_bad: "raise" at an image that cannot be used, or "skip" it.
            progress: show a bar on standard error; None: if that is a terminal.

        Raises:
            InputError: the arguments cannot be sent; BadImageError: an image cannot.
            NotFoundError: there is no such classifier.
            IncompleteError: it failed after some of several requests, or the classifier was changed between them;
                `result` has what they answered.
            InterruptedPredicting (a KeyboardInterrupt): the same on Ctrl-C.
            ComlnError: the server refused it, or there is no answer.
        """
        cuts = Cuts(self._session, sources(images), on_bad, most=_PREDICTED)
        return await _predict(
            self._session, cuts, classifier, top_k, unknown=unknown, all_views=all_views, show=progress
        )

    async def predict_folder(
        self,
        folder: Folder,
        classifier: str | Classifier,
        *,
        top_k: int = 5,
        unknown: bool = False,
        all_views: bool = False,
        on_bad: OnBad = "skip",
        progress: bool | None = None,
    ) -> Predictions:
        """Classify all images of a folder, and of the folders in it.

        Args:
            top_k, unknown, all_views: as in `predict`.
            on_bad: "skip" files that cannot be used (`skipped` of the result has them), or "raise".
            progress: show a bar on standard error; default: if that is a terminal.

        Raises:
            InputError: there is no such folder, or no image in it. And as `predict`.
        """
        paths, skipped = await self._session.runtime.call(read_folder, folder)
        cuts = Cuts(self._session, sources(paths), on_bad, skipped, most=_PREDICTED)
        return await _predict(
            self._session, cuts, classifier, top_k, unknown=unknown, all_views=all_views, show=progress
        )

    async def evaluate(
        self,
        images: Sequence[ImageSource],
        labels: Sequence[str],
        classifier: str | Classifier,
        *,
        unknown: bool = False,
        all_views: bool = False,
        on_bad: OnBad = "raise",
        progress: bool | None = False,
    ) -> Evaluation:
        """Classify labelled images and compare. Those that the classifier was adapted to say nothing about new ones.

        Args:
            images, classifier, all_views, on_bad, progress: as in `predict`.
            labels: one for each image, of the classifier's classes.
            unknown: count the images found unlike every class, too. Images of other classes can be among them then.

        Raises:
            InputError: labels are of other classes, or no image can be used. And as `predict`.
        """
        items = sources(images, labels)
        cuts = Cuts(self._session, items, on_bad, most=_PREDICTED)
        remedy = "Correct the labels"
        return await _evaluate(
            self._session, cuts, items, classifier, remedy, unknown=unknown, all_views=all_views, show=progress
        )

    async def evaluate_folder(
        self,
        folder: Folder,
        classifier: str | Classifier,
        *,
        unknown: bool = False,
        all_views: bool = False,
        on_bad: OnBad = "skip",
        progress: bool | None = None,
    ) -> Evaluation:
        """Classify a folder of class folders, `folder/<class>/<image>`, as `adapt_folder` reads it, and compare.

        Args:
            all_views, on_bad, progress: as in `predict_folder`. A class folder without an image is skipped, too.

        Raises:
            InputError: as `adapt_folder`. And as `evaluate`.
        """
        paths, labels, skipped = await self._session.runtime.call(
            partial(read_class_folders, every_class=False), folder
        )
        items = sources(paths, labels)
        cuts = Cuts(self._session, items, on_bad, skipped, most=_PREDICTED)
        remedy = f"Rename or move the folders: a label is a folder's path below {folder}"
        return await _evaluate(
            self._session, cuts, items, classifier, remedy, unknown=unknown, all_views=all_views, show=progress
        )


async def _predict(
    session: Session,
    cuts: Cuts,
    classifier: str | Classifier,
    top_k: int,
    *,
    unknown: bool,
    all_views: bool,
    show: bool | None,
    examples: bool = False,
    revision: int | None = None,
) -> Predictions:
    """Classify all images by one revision of one classifier.

    Args:
        examples: ask which of the images are examples of the classifier.
        revision: that it must be; None: that of the first answer.
    """
    reference = classifier.id if isinstance(classifier, Classifier) else classifier
    path_of(reference)
    answers: list[PredictAnswer] = []
    found: list[Prediction] = []

    async def send_cut(cut: Sequence[Prepared], more: bool) -> tuple[Rejected, ...]:  # noqa: ARG001 - as of any cut
        # All by the classifier that answered first, should the name be promoted meanwhile.
        by = answers[0].classifier if answers else reference
        request = Request(
            "POST",
            "/predict",
            fields={
                "classifier": by,
                "top_k": str(top_k),
                "unknown": bool(unknown),
                "examples": examples,
                "all_views": bool(all_views),
                "partial": cuts.partial,
            },
            images=[item.content for item in cut],
        )
        answer, rejected = await ask_partially(session, PredictAnswer, request)
        _check_revision(answer, answers[0].revision if answers else revision)
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
        with cuts.bar("predicting", show):
            await cuts.send(send_cut)
    except KeyboardInterrupt:
        if not answers:
            raise
        raise InterruptedPredicting(done=cuts.done, total=cuts.total, result=result()) from None
    except ComlnError as error:
        if not answers:
            raise
        message = f"Predicting ended after {cuts.done} of {cuts.total} images: {error}"
        raise IncompleteError(message, error, done=cuts.done, total=cuts.total, result=result()) from error
    return result()


def _check_revision(answer: PredictAnswer, expected: int | None) -> None:
    """Raise ComlnError if the classifier was changed between two requests, as its classes may be others now."""
    if expected not in (None, answer.revision):
        raise ComlnError(
            f"{answer.classifier} was changed meanwhile: its revision was {expected} and is {answer.revision}. Begin "
            "again, so that one revision classifies all images"
        )


async def _evaluate(
    session: Session,
    cuts: Cuts,
    items: Sequence[Source],
    reference: str | Classifier,
    remedy: str,
    *,
    unknown: bool,
    all_views: bool,
    show: bool | None,
) -> Evaluation:
    given = labels_by_image(items)
    known = await ask_for(session, Classifier, Request("GET", path_of(reference)))
    labels = as_classes(given, known.labels, unknown=unknown, remedy=remedy)
    found = await _predict(
        session, cuts, known, 1, unknown=unknown, all_views=all_views, show=show, examples=True, revision=known.revision
    )
    return evaluation_of(found, labels, known)

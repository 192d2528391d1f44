"""The calls of the clients that make and change classifiers, as coroutines on a `Session`."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from comln_serve.client.arguments import Horizon, checked_horizon, checked_lifetime, checked_metadata, checked_texts
from comln_serve.client.asking import ask_for
from comln_serve.client.chain import Chain, path_of
from comln_serve.client.cuts import Cuts, OnBad
from comln_serve.client.errors import InputError, NotFoundError, listed
from comln_serve.client.folders import Folder, read_class_folders
from comln_serve.client.images import ImageSource, Prepared, sources
from comln_serve.client.results import Adapted, ExampleList, Reference, Rejected
from comln_serve.client.session import Request, Session

_MOST_NUMBERS = 500  # most examples that the server removes at a time


class MakingCalls:
    """Calls of a client that make and change classifiers."""

    _session: Session

    async def adapt(
        self,
        images: Sequence[ImageSource],
        labels: Sequence[str],
        *,
        name: str | None = None,
        model: str | None = None,
        horizon: Horizon = None,
        promote: bool = True,
        metadata: Mapping[str, str] | None = None,
        expires_in_seconds: int | None = None,
        on_bad: OnBad = "raise",
    ) -> Adapted:
        """Make a classifier from labelled images.

        More images than one request may have are sent in several; the classifier is the same. `name` stands for it once
        all have been sent; a new name stands for its first part meanwhile.

        Args:
            images: paths, bytes of image files, opened files, Pillow images, or arrays (uint8, height x width x 3).
            labels: one for each image, of two classes or more.
            name: the classifier becomes its next version; default: a classifier without a name.
            model: a model of `models()`; default: the server's.
            horizon: how far to adapt: T in flow time, "learned" or "auto"; default: the model's own rule.
            promote: let the name stand for the new version. It always stands for its first version.
            metadata: your notes, kept with the classifier.
            expires_in_seconds: when the classifier expires; default: never.
            on_bad: "raise" at an image that cannot be used, or "skip" it.

        Raises:
            InputError: there are more images or classes than the server allows, or no image of a class can be used.
            BadImageError: an image cannot be used.
            IncompleteError: it failed after some of several requests, and what had been made is deleted. Or all is
                done, but somebody else has promoted another version meanwhile, which stays.
        """
        labelled = sources(images, labels)
        options = _options(name, model, horizon, metadata, expires_in_seconds)
        cuts = Cuts(self._session, labelled, on_bad, every_class=True)
        return await _upload(cuts, None, options, promote=promote)

    async def adapt_folder(
        self,
        folder: Folder,
        *,
        name: str | None = None,
        model: str | None = None,
        horizon: Horizon = None,
        promote: bool = True,
        metadata: Mapping[str, str] | None = None,
        expires_in_seconds: int | None = None,
        on_bad: OnBad = "skip",
        progress: bool | None = None,
    ) -> Adapted:
        """Make a classifier from a folder of class folders, `folder/<class>/<image>`.

        A class is a folder that holds images; its label is its path below `folder`. Else as `adapt`.

        Args:
            on_bad: "skip" files that cannot be used (`skipped` of the result has them), or "raise".
            progress: show a bar on standard error; default: if that is a terminal.

        Raises:
            InputError: there is no such folder, no class in it, or a class without images.
        """
        labelled, skipped = await self._session.call(read_class_folders, folder)
        options = _options(name, model, horizon, metadata, expires_in_seconds)
        cuts = Cuts(self._session, labelled, on_bad, skipped, show=progress, every_class=True)
        return await _upload(cuts, None, options, promote=promote)

    async def add_examples(
        self,
        classifier: Reference,
        images: Sequence[ImageSource],
        labels: Sequence[str],
        *,
        promote: bool = True,
        on_bad: OnBad = "raise",
    ) -> Adapted:
        """Adapt a classifier to more labelled images, of its classes or of new ones.

        Args:
            promote, on_bad, images, labels: as in `adapt`, which raises the same errors.
        """
        cuts = Cuts(self._session, sources(images, labels), on_bad)
        return await _upload(cuts, classifier, {}, promote=promote)

    async def add_examples_folder(
        self,
        classifier: Reference,
        folder: Folder,
        *,
        promote: bool = True,
        on_bad: OnBad = "skip",
        progress: bool | None = None,
    ) -> Adapted:
        """`add_examples` of a folder of class folders, `folder/<class>/<image>`, as `adapt_folder` reads it."""
        path_of(classifier)  # raises before the folder is read
        labelled, skipped = await self._session.call(read_class_folders, folder)
        cuts = Cuts(self._session, labelled, on_bad, skipped, show=progress)
        return await _upload(cuts, classifier, {}, promote=promote)

    async def remove_examples(self, classifier: Reference, numbers: Sequence[int], *, promote: bool = True) -> Adapted:
        """Adapt a classifier, once, without some of its examples. A class goes with its last one.

        More than 500 are removed by several requests, with one version in the end, as in `adapt`.

        Args:
            numbers: of the examples, as `examples()` and the suspects of a report have them. If there is no example of
                one of them, NotFoundError is raised, and none is removed.
            promote: as in `adapt`, which raises the same errors.
        """
        if isinstance(numbers, str | bytes) or not hasattr(numbers, "__iter__"):
            raise InputError(f"numbers is {numbers!r}; give a list of the numbers of examples")
        given = list(numbers)
        for number in given:
            if not hasattr(number, "__index__"):  # NumPy's integers have it
                raise InputError(f"numbers has {number!r}; give the numbers of examples, as examples() lists them")
        wanted = list(dict.fromkeys(given))
        if not wanted:
            raise InputError("numbers is empty; give the numbers of the examples to remove")
        chain = Chain(self._session)
        parts = [wanted[start : start + _MOST_NUMBERS] for start in range(0, len(wanted), _MOST_NUMBERS)]

        async def remove() -> None:
            changed: Reference = classifier
            if len(parts) > 1:  # of one part, the server removes all or none
                await chain.begin(classifier)
                changed = await _check_numbers(self._session, classifier, wanted)
            for part in parts:
                path = path_of(chain.last if len(chain) else changed, "examples")
                parameters = {"number": part, "promote": bool(promote and len(parts) == 1)}
                await chain.ask(Request("DELETE", path, parameters, repeatable=False))

        return await chain.run(remove(), "Removing", lambda: (len(chain) * _MOST_NUMBERS, len(wanted)), promote=promote)

    async def adapt_again(self, classifier: Reference, *, horizon: Horizon = None, promote: bool = True) -> Adapted:
        """Adapt a classifier again to the examples it has: to another horizon, or by the head its model has now. No
        images are sent.

        Args:
            horizon: as in `adapt`; default: as the classifier has it.
            promote: as in `adapt`.
        """
        content = {"horizon": checked_horizon(horizon)}
        return await _change(self._session, classifier, "adapt", content, promote=promote)

    async def import_support(self, file: Folder | bytes, *, name: str | None = None, promote: bool = True) -> Adapted:
        """Make a classifier from a support set that `export` has written, here or on a server with the same bundle.

        Its horizon and metadata come with it. The classifier is the one that was exported if the model's head is the
        same.

        Args:
            file: its path, or its bytes.
            name: as in `adapt`; default: the name that it was exported with.
            promote: as in `adapt`.

        Raises:
            InputError: the file cannot be read.
            ComlnError: the server refused it, as where it does not serve the bundle.
        """
        content = file if isinstance(file, bytes) else await self._session.call(_bytes_of, Path(file))
        if not content:
            what = "the file" if isinstance(file, bytes) else file
            raise InputError(f"{what} is empty; give an exported support set")
        parameters = {"name": name, "promote": bool(promote)}
        headers = {"Idempotency-Key": uuid.uuid4().hex, "Content-Type": "application/octet-stream"}
        request = Request("POST", "/classifiers", parameters, file=content, headers=headers)
        return await ask_for(self._session, Adapted, request)

    async def relabel_examples(
        self, classifier: Reference, labels: Mapping[int, str], *, promote: bool = True
    ) -> Adapted:
        """Adapt a classifier with other labels for some of its examples, such as those that look mislabelled. No images
        are sent.

        Args:
            labels: new labels, of its classes or of new ones, by the number of the example, as in `examples()`; at most
                500. If there is no example of one of the numbers, NotFoundError is raised, and none is changed;
                ComlnError, if no label would change.
            promote: as in `adapt`.
        """
        by_number = {str(number): label for number, label in checked_texts("labels", labels, '{3: "lemon"}').items()}
        return await _change(self._session, classifier, "examples/labels", {"labels": by_number}, promote=promote)

    async def rename_classes(
        self, classifier: Reference, labels: Mapping[str, str], *, promote: bool = True
    ) -> Adapted:
        """Give classes of a classifier other labels, as {"lemon": "Lemon"}. Classes that get the same label are merged.

        No images are sent. The predictions stay the same, under the new labels; only for a merge the classifier is
        adapted again.

        Args:
            labels: new labels, by the label that a class has. Raises ComlnError for a label that no class has.
            promote: as in `adapt`.
        """
        by_label = checked_texts("labels", labels, '{"lemon": "Lemon"}')
        return await _change(self._session, classifier, "labels", {"labels": by_label}, promote=promote)


async def _check_numbers(session: Session, classifier: Reference, numbers: Sequence[int]) -> str:
    """Check that a classifier has examples of these numbers. Returns its id, or raises NotFoundError."""
    found = await ask_for(session, ExampleList, Request("GET", path_of(classifier, "examples")))
    there = {example.number for example in found.examples}
    missing = [int(number) for number in numbers if number not in there]
    if missing:
        numbered = f"example{'s' * (len(missing) > 1)} {listed([*map(str, missing)], 20)}"
        raise NotFoundError(
            f"Classifier {found.classifier!r} has no {numbered}; nothing was removed.",
            code="example_not_found",
            detail={"received": missing},
            status=404,
        )
    return found.classifier


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


async def _change(
    session: Session, classifier: Reference, route: str, content: Mapping[str, Any], *, promote: bool
) -> Adapted:
    """Ask for a change that needs no images. The server makes it once, however often the request is repeated."""
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    content = {**content, "promote": bool(promote)}  # NumPy's truths are no JSON
    request = Request("POST", path_of(classifier, route), content=content, headers=headers)
    return await ask_for(session, Adapted, request)


def _options(
    name: str | None,
    model: str | None,
    horizon: Horizon,
    metadata: Mapping[str, str] | None,
    expires_in_seconds: int | None,
) -> dict[str, str]:
    given = {
        "name": name,
        "model": model,
        "horizon": checked_horizon(horizon),
        "metadata": None if metadata is None else json.dumps(checked_metadata(metadata), ensure_ascii=False),
        "expires_in_seconds": checked_lifetime(expires_in_seconds),
    }
    return {key: str(value) for key, value in given.items() if value is not None}


async def _upload(cuts: Cuts, changed: Reference | None, options: Mapping[str, str], *, promote: bool) -> Adapted:
    """Send labelled images: the first request changes the classifier `changed`, or makes one; further requests change
    what it made.
    """
    path = "/adapt" if changed is None else path_of(changed, "examples")
    chain = Chain(cuts.session)
    sent: list[str] = []

    async def send_cut(cut: Sequence[Prepared], more: bool) -> tuple[Rejected, ...]:
        first = len(chain) == 0
        alone = first and not more
        if first and more:
            await chain.begin(changed, options.get("name"))
        request = Request(
            "POST",
            path if first else path_of(chain.last, "examples"),
            fields={
                **(options if first else {}),
                "labels": [item.label or "" for item in cut],
                "promote": bool(promote and alone),
                "partial": cuts.partial,
            },
            images=[item.content for item in cut],
            headers={"Idempotency-Key": uuid.uuid4().hex},
        )
        rejected = await chain.ask(request)
        left_out = {one.index for one in rejected}
        sent.extend(item.name for position, item in enumerate(cut) if position not in left_out)
        return rejected

    with cuts.bar("adapting"):
        made = await chain.run(cuts.send(send_cut), "Sending", lambda: (cuts.done, cuts.total), promote=promote)
    return replace(made, images=tuple(sent), skipped=tuple(cuts.skipped))

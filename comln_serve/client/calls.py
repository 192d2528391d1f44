"""The calls of the clients about stored classifiers and the server, as coroutines on a `Session`."""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import EllipsisType
from typing import Any, Literal, TypeAlias

import httpx2

from comln_serve.client.arguments import checked_lifetime, checked_metadata, checked_seconds
from comln_serve.client.asking import ask, ask_for
from comln_serve.client.chain import path_of
from comln_serve.client.errors import InputError, NotFoundError
from comln_serve.client.folders import Folder
from comln_serve.client.results import (
    Classifier,
    ClassifierDetail,
    ClassifierPage,
    Example,
    ExampleList,
    Health,
    Limits,
    Model,
    ModelList,
    ModelsReloaded,
    Reference,
)
from comln_serve.client.session import Request, Session

_PAGE = 1000  # most classifiers that the server lists at a time
ExportFormat: TypeAlias = Literal["onnx", "safetensors", "support"]
_SUFFIXES: Mapping[str, ExportFormat] = {".onnx": "onnx", ".safetensors": "safetensors", ".support": "support"}


class StoredCalls:
    """Calls of a client about stored classifiers and the server."""

    _session: Session

    async def classifiers(
        self, *, name: str | None = None, model: str | None = None, limit: int | None = None
    ) -> list[Classifier]:
        """The stored classifiers, the newest first, from as many pages as it takes.

        Args:
            name, model: only those with this name, or adapted on this model.
            limit: at most so many; default: all.
        """
        found: list[Classifier] = []
        before: int | None = None
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            parameters = {"name": name, "model": model, "before": before, "limit": size}
            page = await ask_for(self._session, ClassifierPage, Request("GET", "/classifiers", parameters))
            found += page.classifiers
            before = page.next
            if before is None:
                break
        return found

    async def classifier(self, classifier: Reference) -> ClassifierDetail:
        """A stored classifier with its report."""
        return await ask_for(self._session, ClassifierDetail, Request("GET", path_of(classifier)))

    async def examples(self, classifier: Reference) -> tuple[Example, ...]:
        """Number and label of each image that a classifier was adapted to, in the order sent."""
        return (await ask_for(self._session, ExampleList, Request("GET", path_of(classifier, "examples")))).examples

    async def thumbnail(self, classifier: Reference, number: int) -> bytes:
        """The small JPEG that the server keeps of one example of a class, where its operator allows it.

        Args:
            number: of an example; `thumbnail` of each of a classifier's `classes` has it. NotFoundError is raised where
                the server keeps none.
        """
        answer = await ask(self._session, Request("GET", path_of(classifier, "examples", number, "thumbnail")))
        return answer.content

    async def delete(self, classifier: Reference) -> ClassifierDetail:
        """Delete a classifier; of a name the version that it stands for. Returns what was deleted."""
        # By its id: a repeated request must not delete the version that the name stands for then.
        found = await ask_for(self._session, ClassifierDetail, Request("GET", path_of(classifier)))
        with suppress(NotFoundError):  # a repeated request finds what the first has deleted
            await ask(self._session, Request("DELETE", path_of(found)))
        return found

    async def promote(self, classifier: Reference) -> Classifier:
        """Let a name stand for one of its versions, given as name@version, id, or what a call returned."""
        return await ask_for(self._session, Classifier, Request("POST", path_of(classifier, "promote")))

    async def edit(
        self,
        classifier: Reference,
        *,
        name: str | None = None,
        promote: bool = True,
        metadata: Mapping[str, str] | None = None,
        expires_in_seconds: int | EllipsisType | None = ...,
    ) -> ClassifierDetail:
        """Change the name, the metadata or the time of expiry of a classifier. What is left out stays.

        Args:
            name: a classifier without a name becomes the next version of it. If `classifier` is a name, all its
                versions are renamed; the new name must have none.
            promote: let the name stand for a classifier that had none; it always stands for its first version.
            metadata: in place of what is there.
            expires_in_seconds: from now on; None: never.

        Raises:
            ComlnError: the server refused it, as for a name that is taken; or the answer was lost.
        """
        content: dict[str, Any] = {}
        if name is not None:
            content |= {"name": name, "promote": bool(promote)}
        if metadata is not None:
            content["metadata"] = checked_metadata(metadata)
        if not isinstance(expires_in_seconds, EllipsisType):
            content["expires_in_seconds"] = checked_lifetime(expires_in_seconds)
        if not content:
            raise InputError("give at least one of name, metadata and expires_in_seconds")
        # Under its new name, a renamed classifier would not be found again.
        request = Request("PATCH", path_of(classifier), content=content, repeatable=name is None)
        return await ask_for(self._session, ClassifierDetail, request)

    async def rollback(self, name: str) -> Classifier:
        """Let a name stand for the version that was promoted before. Returns that version.

        Raises:
            ComlnError: no other version was promoted before; or the answer was lost, and with it whether it was done.
        """
        return await ask_for(self._session, Classifier, Request("POST", path_of(name, "rollback"), repeatable=False))

    async def export(
        self,
        classifier: Reference,
        path: Folder = ".",
        format: ExportFormat | None = None,  # noqa: A002 - the API's word
    ) -> Path:
        """Write a classifier to a file: "onnx", images in and probabilities out; "safetensors", the last layer;
        "support", the embeddings and labels of its examples, from which `import_support` makes it on another server.

        Args:
            path: a file, which is replaced once all has arrived (of a link, what it leads to); a device or a pipe,
                which is written to; or a folder, where the server names the file.
            format: default: as the path ends, .onnx, .safetensors or .support; "onnx" for a folder.

        Returns:
            The file's path.

        Raises:
            InputError: the file cannot be written, or its name tells no format, or another than `format`.
        """
        kind = await self._session.call(_format_of, path, format)
        route, parameters = ("support", {}) if kind == "support" else ("export", {"format": kind})
        answer = await ask(self._session, Request("GET", path_of(classifier, route), parameters))
        return await self._session.call(_write, Path(path), answer)

    async def models(self) -> tuple[Model, ...]:
        """The models that are served."""
        return (await ask_for(self._session, ModelList, Request("GET", "/models"))).models

    async def reload_models(self) -> ModelsReloaded:
        """Let the server serve the bundles that its folder holds now. An operator's key is needed, where keys are.
        Raises ComlnError if a bundle cannot be used; nothing was changed then.
        """
        return await ask_for(self._session, ModelsReloaded, Request("POST", "/models/reload"))

    async def limits(self) -> Limits:
        """What a request may have. The client keeps to it by itself."""
        return await ask_for(self._session, Limits, Request("GET", "/limits"))

    async def live(self) -> Health:
        """Ask once whether the server's process answers. Raises NoAnswerError if it does not."""
        return await ask_for(self._session, Health, Request("GET", "/health/live"), seconds=0.0)

    async def ready(self, *, wait: float = 0.0) -> Health:
        """Ask whether the server is ready to adapt and predict. Raises ComlnError if it is not.

        Args:
            wait: seconds to keep asking, for a server that is being started.
        """
        seconds = checked_seconds("wait", wait, zero=True)
        return await ask_for(self._session, Health, Request("GET", "/health/ready"), seconds=seconds)


def _format_of(path: Folder, given: ExportFormat | None) -> ExportFormat:
    if os.fspath(path).endswith("/") and not Path(path).is_dir():
        raise InputError(f"{path}: there is no such folder")
    suffix = "" if Path(path).is_dir() else Path(path).suffix
    if given is None and suffix not in ("", *_SUFFIXES):
        raise InputError(f"{path}: ends in none of {', '.join(_SUFFIXES)}; say the format, or name the file so")
    kind = given or _SUFFIXES.get(suffix, "onnx")
    if _SUFFIXES.get(suffix, kind) != kind:
        raise InputError(
            f"{path}: ends in {suffix}, and the format is {kind}; leave out one of them, or let both agree"
        )
    return kind


def _write(path: Path, answer: httpx2.Response) -> Path:
    if path.is_dir():
        named = answer.headers.get("content-disposition", "").partition('filename="')[2].rstrip('"')
        path /= Path(named).name or "classifier"
    try:
        if _is_special(path):
            path.write_bytes(answer.content)
        else:
            _replace(path.resolve(), answer.content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def _is_special(path: Path) -> bool:
    """Whether a path leads to a device, a pipe or the like, which must not be replaced by a file."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:  # unlike a loop of links, which cannot be written to
        return False


def _replace(path: Path, content: bytes) -> None:
    """Write a file. Until all is written, what was there before stays."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)

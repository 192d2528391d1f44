"""The versions that the requests of one call make one after another, of which only the last is to stay."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar, cast
from urllib.parse import quote

from comln_serve.client.asking import ask, ask_for, ask_partially
from comln_serve.client.errors import ComlnError, IncompleteError, InputError, NoAnswerError, NotFoundError
from comln_serve.client.results import Adapted, Classifier, Reference, Rejected
from comln_serve.client.session import Request, Session

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

# Cleaning up after a failure must not take as long as the failure took.
_CLEANING_SECONDS = 5.0

_NOT_KNOWN = "Whether the request that was interrupted has made a classifier is not known: %s"


def path_of(classifier: Reference, *more: str | int) -> str:
    """The path of a classifier's route. Of a `Classifier` the id is used. Raises InputError for no reference."""
    reference = classifier.id if isinstance(classifier, Classifier) else classifier
    # In a path, "." and ".." lead elsewhere.
    if not isinstance(cast("object", reference), str) or reference.strip() in ("", ".", ".."):
        raise InputError(f"the classifier is {reference!r}; give an id, a name, name@version, or what a call returned")
    try:
        return "/".join(["/classifiers", quote(reference, safe="@"), *map(str, more)])
    except UnicodeEncodeError:
        raise InputError(f"the classifier is {reference!r}, which is not valid Unicode") from None


class Chain:
    """Collects what the requests of a call have made.

    Each request changes a classifier without a name in place, or makes a new version of one with a name. Before the
    end none is promoted but the first version of a new name, which the server promotes by itself.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._made: list[Adapted] = []
        self._several = False
        self._before: Classifier | None = None  # what the name, or the reference, stood for at the beginning
        self._unanswered: Request | None = None  # sent, but its answer was not read

    def __len__(self) -> int:
        return len(self._made)

    @property
    def last(self) -> Adapted:
        return self._made[-1]

    @property
    def _created(self) -> list[str]:
        """Ids of the classifiers that the call has made, not only changed; the newest first."""
        return list(dict.fromkeys(item.id for item in reversed(self._made) if item.revision == 1))

    async def begin(self, changed: Reference | None, name: str | None = None) -> None:
        """Before the first of several requests, note what the name stands for that they make versions of: that of the
        classifier `changed`, or `name` if they make one. Raises NotFoundError if the first does not exist.
        """
        self._several = True
        if changed is not None:
            self._before = await self._look_up(changed)
            if self._before.promoted:
                return
            name = self._before.name
        if name is not None:
            with suppress(NotFoundError):  # a new name
                self._before = await self._look_up(name)

    async def ask(self, request: Request) -> tuple[Rejected, ...]:
        """Send a request that makes or changes a classifier, and note its answer. Returns the images that the server
        went on without.
        """
        self._unanswered = request
        try:
            made, rejected = await ask_partially(self._session, Adapted, request)
        except ComlnError as error:
            if not isinstance(error, NoAnswerError):
                self._unanswered = None
            raise
        self._made.append(made)
        self._unanswered = None
        return rejected

    async def run(
        self, requests: Awaitable[None], what: str, count: Callable[[], tuple[int, int]], *, promote: bool
    ) -> Adapted:
        """Run requests that the chain asks, promote the last version if it is to be, and delete those before it. If a
        request fails after others, delete what these have made.

        Args:
            what: what the requests do, for the error.
            count: how many images are done, and of how many.

        Raises:
            IncompleteError: a request failed after others; any error of the first one is raised as it is. Or the last
                version is there, but was not promoted, as that failed, or somebody else has promoted another one.
        """
        try:
            await self._unless_interrupted(requests, self._undo)
        except ComlnError as error:
            if not self._made:
                raise
            leftover = await self._delete_even_if_interrupted(self._created)
            done, total = count()
            why = f"{str(error).removesuffix('.')}. {self._state(leftover)}"
            message = f"{what} ended after {done} of {total} images: {why}"
            raise IncompleteError(message, error, done=done, total=total, leftover=leftover) from error
        last = self.last
        if len(self._made) == 1 and (last.promoted or not self._several):
            return last
        partial = [identifier for identifier in self._created if identifier != last.id]
        if promote and last.name is not None:
            await self._unless_interrupted(self._promote(last, partial, count()[1]), self._undo)
            last = replace(last, promoted=True)
        leftover = await self._delete_even_if_interrupted(partial)
        if last.name is not None and not last.promoted:  # it is now if the first version of a new name was deleted
            with suppress(ComlnError):  # all is done
                last = replace(last, promoted=(await self._look_up(last)).promoted)
        return replace(last, leftover=leftover)

    async def _promote(self, last: Adapted, partial: Sequence[str], total: int) -> None:
        """Promote the last version. If that fails, delete those before it, and raise IncompleteError."""
        first = self._made[0]
        replaced = first.id if first.promoted or self._before is None else self._before.id  # the name stands for this
        try:
            await ask(self._session, Request("POST", path_of(last, "promote"), {"instead_of": replaced}))
        except ComlnError as error:
            leftover = await self._delete(partial)
            why = f"{_why_not(last, error)}. {_remains(leftover)}".rstrip()
            message = f"{last.reference} is finished, but was not promoted: {why}"
            raise IncompleteError(message, error, done=total, total=total, leftover=leftover) from error

    async def _unless_interrupted(self, work: Awaitable[_T], clean_up: Callable[[], Awaitable[None]]) -> _T:
        """Do some work; if it ends by Ctrl-C or cancellation, and not by an error of a request, clean up."""
        try:
            return await work
        except (GeneratorExit, ComlnError):  # after the first nobody awaits any more
            raise
        except BaseException:
            with self._session.cleaning():
                await clean_up()
            raise

    async def _undo(self) -> None:
        """Delete what was made until an interrupt. Log what could not be deleted, as no error tells it."""
        unanswered = self._request_to_undo()
        try:
            await self._delete_or_log(self._created)
        except BaseException:  # Ctrl-C again
            if unanswered is not None:
                logger.warning(_NOT_KNOWN, "interrupted again")
            raise
        if unanswered is not None:
            await self._delete_or_log(await self._made_by(unanswered))

    async def _made_by(self, request: Request) -> Sequence[str]:
        """Ids of what a request has made whose answer was not read. It is repeated with its Idempotency-Key.

        If it had made nothing, the repeated request finds what it was to build on deleted (404). Only the first request
        of a call then makes a classifier, whose id is returned, too.
        """
        try:
            return [(await ask_for(self._session, Adapted, request, seconds=0.0)).id]
        except NotFoundError:
            return ()
        except BaseException as error:  # Ctrl-C again
            why = str(error) or type(error).__name__
            logger.warning(_NOT_KNOWN, why)
            if not isinstance(error, ComlnError):
                raise
            return ()

    def _request_to_undo(self) -> Request | None:
        """The request without an answer, if repeating it tells which classifier to delete; else None."""
        request = self._unanswered
        if request is None or not (self._several and request.repeatable):
            return None
        changed = self._made[-1] if self._made else self._before
        return request if changed is None or changed.name is not None else None

    def _state(self, leftover: Sequence[str]) -> str:
        """A sentence about what there is after what was made was deleted, but for `leftover`."""
        last = self.last
        if leftover:
            state = _remains(leftover)
        elif not self._created:
            state = f"What was done stays in {last.id}, which is in revision {last.revision} now."
        elif last.name is None:
            state = "What had been made was deleted."
        else:
            state = f"What had been made was deleted; {last.name!r} is what it was before."
        if self._unanswered is not None:
            state += " Whether the request without an answer has made a further version is not known."
        return state

    async def _delete_even_if_interrupted(self, identifiers: Sequence[str]) -> tuple[str, ...]:
        """`_delete`, begun again after an interrupt. A second interrupt ends it."""
        return await self._unless_interrupted(self._delete(identifiers), lambda: self._delete_or_log(identifiers))

    async def _delete_or_log(self, identifiers: Sequence[str]) -> None:
        """`_delete` after an interrupt. Log what is left, even if another interrupt ends it."""
        leftover = tuple(identifiers)
        try:
            leftover = await self._delete(identifiers)
        finally:
            if leftover:
                logger.warning("What an interrupted call has made could not be deleted: %s", ", ".join(leftover))

    async def _delete(self, identifiers: Sequence[str]) -> tuple[str, ...]:
        """Delete classifiers. Returns the ids of those that are still there."""
        for position, identifier in enumerate(identifiers):
            try:
                await ask(self._session, Request("DELETE", path_of(identifier)), seconds=_CLEANING_SECONDS)
            except NotFoundError:
                continue  # a repeated request finds what the first has deleted
            except ComlnError:
                return tuple(identifiers[position:])
        return ()

    async def _look_up(self, reference: Reference) -> Classifier:
        return await ask_for(self._session, Classifier, Request("GET", path_of(reference)))


def _remains(leftover: Sequence[str]) -> str:
    """A sentence about classifiers that could not be deleted, or "" if all were."""
    return f"What remains of it could not be deleted: {', '.join(leftover)}." if leftover else ""


def _why_not(last: Adapted, error: ComlnError) -> str:
    """Why a version was not promoted, and what to do."""
    if error.code != "name_moved":
        return f"{error}. Promote it"
    return (
        f"{last.name!r} stands for {last.name}@{error.detail.get('promoted')} by now, which somebody else has promoted "
        f"meanwhile. Do the same again and delete {last.reference}, or promote {last.reference} in its place"
    )

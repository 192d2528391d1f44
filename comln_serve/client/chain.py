"""Versions that one call makes one after another, of which only the last is to stay."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast
from urllib.parse import quote

from comln_serve.client.asking import Session, ask, ask_for
from comln_serve.client.errors import ComlnError, IncompleteError, InputError, NotFoundError
from comln_serve.client.results import Adapted, Classifier, ClassifierDetail
from comln_serve.client.steps import Flow, Request

# Cleaning up after a failure must not take as long as the failure took.
_CLEANING_SECONDS = 5.0


def path_of(classifier: str | Classifier, *more: str | int) -> str:
    """The path of a classifier's route. A `Classifier` stands for its id.

    Raises:
        InputError: the reference is empty, or none.
    """
    reference = classifier.id if isinstance(classifier, Classifier) else classifier
    if not isinstance(cast("object", reference), str):
        raise InputError(f"the classifier is {reference!r}; give an id, a name, name@version, or what a call returned")
    if not reference.strip():
        raise InputError("the classifier's reference is empty; give an id, a name or name@version")
    return "/".join(["/classifiers", quote(reference, safe="@"), *map(str, more)])


class Chain:
    """Collects what the requests of a call have made.

    A classifier without a name changes in place; of one with a name each request makes a new version. Only the first
    version of a new name is promoted before the end, as the server does that.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._made: list[Adapted] = []

    def __len__(self) -> int:
        return len(self._made)

    @property
    def last(self) -> Adapted:
        return self._made[-1]

    def add(self, answer: Adapted) -> None:
        """Note the answer of a request."""
        self._made.append(answer)

    @property
    def created(self) -> list[str]:
        """Ids of the classifiers that the call has made, not only changed; the newest first."""
        return list(dict.fromkeys(item.id for item in reversed(self._made) if item.revision == 1))

    def finish(self, *, promote: bool, total: int) -> Flow[Adapted]:
        """Promote the last version if it is to be, and delete those before it.

        Raises:
            IncompleteError: it could not be promoted; it is there all the same.
        """
        last = self.last
        if len(self._made) == 1:
            return last
        partial = [identifier for identifier in self.created if identifier != last.id]
        if promote and last.name is not None:
            try:
                yield from ask(self._session, Request("POST", path_of(last, "promote")))
            except ComlnError as error:
                raise IncompleteError(
                    f"{last.reference} is finished, but was not promoted: {error}. Promote it, and delete "
                    f"{', '.join(partial)}",
                    error,
                    done=total,
                    total=total,
                    leftover=tuple(partial),
                ) from error
        leftover = yield from self._delete(partial)
        now = yield from ask_for(self._session, ClassifierDetail, Request("GET", path_of(last)))
        return replace(last, promoted=now.promoted, leftover=leftover)

    def build(self, requests: Flow[None], what: str, count: Callable[[], tuple[int, int]]) -> Flow[None]:
        """Run requests that `add` to the chain. If one fails after others, delete what these have made.

        Args:
            what: what the requests do, for the error.
            count: how many images are done, and of how many.

        Raises:
            IncompleteError: one failed after others. Any error of the first one is raised as it is.
        """
        try:
            yield from requests
        except GeneratorExit:
            raise  # nobody carries out steps any more
        except BaseException as error:  # Ctrl-C, too, leaves no partial versions
            if not self._made:
                raise
            state, leftover = yield from self._abandon()
            if not isinstance(error, ComlnError):
                raise
            done, total = count()
            message = f"{what} ended after {done} of {total} images: {str(error).removesuffix('.')}. {state}"
            raise IncompleteError(message, error, done=done, total=total, leftover=leftover) from error

    def _abandon(self) -> Flow[tuple[str, tuple[str, ...]]]:
        """Delete what was made. Returns a sentence about what there is now, and the ids that could not be deleted."""
        leftover = yield from self._delete(self.created)
        last = self.last
        if leftover:
            state = f"What remains of it could not be deleted: {', '.join(leftover)}."
        elif not self.created:
            state = f"What was done stays in {last.id}, which is in revision {last.revision} now."
        elif last.name is None:
            state = "What had been made was deleted."
        else:
            state = f"What had been made was deleted; {last.name!r} is what it was before."
        return state, leftover

    def _delete(self, identifiers: Sequence[str]) -> Flow[tuple[str, ...]]:
        """Delete classifiers. Returns the ids of those that are still there."""
        for position, identifier in enumerate(identifiers):
            try:
                yield from ask(self._session, Request("DELETE", path_of(identifier)), seconds=_CLEANING_SECONDS)
            except NotFoundError:
                continue  # a repeated request finds what the first has deleted
            except ComlnError:
                return tuple(identifiers[position:])
        return ()

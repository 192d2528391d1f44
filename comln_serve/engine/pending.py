"""A request whose images are being embedded, while no thread waits for it."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from contextvars import copy_context
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from comln_serve.engine.turn import Turn
from comln_serve.errors import ServiceError

_Result = TypeVar("_Result")


class Pending(Generic[_Result]):
    """What becomes of a turn. Whoever made it looks after its deadlines."""

    def __init__(
        self,
        turn: Turn,
        held: ExitStack,
        then: Callable[[NDArray[np.float32]], _Result],
        when_over: Callable[[], None],
    ) -> None:
        """Wait for a turn that is submitted next, with `end`.

        Args:
            held: what is left once there are embeddings; whoever submits the turn has it until
                then.
            then: makes the result of the embeddings.
            when_over: called at the very end, by any thread.
        """
        self._turn, self._then, self._when_over = turn, then, when_over
        self._held = held
        self._context = copy_context()  # of the request, for what is told of its stages
        self._result: _Result | None = None
        self._error: Exception | None = None

    def end(self) -> None:
        """Its turn is over."""
        self._context.run(self._end)
        self._when_over()

    def _end(self) -> None:
        try:
            with self._held:
                embeddings = self._turn.embeddings()
            self._result = self._then(embeddings)
        except Exception as error:  # noqa: BLE001 - raised to whoever asks for the result
            self._error = error

    def look(self) -> float | None:
        """End it if a deadline has passed; seconds until it should be looked at again, None where
        no deadline runs.
        """
        with suppress(ServiceError):  # which is its result then
            self._turn.check()
        return self._turn.patience()

    def result(self) -> _Result:
        """What `then` has made, once it is over; or raises what it or the turn raised."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value] - of `then`, which may return None

"""Removes expired classifiers periodically."""

import logging
from threading import Event, Thread

from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.storage import Store

logger = logging.getLogger(__name__)

# Queries skip expired classifiers at once; only their rows stay until the next purge.
_EVERY_SECONDS = 60.0


class Housekeeping:
    """A thread that purges the store until closed. Several servers may purge at the same time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._closing = Event()
        self._thread = Thread(target=self._work, name="housekeeping", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Check, for readiness, that the thread runs.

        Raises:
            ServiceError: NOT_READY, the thread has ended.
        """
        if not self._thread.is_alive():
            raise ServiceError(
                ErrorCode.NOT_READY, "The thread that removes expired classifiers has ended; restart the server."
            )

    def close(self) -> None:
        """End the thread, after a purge that is running."""
        self._closing.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closing.wait(_EVERY_SECONDS):
            try:
                removed = self._store.purge()
            except ServiceError as error:
                logger.warning("expired classifiers were not removed: %s", error)
            except Exception:  # the thread must go on
                logger.exception("expired classifiers were not removed")
            else:
                if removed:
                    logger.info("removed %d expired classifiers", removed)

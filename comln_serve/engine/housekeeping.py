"""What a server does by itself now and then: removing what has expired."""

import logging
from threading import Event, Thread

from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.storage import Store

logger = logging.getLogger(__name__)

# What has expired is not found from that moment on; only its rows may stay this long.
_EVERY_SECONDS = 60.0


class Housekeeping:
    """A thread that purges the store until it is closed. Several servers may do so at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._closing = Event()
        self._thread = Thread(target=self._work, name="housekeeping", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """For readiness.

        Raises:
            ServiceError: NOT_READY, the thread has ended.
        """
        if not self._thread.is_alive():
            raise ServiceError(
                ErrorCode.NOT_READY,
                "The thread that removes expired classifiers has ended; restart the server.",
            )

    def close(self) -> None:
        """Stop, after what is being done."""
        self._closing.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closing.wait(_EVERY_SECONDS):
            try:
                removed = self._store.purge()
            except ServiceError as error:
                logger.warning("expired classifiers were not removed: %s", error)
            except Exception:  # the thread must not end by it
                logger.exception("expired classifiers were not removed")
            else:
                if removed:
                    logger.info("removed %d expired classifiers", removed)

"""What a server does by itself now and then: removing what has expired."""

import logging
from threading import Event, Thread

from comln_serve.errors import ServiceError
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
            else:
                if removed:
                    logger.info("removed %d expired classifiers", removed)

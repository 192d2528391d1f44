"""Removes expired classifiers every minute, and thumbnails where none are to be kept; stores when keys were used; gives
freed memory back to the system.
"""

import logging
from contextlib import suppress
from threading import Event, Thread

from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.machine import return_freed_memory
from comln_serve.storage import Store

logger = logging.getLogger(__name__)

# Queries skip expired classifiers at once; only their rows stay until the next purge.
_EVERY_SECONDS = 60.0


class Housekeeping:
    """A thread that does all this, now and until closed. Several servers may purge a store at the same time.

    Thumbnails that another server stores meanwhile, set to keep them, are deleted at the next purge.
    """

    def __init__(self, store: Store, *, keep_thumbnails: bool = False) -> None:
        self._store, self._keep_thumbnails = store, keep_thumbnails
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
        closing = False
        while not closing:
            for what, task in (
                ("expired classifiers were not removed, or thumbnails", self._purge),
                ("when keys were last used was not stored", self._store.keys.store_uses),
                ("freed memory was not returned", return_freed_memory),
            ):
                try:
                    task()
                except ServiceError as error:
                    logger.warning("%s: %s", what, error)
                except Exception:  # the thread must go on
                    logger.exception(what)
            closing = self._closing.wait(_EVERY_SECONDS)
        with suppress(ServiceError):
            self._store.keys.store_uses()

    def _purge(self) -> None:
        if removed := self._store.purge():
            logger.info("removed %d expired classifiers", removed)
        if not self._keep_thumbnails and (removed := self._store.delete_thumbnails()):
            logger.info("deleted %d thumbnails, as keep_thumbnails is off", removed)

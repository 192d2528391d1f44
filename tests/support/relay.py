"""A network between a server and its database, for tests that break it."""

from contextlib import suppress
from socket import SHUT_RDWR, create_connection, socket
from threading import Event, Thread


class Relay:
    """A way to PostgreSQL that can be cut, and be silent while `passing` is not set."""

    def __init__(self) -> None:
        self.passing = Event()
        self.passing.set()
        self._listening = socket()
        self._listening.bind(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._ends: list[socket] = []
        self.open()

    def open(self) -> None:
        if self._listening.fileno() == -1:
            self._listening = socket()
            self._listening.bind(("127.0.0.1", self.port))
        self._listening.listen()
        Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def cut(self) -> None:
        self.passing.set()
        for end in (self._listening, *self._ends):
            with suppress(OSError):
                end.shutdown(SHUT_RDWR)
            end.close()
        self._ends.clear()

    def _accept(self, listening: socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            server = create_connection(("127.0.0.1", 5432))
            self._ends += [client, server]
            for source, target in ((client, server), (server, client)):
                Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket, target: socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.passing.wait()
                target.sendall(data)
        for end in (source, target):  # also after a reset
            with suppress(OSError):
                end.shutdown(SHUT_RDWR)

"""A door to the PostgreSQL server that shuts when a client commits."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

PORT = 6543

_COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"  # a query of that length


class Proxy:
    """Passes everything on, until it sees a COMMIT while it is `armed`.

    Args:
        server: the folder of the server's socket.
        folder: where clients find this one, at `PORT`.
        deliver: whether the server gets the COMMIT whose answer the client does not get.
    """

    def __init__(self, server: Path, folder: Path, *, deliver: bool) -> None:
        self.armed = False
        self._server = str(server / ".s.PGSQL.5432")
        self._deliver = deliver
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / f".s.PGSQL.{PORT}"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._server)
            answers = threading.Thread(target=self._pass_answers_on, args=(server, client), daemon=True)
            answers.start()
            while request := _receive(client):
                if self.armed and _COMMIT in request:
                    self.armed = False
                    client.shutdown(socket.SHUT_RDWR)
                    if self._deliver:
                        server.sendall(request)
                    break
                server.sendall(request)
            server.shutdown(socket.SHUT_WR)
            answers.join()  # the server ends when it has done what it was sent

    @staticmethod
    def _pass_answers_on(server: socket.socket, client: socket.socket) -> None:
        while answer := _receive(server):
            try:
                client.sendall(answer)
            except OSError:
                continue  # nobody is there to hear it


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except OSError:
        return b""

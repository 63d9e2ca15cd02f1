"""Lets connections in a few at a time.

An event loop by itself takes in all who wait at the door before it turns to anybody inside: hundreds who come at once
stop it for a fifth of a second. Here a few come in, and those inside have their turn before the next few; the others
wait in the kernel's queue.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger(__name__)

AT_ONCE, PAUSE = 2, 0.001
"""So many come in together, and nobody for so many seconds after them: 2,000 a second at most."""
REST = 1.0
"""Seconds without a look when this process, or the machine, can't take one more."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_GONE_AGAIN = (ConnectionError, InterruptedError, TimeoutError)


class Door:
    """A listening socket, and what speaks with those who come in by it."""

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        self._listening = listening
        self._protocol = protocol
        self._make_room = make_room
        self._loop = asyncio.get_running_loop()
        self._entering: set[asyncio.Task[object]] = set()
        self._closed = False

    def open(self) -> None:
        if not self._closed:
            self._listening.setblocking(False)
            self._loop.add_reader(self._listening, self._let_in)

    def close(self) -> None:
        """Nobody else comes in. The socket is its owner's."""
        self._closed = True
        self._loop.remove_reader(self._listening)

    def _let_in(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:
                return
            except _GONE_AGAIN:
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                pause = PAUSE if self._make_room() else REST
                log.error("nobody can come in for %g s: %s", pause, error)
                self._pause(pause)
                return
            entering = self._loop.create_task(self._enter(connection))
            self._entering.add(entering)
            entering.add_done_callback(self._entering.discard)
        self._pause(PAUSE)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._loop.call_later(seconds, self.open)

    async def _enter(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with suppress(OSError):  # it left on the threshold
            await self._loop.connect_accepted_socket(self._protocol, connection)

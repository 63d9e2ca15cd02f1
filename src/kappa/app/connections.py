"""The connections that are open: how many in all and from one address, and which are closed to make room.

At a limit, connections that wait for their client are closed first: those from where there are most, half-sent
requests before connections that rest between two requests, the oldest first. If all are being answered, a few more
come in all the same, for health checks alone.
"""

import ipaddress
import logging
import resource
from collections import Counter
from collections.abc import Sequence

from kappa.app.http_protocol import HttpProtocol
from kappa.app.settings import Network

log = logging.getLogger(__name__)

RESERVED = 32
MAX_CONNECTIONS = 50_000
"""500 MB, at 10 kB for one that rests."""
OTHER_FILES = 512
"""Descriptors that are left for the database, jobs, files and logs."""


def connection_limit(files: int | None = None) -> int:
    """How many connections a process may have that may open so many files."""
    if files is None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, max(files // 2, files - OTHER_FILES) - RESERVED))


class Connections:
    """Every connection of one server."""

    def __init__(self, most: int, most_of_address: int | None = None, trusted_proxies: Sequence[Network] = ()) -> None:
        self.now = 0
        """Seconds of the server's life, as its loop counts them."""
        self._most = most
        self._most_of_address = most_of_address if most_of_address is not None else max(1, most // 2)
        self._trusted_proxies = trusted_proxies
        self._open: set[HttpProtocol] = set()
        self._reserved: set[HttpProtocol] = set()
        self._of_address: Counter[str] = Counter()
        self._in_vain: set[str | None] = set()
        """Where there was nothing to close when it was last looked for, in this second."""

    def __len__(self) -> int:
        return len(self._open) + len(self._reserved)

    def add(self, connection: HttpProtocol) -> None:
        address = connection.address
        if self._of_address[address] >= self._most_of_address and not self._is_proxy(address):
            has_room = self.make_room(address)
        else:
            has_room = len(self._open) < self._most or self.make_room()
        if has_room:
            self._open.add(connection)
            self._of_address[address] += 1
        elif len(self._reserved) < RESERVED or self._make_reserve():
            self._reserved.add(connection)
            connection.reserve()
        else:
            connection.transport.abort()

    def remove(self, connection: HttpProtocol) -> None:
        self._reserved.discard(connection)
        if connection in self._open:
            self._open.remove(connection)
            self._of_address[connection.address] -= 1
            if not self._of_address[connection.address]:
                del self._of_address[connection.address]

    def make_room(self, address: str | None = None) -> bool:
        """Close connections that wait for their client, of one address or any; whether there was one."""
        if address in self._in_vain:
            return False
        waiting = [one for one in self._open if one.is_waiting and address in (None, one.address)]
        waiting.sort(key=lambda one: (-self._of_address[one.address], one.had_request, one.since))
        # Several at once: to look at each costs as much as the look that found them.
        closed = waiting[: 1 + len(waiting) // 8]
        for one in closed:
            self._close(one)
        if not closed:
            self._in_vain.add(address)
        limit = f"{self._most_of_address} from {address}" if address else f"{self._most} in all"
        log.warning("as many connections as there may be (%s): closed %d that were waiting", limit, len(closed))
        return bool(closed)

    def sweep(self) -> None:
        """Once a second."""
        self.now += 1
        self._in_vain.clear()
        for one in (*self._open, *self._reserved):
            one.check()

    def _is_proxy(self, address: str) -> bool:
        """A trusted proxy's connections are those of many clients."""
        if not self._trusted_proxies or address == "local":
            return False
        return any(ipaddress.ip_address(address) in network for network in self._trusted_proxies)

    def _make_reserve(self) -> bool:
        waiting = [one for one in self._reserved if one.is_waiting]
        if waiting:
            self._close(min(waiting, key=lambda one: one.since))
        return bool(waiting)

    def _close(self, connection: HttpProtocol) -> None:
        self.remove(connection)
        connection.transport.abort()

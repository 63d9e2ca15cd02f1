"""Brings a server back that is killed while somebody uses it."""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager

from kappa.pg.embedded.server import EmbeddedServer

log = logging.getLogger(__name__)

LOOK_EVERY = 0.5
TRY_AGAIN = 5.0


@contextmanager
def kept_up(server: EmbeddedServer) -> Generator[None]:
    """While the block lasts, a server that is killed comes back at its address. One that is stopped stays so."""
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(server, server.status().port, over), name="embedded server")
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _watch(server: EmbeddedServer, port: int | None, over: threading.Event) -> None:
    patience, killed = LOOK_EVERY, False
    while not over.wait(patience):
        patience = LOOK_EVERY
        # Once it is known: a start that fails takes the traces away.
        killed = killed or server.was_killed()
        if not killed:
            continue
        log.warning("the embedded server was killed, and is started again")
        try:
            server.come_back(port)
            killed = False
        except Exception as error:  # whatever it is: the next try may find it gone
            log.error("the embedded server was killed, and doesn't come back: %s", error)
            patience = TRY_AGAIN

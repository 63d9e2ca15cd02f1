"""A real PostgreSQL that lives in the Kappa home: made, started, shared and stopped without an administrator."""

from kappa.pg.embedded.binaries import Binaries, find_binaries
from kappa.pg.embedded.roles import ROLE
from kappa.pg.embedded.server import EmbeddedServer, Holder, Status
from kappa.pg.embedded.watch import kept_up

__all__ = ["ROLE", "Binaries", "EmbeddedServer", "Holder", "Status", "find_binaries", "kept_up"]

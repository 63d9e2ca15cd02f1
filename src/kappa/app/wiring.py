"""Puts the parts together: which database, which migrations."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from kappa.app.settings import Settings
from kappa.engine import COMPONENT as ENGINE
from kappa.pg import Component, Database
from kappa.pg.embedded import EmbeddedServer

COMPONENTS: tuple[Component, ...] = (ENGINE,)
"""Everything that has a schema, in the order of migration."""


def embedded_server(settings: Settings, say: Callable[[str], None]) -> EmbeddedServer:
    return EmbeddedServer(
        settings.home,
        bin_dir=settings.postgres_bin,
        port=settings.postgres_port,
        account=settings.postgres_user,
        say=say,
    )


@contextmanager
def open_database(settings: Settings, who: str, say: Callable[[str], None]) -> Generator[Database]:
    """The database of these settings; the embedded server is started and held if it is that one."""
    if settings.database_url is not None:
        direct = settings.database_direct_url or settings.database_url
        yield Database(settings.database_url.get_secret_value(), direct.get_secret_value(), settings.bounds)
        return
    with embedded_server(settings, say).hold(who) as url:
        yield Database(url, bounds=settings.bounds)

"""Puts the parts together: which database, which migrations, which handlers."""

import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

from kappa.app import kinds, retention
from kappa.app.settings import BadSetting, Settings
from kappa.engine import COMPONENT as ENGINE
from kappa.engine import Engine
from kappa.engine.tools import Runner, runners_here
from kappa.graph import COMPONENT as GRAPH
from kappa.pg import Component, Database, component, migrate
from kappa.pg.embedded import EmbeddedServer, kept_up

APP = component("app", Path(__file__).parent / "migrations")

COMPONENTS: tuple[Component, ...] = (ENGINE, APP, GRAPH)
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
    server = embedded_server(settings, say)
    with server.hold(who) as url, kept_up(server):
        yield Database(url, bounds=settings.bounds)


def build_engine(settings: Settings, database: Database) -> Engine:
    """The engine with every handler that Kappa brings, and those that the settings name."""
    from kappa.app.kinds import models  # `kg db` and `kg doctor` do without

    engine = Engine(database)
    kinds.declare(engine, settings)
    engine.forget(partial(retention.forget_audit, timedelta(days=settings.audit_days)))
    if settings.handlers is not None:
        _load(settings.handlers)(engine)
    models.check_names(settings)  # the handlers may have brought some
    models.chunk_rule(settings)
    return engine


def tool_runners(settings: Settings, home: Path) -> dict[str, Runner]:
    """What runs tools, with their directories in this home, and may show them none of Kappa's own."""
    return runners_here(
        home,
        sandbox=True if settings.tools_need_sandbox else None,
        shown=settings.shown_to_tools,
        hidden=[settings.home.expanduser().absolute()],
    )


def install(engine: Engine) -> None:
    """Bring every schema up to date and make the declared lanes. Safe to call at every start."""
    with engine.database.connect() as connection:
        migrate(connection, COMPONENTS)
    engine.install()


def _load(place: str) -> Callable[[Engine], object]:
    module, _, name = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadSetting(
            f"the handlers {place!r} (KAPPA_HANDLERS, --handlers) can't be loaded: {error}; they look like"
            " package.module:function"
        ) from None
    if not callable(found):
        raise BadSetting(f"the handlers {place!r} (KAPPA_HANDLERS, --handlers) can't be loaded: that is no function")
    return found

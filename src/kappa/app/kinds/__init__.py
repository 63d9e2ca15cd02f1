"""The kinds of jobs that Kappa brings: each module declares its handlers on the engine."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kappa.app.kinds.workshop import Workshop
    from kappa.app.settings import Settings
    from kappa.engine import Engine


def declare(engine: "Engine", settings: "Settings") -> "Workshop":
    """All of them, and the workshop that they share, which the engine closes at its end."""
    # Here, not above: a command that only reads what a job left behind passes through this package.
    from kappa.app.kinds import cleanup, ingestion, maps, measures, ontologies, restore, selftest
    from kappa.app.kinds.workshop import Workshop

    shop = Workshop(settings, engine.database)
    engine.at_end(shop.close)
    selftest.declare(engine)
    ingestion.declare(engine, shop)
    measures.declare(engine, shop)
    maps.declare(engine, shop)
    restore.declare(engine)
    ontologies.declare(engine, shop)
    cleanup.declare(engine, settings)
    return shop

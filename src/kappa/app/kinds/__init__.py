"""The kinds of jobs that Kappa brings: each module declares its handlers on the engine."""

from kappa.app.kinds import restore, selftest
from kappa.app.kinds.workshop import Workshop
from kappa.app.settings import Settings
from kappa.engine import Engine


def declare(engine: Engine, settings: Settings) -> Workshop:
    """All of them, and the workshop that they share."""
    shop = Workshop(settings, engine.database)
    selftest.declare(engine)
    restore.declare(engine)
    return shop

"""What can go wrong between Kappa and PostgreSQL.

KappaError                    every error that Kappa raises on purpose; its text is one clear line
└── PgError
    ├── PoolError
    │   ├── PoolExhausted     no connection became free in time; names the pool, its size and its holders
    │   ├── PoolUnreachable   the server could not be reached in time
    │   └── PoolsTooLarge     the pools together need more connections than the server gives
    ├── QueryNotFound         a named block is missing from its .sql file, or the file is malformed
    ├── MigrationError
    │   ├── MigrationFailed   a migration's SQL failed; nothing of it was kept
    │   ├── MigrationChanged  a file differs from what was applied
    │   ├── SchemaTooNew      the database was migrated by a newer program
    │   └── SchemaTooOld      migrations are pending
    └── EmbeddedError
        ├── BinariesNotFound  no usable PostgreSQL binaries
        ├── ServerInUse       `stop` while other processes hold the server
        ├── ServerNotRunning
        └── ServerFailed      the server could not be made or started; says why
"""


class KappaError(Exception):
    """Every error that Kappa raises on purpose."""


class PgError(KappaError):
    """Something between Kappa and PostgreSQL."""


class PoolError(PgError):
    """A pool could not give a connection."""


class PoolExhausted(PoolError):
    """No connection became free in time."""


class PoolUnreachable(PoolError):
    """The server could not be reached in time."""


class PoolsTooLarge(PoolError):
    """The pools together need more connections than the server gives."""


class QueryNotFound(PgError):
    """A named block is missing from its .sql file, or the file is malformed."""


class MigrationError(PgError):
    """The schema could not be brought to what this program needs."""


class MigrationFailed(MigrationError):
    """A migration's SQL failed; nothing of it was kept."""


class MigrationChanged(MigrationError):
    """A migration file differs from what was applied, or is out of order."""


class SchemaTooNew(MigrationError):
    """The database was migrated by a newer program."""


class SchemaTooOld(MigrationError):
    """Migrations are pending."""


class EmbeddedError(PgError):
    """The embedded server."""


class BinariesNotFound(EmbeddedError):
    """No usable PostgreSQL binaries."""


class ServerInUse(EmbeddedError):
    """Other processes hold the server."""


class ServerNotRunning(EmbeddedError):
    """The embedded server does not run."""


class ServerFailed(EmbeddedError):
    """The server could not be made or started."""

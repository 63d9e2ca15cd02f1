"""Backups taken from a server and given back to it.

A backup is made on a connection of its own. One that comes back goes through the database, in pieces, to whichever
worker does the job; only the job that was made for it can use it.
"""

from collections.abc import AsyncGenerator, AsyncIterable
from datetime import timedelta

from anyio import CancelScope
from anyio.to_thread import run_sync

from kappa.app.errors import Refused
from kappa.app.kinds import restore_files
from kappa.app.usecases import audit, submission
from kappa.app.usecases.principal import Principal
from kappa.engine import AsyncClient, Enqueued
from kappa.graph import backup
from kappa.pg import Database
from kappa.pg.ops import run_async

RESTORE = "restore"
PIECE = 1 << 20
GZIP = b"\x1f\x8b"
PATIENCE = timedelta(hours=2)


class Backups:
    """Backups of one server's graph."""

    def __init__(self, client: AsyncClient, database: Database) -> None:
        self._client = client
        self._database = database

    async def make(self, who: Principal) -> AsyncGenerator[bytes]:
        """The bytes of a backup. If it can't be finished they end in the middle, which whoever reads them notices."""
        async with self._client.transaction() as connection:
            await audit.record(connection, who, "graph.backup", "graph")
        connection = await run_sync(self._database.connect)
        pieces = backup.make(connection)
        try:
            # Not until an empty one: what was packed may all still be in the packer.
            while (piece := await run_sync(next, pieces, None)) is not None:
                if piece:
                    yield piece
        finally:
            with CancelScope(shield=True):
                await run_sync(pieces.close)
                await run_sync(connection.close)

    async def restore(self, who: Principal, mode: backup.Mode, content: AsyncIterable[bytes]) -> Enqueued:
        """The job that restores what comes in."""
        submission.require_permissions(who, RESTORE)
        file: int | None = None
        position, held = 0, bytearray()
        try:
            async for piece in content:
                held += piece
                if len(held) < PIECE:
                    continue
                file = await self._add(who, file, position, bytes(held))
                position, held = position + 1, bytearray()
            if held or file is None:
                file = await self._add(who, file, position, bytes(held))
            async with self._client.transaction() as connection:
                payload = {"file": file, "mode": mode.value}
                made = await self._client.enqueue(
                    RESTORE, payload, submitted_by=who.name, timeout=PATIENCE, connection=connection
                )
                await run_async(connection, restore_files.tie(file, made.id))
                await audit.record(connection, who, "graph.restore", made.id, mode=mode.value)
                return made
        except BaseException:
            if file is not None:
                with CancelScope(shield=True):
                    async with self._client.transaction() as connection:
                        await run_async(connection, restore_files.drop(file))
            raise

    async def _add(self, who: Principal, file: int | None, position: int, content: bytes) -> int:
        if file is None and not content.startswith(GZIP):
            raise Refused("this is no backup: send the file that `kg backup` wrote")
        async with self._client.transaction() as connection:
            if file is None:
                file = await run_async(connection, restore_files.begin(who.name))
            await run_async(connection, restore_files.add(file, position, content))
        return file

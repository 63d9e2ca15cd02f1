"""Files of tool runs on their way to and from a worker: in pieces, never whole in memory, guarded by the task's lease.

Each piece of an input is a statement of its own: nobody waits for a connection because somebody reads slowly.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from kappa.engine.fleet import store, wire
from kappa.engine.fleet.dispatch import Fleet, lost
from kappa.engine.fleet.refusals import Refused
from kappa.engine.fleet.store import Ended, Ending, HeldRun, HeldTask
from kappa.engine.fleet.wire import Refusal
from kappa.engine.tools import KIND as TOOL_RUN
from kappa.engine.tools import ArtifactStore, ContractBroken, Limits, Stored
from kappa.engine.tools import store as tools
from kappa.engine.tools.contract import ARTIFACTS_LIMIT, LOG_LIMIT, artifact_parts
from kappa.pg.ops import run_async

MEGABYTE = 1024 * 1024
PIECE_LIMIT = 64 * 1024
"""Bytes of a log in one call."""
INPUT_PIECE = MEGABYTE
"""No less: what PostgreSQL has compressed it unpacks from the beginning for every piece."""
STREAMS = ("stdout", "stderr")


class Transfers:
    """What a tool run reads and leaves behind."""

    def __init__(
        self, fleet: Fleet, artifacts: ArtifactStore, in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread
    ) -> None:
        self._fleet = fleet
        self._in_thread = in_thread
        self._artifacts = artifacts

    async def input(self, held: HeldTask, name: str) -> tuple[int, AsyncIterator[bytes]]:
        """The size of an input file, and its pieces."""
        run = await self._run(held)
        size, first = await self._piece(run, name, 0)

        async def pieces() -> AsyncIterator[bytes]:
            yield first
            for at in range(INPUT_PIECE, size, INPUT_PIECE):
                yield (await self._piece(run, name, at))[1]

        return size, pieces()

    async def _piece(self, run: HeldRun, name: str, at: int) -> tuple[int, bytes]:
        found = await self._fleet.do(store.read_input(run.run_id, name, at, INPUT_PIECE))
        if found is None:
            raise Refused(Refusal.NOT_FOUND, f"this run has no input {name!r}")
        return found

    async def log(self, held: HeldTask, stream: str, at: int, piece: bytes) -> int:
        """Keep the next piece of what a run says; gives how much is kept."""
        if stream not in STREAMS:
            raise Refused(Refusal.NOT_FOUND, f"a run has stdout and stderr, not {stream!r}")
        run = await self._run(held)
        kept = await self._fleet.do(tools.log_length(run.run_id, run.attempt, stream))
        if at > kept:
            raise Refused(Refusal.BAD_REQUEST, f"{kept} bytes are kept: the next piece begins there, not at {at}")
        fresh = piece[kept - at :][: max(0, LOG_LIMIT - kept)]
        if fresh:
            put = tools.put_log(run.run_id, run.attempt, stream, kept, fresh, held.id, held.token)
            await self._fleet.do(put)
            kept = await self._fleet.do(tools.log_length(run.run_id, run.attempt, stream))
        return kept

    async def exit(self, held: HeldTask, code: int) -> None:
        run = await self._run(held)
        await self._fleet.do(tools.note_exit(run.run_id, code, held.id, held.token))

    async def artifact(self, held: HeldTask, path: str, size: int, pieces: AsyncIterator[bytes]) -> Stored:
        """Store a file. It is an artifact once the task is completed with it."""
        run = await self._run(held)
        most = _most(run)
        if size > most:
            raise Refused(Refusal.TOO_LARGE, f"the artifacts may have {most // MEGABYTE} MB together")
        try:
            name = "/".join(artifact_parts(path))
            with self._artifacts.draft(size) as draft:
                async for piece in pieces:
                    await self._in_thread(draft.write, piece)
                return Stored(name, None, size, await self._in_thread(draft.keep))
        except ContractBroken as error:
            raise Refused(Refusal.BAD_REQUEST, str(error)) from None

    async def complete(self, held: HeldTask, outcome: wire.ToolOutcome, outputs: str) -> Ended:
        """Settle a run together with what it left."""
        run = await self._fleet.do(store.held_run(held))
        if run is None:
            return await self._said_before(held)
        if len(outcome.artifacts) > ARTIFACTS_LIMIT:
            raise Refused(Refusal.BAD_REQUEST, f"a run leaves {ARTIFACTS_LIMIT} artifacts at most")
        stored = [await self._in_thread(self._check, one) for one in outcome.artifacts]
        if sum(one.size for one in stored) > _most(run):
            raise Refused(Refusal.TOO_LARGE, f"the artifacts may have {_most(run) // MEGABYTE} MB together")
        ended = await self._keep(held, run.run_id, stored, outputs, outcome.exit_code)
        return await self._said_before(held) if ended is None else ended

    async def _keep(
        self, held: HeldTask, run_id: int, stored: list[Stored], outputs: str, exit_code: int | None
    ) -> Ended | None:
        async with self._fleet.rarely() as connection, connection.transaction():
            if await run_async(connection, store.hold_run(held)) is None:
                return None
            for one in stored:
                await run_async(connection, tools.put_artifact(run_id, one))
            await run_async(connection, tools.put_outputs(run_id, outputs, exit_code))
            result = f'{{"run_id": {run_id}, "artifacts": {len(stored)}}}'
            settled = await run_async(connection, store.settle([Ending(held, "kept", result)]))
        self._fleet.say_settled(held, settled[0])
        return settled[0]

    async def _said_before(self, held: HeldTask) -> Ended:
        """The answer to the same words, perhaps a moment ago."""
        ended = await self._fleet.settle(Ending(held, "succeeded"))
        if ended.state == TOOL_RUN:  # it is this worker's, and of no run
            raise lost(held.id)
        return ended

    def _check(self, said: wire.Uploaded) -> Stored:
        try:
            name = "/".join(artifact_parts(said.path))
            size = self._artifacts.place(said.sha256).stat().st_size
        except ContractBroken as error:
            raise Refused(Refusal.BAD_REQUEST, str(error)) from None
        except FileNotFoundError:
            raise Refused(Refusal.BAD_REQUEST, f"artifact {said.path!r} was not uploaded") from None
        if size != said.size:
            raise Refused(Refusal.BAD_REQUEST, f"artifact {said.path!r} has {size} bytes, not {said.size}")
        return Stored(name, said.media_type, size, said.sha256)

    async def _run(self, held: HeldTask) -> HeldRun:
        run = await self._fleet.do(store.held_run(held))
        if run is None:
            raise Refused(Refusal.LOST, f"task {held.id} is not a tool run of this worker's, or no longer")
        return run


def _most(run: HeldRun) -> int:
    return (Limits().output_mb if run.output_mb is None else run.output_mb) * MEGABYTE

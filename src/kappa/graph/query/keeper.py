"""Keeps the snapshot of this process: made, kept fresh, compacted, given up where it grows too large.

`refresh` is the one way forward and may be called by anybody, at any time; one refresh runs at a time and who comes
meanwhile finds it done. A thread of the keeper's own calls it whenever a commit is announced. Readers take the
current snapshot and are never waited for. Questions don't refresh: one that needs a later epoch asks a thread for it
and waits a little, and for a snapshot that is being built it doesn't wait at all; the database answers instead. A
compaction works on its own copy and then catches up with what came meanwhile.
"""

import asyncio
import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import psycopg

from kappa.graph.config import GraphConfig
from kappa.graph.model import SnapshotStatus
from kappa.graph.query import reading
from kappa.graph.query.filters import Cancel, Limits
from kappa.graph.query.kernel import Kernel
from kappa.graph.query.server import cancellable, stop_threads
from kappa.graph.query.snapshot import Delta, Snapshot, apply, compact
from kappa.graph.schema import CHANNEL
from kappa.graph.store import clock
from kappa.pg import Database, KappaError, Listening, Pool, listen

log = logging.getLogger(__name__)

State = Literal["off", "absent", "ready", "too large"]

MOST_CHANGES = 20_000
"""Changes that are laid over a snapshot at once. With more, and over a twentieth of the edges, it is built anew."""
LEAST_TO_COMPACT = 20_000
TRY_AGAIN = 60.0
"""Seconds after which a graph that was too large is measured again."""
PRUNE_EVERY = 3600.0
SHARE = 0.25
"""Of the time that a question has left: how much of it may go by while it waits for the snapshot."""


@dataclass(slots=True)
class _Counts:
    builds: int = 0
    refreshes: int = 0
    compactions: int = 0
    last_refresh: float = 0.0


class Keeper:
    """The snapshot of one process."""

    def __init__(self, database: Database, pool: Pool, kernel: Kernel, config: GraphConfig) -> None:
        self._database = database
        self._pool = pool
        self._kernel = kernel
        self._config = config
        self._refreshing = threading.Lock()
        self._changed = threading.Condition()
        self._begun = self._ended = 0
        """Refreshes."""
        self._building = False
        self._failed_at = float("-inf")
        self._current: Snapshot | None = None
        self._state: State = "absent" if config.snapshot else "off"
        self._too_large_at = 0.0
        self._pruned_at = time.monotonic()
        self._behind: list[Delta] | None = None
        """What came while a compaction runs."""
        self._counts = _Counts()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._catching_up: threading.Thread | None = None
        self._compacting: threading.Thread | None = None
        self._closing = Cancel()
        self._hears = False
        self._heard: int | None = None
        """The latest epoch that was announced, or found by a refresh."""

    @property
    def latest(self) -> int | None:
        """The latest epoch that questions are to see at least; None where this process has to ask for it."""
        if self._thread is not None:
            return self._heard if self._hears else None
        # Whoever doesn't listen wants the snapshot as it was last refreshed.
        graph = self._current
        return None if graph is None else graph.epoch

    @property
    def current(self) -> Snapshot | None:
        return self._current

    def start(self) -> None:
        """Listen, and refresh whenever something was committed."""
        if self._thread is not None:
            return
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(started)), name="kappa graph", daemon=True)
        self._thread.start()
        started.wait()

    def stop(self) -> None:
        """End what runs, also a statement that waits for somebody."""
        if self._thread is not None and self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
        running = (self._thread, self._catching_up, self._compacting)
        try:
            stop_threads([thread for thread in running if thread is not None], self._closing)
        finally:
            self._thread, self._closing = None, Cancel()

    async def _run(self, started: threading.Event) -> None:
        # Its own, should it be left behind and another one begin.
        stop = asyncio.Event()
        self._loop, self._stop = asyncio.get_running_loop(), stop
        wake = asyncio.Event()
        wake.set()

        def lost() -> None:
            self._hears = False

        async def hear() -> None:
            async for event in listen(self._database.direct_url, [CHANNEL], lost=lost):
                if isinstance(event, Listening):
                    self._hears, self._heard = True, None
                elif event.payload.isdecimal():
                    self._hear(int(event.payload))
                wake.set()

        hearing, stopping = asyncio.create_task(hear()), asyncio.create_task(stop.wait())
        started.set()
        while not stop.is_set():
            waking = asyncio.create_task(wake.wait())
            await asyncio.wait(
                {waking, stopping}, timeout=self._config.poll.total_seconds(), return_when=asyncio.FIRST_COMPLETED
            )
            waking.cancel()
            wake.clear()
            if not stop.is_set():
                await asyncio.to_thread(self._run_once)
        hearing.cancel()
        with suppress(asyncio.CancelledError):
            await hearing

    def _run_once(self) -> None:
        try:
            self.refresh()
            if time.monotonic() - self._pruned_at > PRUNE_EVERY:
                self._pruned_at = time.monotonic()
                with self._pool.connection() as connection:
                    clock.prune(connection, self._config.keep_changes)
        except (psycopg.Error, KappaError) as error:
            if self._closing.cancelled:
                return
            # The loop's boundary: the next turn tries again, and the old snapshot says how old it is.
            log.warning("the snapshot was not refreshed: %s", " ".join(str(error).split()))
        except Exception:
            log.exception("the snapshot is dropped and will be built anew")
            with self._refreshing:
                self._current = self._behind = None

    def refresh(self) -> Snapshot | None:
        """Come up to the latest commit, however long it takes. None where this process keeps no snapshot."""
        began = time.monotonic()
        with self._refreshing:
            with self._changed:
                self._begun += 1
            try:
                with self._pool.connection() as connection, cancellable(connection, self._closing):
                    self._refresh(connection)
            except BaseException:
                self._failed_at = time.monotonic()
                raise
            finally:
                with self._changed:
                    self._ended = self._begun
                    self._changed.notify_all()
            self._counts.last_refresh = time.monotonic() - began
            self._consider_size()
            return self._current

    def _refresh(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        old = self._current
        if old is None:
            self._build(connection)
            return
        delta = reading.read_changes(connection, old.epoch, max(MOST_CHANGES, old.edges // 20))
        if delta is None:
            self._build(connection)
        elif delta.epoch != old.epoch:
            self._swap(apply(old, delta))
            self._counts.refreshes += 1
            if self._behind is not None:
                self._behind.append(delta)
        else:
            self._hear(old.epoch)

    def _hear(self, epoch: int) -> None:
        with self._changed:
            self._heard = max(self._heard or 0, epoch)

    def _build(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        lately = time.monotonic() - self._too_large_at < TRY_AGAIN
        if self._state == "off" or (self._state == "too large" and lately):
            self._hear(clock.now(connection))
            return
        # The old one serves until the new one is there, if there is room for both.
        if self._current is not None and 2 * self._current.nbytes > self._config.snapshot_bytes:
            self._current = None
        self._building = True
        with self._changed:
            self._changed.notify_all()
        try:
            made = reading.read_all(connection, self._config.snapshot_bytes)
        except reading.TooLarge:
            self._hear(clock.now(connection))
            self._give_up()
            return
        finally:
            self._building = False
        self._behind = None
        self._state = "ready"
        self._counts.builds += 1
        self._swap(made)

    def _give_up(self) -> None:
        self._state, self._too_large_at = "too large", time.monotonic()
        self._current = self._behind = None

    def _swap(self, new: Snapshot) -> None:
        with self._changed:
            self._current = new
            self._heard = max(self._heard or 0, new.epoch)
            self._changed.notify_all()

    def _consider_size(self) -> None:
        graph = self._current
        if graph is None or self._behind is not None:
            return
        if graph.changed_edges > max(LEAST_TO_COMPACT, self._config.compact_at * 2 * graph.edges):
            self._behind = []
            self._compacting = threading.Thread(
                target=self._compact, args=(graph,), name="kappa graph compaction", daemon=True
            )
            self._compacting.start()
        elif graph.nbytes > self._config.snapshot_bytes:
            self._give_up()

    def _compact(self, graph: Snapshot) -> None:
        made = compact(graph)
        with self._refreshing:
            if self._behind is None:
                return  # the snapshot was built anew, or given up
            for delta in self._behind:
                made = apply(made, delta)
            self._behind = None
            self._counts.compactions += 1
            self._swap(made)

    def at_least(self, epoch: int, limits: Limits) -> Snapshot | None:
        """A snapshot of this epoch or a later one, if there is one soon; the database knows all that was committed."""
        soon = limits.within(min(self._config.patience, limits.left * SHARE))
        key = object()
        limits.cancel.watch(key, self._wake)
        try:
            with self._changed:
                # What was committed by now is seen by the next refresh that begins.
                enough = self._begun + 1
                while True:
                    graph = self._current
                    if graph is not None and graph.epoch >= epoch:
                        return graph
                    if self._state in ("off", "too large") or self._building or self._ended >= enough or soon.stop():
                        return None
                    if graph is None and time.monotonic() - self._failed_at < self._config.poll.total_seconds():
                        return None
                    self._ask_for_refresh()
                    if graph is None:
                        return None
                    self._changed.wait(soon.left)
        finally:
            limits.cancel.unwatch(key)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _ask_for_refresh(self) -> None:
        """Have it done by another thread. Called with `_changed`."""
        if self._catching_up is None and not self._closing.cancelled:
            self._catching_up = threading.Thread(target=self._catch_up, name="kappa graph refresh", daemon=True)
            self._catching_up.start()

    def _catch_up(self) -> None:
        try:
            self._run_once()
        finally:
            with self._changed:
                self._catching_up = None
                self._changed.notify_all()

    def wait_for(self, epoch: int, timeout: float) -> bool:
        """Whether the snapshot comes to an epoch by itself, in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._current is not None and self._current.epoch >= epoch, timeout)

    def status(self) -> SnapshotStatus:
        graph = self._current
        return SnapshotStatus(
            state=self._state if graph is not None or self._state != "ready" else "absent",
            kernel=self._kernel.name,
            epoch=graph.epoch if graph else None,
            nodes=graph.nodes - len(graph.gone) if graph else 0,
            edges=graph.edges if graph else 0,
            bytes=graph.nbytes if graph else 0,
            changed_edges=graph.changed_edges if graph else 0,
            builds=self._counts.builds,
            refreshes=self._counts.refreshes,
            compactions=self._counts.compactions,
            last_refresh=self._counts.last_refresh,
        )

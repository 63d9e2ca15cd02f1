"""Keeps the embeddings that vector questions compare: read when a model is first asked for, fresh at every question.

A thread of the keeper's own reads a model; questions wait for it a little, and who gives up doesn't stop it. A
question that needs a later epoch brings the matrix there itself, if that is done soon. All matrices together stay
within `vectors_bytes`. A model for which there is no room, or that isn't there soon, is read through by the question.
"""

import logging
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import psycopg
from psycopg import Connection

from kappa.graph.config import GraphConfig
from kappa.graph.errors import GraphBusy, GraphFailed
from kappa.graph.model import VectorStatus
from kappa.graph.query import vectors
from kappa.graph.query.budget import Grant
from kappa.graph.query.filters import OUT_OF_TIME, Cancel, Limits
from kappa.graph.query.reading import one_state
from kappa.graph.query.server import Stopped, cancellable, session, stop_threads
from kappa.graph.query.vectors import Builder, Matrix, block_rows, row_bytes
from kappa.graph.store import clock
from kappa.graph.store import vectors as stored
from kappa.graph.store.adjacency import Ints, result_of, unpack
from kappa.graph.store.vectors import Kind
from kappa.pg import KappaError, Pool, PoolUnreachable
from kappa.pg.queries import Row

log = logging.getLogger(__name__)

MOST_CHANGES = 20_000
"""Changes that are laid over a matrix at once. With more, and over a quarter of the rows, it is read anew."""
TRY_AGAIN = 60.0
"""Seconds after which a model that was too large is measured again, and one that nobody asks for makes room."""
LOOK_AGAIN = 0.02
SHARE = 0.25
"""Of the time that a question has left: how much of it may go by while it waits for what is in memory."""


@dataclass(slots=True)
class _Kept:
    """One model's place."""

    refreshing: threading.Lock = field(default_factory=threading.Lock)
    matrix: Matrix | None = None
    reading: threading.Thread | None = None
    failed: Exception | None = None
    too_large_at: float | None = None
    asked_at: float = 0.0
    reserved: int = 0
    """Bytes of a matrix that is being read."""
    builds: int = 0
    refreshes: int = 0

    @property
    def known(self) -> bool:
        return self.reading is None

    @property
    def nbytes(self) -> int:
        return self.reserved + (self.matrix.nbytes if self.matrix is not None else 0)


class VectorKeeper:
    """The embeddings of one process."""

    def __init__(self, pool: Pool, config: GraphConfig, packs: bool) -> None:
        """`packs`: whether the compiled kernel is to be used, if there is one."""
        self._pool = pool
        self._packs = packs and vectors.COMPILED is not None
        self._most = config.vectors_bytes
        self._patience = config.patience
        self._changed = threading.Condition()
        self._kept: dict[Kind, _Kept] = {}
        self._closing = Cancel()

    def start(self) -> None:
        self._closing = Cancel()

    def stop(self) -> None:
        """End what is being read, and keep nothing any more."""
        with self._changed:
            reading = [kept.reading for kept in self._kept.values() if kept.reading is not None]
            self._kept.clear()
        stop_threads(reading, self._closing)

    def at_least(self, kind: Kind, epoch: int, limits: Limits) -> Matrix | None:
        """The vectors at this epoch or a later one; None if they are not kept, for want of room, or not there soon."""
        soon = limits.within(min(self._patience, limits.left * SHARE))
        try:
            while self._most > 0:
                kept = self._present(kind, soon)
                matrix = kept.matrix
                if matrix is None or matrix.epoch >= epoch:
                    return matrix
                self._refresh(kept, matrix, soon)
                matrix = kept.matrix
                if matrix is not None and matrix.epoch < epoch:
                    # The database itself is not there yet.
                    if soon.left <= LOOK_AGAIN:
                        return None
                    time.sleep(LOOK_AGAIN)
        except (Stopped, GraphBusy, PoolUnreachable):
            if stop := limits.stop():
                raise Stopped(stop) from None
        except GraphFailed as error:
            # Whoever reads them through has no such trouble, or says which.
            log.warning("embeddings are not kept: %s", error)
        return None

    def _present(self, kind: Kind, limits: Limits) -> _Kept:
        """The model's place, once it is known whether there is a matrix in it."""
        key = object()
        limits.cancel.watch(key, self._wake)
        try:
            with self._changed:
                kept = self._kept.setdefault(kind, _Kept())
                kept.asked_at = time.monotonic()
                lately = kept.too_large_at is not None and kept.asked_at - kept.too_large_at < TRY_AGAIN
                if kept.matrix is not None or lately:
                    return kept
                if kept.reading is None:
                    kept.failed = kept.too_large_at = None
                    kept.reading = threading.Thread(
                        target=self._read, args=(kind, kept), name="kappa graph vectors", daemon=True
                    )
                    kept.reading.start()
                while not kept.known:
                    if stop := limits.stop():
                        raise Stopped(stop)
                    self._changed.wait(limits.left)
                if kept.failed is not None:
                    said = " ".join(str(kept.failed).split())
                    raise GraphFailed(f"the embeddings of {kind.model!r} could not be read: {said}") from kept.failed
                return kept
        finally:
            limits.cancel.unwatch(key)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _read(self, kind: Kind, kept: _Kept) -> None:
        matrix, failed = None, None
        try:
            with self._pool.connection() as connection, cancellable(connection, self._closing), one_state(connection):
                matrix = self._build(connection, kind, kept)
        except (psycopg.Error, KappaError) as error:
            failed = error
        except Exception as error:
            # The thread's boundary: whoever waits is told.
            log.exception("the embeddings of %r could not be read", kind.model)
            failed = error
        with self._changed:
            kept.matrix, kept.failed, kept.reading, kept.reserved = matrix, failed, None, 0
            kept.builds += matrix is not None
            if matrix is not None and not matrix.rows and self._kept.get(kind) is kept:
                # Of a model that nobody uses nothing is remembered, whatever names are asked for.
                del self._kept[kind]
            self._changed.notify_all()

    def _build(self, connection: Connection[Row], kind: Kind, kept: _Kept) -> Matrix | None:
        builder = Builder(kind, clock.now(connection), self._packs)
        bounds = stored.bounds(connection, kind)
        room = block_rows(kind.dimension)
        if not self._make_room(kept, -(-bounds.vectors // room) * room * row_bytes(kind.dimension, self._packs)):
            kept.too_large_at = time.monotonic()
            return None
        for low, high in stored.parts(kind, bounds):
            if self._closing.cancelled:
                raise GraphFailed("the graph was closed meanwhile")
            builder.add(stored.block(connection, kind, low, high, None))
        return builder.matrix()

    def _make_room(self, kept: _Kept, needed: int) -> bool:
        """Whether there is room beside the others. Those that nobody asked for lately give theirs up."""
        with self._changed:
            others = [other for other in self._kept.values() if other is not kept]
            idle = sorted(
                (other for other in others if time.monotonic() - other.asked_at > TRY_AGAIN),
                key=lambda other: other.asked_at,
            )
            while idle and sum(other.nbytes for other in others) + needed > self._most:
                idle.pop(0).matrix = None
            if sum(other.nbytes for other in others) + needed > self._most:
                return False
            kept.reserved = needed
            return True

    def _refresh(self, kept: _Kept, seen: Matrix, limits: Limits) -> None:
        """Bring a matrix up to the latest commit, or drop it where only reading it anew can tell."""
        if not kept.refreshing.acquire(timeout=limits.left):
            raise Stopped(limits.stop() or OUT_OF_TIME)
        try:
            old = kept.matrix
            if old is not None and old is seen:
                kept.matrix = self._next(old, limits)
                kept.refreshes += 1
                with self._changed:
                    if sum(other.nbytes for other in self._kept.values()) > self._most:
                        kept.matrix, kept.too_large_at = None, time.monotonic()
        finally:
            kept.refreshing.release()

    def _next(self, old: Matrix, limits: Limits) -> Matrix | None:
        with session(self._pool, limits, Grant(None)) as opened:
            epoch, logged = opened.run(lambda connection: clock.since(connection, old.epoch))
            touched = opened.run(lambda connection: _touched(connection, old.epoch)) if logged else None
            if touched is None or len(touched) > max(MOST_CHANGES, old.rows // 4):
                return None
            now = opened.run(lambda connection: stored.some(connection, old.kind, touched))
        made = vectors.apply(old, epoch, touched, now)
        return vectors.compact(made) if made.dead > max(made.room, made.rows // 4) else made

    def status(self) -> tuple[VectorStatus, ...]:
        with self._changed:
            return tuple(
                VectorStatus(
                    model=kind.model,
                    dimension=kind.dimension,
                    state="ready" if kept.matrix else "too large" if kept.too_large_at else "reading",
                    epoch=kept.matrix.epoch if kept.matrix else None,
                    concepts=kept.matrix.concepts if kept.matrix else 0,
                    bytes=kept.nbytes,
                    builds=kept.builds,
                    refreshes=kept.refreshes,
                )
                for kind, kept in sorted(self._kept.items())
            )


def _touched(connection: Connection[Row], since: int) -> Ints | None:
    """Concepts that were touched after an epoch; None if it may be all of them."""
    result = result_of(connection.execute(clock.CONCEPT_CHANGES.sql, {"since": since}, binary=True))
    if any(result.get_value(row, 0) == b"reload" for row in range(result.ntuples)):
        return None
    pieces = [unpack(result.get_value(row, 1)) for row in range(result.ntuples)]
    return np.unique(np.concatenate(pieces)) if pieces else np.empty(0, np.int64)

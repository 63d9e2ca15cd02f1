"""Batch leases, unfolded: the history as it would be if a batch's lease stood in the row of each of its jobs.

So the rules know one sort of lease only. A job joins when a batch is claimed; what is written of its row in the
transaction in which it leaves was written under the batch's lease.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from tests.chaos.record import BatchWrite, Live, Record, Write

LEADER = "kappa leader"
GONE = Live("gone")
HELD = "held"
"""The state before a write that took a job past the batch that holds it."""


def unfold(record: Record) -> list[Write]:
    return list(_Unfolding(record).run())


class _Unfolding:
    def __init__(self, record: Record) -> None:
        self._events = sorted([*record.history, *record.batches], key=lambda event: event.seq)
        self._touched = {(write.xid, write.job) for write in record.history if write.op in ("UPDATE", "DELETE")}
        self._left = {
            (write.xid, job, write.token) for write in record.batches for job in set(write.old) - set(write.new)
        }
        self._written_down = {(write.after.token, write.job): write for write in record.history if _gets_a_lease(write)}
        self._rows: dict[int, Live] = {}
        self._held: dict[int, BatchWrite] = {}

    def run(self) -> Iterator[Write]:
        for event in self._events:
            if isinstance(event, BatchWrite):
                yield from self._join(event)
                yield from self._lapse(event)
            else:
                yield self._row(event)

    def _join(self, batch: BatchWrite) -> Iterator[Write]:
        for job in sorted(set(batch.new) - set(batch.old)):
            row = self._rows.get(job, GONE)
            old = _under(row, self._held[job]) if job in self._held else row
            self._held[job] = batch
            yield _as_write(batch, job, old, _under(row, batch))

    def _lapse(self, batch: BatchWrite) -> Iterator[Write]:
        """Jobs that leave and of whose rows nothing is written: the reaper passes by a row that somebody has locked."""
        for job in sorted(set(batch.old) - set(batch.new)):
            lease = self._held.get(job)
            if (batch.xid, job) in self._touched or lease is None or lease.token != batch.token:
                continue
            # Somebody who cancels may have seen the batch just before, and written its lease down.
            down = self._written_down.get((batch.token, job))
            if down is not None and down.seq > batch.seq and down.begun < batch.committed:
                continue
            del self._held[job]
            yield _as_write(batch, job, _under(self._rows[job], lease), self._rows[job])

    def _row(self, write: Write) -> Write:
        lease = self._held.get(write.job)
        if write.op in ("UPDATE", "DELETE") and lease is not None and write.before.state == "queued":
            leaves = (write.xid, write.job, lease.token) in self._left
            if leaves or (write.new is not None and write.after.state == "running"):
                del self._held[write.job]
                write = replace(write, old=_under(write.before, lease))
            else:
                write = replace(write, old=write.before._replace(state=HELD))
        if write.op == "DELETE":
            self._rows.pop(write.job, None)
        elif write.op in ("INSERT", "UPDATE"):
            self._rows[write.job] = write.after
        return write


def _gets_a_lease(write: Write) -> bool:
    return write.claims and write.after.token is not None


def _under(row: Live, batch: BatchWrite) -> Live:
    return row._replace(state="running", token=batch.token, owner=batch.owner, until=batch.until)


def _as_write(batch: BatchWrite, job: int, old: Live, new: Live) -> Write:
    return Write(
        batch.seq, batch.at, batch.begun, batch.committed, batch.xid, "UPDATE", job, batch.lane, "of a batch", old, new,
        batch.app, batch.writer, batch.leads, batch.session, batch.passed, batch=True,
    )  # fmt: skip


class Figures(NamedTuple):
    """How many batches there were, and what became of them."""

    claimed: int
    jobs: int
    reaped: int
    written_down: int
    """Jobs whose lease got into their own rows."""

    def __str__(self) -> str:
        return (
            f"{self.claimed} batches of {self.jobs} jobs ({self.reaped} reaped, {self.written_down} jobs written down)"
        )


def figures(record: Record) -> Figures:
    claimed = {write.token: len(write.new) for write in record.batches if write.op == "INSERT"}
    return Figures(
        len(claimed),
        sum(claimed.values()),
        sum(write.op == "DELETE" and write.app == LEADER for write in record.batches),
        sum(_gets_a_lease(write) and write.after.token in claimed for write in record.history),
    )

"""When each worker was able to do its work: alive, running, connected, with a server that answers.

Spans are the time from the first instant to the second. Lists of them are sorted and don't overlap.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from tests.chaos.record import SERVER, Outage, Record, WorkerLife

Span = tuple[datetime, datetime]

END = datetime.max.replace(tzinfo=UTC)
TAKEOVER = 1.5
"""Leases until a leader that is out of order is replaced, and the next one has made its first round: in these tests a
heartbeat is good for one lease."""


def union(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif begin < end:
            merged.append((begin, end))
    return merged


def without(spans: list[Span], holes: Iterable[Span]) -> list[Span]:
    left: list[Span] = []
    gaps = union(holes)
    for begin, end in spans:
        for gap_begin, gap_end in gaps:
            if gap_end <= begin:
                continue
            if gap_begin >= end:
                break
            if begin < gap_begin:
                left.append((begin, gap_begin))
            begin = gap_end
        if begin < end:
            left.append((begin, end))
    return left


def within(spans: list[Span], begin: datetime, end: datetime) -> list[timedelta]:
    """How long each of the spans is, as far as it lies between two instants."""
    return [min(last, end) - max(first, begin) for first, last in spans if first < end and last > begin]


def _takeovers(record: Record) -> list[Span]:
    """When there was no leader because the last one was out of order, and the next one did not lead yet."""
    ends = [Outage(life.owner, life.end, END) for life in record.lives if life.end is not None]
    blocks = [Outage(block.owner, block.begin, block.end) for block in record.blocks]
    spans: list[Span] = []
    for term, following in pairwise([*record.terms, None]):
        assert term is not None
        over = following.committed if following else END
        for outage in (*record.outages, *ends, *blocks):
            if outage.who == term.owner and outage.begin < over and outage.end > term.committed:
                begin = max(outage.begin, term.committed)
                spans.append((begin, min(over, begin + TAKEOVER * record.lease)))
    return union(spans)


class Health:
    """Of every worker of a run."""

    def __init__(self, record: Record) -> None:
        everybody = [(outage.begin, outage.end) for outage in record.outages if outage.who == SERVER]
        self._connected: dict[str, list[Span]] = {}
        self._claimers: list[tuple[WorkerLife, list[Span]]] = []
        self._ready: dict[str, list[Span]] = {}
        leads: list[Span] = []
        for life in record.lives:
            holes = [(outage.begin, outage.end) for outage in record.outages if outage.who == life.owner]
            connected = without([(life.begin, life.end or END)], holes + everybody)
            self._connected[life.owner] = connected
            blocked = [(block.begin, block.end) for block in record.blocks if block.owner == life.owner]
            self._claimers.append((life, without(connected, blocked)))
            if life.leads:
                leads += without(connected, blocked)
        self._led = without(union(leads), _takeovers(record))

    def ready(self, lane: str, begin: datetime, end: datetime) -> timedelta:
        """For how long there was a worker between these instants that could claim in that lane."""
        if lane not in self._ready:
            serve = [spans for life, spans in self._claimers if life.lanes is None or lane in life.lanes]
            self._ready[lane] = union(span for spans in serve for span in spans)
        return sum(within(self._ready[lane], begin, end), timedelta())

    def led(self, begin: datetime, end: datetime) -> timedelta:
        """For how long between these instants somebody could and should have led."""
        return sum(within(self._led, begin, end), timedelta())

    def connected(self, owner: str | None, begin: datetime, end: datetime) -> timedelta:
        """The longest time between these instants in which a worker could renew its leases, its loop blocked or not."""
        return max(within(self._connected.get(owner or "", []), begin, end), default=timedelta())

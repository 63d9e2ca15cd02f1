"""One lane in one worker: how many of its slots are free here, when to claim, when to sleep.

The database decides how many jobs a lane may run in the whole cluster; this only never asks for more than it can run.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from operator import attrgetter
from typing import TypeVar

import psycopg
from psycopg.errors import LockNotAvailable

from kappa.engine.config import WorkerConfig
from kappa.engine.context import Running
from kappa.engine.desk import Desk
from kappa.engine.model import Claimed, Executor, Lane
from kappa.engine.registry import Registry
from kappa.engine.signals import Signals
from kappa.engine.store import jobs, lanes
from kappa.engine.store.jobs import Exchanged
from kappa.pg import AsyncPool, PgError
from kappa.pg.ops import Op, kept, run_async

T = TypeVar("T")

log = logging.getLogger(__name__)

START = (-32769, 0)
BUSY_AFTER = 3
"""Full claims in a row after which a lane counts as busy and wants no more wake-ups."""
LOOK_AGAIN = (0.005, 0.05)
"""An enqueue that began before this lane fell asleep may not have seen the sleeper: two more looks find its job."""
RETRY = 0.5
LATE = 0.5
"""The share of a lease after which the answer to a claim is late: whether the leases still hold is looked up first."""
LIGHT_FROM = 10
"""A claim for fewer jobs than this writes each one's own row: a batch's lease is a row as well."""
ROWS_OF_THEIR_OWN = 5.0
"""Seconds for which a lane whose jobs outlast a batch's lease claims each by its own row."""

_priority = attrgetter("priority")
_adopted = attrgetter("adopted")


class LaneRunner:
    """Claims for one lane and starts what it gets."""

    def __init__(
        self,
        lane: Lane,
        owner: str,
        pool: AsyncPool,
        registry: Registry,
        config: WorkerConfig,
        signals: Signals,
        start: Callable[["LaneRunner", list[Claimed], bool], None],
        desk: Desk,
    ) -> None:
        self.lane = lane
        self.next_look = 0.0
        self._owner = owner
        self._pool = pool
        self._registry = registry
        self._config = config
        self._signals = signals
        self._start = start
        self._desk = desk
        self._taken: set[Running] = set()
        self._wake = asyncio.Event()
        self._hungry = False
        self._starved = False
        """Whether the last claim left the lane without a free slot. Then there is one for each job that ends here."""
        self._ended = 0
        """How many ended here since the last claim was sent, which could not know of them."""
        self._asleep = False
        self._full_claims = 0
        self._floor = START
        self._floor_token: int = 0
        self._floor_until = 0.0
        self._stopped = False
        self._carrying = False
        self._to_carry: list[Running] = []
        self._light_after = 0.0
        self._at_rest: tuple[int, frozenset[str], Op[Exchanged]] | None = None

    async def run(self) -> None:
        try:
            while not self._stopped:
                self._wake.clear()
                try:
                    await self._fill()
                except (psycopg.Error, PgError) as error:
                    # What it refuses may be one of those that came along: the desk will tell which.
                    if not (isinstance(error, (psycopg.OperationalError, PgError)) or self._to_carry):
                        raise
                    if isinstance(error, LockNotAvailable) and self._to_carry:
                        self._carry_no_more()  # the desk finds out which of them is locked
                        continue
                    lane = self.lane.name
                    log.warning("lane %s: no claim, next try soon: %s", lane, error, extra={"lane": lane})
                    self._carry_no_more()
                    self._asleep = False
                    await asyncio.sleep(RETRY * random.uniform(0.8, 1.2))  # noqa: S311
                    continue
                await self._wake.wait()
        finally:
            self._carry_no_more()

    def wake(self) -> None:
        """Something may have changed elsewhere: there may be slots again, too."""
        self._starved = False
        self._wake.set()

    def stop(self) -> None:
        """Claim nothing more."""
        self._stopped = True
        self._wake.set()

    def follow(self, lane: Lane) -> None:
        """The lane's row as it is now."""
        back = self.lane.executor is Executor.FLEET and lane.executor is not Executor.FLEET
        grew = back or lane.max_slots > self.lane.max_slots or (lane.is_open and not self.lane.is_open)
        self.lane = lane
        if grew:
            self.wake()

    def forget_sleep(self) -> None:
        """The table of sleepers may have lost this lane."""
        self._asleep = False
        self.wake()

    def take(self, running: Running) -> None:
        self._taken.add(running)

    def free(self, running: Running) -> None:
        self._taken.discard(running)
        self._ended += 1
        if self._hungry or self._starved:
            self._wake.set()

    def outlasted(self) -> None:
        """A job of a batch had to have its lease written down: one lease for many is no gain here, for now."""
        self._light_after = time.monotonic() + ROWS_OF_THEIR_OWN

    def carry(self, running: Running) -> bool:
        """Take a success along with the next claim, which saves its own commit. Only while there is more to claim."""
        if not self._carrying:
            return False
        self._to_carry.append(running)
        self._ended += 1
        if self._hungry or self._starved:
            self._wake.set()
        return True

    def _carry_no_more(self) -> None:
        self._carrying = False
        left, self._to_carry = self._to_carry, []
        for running in left:
            self._desk.succeed(running)

    @property
    def room(self) -> int:
        """How many more jobs can run here. A parent that waits for its children takes no room."""
        limit = self.lane.max_slots
        if self.lane.executor is Executor.FLEET:  # since an edit: remote workers do what is left
            return 0
        if self.lane.executor is Executor.PROCESS:
            limit = min(limit, self._config.processes)
        busy = len(self._taken)
        if busy >= limit:
            busy = sum(not running.waiting for running in self._taken)
        return limit - busy

    @property
    def idle(self) -> bool:
        return not self._taken

    @property
    def kinds(self) -> list[str]:
        """The kinds to claim: all that have a handler here. Which are in the lane, the database knows better."""
        return sorted(self._registry.kinds)

    def _light_kinds(self, asked: int) -> list[str] | None:
        """The kinds whose jobs may share a lease: on the loop, where there is more to claim than there is room for."""
        if asked < LIGHT_FROM or not self._carrying or self.lane.executor is not Executor.ASYNC:
            return None
        if time.monotonic() < self._light_after:
            return None
        return [kind for kind in self.kinds if self._registry.get(kind).is_async]

    async def _fill(self) -> None:
        """Claim until there is no room or nothing to claim; then sleep, in the table's sense."""
        while not self._stopped:
            asked = min(self.room + len(self._to_carry), self._config.claim_batch)
            if self._starved:  # to ask for more would be in vain, and others of the lane would wait for it
                asked = min(asked, self._ended)
            self._hungry = asked <= 0
            if self._hungry:
                if self._to_carry:  # a lane that has fewer slots than before may not claim for long
                    self._carry_no_more()
                return
            if await self._claim(asked) or (self._starved and self._ended):
                continue
            if self._asleep or (self._starved and self._taken):  # in the latter case, what ends here claims again
                return
            await self._do(lanes.fall_asleep(self.lane.name, self._owner))
            self._asleep = True
            self._signals.emit("asleep", lane=self.lane.name)
            for pause in LOOK_AGAIN:
                if self._stopped:
                    return
                await self._claim(min(self.room, self._config.claim_batch))
                await asyncio.sleep(pause)

    async def _claim(self, asked: int) -> bool:
        """Claim up to so many. True if there may be more."""
        if asked <= 0:
            return False
        if time.monotonic() > self._floor_until:
            self._floor, self._floor_token = START, 0
            self._floor_until = time.monotonic() + self._config.floor_for.total_seconds()
        from_start = self._floor == START
        asked_at = time.monotonic()
        claimed = await self._exchange(asked)
        _put_in_order(claimed)
        is_late = time.monotonic() - asked_at > self.lane.lease_ttl.total_seconds() * LATE
        self._start(self, claimed, is_late)
        if 0 < len(claimed) < asked:
            await asyncio.sleep(0)  # they begin before the lane goes to rest; under load the next claim comes first
        if claimed and (len(claimed) == asked or self._starved):
            last = claimed[-1]
            if last.token_floor is not None:  # neither adopted nor claimed in turn: nothing is left before it
                self._floor = (-last.priority, last.id)
                self._floor_token = last.token_floor
            self._carrying = True
        if len(claimed) == asked:
            self._full_claims += 1
            if self._full_claims == BUSY_AFTER and self._asleep:
                await self._do(lanes.wake_up(self.lane.name, self._owner))
                self._asleep = False
            return True
        if self._starved:
            return False
        self._carry_no_more()
        self._full_claims = 0
        self._floor, self._floor_token = START, 0
        return not from_start

    async def _exchange(self, asked: int) -> list[Claimed]:
        carried, self._to_carry, ended, self._ended = self._to_carry, [], self._ended, 0
        light = self._light_kinds(asked)
        if carried or light is not None or self._floor != START:
            held = [running.held for running in carried]
            place = (self._floor, self._floor_token, light)
            op = jobs.exchange(held, self.lane.name, self._owner, asked, self.kinds, *place)
        else:
            op = self._claim_at_rest(asked)
        try:
            claimed, lost, full = await self._do(op)
        except BaseException:
            self._to_carry = carried + self._to_carry
            self._ended += ended
            raise
        meanwhile = self._ended
        self._desk.succeeded(carried, lost)
        self._ended = meanwhile  # without those that came along
        self._starved = full
        return claimed

    def _claim_at_rest(self, asked: int) -> Op[Exchanged]:
        """What a lane says that has just been woken: always the same, and somebody waits for it."""
        known = self._at_rest
        if known is None or known[0] != asked or known[1] is not self._registry.kinds:
            op = kept(jobs.claim_at_rest(self.lane.name, self._owner, asked, self.kinds))
            known = self._at_rest = (asked, self._registry.kinds, op)
        return known[2]

    async def _do(self, op: Op[T]) -> T:
        async with self._pool.connection(who=f"lane {self.lane.name}") as connection:
            return await run_async(connection, op)


def _put_in_order(claimed: list[Claimed]) -> None:
    """Adopted jobs first, then by priority, then by age: each sort keeps the order of the one before."""
    claimed.sort()
    claimed.sort(key=_priority, reverse=True)
    claimed.sort(key=_adopted, reverse=True)

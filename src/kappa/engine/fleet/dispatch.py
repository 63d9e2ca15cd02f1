"""The server's side of the fleet: who asks, what is under way, who waits. Every word is in PostgreSQL before its
answer.

claims ────────▶ ┐
beats ─────────▶ ├─ one statement at a time each ──▶ pool `fleet`
updates ───────▶ │
settlements ───▶ ┘
"""

import asyncio
import logging
import os
import random
import secrets
import socket
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import psycopg
from psycopg import AsyncConnection
from pydantic_core import to_json

from kappa.engine.fleet import store, wire
from kappa.engine.fleet.group import STRANGERS, Group
from kappa.engine.fleet.refusals import Refused, spread
from kappa.engine.fleet.store import Ask, Ended, Ending, FleetLane, Given, HeldTask, Update
from kappa.engine.fleet.waiting_room import BATCH, Caller, Kinds, WaitingRoom
from kappa.engine.fleet.wire import Refusal
from kappa.engine.signals import Signals
from kappa.engine.store import jobs
from kappa.engine.store import lanes as lane_store
from kappa.engine.store.insight import GONE_AFTER
from kappa.engine.tools import KIND as TOOL_RUN
from kappa.pg import AsyncPool, Bounds, Database, Listening, Notification, PgError, listen
from kappa.pg.ops import Op, run_async
from kappa.pg.queries import Row

T = TypeVar("T")
B = TypeVar("B", Update, Ending)

log = logging.getLogger(__name__)

CONNECTIONS = 5
"""Of the pool `fleet`: claims, beats, updates, settlements, and one for everything that is rare."""
OWN = Bounds(1, CONNECTIONS)
RARE = 1
"""Of them; what is rare may come in crowds, and takes no connection from the others."""
TASK_SEMAPHORE_SIZE = 5
"""Statements' worth of callers that `request_task` admits; one statement serves `BATCH` of them."""
DEFAULT_LEASE = 60.0
BEATS_PER_LEASE = 3
LOOK_AT_LANES = 15.0
TELL_SEEN = 5.0
ASK_AGAIN = 5.0
KNOWN_FOR = 0.8 * GONE_AFTER.total_seconds()
LOCKED_RETRY = 0.25
"""Seconds until a beat is repeated that found a job's row locked."""
LOOK_AGAIN = 0.05
"""Whoever enqueued before this server was known to sleep may commit a little later."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What a token lets its bearer do."""

    id: int
    kinds: frozenset[str] | None = None
    machines: int | None = None
    requests_per_minute: int | None = None

    def owner(self, worker: str) -> str:
        return f"fleet:{self.id}:{worker}"


class Fleet:
    """One server's part of the fleet."""

    def __init__(
        self,
        database: Database,
        signals: Signals,
        *,
        bounds: Bounds = OWN,
        gate: int = TASK_SEMAPHORE_SIZE,
    ) -> None:
        self.signals = signals
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._database = database
        self.pool = AsyncPool(database.url, "fleet", bounds, behind_pooler=database.behind_pooler)
        self._wait = bounds.wait
        self._rare = asyncio.Semaphore(max(1, bounds.max_size - CONNECTIONS + RARE))
        self.room = WaitingRoom(self._claim, self._fall_asleep, gate * BATCH)
        self.beats = Group("beats", self._beat)
        self.updates = Group("updates", self._update, locked=self._locked_rows)
        self.settlements = Group("settlements", self._settle, locked=self._locked_rows)
        self.registrations = Group("registrations", self._register, most=STRANGERS)
        self.claims = 0
        self.claimed = 0
        self._lanes: Mapping[str, FleetLane] = {}
        self._asleep: set[str] = set()
        self._known: dict[str, float] = {}
        """Until when, on the loop's clock, a worker's row needs no other look."""
        self._seen: set[str] = set()
        self._locked_leases: dict[HeldTask, float] = {}
        """Leases that a beat could not renew because another session has the job's row locked, and until when, on the
        loop's clock, the beat is repeated."""
        self._repeats: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Self]:
        async with self.pool:
            await self._look_at_lanes()
            tasks = [
                asyncio.create_task(service, name=f"fleet {name}")
                for name, service in {
                    "room": self.room.run(),
                    "listen": self._listen(),
                    "poll": self._poll(),
                    "seen": self._tell_seen(),
                }.items()
            ]
            try:
                yield self
            finally:
                self.drain()
                tasks += self._repeats
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                with suppress(psycopg.Error, PgError, Refused):
                    await self.do(lane_store.leave(self.owner))

    def drain(self) -> None:
        """Give out nothing more. What is under way may still be reported."""
        self.room.close()

    @property
    def groups(self) -> tuple["Group[Any, Any]", ...]:
        return (self.beats, self.updates, self.settlements, self.registrations)

    @property
    def beat_seconds(self) -> float:
        return min((lane.lease_seconds for lane in self._lanes.values()), default=DEFAULT_LEASE) / BEATS_PER_LEASE

    @property
    def lease_seconds(self) -> float:
        return min((lane.lease_seconds for lane in self._lanes.values()), default=DEFAULT_LEASE)

    def kinds_for(self, who: Pass, kinds: Sequence[str]) -> Kinds:
        """Of the kinds that a worker knows: those that its pass allows and that a fleet lane has."""
        here = {kind for lane in self._lanes.values() for kind in lane.kinds}
        return tuple(sorted(kind for kind in set(kinds) if kind in here and (who.kinds is None or kind in who.kinds)))

    async def hello(self, who: Pass, said: wire.Hello) -> None:
        await self._introduce(who, said.worker, said, said.slots, said.version, always=True)

    async def enter(self, who: Pass, said: wire.RequestTask) -> Caller | None:
        """A caller who waits for tasks; None if its pass is for none of its kinds."""
        with self.room.arriving():
            await self._introduce(who, said.worker, said, said.count, "")
        # Also kinds of no lane: there may be one soon.
        kinds = tuple(sorted(who.kinds.intersection(said.kinds) if who.kinds is not None else set(said.kinds)))
        if not kinds:
            return None
        ask = Ask(who.owner(said.worker), said.request_id, said.count, said.cores, said.memory_mb, tuple(said.labels))
        return self.room.enter(ask, kinds, asyncio.get_running_loop().time() + said.wait)

    async def tasks(self, given: Sequence[Given] | None, *, at_once: bool) -> bytes:
        """The answer to whoever asked: `wire.Tasks`. Who waited for nothing may ask again `at_once`."""
        if not given:
            return to_json({"tasks": [], "retry_after": 0.0 if at_once else spread(ASK_AGAIN)})
        runs: dict[int, wire.Tool] = {}
        if tool_runs := [one.id for one in given if one.kind == TOOL_RUN]:
            runs = await self.do(store.runs_of(tool_runs))
        return b'{"tasks":[%b],"retry_after":null}' % b",".join(_task(one, runs.get(one.id)) for one in given)

    def sign_of_life(self, who: Pass, worker: str) -> None:
        self._seen.add(who.owner(worker))

    async def beat(self, who: Pass, said: wire.Beat) -> list[wire.Notice]:
        owner = who.owner(said.worker)
        self._seen.add(owner)
        if not said.tasks:
            return []
        held = [HeldTask(one.task, one.token, owner) for one in said.tasks]
        until = asyncio.get_running_loop().time() + self.lease_seconds
        self._locked_leases |= {one: until for one in held if one in self._locked_leases}
        return await self.beats(held)

    async def update(self, who: Pass, said: wire.UpdateTask) -> str | None:
        """Why the task is to stop, if it is."""
        held = HeldTask(said.task, said.token, who.owner(said.worker))
        given = "checkpoint" in said.model_fields_set
        checkpoint = to_json(said.checkpoint).decode() if given else None
        found = await self.updates(
            Update(held, said.started, said.done, said.total, said.message, checkpoint, said.stale_timeout)
        )
        if found is None:
            raise lost(said.task)
        return found[0]

    async def settle(self, ending: Ending) -> Ended:
        ended = await self.settlements(ending)
        if ended is None:
            raise lost(ending.held.id)
        return ended

    async def do(self, op: Op[T]) -> T:
        """Something rare, on the connection that is kept for it."""
        try:
            async with self.rarely() as connection:
                return await run_async(connection, op)
        except (psycopg.OperationalError, PgError, TimeoutError) as error:
            raise away() from error

    @asynccontextmanager
    async def rarely(self) -> AsyncGenerator[AsyncConnection[Row]]:
        """The connection for what is rare, after a wait for one's turn."""
        async with asyncio.timeout(self._wait):
            await self._rare.acquire()
        try:
            async with self.pool.connection(who="fleet") as connection:
                yield connection
        finally:
            self._rare.release()

    async def _introduce(
        self, who: Pass, worker: str, able: wire.Able, slots: int, version: str, *, always: bool = False
    ) -> None:
        owner = who.owner(worker)
        self._seen.add(owner)
        if not always and self._known.get(owner, 0.0) > asyncio.get_running_loop().time():
            return
        machine = {
            "owner": owner, "pass": who.id, "worker": worker, "kinds": able.kinds, "cores": able.cores,
            "memory_mb": able.memory_mb, "labels": able.labels, "slots": slots, "version": version,
            "most": who.machines,
        }  # fmt: skip
        if not await self.registrations(machine):
            detail = f"this token is for {who.machines} machines at most, and so many are at work"
            raise Refused(Refusal.TOO_MANY_MACHINES, detail)
        self._known[owner] = asyncio.get_running_loop().time() + KNOWN_FOR

    async def _register(self, machines: list[dict[str, Any]]) -> list[bool]:
        latest = {machine["owner"]: machine for machine in machines}
        async with self.rarely() as connection:
            admitted = await run_async(connection, store.register(to_json(list(latest.values())).decode()))
        return [machine["owner"] in admitted for machine in machines]

    async def _claim(self, asks: Sequence[Ask], kinds: Kinds) -> list[list[Given]]:
        try:
            async with self.pool.connection(who="fleet claims") as connection:
                given = await run_async(connection, store.claim(asks, kinds))
        except (psycopg.Error, PgError) as error:
            log.warning("fleet: no claim: %s", error)
            raise away() from error
        self.claims += 1
        self.claimed += len(given)
        answers: list[list[Given]] = [[] for _ in asks]
        for one in given:
            answers[one.place].append(one)
            if self.signals.heard:
                self.signals.emit("claimed", job=one.id, kind=one.kind, lane=one.lane, waited=one.waited)
        return answers

    async def _beat(self, batch: list[list[HeldTask]]) -> list[list[wire.Notice]]:
        # In one order for all: statements that share rows, by a call that was repeated, must not wait for each other.
        held = sorted({one for group in batch for one in group})
        async with self.pool.connection(who="fleet beats") as connection:
            told = await run_async(connection, store.beat(held))
        locked = {held[place] for place, verdict, _ in told if verdict == store.LOCKED}
        if self._locked_leases:
            for one in held:
                if one not in locked:
                    self._locked_leases.pop(one, None)
        if locked:
            self._repeat_beats(locked)
        if not told:
            return [[]] * len(batch)
        notices = {held[place]: wire.Notice(task=held[place].id, verdict=wire.Verdict(verdict), reason=reason)
                   for place, verdict, reason in told if verdict != store.LOCKED}  # fmt: skip
        for one, notice in notices.items():
            if notice.verdict is wire.Verdict.LOST:
                log.debug("fleet: task %d is no longer of %s", one.id, one.owner)
        return [[notices[one] for one in group if one in notices] for group in batch]

    def _repeat_beats(self, locked: set[HeldTask]) -> None:
        """The worker's next beat may come too late: the lease may run out while the row is locked."""
        until = asyncio.get_running_loop().time() + self.lease_seconds
        for one in locked:
            self._locked_leases.setdefault(one, until)
        repeat = asyncio.create_task(self._beat_again(locked), name="fleet beats of locked tasks")
        self._repeats.add(repeat)
        repeat.add_done_callback(self._repeats.discard)

    async def _beat_again(self, locked: set[HeldTask]) -> None:
        await asyncio.sleep(LOCKED_RETRY)
        now = asyncio.get_running_loop().time()
        for one in [one for one in locked if self._locked_leases.get(one, now) <= now]:
            self._locked_leases.pop(one, None)  # its worker has not beaten since: the next beat begins anew
        if again := [one for one in locked if one in self._locked_leases]:
            with suppress(Refused):
                await self.beats(again)

    async def _locked_rows(self, batch: list[B]) -> list[B]:
        async with self.rarely() as connection:
            ids = await run_async(connection, jobs.locked(one.held.id for one in batch))
        return [one for one in batch if one.held.id in ids]

    async def _update(self, batch: list[Update]) -> list[tuple[str | None] | None]:
        merged: dict[HeldTask, Update] = {}
        for one in batch:
            merged[one.held] = _merge(merged.get(one.held), one)
        latest = [merged[held] for held in sorted(merged)]
        async with self.pool.connection(who="fleet updates") as connection:
            kept = await run_async(connection, store.update(latest))
        found = {one.held: (kept[place],) for place, one in enumerate(latest) if place in kept}
        return [found.get(one.held) for one in batch]

    async def _settle(self, batch: list[Ending]) -> list[Ended | None]:
        first: dict[HeldTask, Ending] = {}
        for one in batch:
            first.setdefault(one.held, one)
        endings = [first[held] for held in sorted(first)]
        async with self.pool.connection(who="fleet settlements") as connection:
            settled = await run_async(connection, store.settle(endings))
        found = {one.held: settled[place] for place, one in enumerate(endings) if place in settled}
        for held, ended in found.items():
            self.say_settled(held, ended)
        return [found.get(one.held) for one in batch]

    def say_settled(self, held: HeldTask, ended: Ended) -> None:
        if ended.kind is not None and ended.state != TOOL_RUN and self.signals.heard:
            self.signals.emit(
                "settled", job=held.id, kind=ended.kind, lane=ended.lane, state=ended.state,
                seconds=ended.seconds or 0.0, attempt=ended.attempt, adopted=False,
            )  # fmt: skip

    async def _fall_asleep(self, kinds: Collection[str]) -> bool:
        """Say that somebody waits for these. True if nobody knew: then what came just before must be looked for."""
        new = [lane.name for lane in self._lanes.values() if not lane.kinds.isdisjoint(kinds)]
        new = [name for name in new if name not in self._asleep]
        for name in new:
            try:
                async with self.pool.connection(who="fleet claims") as connection:  # there is no claim at this moment
                    await run_async(connection, lane_store.fall_asleep(name, self.owner))
            except (psycopg.Error, PgError) as error:
                raise away() from error
            self._asleep.add(name)
        if new:
            asyncio.get_running_loop().call_later(LOOK_AGAIN, self.room.wake, kinds)
        return bool(new)

    async def _look_at_lanes(self) -> None:
        async with self.rarely() as connection:
            found = await run_async(connection, store.lanes())
        self._lanes = {lane.name: lane for lane in found}

    async def _listen(self) -> None:
        async for event in listen(self._database.direct_url, ("kappa_wake", "kappa_lane")):
            await self._hear(event)

    async def _hear(self, event: Notification | Listening) -> None:
        match event:
            case Notification("kappa_wake", lane) if lane != "*":
                if (found := self._lanes.get(lane)) is not None:
                    self.room.wake(found.kinds)
            case Notification("kappa_lane", _):
                await self._try_to_look()
            case Listening() | Notification():
                self._asleep.clear()
                await self._try_to_look()

    async def _poll(self) -> None:
        """What nobody was told of: the safety net."""
        looked = 0.0
        while True:
            pause = min((lane.poll_seconds for lane in self._lanes.values()), default=LOOK_AT_LANES)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311
            self.room.wake()
            if (now := asyncio.get_running_loop().time()) - looked > LOOK_AT_LANES:
                looked = now
                await self._try_to_look()

    async def _try_to_look(self) -> None:
        try:
            await self._look_at_lanes()
        except (psycopg.Error, PgError, TimeoutError) as error:
            log.warning("fleet: the lanes can't be read now: %s", error)
        self.room.wake()

    async def _tell_seen(self) -> None:
        while True:
            await asyncio.sleep(TELL_SEEN)
            await self.tell_seen()

    async def tell_seen(self) -> None:
        """Who gave a sign of life since the last time, in one statement for all of them."""
        seen, self._seen = self._seen, set()
        if not seen:
            return
        try:
            known = await self.do(store.seen(sorted(seen)))
        except Refused:
            self._seen |= seen
            return
        # Those that the table lost, and those that were silent for long, say who they are when they ask again.
        now = asyncio.get_running_loop().time()
        known_anew = {owner: now + KNOWN_FOR for owner in known if owner in self._known}
        kept = {owner: until for owner, until in self._known.items() if until > now and owner not in seen}
        self._known = kept | known_anew


def away() -> Refused:
    return Refused(Refusal.UNAVAILABLE, "the database does not answer: try again")


def lost(task: int) -> Refused:
    return Refused(Refusal.LOST, f"task {task} is not, or no longer, this worker's: stop it")


def _merge(earlier: Update | None, later: Update) -> Update:
    """Two words about one task as one: the later one counts, where it says something."""
    if earlier is None:
        return later
    return Update(
        later.held,
        earlier.started or later.started,
        earlier.done if later.done is None else later.done,
        earlier.total if later.total is None else later.total,
        earlier.message if later.message is None else later.message,
        earlier.checkpoint if later.checkpoint is None else later.checkpoint,
        earlier.stale_timeout if later.stale_timeout is None else later.stale_timeout,
    )


def _task(given: Given, tool: wire.Tool | None) -> bytes:
    """`wire.Task`. What somebody else wrote goes as it is: it may be nested more deeply than one can read here."""
    head = to_json({
        "task": given.id, "token": given.token, "kind": given.kind, "lane": given.lane, "attempt": given.attempt,
        "max_attempts": given.max_attempts, "lease_seconds": given.lease_seconds, "tool": tool,
        "seconds_left": wire.NO_TIMEOUT if given.seconds_left is None else min(given.seconds_left, wire.NO_TIMEOUT),
    })  # fmt: skip
    checkpoint = "null" if given.checkpoint is None else given.checkpoint
    return b'%b,"payload":%b,"checkpoint":%b}' % (head[:-1], given.payload.encode(), checkpoint.encode())

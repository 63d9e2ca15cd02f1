"""A worker process: lanes that claim, attempts that run, leases that are kept, and maybe the leader.

listener ─▶ lane runners ─▶ executors ─▶ desk ─▶ database
                 ▲                         │
                 └───── a slot is free ◀───┘
"""

import asyncio
import logging
import math
import os
import secrets
import signal
import socket
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import psycopg

from kappa.engine import attempt
from kappa.engine.config import WorkerConfig, kept_threads
from kappa.engine.context import Running
from kappa.engine.desk import Desk
from kappa.engine.executors import Executors
from kappa.engine.heartbeat import Heartbeat
from kappa.engine.lane_runner import LaneRunner
from kappa.engine.maintenance.leader import Leader
from kappa.engine.maintenance.services import all_services
from kappa.engine.model import Claimed, Executor
from kappa.engine.office import WorkerOffice
from kappa.engine.registry import Registry
from kappa.engine.runners.process import Children
from kappa.engine.signals import Signals
from kappa.engine.store import lanes
from kappa.engine.store.jobs import PutBack
from kappa.engine.threads import BoundedThreads, Threads
from kappa.engine.waiting import end, happens
from kappa.pg import AsyncPool, Bounds, Database, Listening, Notification, PgError, Pool, PoolUse, listen
from kappa.pg.ops import Op, run_async

log = logging.getLogger(__name__)

CHANNELS = ("kappa_wake", "kappa_job", "kappa_due", "kappa_lane")
CORE_CONNECTIONS = 5
"""Of the pool `queue`: what the worker takes for itself at most, and half at most. The rest is for handlers."""
LAST_CLAIM = 1.0
"""How long a worker that ends waits at least for a claim that is under way."""
LAST_WRITES = 10.0
"""How long a worker that ends tries to write the outcomes it still has, then to release its leases, then to say that it
has gone."""
LONGEST_WAIT = 3600.0
FIND_LANES_EVERY = 60.0
"""How often lanes are looked for that were made or given a kind without a word, by plain SQL."""


class Worker:
    """One worker. `run` it on an event loop; `stop` it from anywhere on that loop."""

    def __init__(
        self, database: Database, registry: Registry, config: WorkerConfig | None = None, signals: Signals | None = None
    ) -> None:
        self.config = config or WorkerConfig()
        self.signals = signals or Signals()
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._database = database
        self._registry = registry
        self._lanes: dict[str, LaneRunner] = {}
        self._stop = asyncio.Event()
        self._lane_found = asyncio.Event()
        self._edited = asyncio.Event()
        self._next_deadline = math.inf
        self._deadline_nears = asyncio.Event()
        self._pools: tuple[AsyncPool | Pool, ...] = ()

    def stop(self) -> None:
        """Drain: claim nothing more, give running jobs their grace, release the rest, end."""
        self._stop.set()
        for runner in self._lanes.values():
            runner.stop()

    async def run(self) -> None:
        """Work until stopped."""
        async with AsyncExitStack() as stack:
            await self._open(stack)
            tasks = {name: asyncio.create_task(coro, name=name) for name, coro in self._services().items()}
            services = list(tasks.values())
            stop = asyncio.create_task(self._until_stopped())
            try:
                done, _ = await asyncio.wait([*services, stop], return_when=asyncio.FIRST_COMPLETED)
                for task in done - {stop}:
                    task.result()  # a service never ends by itself: this raises what ended it
            finally:
                stop.cancel()
                await self._drain(tasks["lanes"])
                await end(services)
                await self._leave()

    def pools(self) -> list[PoolUse]:
        """Its pools as they are now, from any thread; none before they are open."""
        return [pool.use() for pool in self._pools]

    @property
    def renews_every(self) -> float:
        """Seconds from one renewal of all its leases to the next: a quarter of the shortest."""
        # Of a copy: the heartbeat's thread asks too, while lanes may be found.
        return min((runner.lane.lease_ttl.total_seconds() for runner in list(self._lanes.values())), default=60.0) / 4

    async def _until_stopped(self) -> None:
        await self._stop.wait()

    async def _open(self, stack: AsyncExitStack) -> None:
        bounds, behind = self.config.pool, self._database.behind_pooler
        core = max(1, min(CORE_CONNECTIONS, bounds.max_size // 2))
        own = Bounds(min(bounds.min_size, core), core, bounds.wait)
        self._pool = await stack.enter_async_context(AsyncPool(self._database.url, "queue", own, behind_pooler=behind))
        in_threads, on_loop = self._handlers_share(bounds.max_size - core)
        blocking = Pool(self._database.url, "queue handlers", Bounds(0, in_threads, bounds.wait), behind_pooler=behind)
        loop_pool = AsyncPool(
            self._database.url, "queue handlers", Bounds(0, on_loop, bounds.wait), behind_pooler=behind
        )
        await stack.enter_async_context(loop_pool)
        stack.callback(blocking.close)
        await asyncio.to_thread(blocking.open)
        self._pools = (self._pool, loop_pool, blocking)
        self._desk = Desk(self._pool, self.config, self.signals, self._done, self._carry, self._outlasted)
        beside = BoundedThreads(self.config.job_threads)
        stack.callback(beside.shutdown)
        self._office = WorkerOffice(self._pool, loop_pool, blocking, self._registry, self._desk, beside)
        await self._find_lanes()
        self._say_what_is_not_served()
        threads = Threads(kept_threads(len(self._lanes)))
        stack.callback(threads.close)
        children = Children(self._database.url, self.config.job_threads, self.config.child_set_up)
        stack.callback(children.close)
        self._executors = Executors(self._desk, self._office, threads, children)
        services = all_services(self._registry, self.signals)
        every, ttl = self.config.lead_every.total_seconds(), self.config.leader_ttl
        self._leader = Leader(self._database.direct_url, services, self.signals, every, ttl, self.owner)
        self._heartbeat = Heartbeat(self._database, self._desk, lambda: self.renews_every, self._presence)
        async with self._pool.connection() as connection:
            await run_async(connection, self._presence())

    def _handlers_share(self, connections: int) -> tuple[int, int]:
        """How many connections the handlers in threads get, and those on the loop: what they need, together no more."""
        kinds = {self._registry.get(kind).is_async for kind in self._registry.kinds}
        on_loop = connections // 2 if len(kinds) == 2 else connections if True in kinds else 0
        return max(1, connections - on_loop), max(1, on_loop)

    def _services(self) -> dict[str, Coroutine[Any, Any, None]]:
        found: dict[str, Coroutine[Any, Any, None]] = {
            "listen": self._listen(),
            "look": self._look(),
            "desk": self._desk.run(),
            "heartbeat": self._heartbeat.run(),
            "time-outs": self._keep_time(),
            "slots": self._pass_slots_on(),
            "lanes": self._run_lanes(),
        }
        if self.config.lead:
            found["lead"] = self._leader.run()
        return found

    async def _find_lanes(self) -> None:
        async with self._pool.connection() as connection:
            found = await run_async(connection, lanes.read_lanes())
        for lane in found:
            wanted = self.config.lanes is None or lane.name in self.config.lanes
            served = any(kind in self._registry.kinds for kind in lane.kinds)
            if wanted and served and lane.executor is not Executor.FLEET and lane.name not in self._lanes:
                self._lanes[lane.name] = LaneRunner(
                    lane,
                    self.owner,
                    self._pool,
                    self._registry,
                    self.config,
                    self.signals,
                    self._begin,
                    self._desk,
                )
                self._lane_found.set()

    def _say_what_is_not_served(self) -> None:
        """A worker that idles for ever, for want of a word that was written otherwise elsewhere, is hard to tell from
        one that has nothing to do."""
        if self.config.lanes == ():
            return  # it is meant to lead and nothing else
        missing = sorted(set(self.config.lanes or ()) - self._lanes.keys())
        if not self._registry.kinds:
            log.warning("this worker has no handlers: it claims nothing")
        elif missing:
            log.warning("no lane %s here that has a kind with a handler: it is not served", ", ".join(missing))
        elif not self._lanes:
            kinds = ", ".join(sorted(self._registry.kinds))
            log.warning("no lane has a kind with a handler here (%s): this worker claims nothing for now", kinds)

    async def _run_lanes(self) -> None:
        """Every lane that is known, also those that an edit gave a kind with a handler here while this worker ran.

        When told to stop this ends once all of them did, and with them the last claim.
        """
        async with asyncio.TaskGroup() as group:
            begun: set[str] = set()
            while not self._stop.is_set():
                for name in self._lanes.keys() - begun:
                    group.create_task(self._lanes[name].run(), name=f"lane {name}")
                    begun.add(name)
                self._lane_found.clear()
                await self._lane_found.wait()

    def _begin(self, runner: LaneRunner, jobs: list[Claimed], is_late: bool) -> None:
        """Claimed jobs: run each, or find out what became of the attempt it was adopted from."""
        lane = runner.lane.name
        start = partial(self._executors.start, executor=runner.lane.executor)
        heard = self.signals.heard
        lane_stale = runner.lane.stale_timeout.total_seconds()
        if is_late:
            self._heartbeat.beat_soon()
        for claimed in jobs:
            running = Running(claimed, self._registry.get(claimed.kind), lane)
            runner.take(running)
            if claimed.adopted:
                if not (running.handler.adoptable and claimed.started):
                    self._bury(running)
                    continue
                running.look_for_it()
                self.signals.emit("adopted", job=claimed.id, kind=claimed.kind, lane=lane)
            elif self._stop.is_set():  # the claim was under way: elsewhere the job has all its time
                self._desk.settle(running, PutBack(*running.held, started=False))
                continue
            if heard:
                self.signals.emit("claimed", job=claimed.id, kind=claimed.kind, lane=lane, waited=claimed.waited)
            self._desk.begin(running, start, is_late=is_late)
            stale_after = lane_stale if running.handler.stale_timeout is None else self._stale_after(running)
            deadline = min(running.deadline, running.heard_at + stale_after)
            if deadline < self._next_deadline:
                self._next_deadline = deadline
                self._deadline_nears.set()

    def _bury(self, running: Running) -> None:
        # Handlers in threads, loops and child processes end with their worker: there is nothing to find.
        claimed = running.claimed
        self._desk.supersede(claimed.id)
        self.signals.emit("adopted", job=claimed.id, kind=claimed.kind, lane=running.lane)
        self._desk.settle(running, attempt.lost(running))

    def _done(self, running: Running) -> None:
        if (runner := self._lanes.get(running.lane)) is not None:
            runner.free(running)

    def _carry(self, running: Running) -> bool:
        return self._lanes[running.lane].carry(running)

    def _outlasted(self, running: Running) -> None:
        self._lanes[running.lane].outlasted()

    async def _listen(self) -> None:
        async for event in listen(self._database.direct_url, CHANNELS):
            match event:
                case Listening():
                    # Whatever was said before was missed: wake-ups, due times, edits of lanes, cancellations.
                    self._forget_sleep()
                    self._leader.nudge()
                    self._follow_edits()
                    self._heartbeat.beat_soon()
                case Notification("kappa_wake", "*"):
                    self._forget_sleep()
                case Notification("kappa_wake", lane):
                    if lane in self._lanes:
                        self._lanes[lane].wake()
                        await asyncio.sleep(0)  # it claims before this listens on
                case Notification("kappa_lane", _):
                    self._follow_edits()
                case Notification("kappa_due", _):
                    self._leader.nudge()
                case Notification("kappa_job", text):
                    self._hear(text)
                case _:
                    pass

    def _follow_edits(self) -> None:
        self._edited.set()
        self._leader.sooner("reaper", time.monotonic())  # leases may be shorter now than it knows of

    def _forget_sleep(self) -> None:
        for runner in self._lanes.values():
            runner.forget_sleep()

    def _hear(self, text: str) -> None:
        word, _, number = text.partition(" ")
        if word == "child":
            self._office.child_ended(int(number))
        elif word == "cancel" and (running := self._desk.find(int(number))) is not None:
            # The reason is read with the next renewal; that the job should stop is known now.
            running.cancel_reason = running.cancel_reason or "cancelled"
            self._heartbeat.beat_soon()

    async def _look(self) -> None:
        """Read every lane's row when its interval is over, in one statement for those that are due."""
        next_find = time.monotonic() + FIND_LANES_EVERY
        while True:
            now = time.monotonic()
            if self._edited.is_set():
                self._edited.clear()
                next_find = now
                for runner in self._lanes.values():
                    runner.next_look = now
            due = [runner for runner in self._lanes.values() if runner.next_look <= now + 0.05]
            with suppress(psycopg.OperationalError, PgError):
                if due:
                    await self._look_at(due)
                if next_find <= now:
                    await self._find_lanes()
                    next_find = now + FIND_LANES_EVERY
            for runner in due:
                runner.next_look = time.monotonic() + runner.lane.poll_interval_ms / 1000
            until = min([next_find, *(runner.next_look for runner in self._lanes.values())])
            await happens(self._edited, max(0.005, until - time.monotonic()))

    async def _look_at(self, due: list[LaneRunner]) -> None:
        async with self._pool.connection(who="look") as connection:
            seen = await run_async(connection, lanes.look([runner.lane.name for runner in due]))
        for lane, has_work in seen:
            runner = self._lanes[lane.name]
            shorter = lane.lease_ttl < runner.lane.lease_ttl
            if lane.stale_timeout != runner.lane.stale_timeout:  # it counts for what runs, too
                self._deadline_nears.set()
            runner.follow(lane)
            if shorter:  # the next renewal can't wait until the longer leases are due
                self._heartbeat.beat_soon()
            if has_work:
                runner.wake()

    def _presence(self) -> Op[None]:
        """That this worker is here, and what it serves."""
        host, pid = self.owner.split(":")[:2]
        return lanes.sign_of_life(self.owner, host, int(pid), sorted(self._lanes))

    async def _keep_time(self) -> None:
        """Stop what has run for too long. One timer for all: most attempts end long before their time is up."""
        while True:
            self._deadline_nears.clear()
            now, self._next_deadline = time.monotonic(), math.inf
            for running in list(self._desk.running):
                if running.finished or running.stopped:
                    continue
                if running.task is None:  # its turn has not come
                    running.begins()
                if running.waiting:  # its children work for it
                    running.heard_at = now
                stale_after = self._stale_after(running)
                if running.deadline <= now:
                    self._executors.stop(running, attempt.timed_out)
                elif running.heard_at + stale_after <= now:
                    self._executors.stop(running, partial(attempt.stale, limit=stale_after))
                else:
                    self._next_deadline = min(self._next_deadline, running.deadline, running.heard_at + stale_after)
            await happens(self._deadline_nears, min(self._next_deadline - now, LONGEST_WAIT))

    def _stale_after(self, running: Running) -> float:
        """Seconds for which an attempt may report no progress: its kind's, or its lane's as it is now."""
        own = running.handler.stale_timeout
        return (own or self._lanes[running.lane].lane.stale_timeout).total_seconds()

    async def _pass_slots_on(self) -> None:
        """A parent that began to wait for its children left a slot to claim for."""
        while True:
            await self._office.slot_given_up.wait()
            self._office.slot_given_up.clear()
            for runner in self._lanes.values():
                runner.wake()

    async def _drain(self, lanes_task: "asyncio.Task[None]") -> None:
        self._stop.set()
        self._lane_found.set()
        for runner in self._lanes.values():
            runner.stop()
        # The grace begins now, whatever hangs. A claim that is under way has a second at least: cut off, it could leave
        # jobs under a lease that nobody here knows of.
        grace = self.config.grace.total_seconds()
        over = asyncio.get_running_loop().time() + grace
        await asyncio.wait([lanes_task], timeout=max(grace, LAST_CLAIM))
        with suppress(TimeoutError):
            async with asyncio.timeout_at(over):
                await self._desk.begun()
                await self._executors.begun()
                if attempts := self._attempts():
                    await asyncio.wait(attempts)
        await end([lanes_task])  # while the desk still writes: what a claim would have taken along is handed in there
        # A database that is away may stay away: leases run out without us.
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WRITES):
                await self._desk.empty()
        with suppress(TimeoutError, psycopg.OperationalError, PgError):
            async with asyncio.timeout(LAST_WRITES):
                await self._desk.release()
        await self._executors.cancel_all()

    def _attempts(self) -> "list[asyncio.Task[None]]":
        return [running.task for running in self._desk.running if running.task is not None]

    async def _leave(self) -> None:
        with suppress(TimeoutError, psycopg.OperationalError, PgError):
            async with asyncio.timeout(LAST_WRITES), self._pool.connection() as connection:
                await run_async(connection, lanes.leave(self.owner))


async def run_until_signal(worker: Worker) -> None:
    """Run a worker; SIGTERM and SIGINT drain it, a second one ends it at once."""
    loop = asyncio.get_running_loop()

    def told() -> None:
        log.info("told to stop: draining")
        worker.stop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    await worker.run()

"""Where those who ask for tasks wait: a bounded few to be served, any number of others for something to do.

Whoever is parked holds a future and nothing else. One claim is under way at most; it serves the oldest first.
"""

import asyncio
import heapq
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress

from kappa.engine.fleet.refusals import Refused
from kappa.engine.fleet.store import Ask, Given
from kappa.engine.fleet.wire import Refusal

log = logging.getLogger(__name__)

BATCH = 64
"""Callers that one claim serves."""
IN_VAIN = 0.25
"""Seconds for which a claim that found nothing speaks for others who can do no more, unless something comes."""
REST = 20
"""And so many times as long as it took, if that is more: such claims cost a twentieth of a core at most."""
LONGEST_REST = 5.0
PACE, AT_A_PACE = 0.01, 12
"""Those who can't hope for anything are answered no faster than so many in so many seconds: a flood of them takes
only its share of the server."""
BELIEFS = 256
"""Kinds, and abilities for each, that are remembered so; then all are forgotten."""

Kinds = tuple[str, ...]
Claim = Callable[[Sequence[Ask], Kinds], Awaitable[list[list[Given]]]]
Ability = tuple[float, int, frozenset[str]]
"""Cores, memory and labels."""


class Caller:
    """Somebody in the room."""

    __slots__ = ("ability", "answer", "arrival", "ask", "heard_by", "is_served", "kinds", "timer", "until")

    def __init__(self, ask: Ask, kinds: Kinds, until: float, arrival: int) -> None:
        self.ask = ask
        self.kinds = kinds
        self.ability: Ability = (ask.cores, ask.memory_mb, frozenset(ask.labels))
        self.until = until
        """On the loop's clock: when it wants an answer, whatever it is."""
        self.arrival = arrival
        self.answer: asyncio.Future[list[Given] | None] = asyncio.get_running_loop().create_future()
        self.heard_by = 0
        """How many connections wait for the answer: a request that is repeated has several for a while."""
        self.is_served = False
        self.timer: asyncio.TimerHandle | None = None


class _Line:
    """Those who can do the same and wait for the same, the oldest first."""

    __slots__ = ("_callers", "_mixed")

    def __init__(self) -> None:
        self._callers: dict[Caller, None] = {}
        self._mixed = False

    def __len__(self) -> int:
        return len(self._callers)

    def __iter__(self) -> Iterator[Caller]:
        if self._mixed:
            self._callers = dict.fromkeys(sorted(self._callers, key=_arrival))
            self._mixed = False
        return iter(self._callers)

    def add(self, caller: Caller) -> None:
        # Who was paced comes to it after a younger one that was not.
        self._mixed = self._mixed or (bool(self) and next(reversed(self._callers)).arrival > caller.arrival)
        self._callers[caller] = None

    def remove(self, caller: Caller) -> None:
        del self._callers[caller]


def _arrival(caller: Caller) -> int:
    return caller.arrival


class WaitingRoom:
    """Callers, and the claims that serve them."""

    def __init__(self, claim: Claim, parked: Callable[[Collection[str]], Awaitable[bool]], seats: int) -> None:
        """`parked` is told which kinds wake us from now on, and says whether to look once more."""
        self._claim = claim
        self._tell_parked = parked
        self._seats = seats
        self._arrivals = itertools.count()
        self._arriving = 0
        self._fresh: deque[Caller] = deque()
        self._parked: dict[Kinds, dict[Ability, _Line]] = {}
        self._woken: dict[Kinds, list[Ability]] = {}
        """Kinds of which there may be something, and who was seen since to have nothing of it."""
        self._in_vain: dict[Kinds, dict[Ability, float]] = {}
        """For whom there was nothing, and until when that is believed."""
        self._wakes = 0
        self._hopeless: deque[Caller] = deque()
        self._pacing = self._paced = False
        self._by_request: dict[tuple[str, str], Caller] = {}
        self._serving = 0
        self._served_kinds: Kinds | None = None
        self._news = asyncio.Event()
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether the next caller would have to wait behind more than can be served soon."""
        return len(self._fresh) + len(self._hopeless) + self._serving + self._arriving >= self._seats

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def waiting(self) -> int:
        """How many are parked."""
        return sum(len(callers) for groups in self._parked.values() for callers in groups.values())

    @contextmanager
    def arriving(self) -> Generator[None]:
        """A seat for somebody who is on the way in."""
        if self._closed:
            raise draining()
        if self.full:
            raise busy()
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1

    def enter(self, ask: Ask, kinds: Kinds, until: float) -> Caller:
        """A caller to be served. The same request, said again, is the same caller."""
        if self._closed:
            raise draining()
        key = (ask.owner, ask.request_id)
        caller = self._by_request.get(key)
        if caller is None or caller.answer.done():
            caller = self._by_request[key] = Caller(ask, kinds, until, next(self._arrivals))
            self._fresh.append(caller)
            self._news.set()
        caller.heard_by += 1
        return caller

    def leave(self, caller: Caller) -> None:
        """A connection is gone. If it was the last: what is claimed at this moment it gets when it asks again."""
        caller.heard_by -= 1
        if not caller.heard_by:
            self._answer(caller, None)

    def wake(self, kinds: Collection[str] | None = None) -> None:
        """There may be something to do of these kinds, or of any. Also for those whose claim may be too early."""
        self._wakes += 1
        for one in [*self._in_vain]:
            if _any_of(one, kinds):
                del self._in_vain[one]
        hopeful = [caller for caller in self._hopeless if _any_of(caller.kinds, kinds)]
        if hopeful:
            self._fresh.extendleft(reversed(hopeful))
            self._hopeless = deque(caller for caller in self._hopeless if not _any_of(caller.kinds, kinds))
        here = self._parked if self._served_kinds is None else {*self._parked, self._served_kinds}
        for waited_for in here:
            if _any_of(waited_for, kinds):
                self._woken[waited_for] = []
        if self._woken or self._fresh:
            self._news.set()

    def close(self) -> None:
        """Send everybody away who waits."""
        self._closed = True
        for caller in (*self._fresh, *self._hopeless):
            self._answer(caller, draining())
        for callers in [list(callers) for groups in self._parked.values() for callers in groups.values()]:
            for caller in callers:
                self._nothing_for(caller)

    async def run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._woken or self._fresh or self._paced:
                try:
                    await self._serve_parked()
                    await self._serve_fresh()
                    await self._serve_hopeless()
                except Exception:
                    log.exception("fleet: those who asked for tasks were told to try again")

    async def _serve_parked(self) -> None:
        """One claim for the oldest of those who may be lucky."""
        if not self._woken:
            return
        kinds = min(self._woken, key=self._first_arrival)
        without = self._woken.pop(kinds)
        callers = self._oldest(kinds, without)
        if not callers:
            return
        left = await self._serve(kinds, callers)
        # What came meanwhile is for everybody; else those are asked next who can do more than who got nothing.
        self._woken.setdefault(kinds, [*without, *{caller.ability for caller in left}])

    async def _serve_fresh(self) -> None:
        if not self._fresh:
            return
        kinds = self._fresh[0].kinds
        callers: list[Caller] = []
        others: deque[Caller] = deque()
        while self._fresh and len(callers) < BATCH:
            caller = self._fresh.popleft()
            if not caller.answer.done():
                (callers if caller.kinds == kinds else others).append(caller)
        self._fresh.extendleft(reversed(others))
        self._serving = len(callers)
        try:
            without = self._without(kinds)
            hopeless = {caller for caller in callers if any(_covers(other, caller.ability) for other in without)}
            self._hopeless.extend(caller for caller in callers if caller in hopeless)
            self._keep_pace()
            if hopeful := [caller for caller in callers if caller not in hopeless]:
                self._serving = len(hopeful)
                await self._serve(kinds, hopeful)
        finally:
            self._serving = 0

    def _without(self, kinds: Kinds) -> list[Ability]:
        """Who had nothing of these a moment ago."""
        now = asyncio.get_running_loop().time()
        without = [ability for ability, until in self._in_vain.get(kinds, {}).items() if until > now]
        if not without:
            self._in_vain.pop(kinds, None)
        return without

    def _keep_pace(self) -> None:
        if self._hopeless and not self._pacing:
            self._pacing = True
            asyncio.get_running_loop().call_later(PACE, self._next_hopeless)

    def _next_hopeless(self) -> None:
        self._paced = True
        self._news.set()

    async def _serve_hopeless(self) -> None:
        """Some of those who can get nothing but what is theirs already."""
        if not self._paced:
            return
        self._paced = self._pacing = False
        callers: list[Caller] = []
        others: deque[Caller] = deque()
        while self._hopeless and len(callers) < AT_A_PACE:
            caller = self._hopeless.popleft()
            if not caller.answer.done():
                (callers if not callers or caller.kinds == callers[0].kinds else others).append(caller)
        self._hopeless.extendleft(reversed(others))
        self._keep_pace()
        if callers:
            await self._serve(callers[0].kinds, callers, new=False)

    async def _serve(self, kinds: Kinds, callers: list[Caller], *, new: bool = True) -> list[Caller]:
        """Claim for them; gives those who got nothing. Without `new` they get what was theirs already, if it was."""
        self._served_kinds = kinds
        wakes, begun = self._wakes, asyncio.get_running_loop().time()
        for caller in callers:
            caller.is_served = True
        try:
            given = await self._claim([caller.ask for caller in callers], kinds if new else ())
        except BaseException as error:
            refused = error if isinstance(error, Refused) else Refused(Refusal.UNAVAILABLE, "no claim: try again")
            for caller in callers:
                self._answer(caller, refused)
            if isinstance(error, Refused):
                return callers
            raise
        finally:
            self._served_kinds = None
            for caller in callers:
                caller.is_served = False
        left = [caller for caller, tasks in zip(callers, given, strict=True) if not tasks]
        for caller, tasks in zip(callers, given, strict=True):
            if tasks:
                self._answer(caller, tasks)
        if new and wakes == self._wakes:
            self._believe(kinds, left, asyncio.get_running_loop().time() - begun)
        for caller in left:
            self._park(caller)
        if kinds in self._parked or kinds in self._in_vain:
            with suppress(Refused):  # the database is away; the lane's poll looks again
                if await self._tell_parked(kinds):
                    self._woken[kinds] = []
                    self._in_vain.pop(kinds, None)
        return left

    def _believe(self, kinds: Kinds, left: list[Caller], took: float) -> None:
        if len(self._in_vain) >= BELIEFS or len(self._in_vain.get(kinds, ())) >= BELIEFS:
            self._in_vain.clear()
        until = asyncio.get_running_loop().time() + max(IN_VAIN, min(REST * took, LONGEST_REST))
        self._in_vain.setdefault(kinds, {}).update({caller.ability: until for caller in left})

    def _park(self, caller: Caller) -> None:
        if caller.answer.done():
            return
        loop = asyncio.get_running_loop()
        if self._closed or caller.until <= loop.time():
            self._answer(caller, [])
        elif caller.timer is None:
            caller.timer = loop.call_at(caller.until, self._nothing_for, caller)
            self._parked.setdefault(caller.kinds, {}).setdefault(caller.ability, _Line()).add(caller)

    def _first_arrival(self, kinds: Kinds) -> int:
        return min((next(iter(callers)).arrival for callers in self._parked.get(kinds, {}).values()), default=0)

    def _oldest(self, kinds: Kinds, without: list[Ability]) -> list[Caller]:
        """Those who wait for these kinds, but for whoever can't do more than somebody for whom there was nothing."""
        groups = self._parked.get(kinds, {}).items()
        hopeful = [callers for ability, callers in groups if not any(_covers(other, ability) for other in without)]
        if len(hopeful) == 1:
            return list(itertools.islice(hopeful[0], BATCH))
        return list(itertools.islice(heapq.merge(*hopeful, key=_arrival), BATCH))

    def _nothing_for(self, caller: Caller) -> None:
        if not caller.is_served:  # else it may get something yet
            self._answer(caller, [])

    def _answer(self, caller: Caller, answer: "list[Given] | Refused | None") -> None:
        if caller.timer is not None:
            caller.timer.cancel()
            caller.timer = None
            groups = self._parked[caller.kinds]
            groups[caller.ability].remove(caller)
            if not groups[caller.ability]:
                del groups[caller.ability]
            if not groups:
                del self._parked[caller.kinds]
        key = (caller.ask.owner, caller.ask.request_id)
        if self._by_request.get(key) is caller:
            del self._by_request[key]
        if caller.answer.done():
            return
        if isinstance(answer, Refused):
            caller.answer.set_exception(answer)
            caller.answer.exception()  # whoever left will not look at it
        else:
            caller.answer.set_result(answer)


def _any_of(mine: Kinds, kinds: Collection[str] | None) -> bool:
    """Whether one of these is among the kinds, or they are all kinds there are."""
    return kinds is None or not set(mine).isdisjoint(kinds)


def _covers(one: Ability, other: Ability) -> bool:
    """Whether the first can do all that the second can."""
    return one[0] >= other[0] and one[1] >= other[1] and one[2] >= other[2]


def busy() -> Refused:
    return Refused(Refusal.BUSY, "too many ask for tasks at this moment")


def draining() -> Refused:
    return Refused(Refusal.DRAINING, "the server is about to stop: ask another, or later")

"""`/fleet/v1` as a bare ASGI application: few steps from the socket to a statement that many share."""

import asyncio
import logging
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

import psycopg
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from kappa.engine.fleet import wire
from kappa.engine.fleet.allowance import Allowance
from kappa.engine.fleet.dispatch import Fleet, Pass
from kappa.engine.fleet.group import UNKEEPABLE, unkeepable
from kappa.engine.fleet.refusals import STATUS, Refused
from kappa.engine.fleet.store import Ending, HeldTask
from kappa.engine.fleet.transfers import PIECE_LIMIT, Transfers
from kappa.engine.fleet.waiting_room import Caller, busy, draining
from kappa.engine.fleet.wire import MAX_WAIT, PREFIX, Refusal
from kappa.engine.tools import KIND as TOOL_RUN
from kappa.pg import PgError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Download = tuple[int, AsyncIterator[bytes]]
"""How long it is, and its pieces."""
M = TypeVar("M", bound=BaseModel)

log = logging.getLogger(__name__)

JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", b"application/problem+json")
BYTES = (b"content-type", b"application/octet-stream")
LOOKED_AT_ONCE = 64
"""Tokens of those who wait, when any token has changed."""
SORTS = ("inputs", "artifacts", "logs", "exit")
TITLES = {400: "The request makes no sense as it is", 401: "Not authenticated", 403: "Not allowed", 404: "Not found",
          405: "No such method here", 409: "In conflict with how things are", 413: "Too large",
          429: "Too many tries", 500: "The server failed", 503: "Not now"}  # fmt: skip


class Doorman(Protocol):
    """Who knows what a token is good for."""

    def known(self, authorization: bytes) -> Pass | None:
        """At once, if that is known."""
        ...

    async def admit(self, authorization: bytes) -> Pass:
        """After a look; raises `Refused`."""
        ...

    def on_change(self, told: Callable[[], None]) -> None:
        """`told` is called when what is known may be so no longer."""
        ...


class FleetApp:
    """The calls of the fleet."""

    def __init__(self, fleet: Fleet, transfers: Transfers, doorman: Doorman, *, server: str, max_body: int) -> None:
        self.fleet = fleet
        self.answers: Counter[tuple[str, str]] = Counter()
        """How often each call was answered in which way."""
        self._transfers = transfers
        self._doorman = doorman
        self._server = server
        self._max_body = max_body
        self._allowance = Allowance()
        self._waiting: defaultdict[bytes, set[asyncio.Future[Any]]] = defaultdict(set)
        """Those who wait for tasks, by what they were recognised by: to be cancelled when that is good for nothing."""
        self._looking: asyncio.Task[None] | None = None
        self._has_changed = False
        doorman.on_change(self._look_again)
        self._calls: dict[str, Callable[[Pass, bytes, Scope, Receive], Awaitable[bytes]]] = {
            "hello": self._hello,
            "request_task": self._request_task,
            "beat": self._beat,
            "update_task": self._update_task,
            "complete_task": self._complete_task,
            "fail_task": self._fail_task,
            "release_task": self._release_task,
        }
        self._all_well: tuple[float, bytes] = (0.0, b"")

    @property
    def calls(self) -> tuple[str, ...]:
        """Everything that there is to call, by name."""
        return (*self._calls, *SORTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"][len(PREFIX) :]
        call = self._calls.get(name)
        try:
            if call is None:
                path, name = name, _sort(name)
                body, kind = await self._file(scope, receive, path)
            else:
                if name == "request_task":
                    self._gate()
                if scope["method"] != "POST":
                    raise Refused(Refusal.NO_SUCH_METHOD, "calls are POST")
                who = await self._recognise(scope)
                body, kind = await call(who, await self._read(scope, receive, self._max_body), scope, receive), JSON
        except Refused as refused:
            self.answers[name, refused.code] += 1
            return await _refuse(send, STATUS[refused.code], refused)
        except UNKEEPABLE as error:
            self.answers[name, Refusal.BAD_REQUEST] += 1
            return await _refuse(send, 400, unkeepable(error))
        except (psycopg.Error, PgError, OSError) as error:  # a full disk is one of these, and every time-out
            log.warning("fleet: %s was not done: %s", name, error)
            self.answers[name, Refusal.UNAVAILABLE] += 1
            return await _refuse(send, 503, Refused(Refusal.UNAVAILABLE, "this can't be done now: try again"))
        if isinstance(body, bytes):
            self.answers[name, "ok"] += 1
            return await _send(send, 200, body, kind)
        size, pieces = body
        try:
            await _stream(send, size, pieces, with_body=scope["method"] != "HEAD")
            self.answers[name, "ok"] += 1
        except (Refused, psycopg.Error, PgError, OSError) as error:
            # It has begun: all that can be said is less than was promised, and the server then breaks the connection.
            log.warning("fleet: %s ended in the middle: %s", name, error)
            self.answers[name, Refusal.UNAVAILABLE] += 1

    def _gate(self) -> None:
        if self.fleet.room.closed:
            raise draining()
        if self.fleet.room.full:
            raise busy()

    async def _recognise(self, scope: Scope) -> Pass:
        who = await self._admitted(_authorization(scope))
        self._allowance.take(who)
        return who

    async def _admitted(self, authorization: bytes) -> Pass:
        return self._doorman.known(authorization) or await self._doorman.admit(authorization)

    async def _while_admitted(self, scope: Scope, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Pieces that come, or go, for no longer than their worker may work here."""
        async for piece in pieces:
            await self._admitted(_authorization(scope))
            yield piece

    def _look_again(self) -> None:
        """Whether all who wait may still be here."""
        self._has_changed = True
        if self._waiting and self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._turn_out(), name="fleet tokens")

    async def _turn_out(self) -> None:
        try:
            while self._has_changed:
                self._has_changed = False
                waiting = list(self._waiting)
                for start in range(0, len(waiting), LOOKED_AT_ONCE):
                    some = waiting[start : start + LOOKED_AT_ONCE]
                    found = await asyncio.gather(*map(self._admitted, some), return_exceptions=True)
                    for authorization, who in zip(some, found, strict=True):
                        if isinstance(who, Refused):
                            for one in self._waiting.get(authorization, ()):
                                one.cancel()
        finally:
            self._looking = None

    async def _read(self, scope: Scope, receive: Receive, limit: int) -> bytes:
        message = await receive()
        body: bytes = message.get("body", b"")
        while message.get("more_body") and len(body) <= limit:
            message = await receive()
            body += message.get("body", b"")
        if len(body) > limit:
            raise Refused(Refusal.TOO_LARGE, f"a body has {limit} bytes at most")
        if message["type"] == "http.disconnect":
            raise Refused(Refusal.BAD_REQUEST, "the caller went away")
        return body

    async def _hello(self, who: Pass, body: bytes, _: Scope, __: Receive) -> bytes:
        said = _parse(wire.Hello, body)
        await self.fleet.hello(who, said)
        return _dump(
            wire.Welcome(
                server=self._server,
                kinds=list(self.fleet.kinds_for(who, said.kinds)),
                beat_seconds=self.fleet.beat_seconds,
                lease_seconds=self.fleet.lease_seconds,
                wait_seconds=MAX_WAIT,
                max_body=self._max_body,
                accepts_stale_timeout=True,
            )
        )

    async def _request_task(self, who: Pass, body: bytes, scope: Scope, receive: Receive) -> bytes:
        said = _parse(wire.RequestTask, body)
        caller = await self.fleet.enter(who, said)
        given = None if caller is None else await self._served(caller, scope, receive)
        waited = caller is not None and said.wait >= 1 and not self.fleet.room.closed
        return await self.fleet.tasks(given, at_once=waited)

    async def _served(self, caller: Caller, scope: Scope, receive: Receive) -> Any:
        """What the caller gets. One that hangs up meanwhile, or may no longer be here, leaves the room."""
        gone, authorization = asyncio.ensure_future(receive()), _authorization(scope)
        self._waiting[authorization].add(gone)
        try:
            await self._admitted(authorization)  # it may have changed on the way here
            await asyncio.wait([caller.answer, gone], return_when=asyncio.FIRST_COMPLETED)
            return await caller.answer if caller.answer.done() else None
        finally:
            gone.cancel()
            self._waiting[authorization].discard(gone)
            if not self._waiting[authorization]:
                del self._waiting[authorization]
            self.fleet.room.leave(caller)

    async def _beat(self, who: Pass, body: bytes, _: Scope, __: Receive) -> bytes:
        notices = await self.fleet.beat(who, _parse(wire.Beat, body))
        every = self.fleet.beat_seconds
        if notices:
            return _dump(wire.Beaten(beat_seconds=every, notices=notices))
        if self._all_well[0] != every:
            self._all_well = (every, _dump(wire.Beaten(beat_seconds=every, notices=[])))
        return self._all_well[1]

    async def _update_task(self, who: Pass, body: bytes, _: Scope, __: Receive) -> bytes:
        said = _parse(wire.UpdateTask, body)
        self.fleet.sign_of_life(who, said.worker)
        return _dump(wire.Updated(cancel=await self.fleet.update(who, said)))

    async def _complete_task(self, who: Pass, body: bytes, _: Scope, __: Receive) -> bytes:
        said = _parse(wire.CompleteTask, body)
        held = HeldTask(said.task, said.token, who.owner(said.worker))
        ended = await self.fleet.settle(Ending(held, "succeeded", to_json(said.result).decode()))
        if ended.state == TOOL_RUN:  # whose outputs go with it
            outcome = _parse(wire.ToolOutcome, to_json(said.result))
            ended = await self._transfers.complete(held, outcome, to_json(outcome.outputs).decode())
        return _dump(wire.Settled(state=ended.state))

    async def _fail_task(self, who: Pass, body: bytes, _: Scope, __: Receive) -> bytes:
        said = _parse(wire.FailTask, body)
        held = HeldTask(said.task, said.token, who.owner(said.worker))
        summary = said.summary or ("" if said.outcome in ("snooze", "cancelled") else "the worker did not say why")
        ended = await self.fleet.settle(Ending(held, said.outcome, None, summary, said.detail, said.after))
        return _dump(wire.Settled(state=ended.state))

    async def _release_task(self, who: Pass, body: bytes, _: Scope, __: Receive) -> bytes:
        said = _parse(wire.ReleaseTask, body)
        held = HeldTask(said.task, said.token, who.owner(said.worker))
        ending = Ending(held, "lost", None, "its worker gave it back") if said.started else Ending(held, "released")
        return _dump(wire.Settled(state=(await self.fleet.settle(ending)).state))

    async def _file(self, scope: Scope, receive: Receive, path: str) -> tuple[bytes | Download, tuple[bytes, bytes]]:
        """`tasks/{id}/inputs/{name}`, `tasks/{id}/artifacts/{path}`, `tasks/{id}/logs/{stream}`."""
        parts = path.split("/", 3)
        if len(parts) != 4 or parts[0] != "tasks" or not _is_number(parts[1]) or parts[2] not in SORTS:
            raise Refused(Refusal.NOT_FOUND, "there is no such call")
        sort, name = parts[2], parts[3]
        who = await self._recognise(scope)
        asked = dict(parse_qsl(scope["query_string"].decode("ascii", "replace")))
        held = HeldTask(int(parts[1]), _number(asked, "token"), who.owner(asked.get("worker", "")))
        match scope["method"], sort:
            case "GET" | "HEAD", "inputs":
                size, pieces = await self._transfers.input(held, name)
                return (size, self._while_admitted(scope, pieces)), BYTES
            case "PUT", "logs":
                piece = await self._read(scope, receive, PIECE_LIMIT)
                kept = await self._transfers.log(held, name, _number(asked, "at"), piece)
                return to_json({"length": kept}), JSON
            case "PUT", "exit" if name.removeprefix("-").isdecimal() and name.isascii() and len(name) < 8:
                await self._transfers.exit(held, int(name))
                return b"{}", JSON
            case "PUT", "artifacts":
                pieces = self._while_admitted(scope, _pieces(receive))
                stored = await self._transfers.artifact(held, name, _number(asked, "size"), pieces)
                return to_json({"path": stored.path, "size": stored.size, "sha256": stored.sha256}), JSON
            case "PUT", _:
                raise Refused(Refusal.NOT_FOUND, "there is no such call")
            case _:
                raise Refused(Refusal.NO_SUCH_METHOD, f"{sort} are not for {scope['method']}")


def _authorization(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return value
    raise Refused(Refusal.NOT_AUTHENTICATED, "send a token: Authorization: Bearer …")


def _sort(path: str) -> str:
    """For the count of answers, which must not have a place for every path that somebody thinks of."""
    parts = path.split("/", 3)
    return parts[2] if len(parts) == 4 and parts[2] in SORTS else "unknown"


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(Refusal.BAD_REQUEST, "the caller went away")
        if piece := message.get("body", b""):
            yield piece
        if not message.get("more_body"):
            return


def _number(asked: dict[str, str], name: str) -> int:
    if not _is_number(text := asked.get(name, "")):
        raise Refused(Refusal.BAD_REQUEST, f"the query needs {name}=, a whole number")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _parse(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise Refused(Refusal.BAD_REQUEST, f"{where}: {fault['msg']}" if where else fault["msg"]) from None


def _dump(answer: BaseModel) -> bytes:
    return answer.__pydantic_serializer__.to_json(answer)


async def _refuse(send: Send, status: int, refused: Refused) -> None:
    problem: dict[str, Any] = {
        "type": "about:blank", "title": TITLES[status], "status": status, "code": refused.code,
        "detail": refused.detail,
    }  # fmt: skip
    headers: list[tuple[bytes, bytes]] = []
    if refused.retry_after is not None:
        problem["retry_after"] = round(refused.retry_after, 2)
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(refused.retry_after))))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await _send(send, status, to_json(problem), PROBLEM, *headers)


async def _send(send: Send, status: int, body: bytes, kind: tuple[bytes, bytes], *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [kind, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def _stream(send: Send, size: int, pieces: AsyncIterator[bytes], *, with_body: bool) -> None:
    length = (b"content-length", b"%d" % size)
    await send({"type": "http.response.start", "status": 200, "headers": [BYTES, length]})
    if with_body:
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})

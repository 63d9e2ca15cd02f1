"""How a worker speaks to its server: calls that are tried once, and calls that are repeated until they are answered.

Whatever was not answered may have been done, or not. Every call of the wire may be said again, so that is what happens.

KappaError
└── EngineError
    └── NotDone
        ├── Unreachable     no answer, or none that makes sense: the server is away, or something stands between
        └── Refused         the server said no, and why
"""

import asyncio
import logging
import random
import time
from contextlib import suppress
from typing import Self, TypeVar

import httpx2
from pydantic import BaseModel, Field, ValidationError

from kappa.engine.attempt import backoff
from kappa.engine.errors import EngineError
from kappa.engine.fleet import wire
from kappa.engine.fleet.wire import Refusal
from kappa.engine.waiting import happens

Answer = TypeVar("Answer", bound=BaseModel)

log = logging.getLogger(__name__)

CONNECT_WITHIN = 10.0
ANSWER_WITHIN = 30.0
KEEP_IDLE = 20.0
"""Seconds. Less than servers and what stands before them do, so that it is rarely they who close."""
JITTER = 0.2

NOT_NOW = frozenset({Refusal.BUSY, Refusal.DRAINING, Refusal.UNAVAILABLE, Refusal.LIMITED, Refusal.TOO_MANY_MACHINES})
KNOWN = frozenset(map(str, Refusal))


class NotDone(EngineError):
    """A call that may be worth another try."""

    retry_after: float | None = None
    passes: bool = True
    """Whether the same call may succeed later."""


class Unreachable(NotDone):
    """No answer, or none that makes sense."""


class Refused(NotDone):
    """The server said no."""

    def __init__(self, status: int, code: str, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.retry_after = retry_after
        # A refusal in words that are not the wire's is not the server's own, but of something that stands between.
        self.passes = code in NOT_NOW or (code not in KNOWN and status not in (401, 403))

    @property
    def lost(self) -> bool:
        return self.code == Refusal.LOST

    @property
    def not_allowed(self) -> bool:
        return self.status in (401, 403)


class Pace:
    """How long to wait before the next try: exponential with jitter, or as the server says."""

    def __init__(self) -> None:
        self._failures = 0

    def after(self, error: NotDone) -> float:
        self._failures += 1
        if error.retry_after is not None:
            return error.retry_after * random.uniform(1, 1 + JITTER)  # noqa: S311
        return backoff(self._failures)


class Place(BaseModel):
    """A server, and what to show it."""

    url: str = Field(pattern=r"^https?://[^/]")
    token: str
    worker: wire.Worker
    direct: bool = False
    """No proxy stands between, whatever the environment says."""

    def __repr_args__(self) -> list[tuple[str | None, object]]:
        return [("url", self.url), ("worker", self.worker)]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def address(self, call: str) -> str:
        return f"{self.url.rstrip('/')}{wire.PREFIX}{call}"


class Link:
    """One worker's way to its server."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._client = httpx2.AsyncClient(
            headers=place.headers,
            trust_env=not place.direct,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=KEEP_IDLE),
        )
        self._away_since: float | None = None

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    @property
    def away(self) -> bool:
        """Whether the last call got no answer."""
        return self._away_since is not None

    async def once(self, call: str, body: wire.Said, answer: type[Answer], *, within: float = ANSWER_WITHIN) -> Answer:
        """One try."""
        # What was not said differs from what was said to be nothing.
        content = body.model_dump_json(exclude_unset=True).encode()
        try:
            async with asyncio.timeout(within + CONNECT_WITHIN):
                response = await self._client.post(
                    self.place.address(call),
                    content=content,
                    headers={"Content-Type": "application/json"},
                    timeout=httpx2.Timeout(within, connect=CONNECT_WITHIN),
                )
            found = read(response, answer)
        except (httpx2.TransportError, TimeoutError) as error:
            raise self._is_away(Unreachable(reason(error))) from None
        except Unreachable as error:
            raise self._is_away(error) from None
        except Refused:
            self._is_back()
            raise
        self._is_back()
        return found

    async def until_answered(
        self, call: str, body: wire.Said, answer: type[Answer], over: asyncio.Event | None = None
    ) -> Answer | None:
        """Try until there is an answer, or a refusal for good. None once it is over, if that comes first."""
        pace = Pace()
        over = over or asyncio.Event()
        while not over.is_set():
            try:
                return await self.once(call, body, answer)
            except NotDone as error:
                if not error.passes:
                    raise
                log.debug("%s is said again: %s", call, error)
                await happens(over, pace.after(error))
        return None

    def _is_away(self, error: Unreachable) -> Unreachable:
        if self._away_since is None:
            self._away_since = time.monotonic()
            log.warning("the server at %s doesn't answer: %s; trying on", self.place.url, error)
        return error

    def _is_back(self) -> None:
        if self._away_since is not None:
            log.info("the server answers again, after %.0f s", time.monotonic() - self._away_since)
            self._away_since = None


def read(response: httpx2.Response, answer: type[Answer]) -> Answer:
    """The answer in a response, or the refusal that it is."""
    if not response.is_success:
        raise refusal(response)
    try:
        return answer.model_validate_json(response.content)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise Unreachable(f"the answer is none that is understood: {fault['msg']}") from None


def refusal(response: httpx2.Response) -> Refused:
    text, code, retry_after = f"the server answered {response.status_code}", "unknown", None
    with suppress(ValueError):
        retry_after = float(response.headers.get("retry-after", ""))
    with suppress(ValueError, KeyError, TypeError):
        problem = response.json()
        retry_after = float(problem["retry_after"]) if "retry_after" in problem else retry_after
        text, code = str(problem["detail"]), str(problem["code"])
    return Refused(response.status_code, code, text, retry_after)


def reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__

"""The audit log: who did what to what. Written in the transaction of the act, so that neither is without the other.

What somebody was refused is written as well where `refusals` says so, in a transaction of its own.
"""

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from psycopg import AsyncConnection, Connection
from pydantic_core import to_json

from kappa.app.errors import Forbidden, NotTheirs
from kappa.app.usecases.principal import Principal
from kappa.pg import AsyncPool, queries
from kappa.pg.ops import Op, nothing, run, run_async
from kappa.pg.queries import Row

T = TypeVar("T")
P = ParamSpec("P")
Target = TypeVar("Target")

sql = queries.beside(__file__)
RECORD = sql["record"]
READ = sql["read"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that somebody did."""

    id: int
    at: datetime
    who: str
    action: str
    target: str
    detail: dict[str, Any]
    request_id: str | None


class UseCases(Protocol):
    """Use cases over a database."""

    def begin(self) -> AbstractAsyncContextManager[AsyncConnection[Row], bool | None]:
        """A transaction."""
        ...


U = TypeVar("U", bound=UseCases)
Act = Callable[Concatenate[U, Principal, Target, P], Coroutine[Any, Any, T]]


def refusals(action: str) -> Callable[[Act[U, Target, P, T]], Act[U, Target, P, T]]:
    """Have it written down when somebody is refused this action for want of a permission, or as not theirs."""

    def decorate(act: Act[U, Target, P, T]) -> Act[U, Target, P, T]:
        @wraps(act)
        async def recording(self: U, who: Principal, target: Target, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return await act(self, who, target, *args, **kwargs)
            except (Forbidden, NotTheirs) as refused:
                named = getattr(target, "name", target)
                async with self.begin() as connection:
                    await record(connection, who, "access.refused", named, wanted=action, reason=str(refused))
                raise

        return recording

    return decorate


async def record(connection: AsyncConnection[Row], who: Principal, action: str, target: object, **detail: Any) -> None:
    await run_async(connection, _recording(who, action, target, detail))


def record_blocking(connection: Connection[Row], who: Principal, action: str, target: object, **detail: Any) -> None:
    """The same in a thread."""
    run(connection, _recording(who, action, target, detail))


def _recording(who: Principal, action: str, target: object, detail: dict[str, Any]) -> Op[None]:
    params = {
        "who": who.name,
        "action": action,
        "target": str(target),
        "detail": to_json(detail).decode(),
        "request_id": who.request_id,
    }
    return Op(RECORD, params, nothing)


async def read(pool: AsyncPool, *, before: int | None = None, limit: int = 50) -> list[Entry]:
    """The newest first; `before` is the last id of the page before."""
    op = Op(READ, {"before": before, "limit": limit}, lambda rows: [Entry(*row) for row in rows])
    async with pool.connection(who="audit") as connection:
        return await run_async(connection, op)

"""Who a call is made for: what it cost is written on their account, and it stops when they do.

with on_account(lambda: ctx.cancelled) as account:
    extractor.extract(text)
account.usage
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used: calls that were answered, also badly."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: Decimal = Decimal(0)
    """US dollars, of the calls whose price is known."""
    unpriced: int = 0
    """Calls of models whose price is not known."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.calls + other.calls,
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            self.cost + other.cost,
            self.unpriced + other.unpriced,
        )


class Account:
    """Adds up. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._usage = Usage()

    @property
    def usage(self) -> Usage:
        with self._lock:
            return self._usage

    def add(self, usage: Usage) -> None:
        with self._lock:
            self._usage += usage


ShouldStop = Callable[[], bool]

_accounts: ContextVar[tuple[tuple[Account, ShouldStop], ...]] = ContextVar("kappa provider accounts", default=())


def never() -> bool:
    return False


@contextmanager
def on_account(should_stop: ShouldStop = never) -> Generator[Account]:
    """All calls in the block, also those in threads that got its context, are for this account."""
    account = Account()
    before = _accounts.set((*_accounts.get(), (account, should_stop)))
    try:
        yield account
    finally:
        _accounts.reset(before)


def charge(usage: Usage) -> None:
    for account, _ in _accounts.get():
        account.add(usage)


def stop_asked() -> ShouldStop:
    """Whether one of those that the present call is made for wants no more of it."""
    wishes = [should_stop for _, should_stop in _accounts.get()]
    return lambda: any(wish() for wish in wishes)

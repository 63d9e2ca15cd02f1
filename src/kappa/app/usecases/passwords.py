"""Passwords, hashed by Argon2id. It takes its time and memory on purpose, so it runs in threads, two at once.

Each holds one of the API's tokens for threads, too: what the gate lets through is counted with everything else.
"""

from functools import cache

import anyio
from anyio.to_thread import run_sync
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from kappa.app.errors import Refused

SHORTEST = 12
LONGEST = 1024
AT_ONCE = 2

_hasher = PasswordHasher()


class Passwords:
    """Hashes and checks, off the event loop."""

    def __init__(self) -> None:
        self._gate = anyio.CapacityLimiter(AT_ONCE)

    async def hash(self, password: str) -> str:
        if not SHORTEST <= len(password) <= LONGEST:
            raise Refused(f"a password has {SHORTEST} to {LONGEST} characters")
        async with self._gate:
            return await run_sync(_hasher.hash, password)

    async def check(self, password: str, hashed: str | None) -> bool:
        async with self._gate:
            right = await run_sync(_check, password, hashed)
        return right and hashed is not None


@cache
def _nobody() -> str:
    """What an unknown name's password is compared with: it takes as long as a known one's."""
    return _hasher.hash("nobody signs in with this one")


def _check(password: str, hashed: str | None) -> bool:
    try:
        return _hasher.verify(hashed or _nobody(), password)
    except (VerificationError, InvalidHashError):
        return False

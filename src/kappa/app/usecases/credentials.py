"""Tokens, passwords and sessions: who is this?

A token is 256 random bits and only its SHA-256 is kept; a session's key likewise. The cookie carries the session's key
signed, so that one which was made up is refused without a look at the database.
"""

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from psycopg import AsyncConnection

from kappa.app.errors import Forbidden, NotAuthenticated, NotFound, Refused, Throttled
from kappa.app.permissions import Permission
from kappa.app.usecases import audit, authority
from kappa.app.usecases.passwords import Passwords
from kappa.app.usecases.principal import Principal
from kappa.pg import AsyncPool, Query, queries
from kappa.pg.ops import Op, nothing, run_async
from kappa.pg.queries import Row

sql = queries.beside(__file__)
FIND_TOKEN = sql["find_token"]
FIND_SESSION = sql["find_session"]
MAKE_TOKEN = sql["make_token"]
READ_TOKENS = sql["read_tokens"]
REVOKE_TOKEN = sql["revoke_token"]
PASSWORD_OF = sql["password_of"]
STILL_FITS = sql["still_fits"]
MAKE_SESSION = sql["make_session"]
END_SESSION = sql["end_session"]
FORGET_SESSIONS = sql["forget_sessions"]
LOCK_SIGN_IN = sql["lock_sign_in"]
FAILURES = sql["failures"]
NOTE_FAILURE = sql["note_failure"]
FORGET_FAILURES = sql["forget_failures"]
FORGET_OLD_FAILURES = sql["forget_old_failures"]
KNOWN_PLACE = sql["known_place"]
KEEP_PLACE = sql["keep_place"]
FORGET_OLD_PLACES = sql["forget_old_places"]
SIGNING_KEY = sql["signing_key"]

PREFIX = "kappa_"
FAILURES_HERE = 5
"""Of one name from one address."""
FAILURES_BY_ADDRESS = 30
FAILURES_BY_NAME = 50
WITHIN = timedelta(minutes=15)
KNOWN_FOR = timedelta(days=90)
"""How long an address from which somebody signed in is theirs."""
LONGEST_TOKEN = timedelta(days=3650)

_KNOWN = frozenset(Permission)


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret."""

    id: int
    user: str
    name: str
    scopes: list[str] | None
    kinds: list[str] | None
    machines: int | None
    requests_per_minute: int | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What the token of a fleet worker is limited to; None is no limit."""

    kinds: Sequence[str] | None = None
    machines: int | None = None
    requests_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token, the only time that its secret is known."""

    id: int
    expires_at: datetime | None
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody who signed in: what the cookie carries, and what must come with every change."""

    who: Principal
    expires_at: datetime
    cookie: str = field(repr=False)
    csrf: str = field(repr=False)


NO_LIMITS = WorkerLimits()


class Credentials:
    """Recognises people, and gives them what they are recognised by."""

    def __init__(self, pool: AsyncPool, passwords: Passwords, session_lasts: timedelta) -> None:
        self._pool = pool
        self._passwords = passwords
        self._session_lasts = session_lasts
        self._key: bytes | None = None

    def begin(self) -> AbstractAsyncContextManager[AsyncConnection[Row], bool | None]:
        return self._pool.transaction()

    async def by_token(self, secret: str) -> Principal:
        """The user of a token, with the permissions that both of them have."""
        hashed = _hash(secret)
        async with self._pool.connection(who="token") as connection:
            found = await _one(connection, FIND_TOKEN, hash=hashed)
        if found is None or not hmac.compare_digest(found[1], hashed):
            raise NotAuthenticated("the token is unknown, expired or revoked")
        token_id, _, user_id, name, scopes, permissions = found
        allowed = frozenset(permissions) if scopes is None else frozenset(permissions) & frozenset(scopes)
        return Principal(user_id, name, allowed, token_id)

    async def by_cookie(self, cookie: str) -> Session:
        key = await self._unsign(cookie)
        async with self._pool.connection(who="session") as connection:
            found = await _one(connection, FIND_SESSION, hash=_hash(key))
        if found is None:
            raise NotAuthenticated("the session is over: sign in again")
        user_id, name, permissions, expires_at, token_id, scopes = found
        allowed = frozenset(permissions) if scopes is None else frozenset(permissions) & frozenset(scopes)
        return Session(Principal(user_id, name, allowed, token_id), expires_at, cookie, await self._csrf(key))

    async def sign_in(self, name: str, password: str, address: str, request_id: str | None) -> Session:
        """A session for whoever knows the password.

        Failures are counted by name and address together, and, more generously, by each alone. Who signed in from this
        address before is stopped by the first count only: others can't shut them out from another address, nor, by
        guessing at other names, from the same one.
        """
        place = _place(address)
        own, by_address, by_name = f"name {name} at {place}", f"address {place}", f"name {name}"
        limits = {own: FAILURES_HERE, by_address: FAILURES_BY_ADDRESS, by_name: FAILURES_BY_NAME}
        # A try counts before it is looked at, and is forgotten if it was right: many at once can't all be the first.
        async with self._pool.transaction(who="sign in") as connection:
            await run_async(connection, Op(LOCK_SIGN_IN, {"keys": list(limits)}, nothing))
            is_known = await _one(connection, KNOWN_PLACE, name=name, place=place) is not None
            for key, most in limits.items():
                if key == own or not is_known:
                    await self._throttle(connection, key, most)
            await run_async(connection, Op(NOTE_FAILURE, {"keys": list(limits)}, nothing))
            found = await _one(connection, PASSWORD_OF, name=name)
        # No connection is held meanwhile: this takes as long as fifty looks at a token.
        right = await self._passwords.check(password, found[2] if found else None)
        if not right or found is None:
            raise NotAuthenticated("name and password don't fit")
        await self._signing_key()  # before the transaction: whoever holds a connection asks for no second one
        async with self._pool.transaction(who="sign in") as connection:
            if await _one(connection, STILL_FITS, id=found[0], password=found[2]) is None:
                raise NotAuthenticated("name and password don't fit")
            await run_async(connection, Op(FORGET_OLD_FAILURES, {"within": WITHIN}, nothing))
            await run_async(connection, Op(FORGET_OLD_PLACES, {"within": KNOWN_FOR}, nothing))
            await run_async(connection, Op(FORGET_FAILURES, {"own": own, "others": [by_address, by_name]}, nothing))
            await run_async(connection, Op(KEEP_PLACE, {"user_id": found[0], "place": place}, nothing))
            return await self._begin_session(connection, Principal(found[0], name, frozenset(), None, request_id))

    async def sign_in_by_token(self, secret: str, request_id: str | None) -> Session:
        """A session that may do what the token may, for as long as it counts."""
        who = await self.by_token(secret)
        await self._signing_key()
        async with self._pool.transaction(who="sign in") as connection:
            return await self._begin_session(connection, with_request(who, request_id))

    async def sign_out(self, cookie: str) -> None:
        key = await self._unsign(cookie)
        async with self._pool.connection() as connection:
            await run_async(connection, Op(END_SESSION, {"hash": _hash(key)}, nothing))

    @audit.refusals("token.make")
    async def make_token(
        self,
        who: Principal,
        name: str,
        *,
        user: str | None = None,
        user_permissions: frozenset[str] | None = None,
        scopes: Sequence[str] | None = None,
        lasts: timedelta | None = None,
        limits: WorkerLimits = NO_LIMITS,
    ) -> NewToken:
        """A token for oneself, or for a user who may do no more than oneself."""
        if limits != NO_LIMITS:
            # It could do, or make, something else without them.
            if scopes is not None and set(scopes) != {Permission.FLEET_WORK}:
                raise Refused(
                    "kinds, machines and requests are limits of a fleet worker's token: its scope is fleet:work"
                )
            scopes = [Permission.FLEET_WORK]
        if user_permissions is not None:
            # Also with scopes: whoever acts in a user's name can set that user's password.
            who.require_all(user_permissions, f"a token of {user!r}")
        if scopes is not None:
            if unknown := sorted(set(scopes) - _KNOWN):
                raise Refused(f"there is no permission {unknown[0]!r}")
            who.require_all(frozenset(scopes), "the token")
        elif user_permissions is None:
            scopes = None if who.token_id is None else sorted(who.permissions)
        if lasts is not None and not timedelta(0) < lasts <= LONGEST_TOKEN:
            raise Refused(f"a token lasts for more than nothing and at most {LONGEST_TOKEN.days} days")
        secret = PREFIX + secrets.token_urlsafe(32)
        async with self._pool.transaction() as connection:
            made = await _one(
                connection,
                MAKE_TOKEN,
                user=user or who.name,
                name=name,
                hash=_hash(secret),
                scopes=None if scopes is None else list(scopes),
                lasts=lasts,
                kinds=None if limits.kinds is None else list(limits.kinds),
                machines=limits.machines,
                requests_per_minute=limits.requests_per_minute,
            )
            if made is None:
                raise NotFound(f"there is no user {user!r}")
            await audit.record(connection, who, "token.make", made[0], user=user or who.name, name=name, scopes=scopes)
        return NewToken(made[0], made[1], secret)

    async def tokens(self, *, user: str | None = None) -> list[Token]:
        async with self._pool.connection() as connection:
            return await run_async(connection, _read_tokens(user, None))

    @audit.refusals("token.revoke")
    async def revoke_token(self, who: Principal, token_id: int) -> None:
        """Revoke a token of one's own, or, if one may manage users, of somebody who may do no more than oneself."""
        async with self._pool.transaction() as connection:
            found = await run_async(connection, _read_tokens(None, token_id))
            if not found or (found[0].user != who.name and not who.may(Permission.USERS_MANAGE)):
                raise NotFound(f"there is no token {token_id} of {who.name}")
            if found[0].user != who.name:
                await authority.require_over_user(connection, who, found[0].user)
            if await _one(connection, REVOKE_TOKEN, id=token_id) is not None:
                await audit.record(connection, who, "token.revoke", token_id, user=found[0].user)

    async def csrf_fits(self, session: Session, given: str | None) -> None:
        if given is None or not hmac.compare_digest(session.csrf.encode(), given.encode()):
            raise Forbidden("a change by a signed-in browser needs the header X-CSRF-Token")

    async def _throttle(self, connection: AsyncConnection[Row], key: str, most: int) -> None:
        row = await _one(connection, FAILURES, key=key, within=WITHIN)
        if row is not None and row[0] >= most:
            raise Throttled("too many sign-ins failed: wait before the next try", max(1.0, row[1]))

    async def _begin_session(self, connection: AsyncConnection[Row], who: Principal) -> Session:
        key = secrets.token_urlsafe(32)
        await run_async(connection, Op(FORGET_SESSIONS, {}, nothing))
        params = {"hash": _hash(key), "user_id": who.user_id, "lasts": self._session_lasts, "token_id": who.token_id}
        row = await _one(connection, MAKE_SESSION, **params)
        assert row is not None
        await audit.record(connection, who, "session.begin", who.name)
        allowed = frozenset(row[1]) if who.token_id is None else who.permissions
        return Session(replace(who, permissions=allowed), row[0], await self._sign(key), await self._csrf(key))

    async def _sign(self, key: str) -> str:
        return f"{key}.{await self._mac('session', key)}"

    async def _unsign(self, cookie: str) -> str:
        key, _, mac = cookie.partition(".")
        if not hmac.compare_digest((await self._mac("session", key)).encode(), mac.encode()):
            raise NotAuthenticated("the session is over: sign in again")
        return key

    async def _csrf(self, key: str) -> str:
        return await self._mac("csrf", key)

    async def _mac(self, purpose: str, text: str) -> str:
        return hmac.new(await self._signing_key(), f"{purpose} {text}".encode(), hashlib.sha256).hexdigest()

    async def _signing_key(self) -> bytes:
        if self._key is None:
            async with self._pool.connection() as connection:
                row = await _one(connection, SIGNING_KEY)
            assert row is not None
            self._key = bytes(row[0])
        return self._key


def with_request(who: Principal, request_id: str | None) -> Principal:
    return replace(who, request_id=request_id)


def _place(address: str) -> str:
    """What failures are counted by: an address; of IPv6 its network, as one machine has all addresses of that."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


def _read_tokens(user: str | None, token_id: int | None) -> Op[list[Token]]:
    return Op(READ_TOKENS, {"user": user, "id": token_id}, lambda rows: [Token(*row) for row in rows])


async def _one(connection: AsyncConnection[Row], query: Query, **params: Any) -> Row | None:
    return await run_async(connection, Op(query, params, lambda rows: rows[0] if rows else None))

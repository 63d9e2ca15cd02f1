"""Users and roles. Nobody can give what they don't have, or change somebody who may do more than they."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime

from psycopg import AsyncConnection

from kappa.app.errors import Conflict, NotFound, Refused
from kappa.app.permissions import ROLES, Permission
from kappa.app.usecases import audit, authority
from kappa.app.usecases.passwords import Passwords
from kappa.app.usecases.principal import Principal
from kappa.pg import AsyncPool, queries
from kappa.pg.ops import Op, nothing, run_async
from kappa.pg.queries import Row

sql = queries.beside(__file__)
PUT_BUILTIN_ROLE = sql["put_builtin_role"]
READ_ROLES = sql["read_roles"]
PUT_ROLE = sql["put_role"]
LOCK_ROLE = sql["lock_role"]
DROP_ROLE = sql["drop_role"]
PERMISSIONS_OF_ROLES = sql["permissions_of_roles"]
READ_USERS = sql["read_users"]
LOCK_USER = sql["lock_user"]
LOCK_USERS = sql["lock_users"]
MAKE_USER = sql["make_user"]
CHANGE_USER = sql["change_user"]
DROP_USER = sql["drop_user"]
SET_ROLES = sql["set_roles"]
END_SESSIONS = sql["end_sessions"]
ADMINISTRATORS = sql["administrators"]

_KNOWN = frozenset(Permission)


@dataclass(frozen=True, slots=True)
class Role:
    """A named set of permissions."""

    name: str
    permissions: list[str]
    builtin: bool
    users: int


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may use the server."""

    id: int
    name: str
    enabled: bool
    has_password: bool
    created_at: datetime
    roles: list[str]
    permissions: list[str]


class People:
    """Users and roles of one server."""

    def __init__(self, pool: AsyncPool, passwords: Passwords) -> None:
        self._pool = pool
        self._passwords = passwords

    def begin(self) -> AbstractAsyncContextManager[AsyncConnection[Row], bool | None]:
        return self._pool.transaction()

    async def install_roles(self) -> None:
        """The roles that are always there, as this version knows them."""
        async with self._pool.transaction() as connection:
            for name, permissions in ROLES.items():
                params = {"name": name, "permissions": sorted(permissions)}
                await run_async(connection, Op(PUT_BUILTIN_ROLE, params, nothing))

    async def roles(self) -> list[Role]:
        async with self._pool.connection() as connection:
            return await run_async(connection, Op(READ_ROLES, {}, lambda rows: [Role(*row) for row in rows]))

    @audit.refusals("role.put")
    async def put_role(self, who: Principal, name: str, permissions: Iterable[str]) -> None:
        """Make a role, or give it other permissions."""
        wanted = frozenset(permissions)
        if unknown := sorted(wanted - _KNOWN):
            raise Refused(f"there is no permission {unknown[0]!r}")
        if name in ROLES:
            raise Conflict(f"the role {name!r} belongs to Kappa and stays as it is")
        who.require_all(wanted, f"the role {name!r}")
        async with self._pool.transaction() as connection:
            before = await run_async(connection, Op(LOCK_ROLE, {"name": name}, _first_row))
            if before is not None:
                who.require_all(frozenset(before[0]), f"the role {name!r} as it is")
                await authority.require_over_holders(connection, who, name)
            params = {"name": name, "permissions": sorted(wanted)}
            await run_async(connection, Op(PUT_ROLE, params, nothing))
            await audit.record(connection, who, "role.put", name, permissions=sorted(wanted))

    @audit.refusals("role.drop")
    async def drop_role(self, who: Principal, name: str) -> None:
        if name in ROLES:
            raise Conflict(f"the role {name!r} belongs to Kappa and stays")
        async with self._pool.transaction() as connection:
            found = await run_async(connection, Op(LOCK_ROLE, {"name": name}, _first_row))
            if found is None:
                raise NotFound(f"there is no role {name!r}")
            who.require_all(frozenset(found[0]), f"the role {name!r}")
            if found[2]:
                raise Conflict(f"{found[2]} users have the role {name!r}: give them another first")
            await run_async(connection, Op(DROP_ROLE, {"name": name}, nothing))
            await audit.record(connection, who, "role.drop", name)

    async def users(self) -> list[User]:
        async with self._pool.connection() as connection:
            return await run_async(connection, _read_users(None))

    async def user(self, name: str) -> User:
        async with self._pool.connection() as connection:
            return await self._find(connection, name)

    @audit.refusals("user.make")
    async def make_user(
        self, who: Principal, name: str, *, password: str | None = None, roles: Sequence[str] = ()
    ) -> User:
        hashed = None if password is None else await self._passwords.hash(password)
        async with self._pool.transaction() as connection:
            await self._check_roles(connection, who, roles)
            made = await run_async(connection, Op(MAKE_USER, {"name": name, "password": hashed}, _first_row))
            if made is None:
                raise Conflict(f"there is a user {name!r} already")
            await run_async(connection, Op(SET_ROLES, {"id": made[0], "roles": list(roles)}, nothing))
            await audit.record(connection, who, "user.make", name, roles=list(roles))
            return await self._find(connection, name)

    @audit.refusals("user.change")
    async def change_user(
        self,
        who: Principal,
        name: str,
        *,
        enabled: bool | None = None,
        password: str | None = None,
        roles: Sequence[str] | None = None,
    ) -> User:
        """Change what is given. A new password, and being switched off, end the user's sessions."""
        hashed = None if password is None else await self._passwords.hash(password)
        async with self._pool.transaction() as connection:
            user = await self._lock(connection, who, name)
            if roles is not None:
                await self._check_roles(connection, who, roles)
                await run_async(connection, Op(SET_ROLES, {"id": user.id, "roles": list(roles)}, nothing))
            params = {"id": user.id, "enabled": enabled, "password": hashed}
            await run_async(connection, Op(CHANGE_USER, params, nothing))
            if hashed is not None or enabled is False:
                await run_async(connection, Op(END_SESSIONS, {"id": user.id}, nothing))
            await self._keep_an_administrator(connection, user)
            changed = {"enabled": enabled, "roles": roles, "password": "changed" if hashed else None}
            detail = {key: value for key, value in changed.items() if value is not None}
            await audit.record(connection, who, "user.change", name, **detail)
            return await self._find(connection, name)

    @audit.refusals("user.drop")
    async def drop_user(self, who: Principal, name: str) -> None:
        async with self._pool.transaction() as connection:
            user = await self._lock(connection, who, name)
            await run_async(connection, Op(DROP_USER, {"id": user.id}, nothing))
            await self._keep_an_administrator(connection, user)
            await audit.record(connection, who, "user.drop", name)

    async def change_own_password(self, who: Principal, password: str) -> None:
        hashed = await self._passwords.hash(password)
        async with self._pool.transaction() as connection:
            # A token with less than its user may could otherwise sign in as all of them.
            who.require_all(frozenset((await self._find(connection, who.name)).permissions), "a new password")
            params = {"id": who.user_id, "enabled": None, "password": hashed}
            await run_async(connection, Op(CHANGE_USER, params, nothing))
            await run_async(connection, Op(END_SESSIONS, {"id": who.user_id}, nothing))
            await audit.record(connection, who, "user.change", who.name, password="changed")  # noqa: S106

    async def _lock(self, connection: AsyncConnection[Row], who: Principal, name: str) -> User:
        """A user whom this principal may change, locked."""
        await run_async(connection, Op(LOCK_USERS, {}, nothing))
        await run_async(connection, Op(LOCK_USER, {"name": name}, nothing))
        user = await self._find(connection, name)
        await authority.require_over_user(connection, who, name)
        return user

    async def _find(self, connection: AsyncConnection[Row], name: str) -> User:
        found = await run_async(connection, _read_users(name))
        if not found:
            raise NotFound(f"there is no user {name!r}")
        return found[0]

    async def _check_roles(self, connection: AsyncConnection[Row], who: Principal, roles: Sequence[str]) -> None:
        op = Op(PERMISSIONS_OF_ROLES, {"names": list(roles)}, dict[str, list[str]])
        known = await run_async(connection, op)
        for role in roles:
            if role not in known:
                raise Refused(f"there is no role {role!r}")
            who.require_all(frozenset(known[role]), f"the role {role!r}")

    async def _keep_an_administrator(self, connection: AsyncConnection[Row], before: User) -> None:
        if "platform_admin" in before.roles and before.enabled:
            left = await run_async(connection, Op(ADMINISTRATORS, {}, _first_row))
            if left is None or left[0] == 0:
                raise Conflict(f"{before.name!r} is the last platform_admin: make another one first")


def _read_users(name: str | None) -> Op[list[User]]:
    return Op(READ_USERS, {"name": name}, lambda rows: [User(*row) for row in rows])


def _first_row(rows: list[Row]) -> Row | None:
    return rows[0] if rows else None

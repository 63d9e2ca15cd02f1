"""Whether somebody may have a job made: asked here for every way to one, of what its kind declares."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from kappa.app.errors import NotFound, NotTheirs, Refused
from kappa.app.kinds.access import access_to
from kappa.app.permissions import Permission
from kappa.app.usecases import audit
from kappa.app.usecases.principal import Principal
from kappa.engine import AsyncClient, Enqueued
from kappa.pg import queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
UPLOAD_OWNERS = sql["upload_owners"]

RESERVED = "kappa:"
"""What the keys of Kappa's own jobs begin with, so that no other job is taken for one of them."""


def may_approve(who: Principal, kind: str) -> bool:
    """Whether somebody may let jobs of this kind run: what they may not enqueue, they may not approve either."""
    return access_to(kind).permissions <= who.permissions


def may_submit(who: Principal, kind: str) -> bool:
    """Whether somebody may enqueue, retry and schedule jobs of this kind, as far as their payload lets them."""
    return may_approve(who, kind) and access_to(kind).made_by is None


def require_permissions(who: Principal, kind: str) -> None:
    """Refuse whoever may not have jobs of this kind run."""
    for permission in sorted(access_to(kind).permissions):
        who.require(permission)


def require(who: Principal, kind: str) -> None:
    """Refuse whoever may not have jobs of this kind made, and a kind whose jobs are made by one request only."""
    require_permissions(who, kind)
    if (made_by := access_to(kind).made_by) is not None:
        raise Refused(f"jobs of kind {kind!r} can't be enqueued, retried or scheduled: use {made_by}")


def require_uploads(who: Principal, keys: Sequence[UUID], owners: Mapping[UUID, str]) -> None:
    """Refuse uploads that are not there or belong to others, in the same words."""
    for key in keys:
        missing = f"there is no upload {key}; uploads are kept for a day"
        if key not in owners:
            raise NotFound(missing)
        if owners[key] != who.name and not who.may(Permission.JOBS_MANAGE):
            raise NotTheirs(missing)


async def check(connection: AsyncConnection[Row], who: Principal, kind: str, payload: Any) -> None:
    """Refuse a job that somebody may not have made. The payload must be one that the kind takes."""
    require(who, kind)
    if (uploads := access_to(kind).uploads) is not None:
        keys = uploads(payload)
        cursor = await connection.execute(UPLOAD_OWNERS.sql, {"keys": keys})
        require_uploads(who, keys, dict(await cursor.fetchall()))


async def enqueue(client: AsyncClient, who: Principal, kind: str, payload: Any = None, **options: Any) -> Enqueued:
    """Put a job in for somebody who may; the options are those of the client."""
    require(who, kind)
    access = access_to(kind)
    if access.uploads is None and not access.audited:
        return await client.enqueue(kind, payload, submitted_by=who.name, **options)
    async with client.transaction() as connection:
        done = await client.enqueue(kind, payload, submitted_by=who.name, connection=connection, **options)
        await check(connection, who, kind, payload)
        if access.audited and done.created:
            await audit.record(connection, who, "job.enqueue", done.id, kind=kind, payload=payload)
        return done

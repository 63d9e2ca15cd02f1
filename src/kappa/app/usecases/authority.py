"""Nobody acts on somebody who may do more than they: asked here, whatever is done to a user.

What somebody may do is what this token or session lets them do. Acting on oneself is for the callers to allow.
"""

from psycopg import AsyncConnection

from kappa.app.usecases.principal import Principal
from kappa.pg import queries
from kappa.pg.ops import Op, run_async
from kappa.pg.queries import Row

sql = queries.beside(__file__)
PERMISSIONS_OF_USER = sql["permissions_of_user"]
PERMISSIONS_OF_HOLDERS = sql["permissions_of_holders"]


async def require_over_user(connection: AsyncConnection[Row], who: Principal, name: str) -> None:
    """Refuse whoever lacks a permission that this user has."""
    theirs = await run_async(connection, Op(PERMISSIONS_OF_USER, {"name": name}, _permissions))
    who.require_all(theirs, f"the user {name!r}")


async def require_over_holders(connection: AsyncConnection[Row], who: Principal, role: str) -> None:
    """Refuse whoever lacks a permission that somebody with this role has, from whichever role."""
    theirs = await run_async(connection, Op(PERMISSIONS_OF_HOLDERS, {"role": role}, _permissions))
    who.require_all(theirs, f"somebody who has the role {role!r}")


def _permissions(rows: list[Row]) -> frozenset[str]:
    return frozenset(row[0] for row in rows)

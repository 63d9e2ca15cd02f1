"""Merges of relation types: one transaction each, recorded, and undone in the opposite order.

A merge locks its types as nobody who writes relations can share: who came before is waited for, and who comes after
finds the survivor. So no relation is left behind in a type that is no more.
"""

from psycopg import Connection

from kappa.graph.errors import BadWrite, UnknownRelationType
from kappa.graph.findings import Merge
from kappa.graph.store import clock, merges
from kappa.pg.queries import Row


def merge_types(
    connection: Connection[Row], merged: str, survivor: str, *, by: str = "", similarity: float | None = None
) -> Merge:
    """Of two relations between the same concepts one is left, with the greater confidence and the sources of both."""
    if merged == survivor:
        raise BadWrite(f"{merged!r} can't be merged into itself")
    locked = merges.lock_types(connection, [merged, survivor])
    for name in (merged, survivor):
        if name not in locked:
            raise UnknownRelationType(f"there is no relation type {name!r}")
        if (into := locked[name].merged_into) is not None:
            raise BadWrite(f"{name!r} has been merged into {into!r} already")
        if not locked[name].active:
            raise BadWrite(f"{name!r} is not active")
    number = merges.merge(connection, locked[merged].number, locked[survivor].number, similarity, by)
    clock.take_epoch(connection)
    return merges.find(connection, number)[0]


def undo_merge(connection: Connection[Row], number: int, *, by: str = "") -> Merge:
    """Exactly as before, if nothing was said since; what was deleted since stays deleted."""
    standing = merges.lock_merge(connection, number)
    if standing is None:
        raise UnknownRelationType(f"there is no merge {number}")
    if standing.undone:
        raise BadWrite(f"merge {number} has been undone already")
    merges.lock_numbers(connection, [standing.merged, standing.survivor])
    if (first := merges.later(connection, number, standing)) is not None:
        raise BadWrite(f"merge {first} came after merge {number} and has to do with its types: undo that one first")
    merges.undo(connection, number, standing, by)
    clock.take_epoch(connection)
    return merges.find(connection, number)[0]

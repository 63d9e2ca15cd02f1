"""Names that the shell completes: those that Kappa knows by itself, and those that a running server is asked for.

A shell waits for the answer at every press of the key, so the server has a second, and whatever goes wrong completes
nothing and says nothing.
"""

from collections.abc import Iterator
from typing import Any

WITHIN = 1.0
JOBS = 50

Offer = tuple[str, str]
"""A name, and what shells that show such things say beside it."""


def permissions(incomplete: str) -> Iterator[Offer]:
    from kappa.app.permissions import MEANING

    yield from _fitting(incomplete, ((permission.value, meaning) for permission, meaning in MEANING.items()))


def roles(incomplete: str) -> Iterator[Offer]:
    """The roles of the server, or those that are always there."""
    from kappa.app.permissions import ROLES

    there = _asked("/roles") or [{"name": name} for name in ROLES]
    yield from _fitting(incomplete, ((one["name"], "") for one in there))


def lanes(incomplete: str) -> Iterator[Offer]:
    yield from _fitting(incomplete, ((one["name"], ", ".join(one["kinds"])) for one in _lanes()))


def kinds(incomplete: str) -> Iterator[Offer]:
    yield from _fitting(incomplete, ((kind, f"lane {one['name']}") for one in _lanes() for kind in one["kinds"]))


def jobs(incomplete: str) -> Iterator[Offer]:
    """The newest ones."""
    page: Any = _asked(f"/jobs?limit={JOBS}") or {"items": ()}
    yield from _fitting(incomplete, ((str(one["id"]), f"{one['kind']}, {one['state']}") for one in page["items"]))


def schedules(incomplete: str) -> Iterator[Offer]:
    page: Any = _asked("/schedules?limit=500") or {"items": ()}
    yield from _fitting(incomplete, ((one["name"], f"{one['cron']} {one['kind']}") for one in page["items"]))


def tools(incomplete: str) -> Iterator[Offer]:
    there = {one["name"]: one["description"] for one in reversed(_asked("/tools") or [])}
    yield from _fitting(incomplete, there.items())


def _lanes() -> list[Any]:
    return _asked("/admin/workers/lanes") or []


def _fitting(incomplete: str, offers: Any) -> Iterator[Offer]:
    return ((name, about) for name, about in offers if name.startswith(incomplete))


def _asked(path: str) -> Any:
    """What the server answers, or nothing."""
    from kappa.app import remote, settings
    from kappa.pg import KappaError

    try:
        with remote.open_client(settings.load()) as client:
            return remote.check(client.get(path, timeout=WITHIN)).json()
    except (KappaError, OSError, ValueError):
        return None

"""The use cases of one server, put together over their pools."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from kappa.app.settings import Settings
from kappa.app.usecases.credentials import Credentials
from kappa.app.usecases.jobs import Jobs
from kappa.app.usecases.passwords import Passwords
from kappa.app.usecases.people import People
from kappa.app.usecases.watching import Watchtower
from kappa.app.usecases.workers import Workers
from kappa.engine import AsyncClient, Engine
from kappa.pg import AsyncPool, Bounds

API_SHARE = 3
"""Of the pool `queue`: what the API takes. The rest is the worker's."""


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a route may need."""

    settings: Settings
    client: AsyncClient
    auth: AsyncPool
    credentials: Credentials
    people: People
    jobs: Jobs
    workers: Workers
    watchtower: Watchtower


@asynccontextmanager
async def open_services(settings: Settings, engine: Engine) -> AsyncGenerator[Services]:
    database, bounds = engine.database, settings.bounds["auth"]
    queue = Bounds(1, min(API_SHARE, settings.pool_queue), settings.pool_wait)
    auth = AsyncPool(database.url, "auth", bounds, behind_pooler=database.behind_pooler)
    async with auth, engine.async_client(bounds=queue) as client:
        passwords = Passwords()
        people = People(auth, passwords)
        await people.install_roles()
        watchtower = Watchtower(client)
        try:
            yield Services(
                settings=settings,
                client=client,
                auth=auth,
                credentials=Credentials(auth, passwords, timedelta(hours=settings.session_hours)),
                people=people,
                jobs=Jobs(client),
                workers=Workers(client),
                watchtower=watchtower,
            )
        finally:
            await watchtower.close()

"""A server's application in this process, over a fresh database; and a real `kg up` in a process of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import psycopg
import pytest
from argon2 import PasswordHasher
from starlette.types import ASGIApp

from kappa.app import home as app_home
from kappa.app import wiring
from kappa.app.api import application
from kappa.app.api.middleware import Guard
from kappa.app.kinds.cleanup import HOURLY
from kappa.app.kinds.maps import SCHEDULE
from kappa.app.kinds.measures import SCHEDULES
from kappa.app.kinds.ontologies import NIGHTLY
from kappa.app.permissions import ROLES, Permission
from kappa.app.services import Services, open_services
from kappa.app.settings import Settings
from kappa.app.usecases import passwords
from kappa.app.usecases.principal import Principal
from kappa.app.web import site as pages
from kappa.engine import Client, Engine
from kappa.pg import Database
from tests.ground import PATIENCE, eventually

KAPPA = Principal(0, "kappa", frozenset(Permission))


@pytest.fixture(autouse=True)
def quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords that are hashed in this process cost little: their cost is not under test."""
    monkeypatch.setattr(passwords, "_hasher", PasswordHasher(time_cost=1, memory_cost=1024, parallelism=1))


@dataclass
class Site:
    """The application over a fresh database, and clients of it in every role."""

    services: Services
    engine: Engine
    guard: Guard
    app: ASGIApp
    stack: AsyncExitStack
    tokens: dict[str, str] = field(default_factory=dict)

    async def client(self, role: str | None = "platform_admin", *, token: str | None = None) -> httpx2.AsyncClient:
        """A client that shows a token of the user named after this role; with None, one that shows nothing."""
        if token is None and role is not None:
            token = await self.token(role)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False)
        client = httpx2.AsyncClient(transport=transport, base_url="http://kappa.test", headers=headers)
        return await self.stack.enter_async_context(client)

    async def token(self, role: str) -> str:
        if role not in self.tokens:
            await self.services.people.make_user(KAPPA, role, roles=[role])
            theirs = frozenset(map(str, ROLES.get(role, ())))
            made = await self.services.credentials.make_token(KAPPA, "test", user=role, user_permissions=theirs)
            self.tokens[role] = made.secret
        return self.tokens[role]


@pytest.fixture
async def site(url: str, home: Path) -> AsyncIterator[Site]:
    settings = Settings(home=home)
    engine = wiring.build_engine(settings, Database(url, bounds=settings.bounds))
    without_schedules(url)
    engine.install()
    guard = Guard()
    async with AsyncExitStack() as stack:
        stack.callback(engine.close)
        services = await stack.enter_async_context(open_services(settings, engine))
        yield Site(
            services, engine, guard, application.build(services, guard, pages.beside(services), pages.large), stack
        )


@pytest.fixture
async def operator(site: Site) -> httpx2.AsyncClient:
    """A client that may do everything."""
    return await site.client("platform_admin")


@pytest.fixture
def engine(url: str, home: Path) -> Iterator[Engine]:
    """With every kind that Kappa brings."""
    with closing(wiring.build_engine(Settings(home=home), Database(url))) as made:
        wiring.install(made)
        yield made


@pytest.fixture
def client(engine: Engine) -> Iterator[Client]:
    with engine.client() as opened:
        yield opened


class Up:
    """`kg up` in a process of its own, as a person starts it."""

    def __init__(self, url: str, home: Path, *args: str, env: dict[str, str] | None = None) -> None:
        self.home = home
        clean = {name: value for name, value in os.environ.items() if not name.startswith("KAPPA_")}
        self.env = {**clean, "KAPPA_HOME": str(home), "KAPPA_DATABASE_URL": url, "KAPPA_PORT": "0", **(env or {})}
        without_schedules(url)
        self.log = home.with_name(f"{home.name}-up-{os.urandom(3).hex()}.log")
        with self.log.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kappa.app.cli.entry", "up", *args],
                env={**self.env, "COLUMNS": "200"}, stdout=said, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.url = eventually(self._listens, what="kg up listens")

    def _listens(self) -> str | None:
        if self.process.poll() is not None:
            raise AssertionError(f"kg up ended with {self.process.returncode}: {self.said}")
        return next((one.url for one in app_home.running(self.home) if one.pid == self.process.pid), None)

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def token(self) -> str:
        return app_home.token_file(self.home).read_text().strip()

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=PATIENCE)

    def stop(self) -> int:
        """SIGTERM, and the exit code when it has drained."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def without_schedules(url: str) -> None:
    """What Kappa does at seven minutes past each hour would be among the jobs of whichever test runs then."""
    with psycopg.connect(url, autocommit=True) as connection:
        for one in (HOURLY, NIGHTLY, SCHEDULE, *SCHEDULES):
            connection.execute(
                "INSERT INTO kappa.schedules (name, cron, kind, enabled) VALUES (%s, %s, %s, false)"
                " ON CONFLICT DO NOTHING",
                [one.name, one.cron, one.kind],
            )


@pytest.fixture
def start_up(url: str, home: Path) -> Iterator[Callable[..., Up]]:
    """Starts `kg up` on the test's database, as often as called; all are gone at the end."""
    begun: list[Up] = []

    def start(*args: str, env: dict[str, str] | None = None) -> Up:
        begun.append(Up(url, home, *args, env=env))
        return begun[-1]

    yield start
    for one in begun:
        one.kill()


@pytest.fixture
def up(start_up: Callable[..., Up]) -> Up:
    return start_up()

"""An engine on a fresh database, and clients of it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from kappa.engine import AsyncClient, Client, Engine
from kappa.engine.testing import Heard
from tests.engine.site import Site


@pytest.fixture
def engine(url: str) -> Engine:
    """An engine with no handlers yet; the schema is installed and the default lanes are there."""
    return Engine(url)


@pytest.fixture
def client(engine: Engine) -> Iterator[Client]:
    with engine.client() as opened:
        yield opened


@pytest.fixture
async def async_client(engine: Engine) -> AsyncIterator[AsyncClient]:
    async with engine.async_client() as opened:
        yield opened


@pytest.fixture
async def heard(engine: Engine) -> AsyncIterator[Heard]:
    """Everything that the engine's signals say, to wait on."""
    listening = Heard(engine)
    yield listening
    listening.stop()


@pytest.fixture
def site(url: str) -> Iterator[Site]:
    """Where the handlers of `work` run."""
    made = Site(url)
    yield made
    made.close()

"""Tool runs on a fresh database, and programs that play the tool."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from kappa.engine import AsyncClient, Engine, tools
from kappa.engine.tools import Bench, Tools
from tests.engine.tools.containers import container_runner_factory as container_runner_factory
from tests.engine.tools.containers import podman as podman

PYTHON = "/usr/bin/python3"

GOOD = """
import json, os, sys
request = json.load(open("request.json"))
os.makedirs("output", exist_ok=True)
open("output/answer.txt", "w").write(str(request["inputs"]))
print("thinking about", request["inputs"])
json.dump({"contract_version": 1, "status": "succeeded", "outputs": {"echo": request["inputs"]},
           "artifacts": [{"path": "output/answer.txt", "media_type": "text/plain"}]}, open("result.json", "w"))
"""


def script(source: str) -> list[str]:
    """The command of a tool that is a little Python program."""
    return [PYTHON, "-c", textwrap.dedent(source)]


@pytest.fixture
def bench(engine: Engine, home: Path) -> Iterator[Bench]:
    made = tools.install(engine, home)
    yield made
    made.close()


@pytest.fixture
async def toolbox(async_client: AsyncClient, bench: Bench) -> Tools:
    return Tools(async_client)

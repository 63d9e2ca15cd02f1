"""`ingest_image` with the providers, through their SDKs: their models look at the pictures."""

import base64
import io
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from kappa.app.kinds import remote_models
from kappa.engine import Job, JobState
from kappa.engine.testing import drain, maintain
from tests.app.test_ingestion import ANN, Floor, opened
from tests.graph.ingest.made import picture
from tests.graph.ingest.provider_server import KEY, TOKENS_IN, Asked, ProviderServer, Said, Status

SAYS = "A lease prevents double work."
"""Which is what the server's knowledge is about."""
SHOWS = "Otter eats Fish."


@pytest.fixture
def there() -> Iterator[ProviderServer]:
    with ProviderServer() as running:
        yield running


@pytest.fixture(params=remote_models.NAMES)
def provider(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def floor(url: str, home: Path, there: ProviderServer, provider: str) -> AsyncIterator[Floor]:
    base = there.url + ("/v1" if provider == "openai" else "")
    own = {f"{provider}_base_url": base, f"{provider}_api_key": KEY, "provider_tries": 1}
    async with opened(url, home, provider=provider, **own) as made:
        yield made


async def ingest(floor: Floor, shows: str = SHOWS) -> Job:
    uploaded = await floor.upload(picture([shows]), name="photo.png")
    made = await floor.services.ingestions.submit(ANN, "tales", [uploaded.key], auto_approve=True)
    done = await floor.run(made.job)
    assert done.kind == "ingest_image"
    return done


def shown(asked: Asked) -> bytes | None:
    """The picture in a request, whichever API it is of."""
    message: dict[str, Any] = asked.body["messages"][-1]
    if images := message.get("images"):
        return base64.b64decode(images[0])
    parts: list[Any] = message["content"] if isinstance(message["content"], list) else []
    for part in parts:
        if part["type"] == "image_url":
            return base64.b64decode(part["image_url"]["url"].partition(",")[2])
        if part["type"] == "image":
            return base64.b64decode(part["source"]["data"])
    return None


async def text_of(floor: Floor, concept: str) -> str:
    _, evidence = await floor.services.graph.concept(concept, ["tales"], 1)
    return evidence[0].quote


async def test_the_providers_model_reads_the_picture(floor: Floor, there: ProviderServer) -> None:
    there.steps.append(Said(SAYS))
    done = await ingest(floor)
    assert done.state is JobState.SUCCEEDED, done.error_summary
    assert await text_of(floor, "lease") == SAYS
    looked, extracted = there.asked
    sent = shown(looked)
    assert sent is not None
    assert Image.open(io.BytesIO(sent)).size == Image.open(io.BytesIO(picture([SHOWS]))).size
    assert shown(extracted) is None
    assert (done.result["calls"], done.result["tokens_in"], done.result["errors"]) == (2, 2 * TOKENS_IN, [])


@pytest.mark.parametrize("provider", ["openai", "anthropic"], indirect=True)
async def test_a_picture_that_it_will_not_read_is_read_by_ocr_and_the_result_says_so(
    floor: Floor, there: ProviderServer
) -> None:
    there.steps.append(Said("", "refusal"))
    done = await ingest(floor, SAYS)
    assert done.state is JobState.SUCCEEDED, done.error_summary
    assert await text_of(floor, "lease") == SAYS
    (note,) = done.result["errors"]
    assert note.startswith("page 1 was read by OCR: ")
    assert note.endswith("declined to answer")


@pytest.mark.parametrize("provider", ["ollama"], indirect=True)
async def test_a_model_that_sees_nothing_is_not_shown_anything(floor: Floor, there: ProviderServer) -> None:
    there.capabilities = ["completion", "tools"]
    done = await ingest(floor, SAYS)
    assert done.state is JobState.SUCCEEDED, done.error_summary
    assert await text_of(floor, "lease") == SAYS
    assert [shown(asked) for asked in there.asked] == [None]
    assert "the model llama3.1 sees no images" in done.result["errors"][0]


@pytest.mark.parametrize("provider", ["ollama"], indirect=True)
async def test_an_old_server_that_doesnt_say_is_asked(floor: Floor, there: ProviderServer) -> None:
    there.capabilities = None
    there.steps.append(Said(SAYS))
    assert (await ingest(floor)).state is JobState.SUCCEEDED
    assert shown(there.asked[0]) is not None


async def test_a_provider_that_is_down_puts_the_job_to_sleep(floor: Floor, there: ProviderServer) -> None:
    there.steps += [Status(503), Said(SAYS)]
    asleep = await ingest(floor)
    assert asleep.state is JobState.SCHEDULED
    await maintain(floor.engine, later=timedelta(minutes=5), only=lambda name: name == "promoter")
    await drain(floor.engine)
    done = await floor.services.client.show(asleep.id)
    assert done.state is JobState.SUCCEEDED, done.error_summary
    assert await text_of(floor, "lease") == SAYS

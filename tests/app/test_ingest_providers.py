"""`ingestion` of several chunks by the providers, through their SDKs: what is wrong with one chunk costs that one."""

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from kappa.app.kinds import remote_models
from kappa.engine import Job, JobState
from kappa.engine.testing import maintain
from tests.app.test_ingestion import ANN, Floor, opened
from tests.graph.dump import whole
from tests.graph.ingest.provider_server import KEY, WELL, Asked, ProviderServer, Raw, Said, Status, Step

MARK = "The seventh page is odd."
PAGES = [f"A lease prevents double work. So page {number} says, and more." for number in range(12)]
TEXT = "\n\n".join([*PAGES[:6], MARK, *PAGES[6:]])


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
    own = {f"{provider}_base_url": base, f"{provider}_api_key": KEY, "provider_tries": 2}
    async with opened(url, home, provider=provider, **own) as made:
        yield made


def odd(asked: Asked) -> bool:
    return MARK in json.dumps(asked.body)


async def ingest(floor: Floor) -> Job:
    uploaded = await floor.upload(TEXT)
    made = await floor.services.ingestions.submit(ANN, "tales", [uploaded.key], auto_approve=True)
    return await floor.run(made.job)


def chunks(url: str) -> list[tuple[str, str, int]]:
    """The text of each chunk, its state, and how many quotes are kept of it."""
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT substr(d.text, p.start_offset + 1, p.end_offset - p.start_offset), p.state, "
            "       (SELECT count(*) FROM kappa_graph.instances AS i "
            "          JOIN kappa_graph.sources AS s ON s.id = i.source_id "
            "         WHERE s.document_id = d.id AND s.ordinal = p.ordinal) "
            "  FROM kappa_graph.chunk_plan AS p JOIN kappa_graph.documents AS d ON d.id = p.document_id "
            " ORDER BY p.ordinal"
        ).fetchall()


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Said("{no JSON"), "no JSON"),
        (Said('{"concepts": 7}'), "schema"),
        (Said(WELL.text[:90], "length"), "was cut off"),
        (Raw(b"<html>", "text/html"), "not of its API"),
    ],
)
async def test_a_bad_answer_costs_its_chunk_a_clear_error_and_the_rest_is_whole(
    floor: Floor, there: ProviderServer, url: str, provider: str, answer: Step, complaint: str
) -> None:
    there.chosen = lambda asked: answer if odd(asked) else None
    done = await ingest(floor)
    assert done.state is JobState.SUCCEEDED, done.error_summary
    found = chunks(url)
    bad = [at for at, (text, _, _) in enumerate(found) if MARK in text]
    assert 0 < len(bad) < len(found) > 5
    assert [state for _, state, _ in found] == ["failed" if at in bad else "done" for at in range(len(found))]
    assert all(bool(quotes) == ("double work" in text and at not in bad)
               for at, (text, _, quotes) in enumerate(found))  # fmt: skip
    assert done.result["failed_chunks"] == len(bad) == len(done.result["errors"])
    for at, said in zip(bad, done.result["errors"], strict=True):
        assert said.startswith(f"chunk {at + 1}: {provider}/")
        assert complaint in said
    whole(url)
    # What failed, and nothing else, is asked again by the next one.
    there.chosen = lambda asked: None
    asked = len(there.asked)
    again = await ingest(floor)
    assert (again.state, again.result["failed_chunks"], again.result["calls"]) == (JobState.SUCCEEDED, 0, len(bad))
    assert all(map(odd, there.asked[asked:]))
    whole(url)


async def test_a_limit_that_passes_costs_nothing(floor: Floor, there: ProviderServer, url: str) -> None:
    there.chosen = once(odd, Status(429, {"retry-after": "0"}))
    done = await ingest(floor)
    assert (done.state, done.attempt) == (JobState.SUCCEEDED, 1), done.error_summary
    found = chunks(url)
    assert {state for _, state, _ in found} == {"done"}
    assert (done.result["failed_chunks"], len(there.asked)) == (0, len(found) + 1)
    whole(url)


async def test_a_provider_that_fails_puts_the_job_to_sleep_with_whole_chunks(
    floor: Floor, there: ProviderServer, url: str
) -> None:
    there.chosen = lambda asked: Status(500) if odd(asked) else None
    asleep = await ingest(floor)
    assert asleep.state is JobState.SCHEDULED, asleep.error_summary
    found = chunks(url)
    done = [state for _, state, _ in found].count("done")
    assert 0 < done < len(found)
    assert [state for _, state, _ in found] == ["done"] * done + ["pending"] * (len(found) - done)
    whole(url)
    there.chosen = lambda asked: None
    before = len(there.asked)
    await maintain(floor.engine, later=timedelta(minutes=5), only=lambda name: name == "promoter")
    ended = await floor.run(asleep.id)
    assert (ended.state, ended.result["failed_chunks"]) == (JobState.SUCCEEDED, 0), ended.error_summary
    assert len(there.asked) - before == len(found) - done, "no chunk that was committed is asked for again"
    whole(url)


def once(when: Callable[[Asked], bool], step: Step) -> Callable[[Asked], Step | None]:
    """The first request of this kind gets it."""
    lock, left = threading.Lock(), [step]

    def choose(asked: Asked) -> Step | None:
        with lock:
            return left.pop() if left and when(asked) else None

    return choose

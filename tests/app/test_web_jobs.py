"""What the pages tell of one job: its way, its children, its price; and what the list asks before it acts."""

import re
from html import unescape

import pytest

from kappa.app.web import jobs as pages
from kappa.app.web.rendering import price
from kappa.engine.store import jobs
from kappa.engine.store.jobs import PutBack
from kappa.pg.ops import run
from tests.app.conftest import Site
from tests.app.test_web import Browser, visitor
from tests.engine.hands import Connection, put, reap, start, take


@pytest.fixture
async def admin(site: Site) -> Browser:
    return await visitor(site, "platform_admin")


async def timeline(browser: Browser, job_id: int) -> list[tuple[str, str]]:
    """What a job's page says of its way, each with its tone."""
    text = (await browser.get(f"/ui/jobs/{job_id}")).text
    found = re.search(r'<ol class="timeline">(.*?)</ol>', text, re.DOTALL)
    assert found is not None
    moments = re.findall(r'<li class="([^"]*)">.*?<span>(.*?)</span>(.*?)</li>', found[1], re.DOTALL)
    return [(tone, re.sub(r"<[^>]+>", " ", unescape(said + more)).strip()) for tone, said, more in moments]


async def test_a_timeline_tells_who_was_lost_who_let_go_and_who_took_over(
    admin: Browser, connection: Connection
) -> None:
    job = start(connection, max_attempts=3, submitted_by="ada")
    connection.execute("UPDATE kappa.jobs SET lease_until = now() - interval '1 second' WHERE id = %s", [job.id])
    assert reap(connection) == 1
    told = await timeline(admin, job.id)
    assert told[-2:] == [
        ("bad", "its lease ran out: one gave no sign of life"),
        ("bad to-come", "it lost its worker, and waits to be adopted"),
    ]
    (second,) = take(connection, owner="two")
    run(connection, jobs.release([(second.id, second.token)]))
    (third,) = take(connection, owner="three")
    again = [PutBack(third.id, third.token, delay=3600.0, summary="the well was dry", started=True)]
    run(connection, jobs.put_back(again))
    assert await timeline(admin, job.id) == [
        ("", "enqueued by ada in the lane interactive"),
        ("", "first start"),
        ("bad", "its lease ran out: one gave no sign of life"),
        ("warn", "adopted by two"),
        ("warn", "two let go of it before its end"),
        ("warn", "adopted by three"),
        ("warn", "attempt 1 ended, on three; another one follows the well was dry"),
        ("now to-come", "due again the well was dry"),
    ]


async def test_a_job_with_very_many_children_says_that_it_shows_some(
    admin: Browser, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MANY", 2)
    parent = start(connection)
    for key in "ab":
        put(connection, "polarity", parent_id=parent.id, spawn_key=key)
    assert "there are more" not in (await admin.get(f"/ui/jobs/{parent.id}")).text
    last = put(connection, "polarity", parent_id=parent.id, spawn_key="c")
    text = (await admin.get(f"/ui/jobs/{parent.id}")).text
    assert "These are the first 2; there are more." in text
    assert f"/ui/jobs/{last}" not in text


async def test_a_way_with_very_many_turns_says_that_it_shows_some(
    admin: Browser, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MANY", 2)
    job = start(connection)
    for owner in ("two", "three"):
        connection.execute("UPDATE kappa.jobs SET lease_until = now() - interval '1 second' WHERE id = %s", [job.id])
        assert reap(connection) == 1
        take(connection, owner=owner)
    told = [said for _, said in await timeline(admin, job.id)]
    assert "adopted by two" in told
    assert "adopted by three" not in told
    assert "and more that is not shown: these were the first 2" in told


async def test_the_list_asks_before_it_cancels(site: Site, admin: Browser) -> None:
    job = await site.services.client.enqueue("self_test")
    text = (await admin.get("/ui/jobs")).text
    assert re.search(rf'action="/ui/jobs/{job.id}/cancel"[^>]* data-confirm="Cancel job {job.id}\?"', text)


async def test_a_price_reads_the_same_before_and_after_it_is_submitted(site: Site, admin: Browser) -> None:
    sent = {"ontology": "notes", "text": "Otters eat fish.", "name": "notes.md"}
    job = (await (await site.client("contributor")).post("/ingest", json=sent)).raise_for_status().json()["job"]
    assert re.search(r"<dt>price</dt>\s*<dd[^>]*>nothing</dd>", (await admin.get(f"/ui/jobs/{job}")).text)


@pytest.mark.parametrize(("dollars", "said"), [(None, "not known"), ("0", "nothing"), (0, "nothing"), (1.5, "$ 1.50")])
def test_a_price_is_said_in_words_where_there_is_none(dollars: float | str | None, said: str) -> None:
    assert price(dollars) == said

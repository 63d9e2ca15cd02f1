"""Documents over HTTP: uploads that stream, are refused, or break off; and what is submitted."""

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kappa.app.api.ingest_schemas import UPLOADS
from tests.app.conftest import Site
from tests.app.patience import becomes
from tests.app.remote import Request

MB = 1_000_000


def spool(site: Site) -> list[Path]:
    return list(site.services.spool.iterdir())


async def upload(site: Site, name: str = "a.txt", role: str = "contributor", **headers: Any) -> Request:
    """An upload under way, whose body is still to come."""
    return Request(
        site, "POST", UPLOADS, await site.token(role), query=f"name={name}",
        headers={key.replace("_", "-"): str(value) for key, value in headers.items()},
    ).begin()  # fmt: skip


async def test_an_upload_goes_to_the_disk_piece_by_piece(site: Site) -> None:
    request = await upload(site)
    sent = 0
    while sent < 3 * site.services.settings.max_body:
        request.send(b"a" * MB, more=True)
        sent += MB

        def on_disk(sent: int = sent) -> bool:
            return sum(path.stat().st_size for path in spool(site)) >= sent - 64 * 1024

        await becomes(on_disk, what=f"{sent} bytes are on the disk before the body has ended")
    request.hang_up()
    await request.answer()


async def test_a_caller_who_goes_away_in_the_middle_leaves_nothing(
    site: Site, connection: psycopg.Connection[tuple[Any, ...]]
) -> None:
    request = (await upload(site)).send(b"a" * MB, more=True)
    await becomes(lambda: spool(site), what="the upload is under way")
    request.hang_up()
    await request.answer()
    assert request.status == 400
    assert spool(site) == []
    assert connection.execute("SELECT count(*) FROM kappa_graph.uploads").fetchone() == (0,)


async def test_an_upload_that_says_it_is_too_large_is_refused_unread(site: Site) -> None:
    limit = site.services.settings.max_upload
    request = await (await upload(site, content_length=limit + 1)).answer()  # nothing of the body was sent
    assert (request.status, request.json()["code"]) == (413, "too_large")
    assert request.json()["detail"] == f"a document has {limit:,} bytes at most"
    assert request.headers["connection"] == "close"
    assert spool(site) == []


async def test_an_upload_that_becomes_too_large_is_refused_where_it_does(site: Site) -> None:
    site.services.settings.__dict__["max_upload"] = 2 * MB  # the settings are frozen, and a hundred megabytes are slow
    request = await upload(site)
    for _ in range(3):
        request.send(b"a" * MB, more=True)
    await request.answer()  # although the body goes on
    assert (request.status, request.json()["code"]) == (413, "too_large")
    assert spool(site) == []


@pytest.mark.parametrize(("role", "status"), [("read_only", 403), (None, 401)])
async def test_who_may_not_upload_is_told_before_the_body_is_read(site: Site, role: str | None, status: int) -> None:
    token = None if role is None else await site.token(role)
    request = await Request(site, "POST", UPLOADS, token, query="name=a.txt").begin().answer()
    assert request.status == status


@pytest.mark.parametrize(
    "body",
    [
        {"ontology": "x"},
        {"ontology": "x", "uploads": []},
        {"ontology": "x", "text": ""},
        {"ontology": "x", "text": "Otters eat fish.", "uploads": ["0" * 32]},
        {"ontology": "x", "uploads": ["0" * 32], "name": "a.txt"},
        {"ontology": "", "text": "Otters eat fish."},
        {"ontology": "x", "text": "Otters eat\u0000fish."},
        {"ontology": "x", "text": "Otters eat fish.", "auto_approve": "yes"},
    ],
    ids=json.dumps,
)
async def test_a_submission_that_makes_no_sense_is_refused(site: Site, body: dict[str, Any]) -> None:
    client = await site.client("contributor")
    answer = await client.post("/ingest", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "not_understood")

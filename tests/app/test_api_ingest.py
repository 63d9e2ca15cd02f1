"""Documents over HTTP: uploads that stream, are refused, or break off; and what is submitted."""

import hashlib
import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import pytest

from kappa.app.api.ingest_schemas import UPLOADS
from kappa.app.permissions import ROLES
from kappa.engine.testing import drain
from tests.app.conftest import KAPPA, Site, Up
from tests.app.patience import becomes
from tests.app.remote import Request
from tests.graph.ingest.made import hostile_pdf, raw_docx
from tests.ground import PATIENCE, eventually
from tests.memory import children, forget_peak, peak, runs

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


async def test_an_upload_larger_than_any_other_body_is_read_and_answered(site: Site) -> None:
    client = await site.client("contributor")
    text = b"Otters eat fish.\n\n" * 60_000
    assert len(text) > site.services.settings.max_body
    answer = await client.post(UPLOADS, params={"name": "otters.md"}, content=text)
    assert answer.status_code == 201, answer.text
    said = answer.json()
    assert (said["name"], said["size"], said["media_type"]) == ("otters.md", len(text), "text/markdown")
    assert said["sha256"] == hashlib.sha256(text).hexdigest()
    assert said["estimate"]["documents"] == 1
    assert said["estimate"]["words"] >= 180_000  # chunks overlap
    assert said["estimate"]["chunks"] >= 120
    assert float(said["estimate"]["price"]) == 0
    assert spool(site) == []
    again = await client.post(UPLOADS, params={"name": "otters.md"}, content=text)
    assert again.json()["key"] == said["key"]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_document"),
        (b" \n\t\n", "empty_document"),
        (b"%PDF-1.7 and no more", "broken_document"),
        (b"\x7fELF\x02\x01\x01" + bytes(64), "unknown_format"),
    ],
)
async def test_a_document_that_cant_be_read_is_refused_with_its_reason(site: Site, content: bytes, code: str) -> None:
    client = await site.client("contributor")
    answer = await client.post(UPLOADS, params={"name": "a.bin"}, content=content)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert "\n" not in answer.json()["detail"]
    assert spool(site) == []


async def test_an_upload_without_a_name_is_refused(site: Site) -> None:
    client = await site.client("contributor")
    for params in ({}, {"name": ""}, {"name": "a\0b"}, {"name": "a" * 501}):
        answer = await client.post(UPLOADS, params=params, content=b"Otters eat fish.")
        assert (answer.status_code, answer.json()["code"]) == (422, "not_understood")


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


async def test_uploads_are_submitted_as_one_job_and_their_concepts_found(site: Site) -> None:
    client = await site.client("curator")
    keys = [
        (await client.post(UPLOADS, params={"name": name}, content=text.encode())).json()["key"]
        for name, text in {"otters.txt": "Otters eat fish.", "herons.md": "Herons eat *fish*."}.items()
    ]
    body = {"ontology": "zoology", "uploads": keys, "auto_approve": True, "priority": 7}
    answer = await client.post("/ingest", json=body)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert answer.headers["location"] == f"/jobs/{made['job']}"
    assert (made["state"], made["estimate"]["documents"], made["duplicates"]) == ("queued", 2, [])
    await drain(site.engine)
    job = (await client.get(f"/jobs/{made['job']}")).json()
    assert (job["state"], job["submitted_by"], job["priority"]) == ("succeeded", "curator", 7)
    assert (job["approved_by"], job["result"]["documents"]) == ("curator", 2)
    shown = (await client.get("/graph/concepts/fish", params={"ontology": "zoology"})).json()
    assert {one["document_name"] for one in shown["evidence"]} == {"otters.txt", "herons.md"}


async def test_a_small_text_needs_no_upload_and_the_same_again_is_refused(site: Site) -> None:
    client = await site.client("contributor")
    body = {"ontology": "zoology", "text": "Whales eat krill.", "name": "whales.txt"}
    first = await client.post("/ingest", json=body)
    assert (first.status_code, first.json()["state"]) == (201, "awaiting_approval")
    assert spool(site) == []
    again = await client.post("/ingest", json={**body, "name": "others.txt"})
    said = again.json()
    assert (again.status_code, said["code"]) == (409, "already_there")
    assert [(one["name"], one["job"]) for one in said["duplicates"]] == [("others.txt", first.json()["job"])]
    assert said["detail"].startswith(f"others.txt is there already: job {first.json()['job']} has the same content")
    elsewhere = await client.post("/ingest", json={**body, "ontology": "oceans"})
    assert elsewhere.status_code == 201
    forced = await client.post("/ingest", json={**body, "force": True})
    assert forced.status_code == 201


async def test_what_a_submission_may_not(site: Site) -> None:
    client = await site.client("contributor")
    body = {"ontology": "zoology", "text": "Whales eat krill."}
    approving = await client.post("/ingest", json={**body, "auto_approve": True})
    assert (approving.status_code, "jobs:approve" in approving.json()["detail"]) == (403, True)
    unknown = await client.post("/ingest", json={"ontology": "zoology", "uploads": [str(UUID(int=1))]})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    provider = await client.post("/ingest", json={**body, "provider": "nobody"})
    assert (provider.status_code, provider.json()["code"]) == (422, "refused")
    assert (await client.get("/jobs")).json()["items"] == []
    theirs = (await client.post(UPLOADS, params={"name": "a.txt"}, content=b"Otters eat fish.")).json()["key"]
    scoped = await site.services.credentials.make_token(
        KAPPA, "feeds", user="contributor", user_permissions=frozenset(map(str, ROLES["contributor"])),
        scopes=["graph:ingest"],
    )  # fmt: skip
    feeder = await site.client(token=scoped.secret)
    assert (await feeder.post("/ingest", json={"ontology": "zoology", "uploads": [theirs]})).status_code == 201
    assert (await feeder.post("/jobs", json={"kind": "self_test"})).status_code == 403


def begin_upload(up: Up) -> socket.socket:
    """An upload of which a megabyte has come, and most never will."""
    address = urlsplit(up.url)
    connection = socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=PATIENCE)
    head = (
        f"POST {UPLOADS}?name=a.txt HTTP/1.1\r\nHost: kappa\r\nAuthorization: Bearer {up.token}\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {50 * MB}\r\n\r\n"
    )
    connection.sendall(head.encode() + b"a" * MB)
    eventually(lambda: any(path.stat().st_size for path in spooled(up)), what="the upload is under way")
    return connection


def spooled(up: Up) -> list[Path]:
    return [path for path in (up.home / "spool").glob("*/*") if path.is_file()]


def test_a_connection_that_breaks_in_the_middle_leaves_nothing(
    up: Up, connection: psycopg.Connection[tuple[Any, ...]]
) -> None:
    begin_upload(up).close()
    eventually(lambda: not spooled(up), what="the spool is empty")
    assert connection.execute("SELECT count(*) FROM kappa_graph.uploads").fetchone() == (0,)
    with up.client() as client:
        assert client.post(UPLOADS, params={"name": "a.txt"}, content=b"Otters eat fish.").status_code == 201
    assert up.stop() == 0
    assert "Traceback" not in up.said


def test_what_a_killed_server_had_begun_to_take_is_swept_by_the_next(start_up: Callable[..., Up]) -> None:
    first = start_up()
    with begin_upload(first):
        first.kill()
        assert spooled(first)
        second = start_up()
        assert spooled(second) == []


async def test_a_document_that_wants_gigabytes_is_refused_with_the_setting_and_leaves_nothing(
    site: Site, connection: psycopg.Connection[tuple[Any, ...]]
) -> None:
    client = await site.client("contributor")
    answer = await client.post(UPLOADS, params={"name": "bomb.pdf"}, content=hostile_pdf(6))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert answer.json()["detail"].startswith("bomb.pdf: it needs more than 512 MB to read (KAPPA_READING_MEMORY_MB)")
    assert spool(site) == []
    assert connection.execute("SELECT count(*) FROM kappa_graph.uploads").fetchone() == (0,)


def test_hostile_documents_cost_the_server_no_memory_and_others_are_answered(start_up: Callable[..., Up]) -> None:
    up = start_up(env={"KAPPA_READING_SECONDS": "2"})
    slow = raw_docx("<w:p><w:r><w:t>a</w:t></w:r></w:p>" * 2_000_000)
    with up.client() as client, ThreadPoolExecutor(4) as threads:

        def send(name: str, content: bytes) -> int:
            return client.post(UPLOADS, params={"name": name}, content=content, timeout=4 * PATIENCE).status_code

        assert send("otters.txt", b"Otters eat fish.") == 201
        before = forget_peak(up.process.pid)
        hostile = [threads.submit(send, "bomb.pdf", hostile_pdf(6)) for _ in range(2)]
        hostile += [threads.submit(send, "slow.docx", slow) for _ in range(2)]
        answered = 0
        while not all(one.done() for one in hostile):
            assert client.get("/healthz").status_code == 200
            assert client.get("/jobs").status_code == 200
            answered += 1
        assert [one.result() for one in hostile] == [413] * 4
        assert answered
        assert peak(up.process.pid) - before < 64
        assert send("more.txt", b"Otters live in rivers.") == 201
    server = up.process.pid
    readers = children(server)
    assert up.stop() == 0
    assert not any(map(runs, readers))
    assert "Traceback" not in up.said

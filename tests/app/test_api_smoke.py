"""The API answers."""

import httpx2

from tests.app.conftest import Site, Up


async def test_a_job_goes_in_and_can_be_seen(operator: httpx2.AsyncClient) -> None:
    made = await operator.post("/jobs", json={"kind": "self_test", "payload": {"steps": 2}})
    assert (made.status_code, made.json()["status"]) == (201, "created")
    seen = await operator.get(made.headers["location"])
    assert (seen.json()["state"], seen.json()["submitted_by"]) == ("queued", "platform_admin")


async def test_nobody_is_let_in_without_a_token(site: Site) -> None:
    refused = await (await site.client(None)).get("/jobs")
    assert (refused.status_code, refused.headers["content-type"]) == (401, "application/problem+json")


def test_a_server_does_jobs(up: Up) -> None:
    with up.client() as client:
        made = client.post("/jobs", json={"kind": "self_test", "payload": {"steps": 2}}).json()
        with client.stream("GET", f"/jobs/{made['id']}/events") as stream:
            events = [line for line in stream.iter_lines() if line.startswith("data: ")]
        assert '"state":"succeeded"' in events[-1]
    assert up.stop() == 0, up.said

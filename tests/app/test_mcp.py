"""Agents: the official client of the protocol beside a real `kg up`, through `kg mcp` and over HTTP."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.transport_security import TransportSecurityMiddleware
from mcp_types import CallToolResult, TextContent
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kappa.app.api.middleware import RequestId
from kappa.app.cli import entry
from kappa.app.mcp import http as over_http
from kappa.app.settings import Settings
from tests.app import worlds
from tests.app.conftest import Up
from tests.app.person import served
from tests.conftest import Server
from tests.ground import PATIENCE, eventually, kg

STATUS = "kappa://workers/status"
TOOLS = {
    *("enqueue_job", "list_jobs", "show_job", "wait_for_job", "approve_job", "reject_job", "cancel_job"),
    *("retry_job", "prioritise_job"),
    *("list_schedules", "show_schedule", "add_schedule", "edit_schedule", "run_schedule", "delete_schedule"),
    *("search", "concept", "related", "path", "polarity", "list_results", "read_result", "ingest"),
    *("ontologies", "proposals"),
    *("tools", "run_tool", "list_tool_runs", "show_tool_run", "wait_for_tool_run", "read_artifact", "cancel_tool_run"),
}


@pytest.fixture(scope="module")
def shared(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with served(server, template, tmp_path_factory) as up:
        yield up


@asynccontextmanager
async def agent(up: Up, way: str, token: str | None = None) -> AsyncGenerator[Client]:
    """An agent that speaks one way, in the newest form of the protocol or, as most do, after a handshake."""
    transport, _, mode = way.partition(" ")
    if transport == "stdio":
        env = up.env | ({"KAPPA_TOKEN": token} if token else {})
        command = StdioServerParameters(command=sys.executable, args=["-m", "kappa.app.cli.entry", "mcp"], env=env)
        async with Client(command, mode=mode or "auto", read_timeout_seconds=PATIENCE) as client:
            yield client
    else:
        headers = {"Authorization": f"Bearer {token or up.token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
            connection = streamable_http_client(f"{up.url}/mcp", http_client=http)
            async with Client(connection, mode=mode or "auto", read_timeout_seconds=PATIENCE) as client:
                yield client


async def call(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """What a tool gave, the same for programs and for models."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer
    assert answer.structured_content is not None
    assert json.loads(_text(answer)) == answer.structured_content
    assert "\n" not in _text(answer), "an agent pays for every character"
    return answer.structured_content


async def refusal(client: Client, tool: str, /, **arguments: Any) -> str:
    """The line that a tool refused with."""
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error, answer
    line = _text(answer)
    assert "\n" not in line
    return line


def _text(answer: CallToolResult) -> str:
    [content] = answer.content
    assert isinstance(content, TextContent)
    return content.text


def token_for(up: Up, role: str, scopes: list[str] | None = None) -> str:
    with up.client() as operator:
        operator.post("/users", json={"name": role, "roles": [role]}).raise_for_status()
        made = operator.post(f"/users/{role}/tokens", json={"name": "agent", "scopes": scopes}).raise_for_status()
        return made.json()["token"]


@pytest.mark.parametrize("way", ["stdio", "stdio legacy", "http", "http legacy"])
async def test_an_agent_looks_around_and_sees_a_job_through(shared: Up, way: str, tmp_path: Path) -> None:
    async with agent(shared, way) as client:
        resources = {one.uri: (one.name, one.mime_type) for one in (await client.list_resources()).resources}
        assert resources == {
            STATUS: ("workers/status", "application/json"),
            "kappa://graph/vocabulary": ("graph/vocabulary", "application/json"),
        }
        [content] = (await client.read_resource(STATUS)).contents
        status = json.loads(content.text)
        assert "self_test" in next(lane for lane in status["lanes"] if lane["name"] == "checks")["kinds"]
        assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS

        made = await call(client, "enqueue_job", kind="gated", payload={"gates": str(tmp_path), "steps": 4})
        assert made["status"] == "created"
        told: list[tuple[float, float | None, str | None]] = []
        (tmp_path / "1").touch()

        async def hear(done: float, total: float | None, message: str | None) -> None:
            told.append((done, total, message))
            (tmp_path / str(int(done) + 1)).touch()

        waited = await client.call_tool("wait_for_job", {"job_id": made["id"]}, progress_callback=hear)
        assert waited.structured_content is not None
        job = waited.structured_content
        assert (job["state"], job["result"], job["submitted_by"]) == ("succeeded", 4, "operator")
        assert told[-1] == (4, 4, "through gate 4")
        assert [done for done, _, _ in told] == sorted({done for done, _, _ in told}), "progress grows"
        assert {1, 2, 3} <= {done for done, _, _ in told}, "it was told while the job ran"


async def test_what_can_be_done_with_jobs(start_up: Callable[..., Up]) -> None:
    up = start_up("--no-lanes")
    async with agent(up, "http") as client:
        first = (await call(client, "enqueue_job", kind="self_test", payload={}, dedup_key="one"))["id"]
        again = await call(client, "enqueue_job", kind="self_test", payload={}, dedup_key="one")
        assert again == {"id": first, "status": "existing"}
        assert (await call(client, "prioritise_job", job_id=first, priority=7))["priority"] == 7
        for seconds in (0, 0.2):
            waited = await call(client, "wait_for_job", job_id=first, seconds=seconds)
            assert waited["state"] == "queued", "the time was up"
        cancelled = await call(client, "cancel_job", job_id=first, reason="changed my mind")
        assert (cancelled["state"], cancelled["reason"]) == ("cancelled", "changed my mind")
        anew = (await call(client, "retry_job", job_id=first))["id"]
        assert (await call(client, "show_job", job_id=anew))["retry_of"] == first

        page = await call(client, "list_jobs", kind=["self_test"], limit=1)
        assert [job["id"] for job in page["items"]] == [anew]
        rest = await call(client, "list_jobs", before=page["next"], state=["cancelled"])
        assert ([job["id"] for job in rest["items"]], rest["next"]) == ([first], None)


async def test_approving_and_rejecting(start_up: Callable[..., Up], tmp_path: Path) -> None:
    (tmp_path / "costly.py").write_text(
        "from kappa.engine import Lane\n"
        "def setup(engine):\n"
        "    engine.lane(Lane('costs', kinds=('costly',)))\n"
        "    @engine.job('costly', approval=True)\n"
        "    def costly(ctx): ...\n"
    )  # fmt: skip
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    up = start_up("--no-lanes", env={"KAPPA_HANDLERS": "costly:setup", "PYTHONPATH": path})
    async with agent(up, "stdio") as client:
        [one, other] = [(await call(client, "enqueue_job", kind="costly"))["id"] for _ in range(2)]
        waiting = await call(client, "list_jobs", state=["awaiting_approval"])
        assert {job["id"] for job in waiting["items"]} == {one, other}
        approved = await call(client, "approve_job", job_id=one)
        assert (approved["state"], approved["approved_by"]) == ("queued", "operator")
        rejected = await call(client, "reject_job", job_id=other)
        assert (rejected["state"], rejected["reason"]) == ("cancelled", "rejected")
        assert (await refusal(client, "approve_job", job_id=other)).startswith(f"job {other} is cancelled")


@pytest.mark.parametrize("way", ["stdio", "http legacy"])
async def test_an_agent_asks_the_graph(shared: Up, way: str) -> None:
    with shared.client() as operator:
        operator.post("/graph/concepts", json=worlds.concepts()).raise_for_status()
        epoch = operator.post("/graph/relations", json=worlds.relations()).raise_for_status().json()["epoch"]
        eventually(lambda: (operator.get("/graph/status").json()["snapshot"]["epoch"] or 0) >= epoch)
    async with agent(shared, way) as client:
        found = await call(client, "search", text="playful", ontologies=["zoology"])
        [hit] = found["items"]
        assert (hit["concept"]["label"], found["complete"]) == ("Otter", True)
        alike = await call(client, "search", like="Whale", min_similarity=0.9)
        assert [one["concept"]["label"] for one in alike["items"]] == ["Sea"]
        assert "needs a vector" in await refusal(client, "search", text="playful", min_similarity=0.9)
        shown = await call(client, "concept", concept=hit["concept"]["id"])
        assert (shown["concept"]["description"], shown["evidence"]) == ("a playful swimmer", [])
        near = await call(client, "related", concept="Otter", max_hops=1, relation_types=["EATS"])
        assert [(one["concept"]["label"], one["types"]) for one in near["items"]] == [("Fish", ["EATS"])]
        way_there = await call(client, "path", start="Otter", goal="Whale", around=1)
        assert [one["label"] for one in way_there["items"][0]["concepts"]] == ["Otter", "River", "Sea", "Whale"]
        assert len(way_there["around"]) == 4
        assert all(one["measured"]["confidence"] for one in way_there["items"][0]["concepts"])
        poles = await call(client, "polarity", positive="River", negative="Sea", max_hops=3)
        assert [one["concept"]["label"] for one in poles["items"]] == ["Otter", "Fish", "Krill", "Whale"]

        [content] = (await client.read_resource("kappa://graph/vocabulary")).contents
        types = {one["name"]: one for one in json.loads(content.text)}
        assert {"EATS", "LIVES_IN"} <= types.keys()
        assert (types["EATS"]["stance_by"], types["EATS"]["epistemic"]) == ("words", None)

        assert await refusal(client, "related", concept="Yeti") == "there is no concept 'Yeti'"
        assert (await refusal(client, "related", concept="Otter", max_hops=21)).startswith("max_hops: ")


@pytest.mark.parametrize("way", ["stdio", "http legacy"])
async def test_an_agent_reads_what_a_job_left(shared: Up, way: str) -> None:
    with shared.client() as operator:
        operator.post("/graph/concepts", json=worlds.concepts()).raise_for_status()
        operator.post("/graph/relations", json=worlds.relations()).raise_for_status()
    async with agent(shared, way) as client:
        kinds = {"projection": {"way": "pca"}, "polarity": {"positive": "River", "negative": "Sea"}}
        for kind, payload in kinds.items():
            made = await call(client, "enqueue_job", kind=kind, payload=payload)
            job = await call(client, "wait_for_job", job_id=made["id"])
            assert job["state"] == "succeeded", job
            left = await call(client, "read_result", artifact=job["result"]["artifact"])
            assert (left["artifact"]["kind"], left["picture"]) == (kind, None)
            assert "Otter" in json.dumps(left["content"])
            drawn = await call(client, "read_result", artifact=job["result"]["artifact"], picture=True)
            assert drawn["content"] is None
            assert ET.fromstring(drawn["picture"]).tag.endswith("svg")
            listed = await call(client, "list_results", kind=kind)
            assert job["result"]["artifact"] in [one["id"] for one in listed["items"]]
        nobody = await refusal(client, "read_result", artifact=str(UUID(int=5)))
        assert nobody == f"there is no artifact {UUID(int=5)}"


@pytest.mark.parametrize("way", ["stdio", "http legacy"])
async def test_an_agent_reads_a_text_into_the_graph(shared: Up, way: str) -> None:
    place, text = f"agent {way}", "Beavers build dams. A dam contains water."
    async with agent(shared, way) as client:
        made = await call(client, "ingest", ontology=place, text=text, name="beavers.md")
        assert (made["state"], made["estimate"]["documents"], made["duplicates"]) == ("awaiting_approval", 1, [])
        await call(client, "approve_job", job_id=made["job"])
        job = await call(client, "wait_for_job", job_id=made["job"])
        assert (job["state"], job["submitted_by"]) == ("succeeded", "operator")
        shown = await call(client, "concept", concept="dam", ontology=place)
        assert {(one["quote"], one["document_name"]) for one in shown["evidence"]} == {
            ("Beavers build dams.", "beavers.md"), ("A dam contains water.", "beavers.md"),
        }  # fmt: skip
        again = await refusal(client, "ingest", ontology=place, text=text, name="again.md")
        assert again.startswith("again.md is there already: document ")
        with shared.client() as operator:
            sent = operator.post("/ingest/uploads", params={"name": "otters.txt"}, content=b"Otters eat fish.")
        by_key = await call(
            client, "ingest", ontology=place, uploads=[sent.raise_for_status().json()["key"]], auto_approve=True
        )
        assert (await call(client, "wait_for_job", job_id=by_key["job"]))["state"] == "succeeded"

        assert "either uploads or text" in await refusal(client, "ingest", ontology=place)
        assert (await refusal(client, "ingest", ontology=place, text="a" * 200_001)).startswith("text: ")
    reader = token_for(shared, "read_only", ["graph:read", "account:use"]) if way == "stdio" else None
    if reader is not None:
        async with agent(shared, way, reader) as client:
            assert "graph:ingest" in await refusal(client, "ingest", ontology=place, text="Frogs eat flies.")


async def test_an_error_is_one_clear_line(shared: Up) -> None:
    async with agent(shared, "http") as client:
        assert await refusal(client, "show_job", job_id=404) == "there is no job 404"
        assert await refusal(client, "wait_for_job", job_id=404) == "there is no job 404"
        assert "'nonsense'" in await refusal(client, "enqueue_job", kind="nonsense")
        assert "steps" in await refusal(client, "enqueue_job", kind="self_test", payload={"steps": -1})
        said = await refusal(client, "list_jobs", limit=0, state=["odd"])
        assert (said.startswith("state.0: "), "; limit: " in said) == (True, True)
        assert (await refusal(client, "show_job", id=1)).startswith("show_job has no id: it takes job_id")
        with pytest.raises(MCPError, match="Unknown resource"):
            await client.read_resource("kappa://nothing")


@pytest.mark.parametrize("way", ["stdio", "http legacy"])
async def test_an_agent_may_do_what_its_token_may(up: Up, way: str) -> None:
    reader, jobs_alone = token_for(up, "read_only"), token_for(up, "contributor", ["jobs:view", "jobs:enqueue"])
    async with agent(up, way, reader) as client, agent(up, way, jobs_alone) as other:
        assert (await call(client, "list_jobs"))["items"] == []
        assert "jobs:enqueue" in await refusal(client, "enqueue_job", kind="self_test", payload={})
        with pytest.raises(MCPError, match="workers:view") as refused:
            await client.read_resource(STATUS)
        assert "\n" not in str(refused.value)

        made = await call(other, "enqueue_job", kind="self_test", payload={})
        assert (await call(client, "show_job", job_id=made["id"]))["submitted_by"] == "contributor"
        assert "jobs:cancel" in await refusal(other, "cancel_job", job_id=made["id"])


async def test_what_agents_do_is_in_the_audit_log_under_the_request_that_did_it(start_up: Callable[..., Up]) -> None:
    up = start_up("--no-lanes")
    async with agent(up, "http") as client:
        job_id = (await call(client, "enqueue_job", kind="self_test", payload={}))["id"]
    asked = {"name": "cancel_job", "arguments": {"job_id": job_id}}
    with up.client() as operator:
        done = operator.post("/mcp", json=_request("tools/call", asked), headers=_headers("x-request-id", "agent-7"))
        assert (done.status_code, done.headers["x-request-id"]) == (200, "agent-7")
        [entry] = [one for one in operator.get("/audit").json()["items"] if one["action"] == "job.cancel"]
    assert (entry["who"], entry["target"], entry["request_id"]) == ("operator", str(job_id), "agent-7")


def _request(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def _headers(*more: str) -> dict[str, str]:
    return {"accept": "application/json, text/event-stream", **dict(zip(more[::2], more[1::2], strict=True))}


def test_http_refuses_strangers_other_methods_other_hosts_and_large_bodies(shared: Up) -> None:
    listing = _request("tools/list", {})
    with httpx2.Client(base_url=shared.url, headers=_headers(), timeout=PATIENCE) as stranger:
        for authorization in ({}, {"authorization": "Bearer no"}, {"authorization": b"Bearer \xff"}):
            refused = stranger.post("/mcp", json=listing, headers=authorization)
            problem = (refused.status_code, refused.headers["content-type"], refused.json()["code"])
            assert problem == (401, "application/problem+json", "not_authenticated")
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.json()["request_id"] == refused.headers["x-request-id"]
    with shared.client() as known:
        assert known.post("/mcp", json=listing, headers=_headers()).status_code == 200
        for method in ("GET", "DELETE"):
            refused = known.request(method, "/mcp", headers=_headers())
            assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
        assert known.post("/mcp", json=listing, headers=_headers("host", "evil.example")).status_code == 421
        assert known.post("/mcp", json=listing, headers=_headers("origin", "https://evil.example")).status_code == 403
        large = known.post(
            "/mcp", content=b" " * (1024 * 1024 + 1), headers=_headers("content-type", "application/json")
        )
        assert (large.status_code, large.json()["code"]) == (413, "too_large")
        assert known.get("/mcp/other").status_code == 404


@pytest.mark.parametrize(
    ("host", "given", "known"),
    [
        ("127.0.0.1", None, {"127.0.0.1:8420", "localhost:8420", "[::1]"}),
        ("localhost", None, {"localhost"}),
        ("::1", "kappa.example", {"[::1]:8420", "kappa.example"}),
        ("10.0.0.7", None, {"10.0.0.7:8420", "localhost"}),
        ("kappa", None, {"kappa", "kappa:8420"}),
        ("0.0.0.0", "kappa.example, other.example:8443", {"kappa.example:80", "other.example:8443", "127.0.0.1"}),
        ("0.0.0.0", None, None),
    ],
)
def test_names_are_checked_where_they_are_known(host: str, given: str | None, known: set[str] | None) -> None:
    security = over_http._security(Settings(host=host, mcp_hosts=given))
    assert security.enable_dns_rebinding_protection is (known is not None)
    checks = TransportSecurityMiddleware(security)
    for name in known or ():
        assert checks._validate_host(name), name
        assert checks._validate_origin(f"https://{name}"), name
    if known is not None:
        assert not checks._validate_host("evil.example")
        assert not checks._validate_host("10.0.0.8:8420")
        assert not checks._validate_origin("https://evil.example")


def test_a_server_that_no_agent_called_has_loaded_nothing_of_the_protocol() -> None:
    program = "import kappa.app.mcp.http, sys; sys.exit(any(name.startswith('mcp') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_agents_that_come_first_and_at_once_are_all_answered(home: Path) -> None:
    async def api(scope: Scope, receive: Receive, send: Send) -> None:
        await Response("{}", media_type="application/json")(scope, receive, send)

    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}},
    }  # fmt: skip
    async with over_http.opened(Settings(home=home)) as before_api:
        transport = httpx2.ASGITransport(app=RequestId(before_api(api)))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"Accept": "application/json, text/event-stream"}
            answers = await asyncio.gather(*(client.post("/mcp", json=hello, headers=headers) for _ in range(3)))
    assert [one.status_code for one in answers] == [200] * 3, answers[0].text


COUNTS = (
    'read words <input/words.txt; echo "counting $words"; echo "a word of care" >&2; printf kept >output/kept.txt; '
    "printf '\\377\\376' >output/raw.bin; "
    'echo \'{"contract_version": 1, "status": "succeeded", "outputs": {"words": 3}, "artifacts": '
    '[{"path": "kept.txt"}, {"path": "raw.bin"}]}\' >result.json'
)


@pytest.mark.parametrize("way", ["stdio", "http legacy"])
async def test_an_agent_runs_a_tool_and_sees_it_through(shared: Up, way: str) -> None:
    name = f"count-{way.split()[0]}"
    with shared.client() as operator:
        for tool, command in ((name, COUNTS), (f"{name}-ever", "echo began; sleep 600")):
            body = {"name": tool, "version": "1", "argv": ["sh", "-c", command], "description": "Counts words"}
            operator.post("/tools", json=body).raise_for_status()
    async with agent(shared, way) as client:
        offered = {tool["name"]: tool for tool in (await call(client, "tools"))["items"]}
        assert offered[name]["description"] == "Counts words"
        words = base64.b64encode(b"one two three\n").decode()
        run = await call(client, "run_tool", tool=name, inputs={"of": "words"}, files={"words.txt": words})
        assert (run["tool"], run["requested_by"]) == (name, "operator")
        done = await call(client, "wait_for_tool_run", run_id=run["id"])
        assert (done["run"]["status"], done["run"]["outputs"]) == ("succeeded", {"words": 3})
        assert (done["stdout"], done["stderr"]) == ("counting one two three\n", "a word of care\n")
        assert {one["path"] for one in done["artifacts"]} == {"kept.txt", "raw.bin"}
        kept = await call(client, "read_artifact", run_id=run["id"], path="kept.txt")
        assert kept["text"] == "kept"
        assert "is no text" in await refusal(client, "read_artifact", run_id=run["id"], path="raw.bin")
        listed = await call(client, "list_tool_runs", tool=name)
        assert [one["id"] for one in listed["items"]] == [run["id"]]

        ever = (await call(client, "run_tool", tool=f"{name}-ever"))["id"]
        heard: list[str | None] = []

        async def hear(done: float, total: float | None, message: str | None) -> None:
            heard.append(message)

        while not (seen := await call(client, "show_tool_run", run_id=ever))["stdout"]:
            await client.call_tool("wait_for_tool_run", {"run_id": ever, "seconds": 0.1})
        assert (seen["run"]["status"], seen["stdout"]) == ("running", "began\n"), "logs are seen while it runs"
        while "running" not in heard:
            await client.call_tool("wait_for_tool_run", {"run_id": ever, "seconds": 0.1}, progress_callback=hear)
        await call(client, "cancel_tool_run", run_id=ever, reason="enough")
        ended = await call(client, "wait_for_tool_run", run_id=ever, log_characters=2)
        assert (ended["run"]["status"], ended["run"]["reason"], ended["stdout"]) == ("cancelled", "enough", "n\n")

        assert await refusal(client, "show_tool_run", run_id=404_404) == "there is no tool run 404404"
        assert (await refusal(client, "run_tool", tool="nothing")).startswith("there is no tool ")


async def test_a_waiting_agent_hears_of_a_server_that_drains(start_up: Callable[..., Up]) -> None:
    up = start_up("--no-lanes")
    async with agent(up, "http") as client:
        job_id = (await call(client, "enqueue_job", kind="self_test", payload={}))["id"]

        async def stop(done: float, total: float | None, message: str | None) -> None:
            up.process.send_signal(signal.SIGTERM)  # the wait has begun, or it could not tell

        waited = await client.call_tool("wait_for_job", {"job_id": job_id}, progress_callback=stop)
        assert waited.structured_content is not None
        assert waited.structured_content["state"] == "queued"
    assert up.process.wait(PATIENCE) == 0
    assert "Traceback" not in up.said


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({}, "kg: no server runs here: start one with `kg up`, or set KAPPA_SERVER and KAPPA_TOKEN"),
        (
            {"KAPPA_SERVER": "http://127.0.0.1:1", "KAPPA_TOKEN": "x"},
            "kg: the server at http://127.0.0.1:1 doesn't answer",
        ),
    ],
)
def test_a_server_that_isnt_there_gives_one_line(home: Path, env: dict[str, str], line: str) -> None:
    done = kg("mcp", home=home, env=env)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (entry.NO_SERVER, "", 1)
    assert done.stderr.startswith(line)


def test_a_token_that_doesnt_count_gives_one_line(shared: Up) -> None:
    done = kg("mcp", home=shared.home, env={"KAPPA_TOKEN": "wrong"})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (entry.NOT_ALLOWED, "", 1), done.stderr


async def test_a_server_that_has_gone_is_one_line_to_the_agent(up: Up) -> None:
    async with agent(up, "stdio") as client:
        up.stop()
        assert (await refusal(client, "list_jobs")).startswith(f"the server at {up.url} doesn't answer")


def test_kg_mcp_says_nothing_but_the_protocol_and_ends_when_told(shared: Up) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen(
            [sys.executable, "-m", "kappa.app.cli.entry", "mcp"],
            env=shared.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        process.stdin.write(json.dumps(_request("initialize", hello)) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "kappa"
        process.send_signal(number)
        said, complaint = process.communicate(timeout=PATIENCE)
        assert (process.returncode, said, complaint) == (-number, "", "")

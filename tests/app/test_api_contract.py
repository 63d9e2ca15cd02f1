"""What the OpenAPI document says, a real server does: schemathesis asks every operation, with sense and without.

The requests go to a `kg up` process, one for the module. They may revoke every token and remove every user that they
come across, so their own is looked after: it is replaced when it was lost, and no answer to it may be a 401.
"""

import hashlib
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import requests
import schemathesis
from argon2 import PasswordHasher
from hypothesis import HealthCheck, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation

from kappa.app.api import application
from kappa.engine.tools import ArtifactStore, artifacts_of
from kappa.graph.identity import concept_key, ontology_key
from tests.app.conftest import Up
from tests.conftest import Server

SEED = 5
EXAMPLES = 6
PLAN = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}

KNOWN = ("checks", "self_test", "decoy", "spare", "contributor", "jobs:view")
"""A lane, a kind, a user, a role, a permission: made-up names alone would find nothing but 404."""

NOT_ASKED = {
    # 422 is documented everywhere: kinds, roles, permissions and times are judged by more than a schema can say.
    "positive_data_acceptance",
    # A token or a user that was removed is made again under the same name by another scenario.
    "use_after_free",
}

TAKES_ANY_NAME = {
    *("GET /graph/ontologies/{name}", "DELETE /graph/ontologies/{name}"),
    *("GET /schedules/{name}", "DELETE /schedules/{name}"),
    *(f"POST /schedules/{{name}}/{act}" for act in ("pause", "resume", "run")),
}
"""Nothing that a path can say is wrong for them."""

PASSWORD = "known to the tests"
ARTIFACT = hashlib.sha256(b"a").hexdigest()

ONTOLOGY = ontology_key("checks")
GRAPH = (
    "TRUNCATE kappa_graph.ontologies, kappa_graph.relation_types RESTART IDENTITY CASCADE",
    f"INSERT INTO kappa_graph.ontologies (key, name) VALUES ('{ONTOLOGY}', 'checks')",
    "INSERT INTO kappa_graph.concepts (key, ontology_id, label, embedding, embedding_model) VALUES"
    f" ('{concept_key(ONTOLOGY, 'checks')}', 1, 'checks', '{{1,0}}', 'spare'),"
    f" ('{concept_key(ONTOLOGY, 'spare')}', 1, 'spare', '{{0,1}}', 'spare')",
    "INSERT INTO kappa_graph.relation_types (name) VALUES ('self_test'), ('spare'), ('checks')",
    "INSERT INTO kappa_graph.relation_types (name, active, merged_into) VALUES ('gone', false, 1)",
    "INSERT INTO kappa_graph.type_merges (merged, survivor, moved, followers) VALUES (4, 1, '{}', '{}')",
    "INSERT INTO kappa_graph.artifacts (key, kind, as_of_epoch, content, bytes, media_type)"
    f" VALUES ('{ONTOLOGY}', 'projection', 0, '{{}}', '<svg/>', 'image/svg+xml') ON CONFLICT DO NOTHING",
    "INSERT INTO kappa_graph.relations (from_id, to_id, type_id) VALUES (1, 2, 1)",
    "UPDATE kappa_graph.graph_settings SET workers = NULL, timeout = NULL",
    "INSERT INTO kappa_graph.proposals (key, kind, ontology_id, body, as_of_epoch, state, decided_by, decided_at,"
    " executed_at) VALUES (gen_random_uuid(), 'rename', 1, '{}', 0, 'pending', NULL, NULL, NULL),"
    " (gen_random_uuid(), 'rename', 1, '{}', 0, 'approved', 'decoy', now(), NULL),"
    " (gen_random_uuid(), 'rename', 1, '{}', 0, 'executed', 'decoy', now(), now())",
)

FRESH = (
    "TRUNCATE kappa.jobs, kappa.finished_jobs, kappa.users, kappa.user_roles, kappa.tokens, kappa.audit,"
    " kappa.sign_in_failures RESTART IDENTITY CASCADE",
    "DELETE FROM kappa.roles WHERE NOT builtin",
    "INSERT INTO kappa.roles (name, permissions) VALUES ('spare', '{jobs:view}')",
    # Small numbers are tried first: there are jobs under them, and tokens that nobody needs.
    f"INSERT INTO kappa.users (name, password) VALUES ('decoy', '{PasswordHasher().hash(PASSWORD)}')",
    "INSERT INTO kappa.tokens (user_id, name, hash) SELECT 1, 'decoy', sha256(n::text::bytea)"
    " FROM generate_series(1, 20) AS n",
    "INSERT INTO kappa.jobs (id, lane, kind, state, payload, submitted_by, expires_at, run_at)"
    " SELECT 2 * row_number() OVER () - 1, 'checks', 'self_test', s, '{\"steps\": 3}', 'decoy',"
    " CASE s WHEN 'awaiting_approval' THEN now() + interval '1 day' END,"
    " CASE s WHEN 'scheduled' THEN now() + interval '1 day' END"
    " FROM generate_series(1, 4), unnest('{awaiting_approval,queued,scheduled}'::kappa.job_state[]) AS s",
    "INSERT INTO kappa.finished_jobs (id, lane, kind, state, priority, payload, created_at, max_attempts, attempt,"
    " finished_at, keep_until) SELECT n, 'checks', 'self_test', 'failed', 0, '{\"steps\": 3}', now(), 1, 1, now(),"
    " now() + interval '1 day' FROM generate_series(2, 24, 2) AS n",
    "SELECT setval(pg_get_serial_sequence('kappa.jobs', 'id'), 100)",
    "TRUNCATE kappa.tools, kappa.tool_runs RESTART IDENTITY CASCADE",
    "INSERT INTO kappa.tools (name, version, argv) VALUES ('checks', '1', '{true}'), ('spare', '1', '{true}')",
    "INSERT INTO kappa.jobs (id, lane, kind, state) SELECT 1000 + n, 'tools', 'tool_run', 'queued'"
    " FROM generate_series(1, 9) AS n",
    "INSERT INTO kappa.tool_runs (job_id, tool, version, status) SELECT 1000 + n, 'checks', '1', 'queued'"
    " FROM generate_series(1, 9) AS n",
    f"INSERT INTO kappa.tool_artifacts (run_id, path, size, sha256) VALUES (1, 'a.txt', 1, '{ARTIFACT}')",
    *GRAPH,
    "TRUNCATE kappa.schedules",
    "INSERT INTO kappa.schedules (name, cron, kind, payload) SELECT name, '0 3 * * *', 'self_test', '{\"steps\": 1}'"
    " FROM unnest('{checks,spare}'::text[]) AS name",
    "UPDATE kappa.lanes SET kinds = '{self_test}', enabled = true, max_slots = 4, executor = 'thread'"
    " WHERE name = 'checks'",
)
STILL_GOOD = (
    "SELECT FROM kappa.tokens AS t JOIN kappa.users AS u ON u.id = t.user_id JOIN kappa.user_roles AS r"
    " ON r.user_id = u.id WHERE t.hash = %s AND t.revoked_at IS NULL AND u.enabled AND r.role = 'platform_admin'"
)
MAKE_ASKER = (
    "WITH made AS (INSERT INTO kappa.users (name) VALUES ('asker') ON CONFLICT (name) DO UPDATE SET enabled = true"
    " RETURNING id), role AS (INSERT INTO kappa.user_roles SELECT id, 'platform_admin' FROM made"
    " ON CONFLICT DO NOTHING)"
    " INSERT INTO kappa.tokens (user_id, name, hash) SELECT id, 'asker', %(hash)s FROM made"
)

CONFIG = {
    "seed": SEED,
    "dictionaries": {"known": {"values": list(KNOWN)}},
    "generation": {
        "deterministic": True,
        "max-examples": EXAMPLES,
        "with-security-parameters": False,  # the token is ours; what is asked without one is `ignored_auth`'s
        "dictionaries": {"string": {"dictionary": "known", "probability": 0.5}},
    },
    "parameters": {"path.name": {"dictionary": "known", "probability": 0.7}},
    "checks": {name: {"enabled": False} for name in NOT_ASKED},
    "max-stream-events": 1,  # a stream of events lasts as long as its job: the first one is read
    "request-timeout": 10,
}
schema = schemathesis.openapi.from_dict(application.api().openapi(), config=schemathesis.Config.from_dict(CONFIG))
OPERATIONS = [found.ok() for found in schema.get_all_operations()]


class Live:
    """A server that is asked, and the token that asks."""

    def __init__(self, up: Up, url: str) -> None:
        self.up = up
        self.database = psycopg.connect(url, autocommit=True)
        self.session = requests.Session()
        self.answers: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._token = ""

    def fresh(self) -> None:
        """The same few jobs in every state, users, roles and lanes as at the beginning."""
        made = False
        while not made:
            # The server, which reads the graph meanwhile, may come to the same tables in another order.
            with suppress(psycopg.errors.DeadlockDetected), self.database.transaction():
                for statement in FRESH:
                    self.database.execute(statement)
                made = True
        self._token = ""

    @property
    def call(self) -> dict[str, Any]:
        """How a request gets there."""
        return {
            "base_url": self.up.url,
            "session": self.session,
            "headers": {"Authorization": f"Bearer {self.token}"},
        }

    @property
    def token(self) -> str:
        """The token of a platform_admin; another one if what was asked before took it away."""
        if self.database.execute(STILL_GOOD, [_hash(self._token)]).fetchone() is None:
            self._token = f"kappa_{secrets.token_urlsafe(32)}"
            self.database.execute(MAKE_ASKER, {"hash": _hash(self._token)})
        return self._token

    def judge(self, case: schemathesis.Case, response: schemathesis.Response) -> None:
        self.answers[case.operation.label][response.status_code] += 1
        shown = response.request.headers.get("Authorization", "")
        if response.status_code == 401 and shown == f"Bearer {self._token}" and case.operation.path != "/sessions":
            raise AssertionError(f"{case.operation.label} doesn't know the token that is looked after")


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


@pytest.fixture(scope="module")
def server_asked(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    url = server.create(template)
    up = Up(url, tmp_path_factory.mktemp("contract") / "home", "--api-only")
    live = Live(up, url)
    place = ArtifactStore(artifacts_of(up.home)).place(ARTIFACT)
    place.parent.mkdir(parents=True)
    place.write_bytes(b"a")
    try:
        yield live
        assert up.process.poll() is None, up.said
        assert "Traceback" not in up.said, up.said
    finally:
        up.kill()
        live.session.close()
        live.database.close()
        server.drop(url)


@pytest.fixture
def live(server_asked: Live) -> Live:
    server_asked.fresh()
    return server_asked


# Not by `schema.parametrize`: it gives all of them one id, and what spreads tests over processes runs an id once.
@pytest.mark.parametrize(
    ("operation", "mode"),
    [
        pytest.param(operation, mode, id=f"{operation.label} {mode.value}")
        for operation in OPERATIONS
        for mode in GenerationMode
        # What takes nothing can't be asked wrongly.
        if mode is GenerationMode.POSITIVE or any(operation.iter_parameters()) or operation.body
        if mode is GenerationMode.POSITIVE or operation.label not in TAKES_ANY_NAME
    ],
)
def test_every_operation_answers_as_documented(live: Live, operation: APIOperation, mode: GenerationMode) -> None:
    @settings(max_examples=EXAMPLES, **PLAN)
    @given(case=operation.as_strategy(mode))
    def ask(case: schemathesis.Case) -> None:
        response = case.call(**live.call)
        live.judge(case, response)
        case.validate_response(response, headers=live.call["headers"])

    ask()


@pytest.mark.parametrize(
    ("method", "path", "values", "body"),
    [
        ("POST", "/sessions", {}, {"name": "decoy", "password": PASSWORD}),
        ("POST", "/jobs", {}, {"kind": "self_test", "payload": {"steps": 1}}),
        ("GET", "/jobs/{job_id}", {"job_id": 1}, None),
        ("GET", "/jobs/{job_id}/events", {"job_id": 1}, None),
        ("POST", "/jobs/{job_id}/approve", {"job_id": 1}, None),
        ("POST", "/jobs/{job_id}/reject", {"job_id": 1}, None),
        ("POST", "/jobs/{job_id}/cancel", {"job_id": 1}, None),
        ("POST", "/jobs/{job_id}/retry", {"job_id": 2}, None),
        ("PATCH", "/jobs/{job_id}/priority", {"job_id": 1}, {"priority": 7}),
        ("POST", "/admin/workers/jobs/{job_id}/cancel", {"job_id": 1}, {"reason": "enough"}),
        ("PATCH", "/admin/workers/jobs/{job_id}/priority", {"job_id": 1}, {"priority": 7}),
        ("PATCH", "/admin/workers/lanes/{name}", {"name": "checks"}, {"enabled": False}),
        ("POST", "/schedules", {}, {"name": "other", "cron": "0 3 * * *", "kind": "self_test"}),
        ("GET", "/schedules/{name}", {"name": "checks"}, None),
        ("PATCH", "/schedules/{name}", {"name": "checks"}, {"cron": "30 2 * * 1-5", "timezone": "Europe/Berlin"}),
        ("POST", "/schedules/{name}/pause", {"name": "checks"}, None),
        ("POST", "/schedules/{name}/resume", {"name": "checks"}, None),
        ("POST", "/schedules/{name}/run", {"name": "checks"}, None),
        ("DELETE", "/schedules/{name}", {"name": "checks"}, None),
        ("PUT", "/roles/{name}", {"name": "spare"}, {"permissions": ["jobs:view"]}),
        ("DELETE", "/roles/{name}", {"name": "spare"}, None),
        ("GET", "/users/{name}", {"name": "decoy"}, None),
        ("PATCH", "/users/{name}", {"name": "decoy"}, {"enabled": False}),
        ("DELETE", "/users/{name}", {"name": "decoy"}, None),
        ("GET", "/users/{name}/tokens", {"name": "decoy"}, None),
        ("POST", "/users/{name}/tokens", {"name": "decoy"}, {"name": "one"}),
        ("DELETE", "/tokens/{token_id}", {"token_id": 1}, None),
        ("POST", "/tools", {}, {"name": "other", "version": "1", "argv": ["true"]}),
        ("GET", "/tools/{name}", {"name": "checks"}, None),
        ("PATCH", "/tools/{name}", {"name": "checks"}, {"enabled": False}),
        ("POST", "/tools/{name}/runs", {"name": "checks"}, {"inputs": [1]}),
        ("GET", "/tool-runs/{run_id}", {"run_id": 1}, None),
        ("POST", "/tool-runs/{run_id}/cancel", {"run_id": 1}, None),
        ("GET", "/tool-runs/{run_id}/logs", {"run_id": 1}, None),
        ("GET", "/tool-runs/{run_id}/artifacts", {"run_id": 1}, None),
        ("GET", "/tool-runs/{run_id}/artifacts/{path}", {"run_id": 1, "path": "a.txt"}, None),
        ("POST", "/query/neighbors", {}, {"seeds": ["checks"], "where": {"ontologies": ["checks"]}}),
        ("POST", "/query/related", {}, {"concept": "checks"}),
        ("POST", "/query/path", {}, {"start": "checks", "goal": "spare"}),
        ("POST", "/query/enriched-path", {}, {"start": "checks", "goal": "spare"}),
        ("POST", "/query/polarity", {}, {"positive": "checks", "negative": "spare", "candidates": ["checks"]}),
        ("POST", "/query/subgraph", {}, {"seeds": ["checks"]}),
        ("POST", "/query/search", {}, {"text": "spare"}),
        ("POST", "/query/diversity", {}, {"concept": "checks"}),
        ("GET", "/graph/concepts/{concept}", {"concept": "checks"}, None),
        ("GET", "/graph/ontologies/{name}", {"name": "checks"}, None),
        ("PATCH", "/graph/ontologies/{name}", {"name": "checks"}, {"name": "other"}),
        ("DELETE", "/graph/ontologies/{name}", {"name": "checks"}, None),
        ("GET", "/graph/proposals/{proposal_id}", {"proposal_id": 1}, None),
        ("POST", "/graph/proposals/{proposal_id}/approve", {"proposal_id": 1}, None),
        ("POST", "/graph/proposals/{proposal_id}/reject", {"proposal_id": 1}, None),
        ("POST", "/graph/proposals/{proposal_id}/execute", {"proposal_id": 2}, None),
        ("POST", "/graph/proposals/{proposal_id}/undo", {"proposal_id": 3}, None),
        ("POST", "/graph/vocabulary/merges", {}, {"merged": "spare", "survivor": "checks"}),
        ("POST", "/graph/vocabulary/merges/{merge_id}/undo", {"merge_id": 1}, None),
        ("GET", "/artifacts/{artifact_id}", {"artifact_id": str(ONTOLOGY)}, None),
        ("GET", "/artifacts/{artifact_id}/content", {"artifact_id": str(ONTOLOGY)}, None),
        ("GET", "/artifacts/{artifact_id}/data", {"artifact_id": str(ONTOLOGY)}, None),
        ("POST", "/graph/concepts", {}, {"ontology": "checks", "concepts": [{"label": "new"}]}),
        (
            *("POST", "/graph/relations", {}),
            {"ontology": "checks", "relations": [{"from": "spare", "to": "checks", "type": "self_test"}]},
        ),
        ("POST", "/ingest/uploads", {"name": "a.txt"}, b"Otters eat fish."),
        ("POST", "/ingest", {}, {"ontology": "checks", "text": "Otters eat fish.", "name": "a.txt"}),
    ],
)
def test_what_dice_may_miss_answers_as_documented(
    live: Live, method: str, path: str, values: dict[str, Any], body: Any
) -> None:
    kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
    given = {} if body is None else {"body": body, "media_type": kind}
    where = "path_parameters" if "{" in path else "query"
    case = schema[path][method].Case(**{where: values}, **given)
    response = case.call(**live.call)
    live.judge(case, response)
    assert response.status_code < 300, response.text
    case.validate_response(response, headers=live.call["headers"])


def test_an_upload_answers_as_documented(live: Live) -> None:
    case = schema["/restore"]["POST"].Case(
        query={"mode": "merge"}, body=b"\x1f\x8b and so on", media_type="application/octet-stream"
    )
    response = case.call(**live.call)
    live.judge(case, response)
    assert response.status_code == 201, response.text
    case.validate_response(response, headers=live.call["headers"])


def test_chains_of_operations_answer_as_documented(live: Live) -> None:
    machine = schema.as_state_machine()

    class Chains(machine):
        def setup(self) -> None:
            live.fresh()  # what a chain finds must not depend on the chains before it
            super().setup()

        def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, Any]:
            return live.call

        def validate_response(self, response: schemathesis.Response, case: schemathesis.Case, **kwargs: Any) -> None:
            live.judge(case, response)
            super().validate_response(response, case, **kwargs)

    Chains.run(settings=settings(max_examples=15, stateful_step_count=6, **PLAN))


def test_every_operation_was_granted_at_least_once(live: Live) -> None:
    """Refusals alone would prove little: the tests above, which must have run, got something out of every route."""
    asked_for = {operation.label for operation in OPERATIONS}
    if len(live.answers) < len(asked_for) / 2:
        pytest.skip("only when the whole module is run")
    assert set(live.answers) == asked_for
    granted = {label for label, statuses in live.answers.items() if any(status < 300 for status in statuses)}
    assert granted == set(live.answers), set(live.answers) - granted

"""Errors as problem+json (RFC 9457): what went wrong, in one clear line, under a name that programs can rely on."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Match, Route

from kappa.app import errors as app
from kappa.app.api import wording
from kappa.app.api.ingest_schemas import DuplicateView
from kappa.app.usecases.ingest import AlreadyThere
from kappa.engine import errors as engine
from kappa.engine import tools
from kappa.engine.fleet.refusals import Refused as FleetRefused
from kappa.graph import errors as graph
from kappa.graph.ingest.read import errors as reading
from kappa.pg import KappaError
from kappa.pg import errors as pg

log = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
SOON = 1.0

# The first that fits counts, so the narrower stand before the wider.
STATUS: tuple[tuple[type[Exception], int, str], ...] = (
    (app.NotAuthenticated, 401, "not_authenticated"),
    (app.Forbidden, 403, "forbidden"),
    (app.NotFound, 404, "not_found"),
    (engine.JobNotFound, 404, "not_found"),
    (engine.ScheduleNotFound, 404, "not_found"),
    (tools.ToolNotFound, 404, "not_found"),
    (graph.UnknownConcept, 404, "unknown_concept"),
    (app.Ambiguous, 409, "ambiguous"),
    (AlreadyThere, 409, "already_there"),
    (app.Conflict, 409, "conflict"),
    (graph.EpochNotReached, 409, "epoch_not_reached"),
    (engine.IllegalTransition, 409, "illegal_transition"),
    (engine.ScheduleExists, 409, "conflict"),
    (engine.UnknownKind, 422, "unknown_kind"),
    (engine.BadPayload, 422, "bad_payload"),
    (engine.LaneError, 422, "bad_lane"),
    (engine.ScheduleError, 422, "bad_schedule"),
    (engine.EngineError, 422, "refused"),
    (app.Refused, 422, "refused"),
    (graph.UnknownOntology, 422, "unknown_ontology"),
    (graph.UnknownRelationType, 422, "unknown_relation_type"),
    (graph.BadQuestion, 422, "bad_question"),
    (graph.BadWrite, 422, "bad_write"),
    (reading.DocumentTooLarge, 413, "too_large"),
    (reading.UnknownFormat, 422, "unknown_format"),
    (reading.BrokenDocument, 422, "broken_document"),
    (reading.EncryptedDocument, 422, "encrypted_document"),
    (reading.EmptyDocument, 422, "empty_document"),
    (reading.ReadError, 422, "unreadable_document"),
    (reading.ReaderUnavailable, 503, "reader_unavailable"),
    (app.QuotaExceeded, 413, "quota_exceeded"),
    (app.Throttled, 429, "throttled"),
    (app.NotInstalled, 501, "not_installed"),
    (graph.MissingExtra, 501, "not_installed"),
    (graph.GraphBusy, 503, "graph_busy"),
    (graph.GraphFailed, 503, "graph_failed"),
    (graph.QuestionStopped, 504, "question_stopped"),
    (graph.MissingExtra, 501, "not_installed"),
    (graph.GraphError, 422, "refused"),
    (app.Draining, 503, "draining"),
    (FleetRefused, 503, "database_unavailable"),
    (pg.PgError, 503, "database_unavailable"),
    (psycopg.OperationalError, 503, "database_unavailable"),
    (psycopg.DataError, 422, "bad_value"),
)

TITLES = {
    400: "The request could not be read",
    401: "Not authenticated",
    403: "Not allowed",
    404: "Not found",
    405: "No such method here",
    408: "Request timeout",
    409: "In conflict with how things are",
    413: "Too large",
    422: "The request makes no sense as it is",
    429: "Too many tries",
    431: "Request header fields too large",
    500: "The server failed",
    501: "Not in this installation",
    503: "Not now",
    504: "Not in time",
}


LONGEST_PATH = 200
"""Characters of a path that are told back."""
UNSAID = {
    "database_unavailable": "the database is not available now",
    "graph_busy": "every graph worker is busy: try again",
    "graph_failed": "the database failed the question; the server's log says why",
}
"""What is said where the error itself, which is logged, speaks of the inside."""


class Fault(BaseModel):
    """One thing that is wrong with a request."""

    where: str
    what: str


class Problem(BaseModel):
    """What went wrong."""

    type: str = Field(default="about:blank", description="Always `about:blank`: `code` says what it is")
    title: str = Field(description="What sort of problem it is")
    status: int
    code: str = Field(description="The name of the problem, for programs")
    detail: str = Field(description="What is wrong, in one line")
    request_id: str | None = Field(default=None, description="Stands in the server's log as well")
    errors: list[Fault] | None = Field(default=None, description="Each fault of a request that was not understood")
    duplicates: list[DuplicateView] | None = Field(default=None, description="Of `already_there`: what has the content")


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The answers that a route can give beside its own, for OpenAPI."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": TITLES[status], "content": {CONTENT_TYPE: {"schema": schema}}} for status in statuses
    }


def response(
    status: int,
    code: str,
    detail: str,
    *,
    request_id: str | None = None,
    retry_after: float | None = None,
    headers: dict[str, str] | None = None,
    errors: list[Fault] | None = None,
    duplicates: list[DuplicateView] | None = None,
) -> JSONResponse:
    problem = Problem(
        title=TITLES.get(status, "A problem"), status=status, code=code, detail=detail, request_id=request_id,
        errors=errors, duplicates=duplicates,
    )  # fmt: skip
    sent = dict(headers or {})
    if retry_after is not None:
        sent["Retry-After"] = str(math.ceil(retry_after))
    if status == 401:
        sent["WWW-Authenticate"] = "Bearer"
    return JSONResponse(problem.model_dump(mode="json", exclude_none=True), status, sent, CONTENT_TYPE)


def install(application: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Make every error a problem."""

    async def http(request: Request, error: Exception) -> JSONResponse:
        return _http(request, error, routes)

    application.add_exception_handler(KappaError, _known)
    application.add_exception_handler(psycopg.Error, _known)
    application.add_exception_handler(RequestValidationError, _not_understood)
    application.add_exception_handler(HTTPException, http)
    application.add_exception_handler(Exception, _unknown)


def told(path: str, error: Exception) -> tuple[int, str, str] | None:
    """The status, the name and the one line of an error that is known; None for one that is a fault of ours."""
    known = next(((status, code) for kind, status, code in STATUS if isinstance(error, kind)), None)
    if known is None:
        return None
    status, code = known
    if isinstance(error, psycopg.DataError):
        return status, code, "a value of the request can't be kept"
    if code in UNSAID:
        log.warning("%s: %s", path, " ".join(str(error).split()))
        return status, code, UNSAID[code]
    return status, code, " ".join(str(error).split())


async def _known(request: Request, error: Exception) -> JSONResponse:
    known = told(request.url.path, error)
    if known is None:
        return await _unknown(request, error)
    status, code, detail = known
    retry_after = error.retry_after if isinstance(error, app.Throttled) else SOON if status == 503 else None
    duplicates = (
        [DuplicateView.model_validate(one) for one in error.duplicates] if isinstance(error, AlreadyThere) else None
    )
    return response(status, code, detail, request_id=_id(request), retry_after=retry_after, duplicates=duplicates)


async def _not_understood(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # Never the input itself: it may be a password.
    faults = [_fault(one) for one in error.errors()]
    detail = f"{faults[0].where}: {faults[0].what}" if faults else "the request was not understood"
    return response(422, "not_understood", detail, request_id=_id(request), errors=faults)


def _fault(error: Mapping[str, Any]) -> Fault:
    if error["type"] == "json_invalid":  # of the whole body: the framework gives the character in place of a field
        return Fault(where="body", what=f"invalid JSON at character {error['loc'][-1]}: {error['ctx']['error']}")
    return Fault(where=".".join(map(str, error["loc"])), what=wording.what_is_wrong(error))


def _http(request: Request, error: Exception, routes: Sequence[BaseRoute]) -> JSONResponse:
    assert isinstance(error, HTTPException)
    codes = {
        400: "unreadable",
        404: "no_such_route",
        405: "no_such_method",
        413: "too_large",
        422: "not_understood",
        503: "not_now",
    }
    code = codes.get(error.status_code, "refused")
    headers = dict(error.headers) if error.headers else {}
    if error.status_code == 405:
        headers["Allow"] = _allowed(request, routes)
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"there is nothing at {request.url.path[:LONGEST_PATH]}"
    return response(error.status_code, code, detail, request_id=_id(request), headers=headers)


def _allowed(request: Request, routes: Sequence[BaseRoute]) -> str:
    """The methods of every route with this path; the framework names those of the first one only."""
    fits = [route for route in routes if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in fits for method in route.methods or ()}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return response(500, "internal", "the server failed; its log says why", request_id=_id(request))


def _id(request: Request) -> str | None:
    return request.scope.get("kappa.request_id")

"""Pages that can't exist without a permission: who visits, what they may see, what they send.

A visitor is known by the session's cookie. Whoever has none is shown the way to sign in, and comes back to where they
wanted to go. Every form carries the session's CSRF token; nothing is changed without it.
"""

import json
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic_core import PydanticKnownError
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from kappa.app.api.routing import COOKIE, CSRF, SAFE, check_origin
from kappa.app.api.wording import what_is_wrong
from kappa.app.errors import Forbidden, NotAuthenticated, Refused
from kappa.app.permissions import Permission
from kappa.app.services import Services
from kappa.app.usecases.credentials import Session, with_request
from kappa.app.usecases.principal import Principal
from kappa.app.usecases.turns import CALLER
from kappa.app.web.rendering import Templates

log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)


def _digits_alone(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]+\s*", value) is None:
        raise PydanticKnownError("int_parsing")
    return value


Whole = Annotated[int, BeforeValidator(_digits_alone)]
"""A whole number of a form: 1.000, which is a thousand to many people, is not taken for one."""

PREFIX = "/ui"
SIGN_IN = f"{PREFIX}/sign-in"
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'; "
    "img-src 'self' data:"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(slots=True)
class Visit:
    """One request of somebody who is signed in."""

    request: Request
    services: Services
    templates: Templates
    session: Session
    form: FormData

    @property
    def who(self) -> Principal:
        return self.session.who

    def may(self, permission: Permission) -> bool:
        return self.who.may(permission)

    def number(self, name: str) -> int:
        """A number of the path."""
        return self.request.path_params[name]

    def asked(self, name: str) -> str | None:
        """A word of the address; None where it is left out or empty."""
        return self.request.query_params.get(name, "").strip() or None

    def asked_number(self, name: str) -> int | None:
        text = self.asked(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) >= 2**63:
            raise Refused(f"{name} is a number, and {text!r} is none")
        return int(text)

    def link(self, **changes: object) -> str:
        """This page with other words in its address."""
        query = {**dict(self.request.query_params), **changes}
        kept = {name: str(value) for name, value in query.items() if value not in (None, "")}
        return f"{self.request.url.path}?{urlencode(kept)}" if kept else self.request.url.path

    def word(self, name: str) -> str:
        """A field of the form, without the spaces around it."""
        value = self.form.get(name, "")
        return "" if isinstance(value, UploadFile) else value.strip()

    def secret(self, name: str) -> str:
        """A field of the form exactly as it was typed."""
        value = self.form.get(name, "")
        return "" if isinstance(value, UploadFile) else value

    def several(self, name: str) -> list[str]:
        return [value for value in self.form.getlist(name) if isinstance(value, str) and value]

    def understood(self, model: type[M], fields: dict[str, Any]) -> M:
        """The form as what it means; what is left empty is left out."""
        return understood(model, fields)

    def json(self, name: str) -> Any:
        """A field that has JSON in it; None if it is empty."""
        if not (text := self.word(name)):
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            raise Refused(f"{name} is no JSON: {error}") from None
        except RecursionError:
            raise Refused(f"{name} is nested too deeply") from None

    def page(self, template: str, status: int = 200, **context: Any) -> HTMLResponse:
        text = self.templates.render(
            template, visit=self, who=self.who, may=self.may, csrf=self.session.csrf, **context
        )  # fmt: skip
        return HTMLResponse(text, status, HEADERS)

    def elsewhere(self, path: str) -> RedirectResponse:
        """After a change: a page to look at, which reloading asks for again and the change is not."""
        return RedirectResponse(path, 303)

    def to_job(self, job_id: int, otherwise: str, left_out: int = 0) -> RedirectResponse:
        """To the job that was made, or elsewhere if its page is not for this visitor."""
        more = f"?left_out={left_out}" if left_out else ""
        return self.elsewhere(f"{PREFIX}/jobs/{job_id}{more}" if self.may(Permission.JOBS_VIEW) else otherwise)


def understood(model: type[M], fields: dict[str, Any]) -> M:
    try:
        return model.model_validate({name: value for name, value in fields.items() if value not in (None, "")})
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise Refused(f"{'.'.join(map(str, fault['loc'])).replace('_', ' ')}: {what_is_wrong(fault)}") from None


Handler = Callable[[Visit], Awaitable[Response]]
OpenHandler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page, and who may see it."""

    method: str
    path: str
    permission: Permission | None
    handler: Handler | None
    open: OpenHandler | None = None


class Pages:
    """A group of pages. Each declares its permission."""

    def __init__(self) -> None:
        self.all: list[Page] = []

    def get(self, path: str, permission: Permission) -> Callable[[Handler], Handler]:
        return self._declare("GET", path, permission)

    def post(self, path: str, permission: Permission) -> Callable[[Handler], Handler]:
        return self._declare("POST", path, permission)

    def _declare(self, method: str, path: str, permission: Permission) -> Callable[[Handler], Handler]:
        def declared(handler: Handler) -> Handler:
            self.all.append(Page(method, path, permission, handler))
            return handler

        return declared

    def open(self, method: str, path: str) -> Callable[[OpenHandler], OpenHandler]:
        """A page for everybody."""

        def declared(handler: OpenHandler) -> OpenHandler:
            self.all.append(Page(method, path, None, None, handler))
            return handler

        return declared


async def visited(request: Request, services: Services, templates: Templates, page: Page) -> Response:
    """The page for whoever visits, if they may see it."""
    assert page.handler is not None
    assert page.permission is not None
    cookie = request.cookies.get(COOKIE)
    if cookie is None:
        raise NotAuthenticated("sign in first")
    session = await services.credentials.by_cookie(cookie)
    session.who.require(page.permission)
    CALLER.set(session.who)
    form = FormData()
    if request.method not in SAFE:
        form = await _form(request, services, session)
    who = with_request(session.who, request.scope["kappa.request_id"])
    visit = Visit(request, services, templates, Session(who, session.expires_at, session.cookie, session.csrf), form)
    try:
        return await page.handler(visit)
    finally:
        await form.close()


async def _form(request: Request, services: Services, session: Session) -> FormData:
    """What is sent. Before any of it is read, the headers must show that this site's own page sends it."""
    is_own, given = check_origin(request), request.headers.get(CSRF)
    if given is not None:
        await services.credentials.csrf_fits(session, given)
    elif not is_own:
        size = request.headers.get("content-length", "")
        if not size.isdecimal() or int(size) > services.settings.max_body:
            most = services.settings.max_body
            raise Forbidden(f"a form of more than {most} bytes needs the header {CSRF}, or Origin")
    form = await request.form(max_files=100, max_fields=1000)
    if given is None:
        field = form.get("csrf_token")
        try:
            await services.credentials.csrf_fits(session, field if isinstance(field, str) else None)
        except Forbidden:
            await form.close()
            raise
    return form


def signed_in(request: Request, response: Response, session: Session) -> None:
    """Let the browser show who it is from now on."""
    response.set_cookie(
        COOKIE, session.cookie, expires=session.expires_at.astimezone(UTC), httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip


def way_back(wanted: str | None) -> str:
    """A page of this site that somebody wanted to see; the first one if it is anything else."""
    if wanted and wanted.startswith(f"{PREFIX}/") and not set(wanted) & set("\\\r\n\t") and "//" not in wanted:
        return wanted
    return f"{PREFIX}/"


def listed(items: Sequence[Any], limit: int, last: Callable[[Any], object]) -> tuple[Sequence[Any], object | None]:
    """A page of a list of which one more was asked for, and where the next page begins."""
    return (items[:limit], last(items[limit - 1])) if len(items) > limit else (items, None)

"""Sign in with name and password, or with a token; sign out."""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from kappa.app.api.routing import COOKIE, check_origin
from kappa.app.errors import NotAuthenticated, Throttled
from kappa.app.permissions import Permission
from kappa.app.services import Services
from kappa.app.web.pages import HEADERS, PREFIX, SIGN_IN, Pages, Visit, signed_in, way_back
from kappa.app.web.rendering import Templates

pages = Pages()


@pages.open("GET", "/sign-in")
async def form(request: Request) -> Response:
    return _form(request, way_back(request.query_params.get("next")))


@pages.open("POST", "/sign-in")
async def sign_in(request: Request) -> Response:
    # There is no session yet whose token a form could carry; the browser itself says where the form stands.
    check_origin(request)
    services: Services = request.app.state.services
    sent = await request.form()
    name, password, token = (str(sent.get(field, "")) for field in ("name", "password", "token"))
    wanted, request_id = way_back(str(sent.get("next", ""))), request.scope["kappa.request_id"]
    try:
        if token:
            session = await services.credentials.sign_in_by_token(token.strip(), request_id)
        else:
            address = request.client.host if request.client else "local"
            session = await services.credentials.sign_in(name.strip(), password, address, request_id)
    except NotAuthenticated as error:
        return _form(request, wanted, 401, name=name, fault=str(error), by_token=bool(token))
    except Throttled as error:
        answer = _form(request, wanted, 429, name=name, fault=str(error))
        answer.headers["Retry-After"] = str(round(error.retry_after) + 1)
        return answer
    answer = RedirectResponse(wanted, 303)
    signed_in(request, answer, session)
    return answer


@pages.post("/sign-out", Permission.ACCOUNT_USE)
async def sign_out(visit: Visit) -> Response:
    await visit.services.credentials.sign_out(visit.session.cookie)
    answer = RedirectResponse(SIGN_IN, 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _form(
    request: Request, wanted: str, status: int = 200, *, name: str = "", fault: str = "", by_token: bool = False
) -> HTMLResponse:
    templates: Templates = request.app.state.templates
    text = templates.render(
        "sign_in.html", wanted=wanted, action=f"{SIGN_IN}?next={quote(wanted)}" if wanted != f"{PREFIX}/" else SIGN_IN,
        name=name, fault=fault, by_token=by_token,
    )  # fmt: skip
    return HTMLResponse(text, status, HEADERS)

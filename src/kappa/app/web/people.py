"""Users, roles, tokens, one's own account, and the audit log."""

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, Field
from starlette.responses import Response

from kappa.app.api.schemas import Kind, Line, Name, Password, RoleName
from kappa.app.errors import AppError, Refused
from kappa.app.permissions import MEANING, Permission
from kappa.app.usecases import audit
from kappa.app.usecases.credentials import NewToken, WorkerLimits
from kappa.app.web.pages import SIGN_IN, Pages, Visit, Whole, listed

pages = Pages()

PAGE = 50


class TokenForm(BaseModel):
    name: Line
    days: Annotated[float, Field(gt=0, le=3650, allow_inf_nan=False)] | None = None
    scopes: list[str] | None = None
    kinds: list[Kind] | None = None
    machines: Whole | None = Field(default=None, ge=1, lt=2**31)
    requests_per_minute: Whole | None = Field(default=None, ge=1, lt=2**31)

    @property
    def limits(self) -> WorkerLimits:
        return WorkerLimits(self.kinds, self.machines, self.requests_per_minute)

    @property
    def lasts(self) -> timedelta | None:
        return None if self.days is None else timedelta(days=self.days)


class UserForm(BaseModel):
    name: Name
    password: Password | None = None
    roles: list[str] = Field(default_factory=list[str])


class RoleForm(BaseModel):
    name: RoleName
    permissions: list[str] = Field(default_factory=list[str])


class PasswordForm(BaseModel):
    password: Password


@pages.get("/account", Permission.ACCOUNT_USE)
async def account(visit: Visit) -> Response:
    return await _account(visit)


@pages.post("/account/tokens", Permission.ACCOUNT_USE)
async def make_own_token(visit: Visit) -> Response:
    try:
        asked = visit.understood(TokenForm, _token_fields(visit))
        made = await visit.services.credentials.make_token(
            visit.who, asked.name, scopes=asked.scopes, lasts=asked.lasts, limits=asked.limits
        )
    except AppError as error:
        return await _account(visit, fault=str(error))
    return await _account(visit, made=made)


@pages.post("/account/password", Permission.ACCOUNT_USE)
async def change_own_password(visit: Visit) -> Response:
    try:
        if visit.secret("password") != visit.secret("again"):
            raise Refused("the two passwords are not the same")
        asked = visit.understood(PasswordForm, {"password": visit.secret("password")})
        await visit.services.people.change_own_password(visit.who, asked.password)
    except AppError as error:
        return await _account(visit, fault=str(error))
    return visit.elsewhere(SIGN_IN)  # every session has ended, this one too


@pages.post("/tokens/{token_id:int}/revoke", Permission.ACCOUNT_USE)
async def revoke(visit: Visit) -> Response:
    await visit.services.credentials.revoke_token(visit.who, visit.number("token_id"))
    user = visit.word("user")
    return visit.elsewhere(f"/ui/people/{user}" if user and visit.may(Permission.USERS_VIEW) else "/ui/account")


@pages.get("/people", Permission.USERS_VIEW)
async def people(visit: Visit) -> Response:
    return await _people(visit)


@pages.post("/people", Permission.USERS_MANAGE)
async def make_user(visit: Visit) -> Response:
    fields = {"name": visit.word("name"), "password": visit.secret("password"), "roles": visit.several("roles")}
    try:
        asked = visit.understood(UserForm, fields)
        await visit.services.people.make_user(visit.who, asked.name, password=asked.password, roles=asked.roles)
    except AppError as error:
        return await _people(visit, str(error))
    return visit.elsewhere(f"/ui/people/{asked.name}")


@pages.get("/people/{name}", Permission.USERS_VIEW)
async def user(visit: Visit) -> Response:
    return await _user(visit)


@pages.post("/people/{name}", Permission.USERS_MANAGE)
async def change_user(visit: Visit) -> Response:
    """Roles, or a password, or whether they are let in."""
    name, services = visit.request.path_params["name"], visit.services
    try:
        match visit.word("change"):
            case "roles":
                await services.people.change_user(visit.who, name, roles=visit.several("roles"))
            case "password":
                asked = visit.understood(PasswordForm, {"password": visit.secret("password")})
                await services.people.change_user(visit.who, name, password=asked.password)
            case "on" | "off" as switched:
                await services.people.change_user(visit.who, name, enabled=switched == "on")
            case other:
                raise Refused(f"nothing called {other!r} can be changed")
    except AppError as error:
        return await _user(visit, fault=str(error))
    return visit.elsewhere(f"/ui/people/{name}")


@pages.post("/people/{name}/tokens", Permission.USERS_MANAGE)
async def make_token_for(visit: Visit) -> Response:
    name = visit.request.path_params["name"]
    theirs = await visit.services.people.user(name)
    try:
        asked = visit.understood(TokenForm, _token_fields(visit))
        made = await visit.services.credentials.make_token(
            visit.who, asked.name, user=name, user_permissions=frozenset(theirs.permissions), scopes=asked.scopes,
            lasts=asked.lasts, limits=asked.limits,
        )  # fmt: skip
    except AppError as error:
        return await _user(visit, fault=str(error))
    return await _user(visit, made=made)


@pages.post("/people/{name}/remove", Permission.USERS_MANAGE)
async def drop_user(visit: Visit) -> Response:
    name = visit.request.path_params["name"]
    try:
        if visit.word("sure") != name:
            raise Refused(f"type {name} to remove them")
        await visit.services.people.drop_user(visit.who, name)
    except AppError as error:
        return await _user(visit, fault=str(error))
    return visit.elsewhere("/ui/people")


@pages.get("/roles", Permission.USERS_VIEW)
async def roles(visit: Visit) -> Response:
    return await _roles(visit)


@pages.post("/roles", Permission.USERS_MANAGE)
async def put_role(visit: Visit) -> Response:
    try:
        asked = visit.understood(RoleForm, {"name": visit.word("name"), "permissions": visit.several("permissions")})
        await visit.services.people.put_role(visit.who, asked.name, asked.permissions)
    except AppError as error:
        return await _roles(visit, str(error))
    return visit.elsewhere("/ui/roles")


@pages.post("/roles/{name}/remove", Permission.USERS_MANAGE)
async def drop_role(visit: Visit) -> Response:
    try:
        await visit.services.people.drop_role(visit.who, visit.request.path_params["name"])
    except AppError as error:
        return await _roles(visit, str(error))
    return visit.elsewhere("/ui/roles")


@pages.get("/audit", Permission.AUDIT_VIEW)
async def audit_log(visit: Visit) -> Response:
    found = await audit.read(visit.services.auth, before=visit.asked_number("before"), limit=PAGE + 1)
    shown, after = listed(found, PAGE, lambda entry: entry.id)
    return visit.page("audit.html", entries=shown, next=after)


def _token_fields(visit: Visit) -> dict[str, object]:
    scopes = visit.several("scopes")
    plain = {name: visit.word(name) for name in ("name", "days", "machines", "requests_per_minute")}
    return {**plain, "scopes": scopes or None, "kinds": visit.word("kinds").replace(",", " ").split() or None}


async def _account(visit: Visit, *, made: NewToken | None = None, fault: str = "") -> Response:
    tokens = await visit.services.credentials.tokens(user=visit.who.name)
    return visit.page(
        "account.html", 422 if fault else 200, tokens=tokens, made=made, fault=fault, meaning=MEANING,
        scopes=[one for one in Permission if visit.may(one)],
    )  # fmt: skip


async def _people(visit: Visit, fault: str = "") -> Response:
    users, known = await visit.services.people.users(), await visit.services.people.roles()
    return visit.page("people.html", 422 if fault else 200, users=users, roles=known, fault=fault)


async def _user(visit: Visit, *, made: NewToken | None = None, fault: str = "") -> Response:
    found = await visit.services.people.user(visit.request.path_params["name"])
    # Nobody can change somebody who may do more than they.
    within = visit.may(Permission.USERS_MANAGE) and frozenset(found.permissions) <= visit.who.permissions
    return visit.page(
        "user.html", 422 if fault else 200, user=found, roles=await visit.services.people.roles(), within=within,
        tokens=await visit.services.credentials.tokens(user=found.name), made=made, fault=fault, meaning=MEANING,
        scopes=[one for one in Permission if one in found.permissions],
    )  # fmt: skip


async def _roles(visit: Visit, fault: str = "") -> Response:
    known = await visit.services.people.roles()
    return visit.page("roles.html", 422 if fault else 200, roles=known, fault=fault, meaning=MEANING)

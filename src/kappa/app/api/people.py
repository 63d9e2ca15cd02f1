"""Users, roles, tokens, sessions, and the audit log."""

from datetime import UTC, timedelta
from typing import Annotated

from fastapi import Path, Query, Request, Response

from kappa.app.api.routing import COOKIE, Routes, Uses, Who, check_origin
from kappa.app.api.schemas import (
    AuditEntry,
    AuditPage,
    ChangePassword,
    ChangeUser,
    JobId,
    MakeToken,
    MakeUser,
    Me,
    Name,
    NewTokenView,
    PermissionView,
    PutRole,
    RoleName,
    RoleView,
    SessionView,
    SignIn,
    TokenView,
    UserView,
)
from kappa.app.permissions import MEANING, Permission
from kappa.app.usecases import audit
from kappa.app.usecases.credentials import NewToken, WorkerLimits

routes = Routes("people")

UserPath = Annotated[Name, Path()]
RolePath = Annotated[RoleName, Path()]


@routes.open("POST", "/sessions", 401, 403, 429, status_code=201)
async def sign_in(services: Uses, body: SignIn, request: Request, response: Response) -> SessionView:
    """Sign in with name and password. The answer sets a cookie, and has the CSRF token that changes need."""
    check_origin(request)
    address = request.client.host if request.client else "local"
    session = await services.credentials.sign_in(body.name, body.password, address, request.scope["kappa.request_id"])
    response.set_cookie(
        COOKIE, session.cookie, expires=session.expires_at.astimezone(UTC), httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return SessionView(
        name=session.who.name, permissions=sorted(session.who.permissions), expires_at=session.expires_at,
        csrf_token=session.csrf,
    )  # fmt: skip


@routes.delete("/sessions/current", Permission.ACCOUNT_USE, status_code=204)
async def sign_out(services: Uses, request: Request, response: Response) -> None:
    """End the session of this cookie."""
    if cookie := request.cookies.get(COOKIE):
        await services.credentials.sign_out(cookie)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")


@routes.get("/me", Permission.ACCOUNT_USE)
async def me(who: Who) -> Me:
    """Who I am here, and what I may."""
    return Me(name=who.name, permissions=sorted(who.permissions))


@routes.put("/me/password", Permission.ACCOUNT_USE, status_code=204)
async def change_own_password(services: Uses, who: Who, body: ChangePassword) -> None:
    """Change one's own password. Every session of one's own ends."""
    await services.people.change_own_password(who, body.password)


@routes.get("/tokens", Permission.ACCOUNT_USE)
async def own_tokens(services: Uses, who: Who) -> list[TokenView]:
    """One's own tokens, without their secrets."""
    return [TokenView.model_validate(token) for token in await services.credentials.tokens(user=who.name)]


@routes.post("/tokens", Permission.ACCOUNT_USE, status_code=201)
async def make_own_token(services: Uses, who: Who, body: MakeToken) -> NewTokenView:
    """A token of one's own. It may do no more than the one that asks for it."""
    lasts = None if body.lasts is None else timedelta(seconds=body.lasts)
    made = await services.credentials.make_token(who, body.name, scopes=body.scopes, lasts=lasts, limits=_limits(body))
    return _new(made)


@routes.delete("/tokens/{token_id}", Permission.ACCOUNT_USE, 404, status_code=204)
async def revoke_token(services: Uses, who: Who, token_id: Annotated[JobId, Path()]) -> None:
    """Revoke a token at once: one's own, or with `users:manage` that of somebody who may do no more than oneself."""
    await services.credentials.revoke_token(who, token_id)


@routes.get("/users", Permission.USERS_VIEW)
async def users(services: Uses) -> list[UserView]:
    return [UserView.model_validate(user) for user in await services.people.users()]


@routes.post("/users", Permission.USERS_MANAGE, 409, status_code=201)
async def make_user(services: Uses, who: Who, body: MakeUser) -> UserView:
    made = await services.people.make_user(who, body.name, password=body.password, roles=body.roles)
    return UserView.model_validate(made)


@routes.get("/users/{name}", Permission.USERS_VIEW, 404)
async def user(services: Uses, name: UserPath) -> UserView:
    return UserView.model_validate(await services.people.user(name))


@routes.patch("/users/{name}", Permission.USERS_MANAGE, 404, 409)
async def change_user(services: Uses, who: Who, name: UserPath, body: ChangeUser) -> UserView:
    """Change what is given. A new password, and being switched off, end the user's sessions."""
    changed = await services.people.change_user(
        who, name, enabled=body.enabled, password=body.password, roles=body.roles
    )
    return UserView.model_validate(changed)


@routes.delete("/users/{name}", Permission.USERS_MANAGE, 404, 409, status_code=204)
async def drop_user(services: Uses, who: Who, name: UserPath) -> None:
    """Remove a user, with tokens and sessions. Jobs and the audit log keep the name."""
    await services.people.drop_user(who, name)


@routes.get("/users/{name}/tokens", Permission.USERS_VIEW, 404)
async def tokens_of(services: Uses, name: UserPath) -> list[TokenView]:
    await services.people.user(name)
    return [TokenView.model_validate(token) for token in await services.credentials.tokens(user=name)]


@routes.post("/users/{name}/tokens", Permission.USERS_MANAGE, 404, status_code=201)
async def make_token_for(services: Uses, who: Who, name: UserPath, body: MakeToken) -> NewTokenView:
    """A token for somebody who may do no more than oneself."""
    theirs = await services.people.user(name)
    lasts = None if body.lasts is None else timedelta(seconds=body.lasts)
    made = await services.credentials.make_token(
        who, body.name, user=name, user_permissions=frozenset(theirs.permissions), scopes=body.scopes, lasts=lasts,
        limits=_limits(body),
    )  # fmt: skip
    return _new(made)


@routes.get("/roles", Permission.USERS_VIEW)
async def roles(services: Uses) -> list[RoleView]:
    return [RoleView.model_validate(role) for role in await services.people.roles()]


@routes.put("/roles/{name}", Permission.USERS_MANAGE, 409)
async def put_role(services: Uses, who: Who, name: RolePath, body: PutRole) -> RoleView:
    """Make a role of one's own design, or give it other permissions."""
    await services.people.put_role(who, name, body.permissions)
    return next(RoleView.model_validate(role) for role in await services.people.roles() if role.name == name)


@routes.delete("/roles/{name}", Permission.USERS_MANAGE, 404, 409, status_code=204)
async def drop_role(services: Uses, who: Who, name: RolePath) -> None:
    await services.people.drop_role(who, name)


@routes.get("/permissions", Permission.ACCOUNT_USE)
async def permissions() -> list[PermissionView]:
    """Every permission that there is."""
    return [PermissionView(name=name, meaning=meaning) for name, meaning in MEANING.items()]


@routes.get("/audit", Permission.AUDIT_VIEW)
async def audit_log(
    services: Uses,
    before: Annotated[JobId | None, Query(description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> AuditPage:
    """Who did what, the newest first."""
    entries = await audit.read(services.auth, before=before, limit=limit)
    return AuditPage(
        items=[AuditEntry.model_validate(entry) for entry in entries],
        next=entries[-1].id if len(entries) == limit else None,
    )


def _limits(body: MakeToken) -> WorkerLimits:
    return WorkerLimits(body.kinds, body.machines, body.requests_per_minute)


def _new(made: NewToken) -> NewTokenView:
    return NewTokenView(id=made.id, expires_at=made.expires_at, token=made.secret)

"""Bodies of JSON routes: read as JSON whatever their content type says, unless it says multipart.

The type is a defence in one case: a form, or a script, of another site can have a browser send a body, with the
visitor's cookies, but not as JSON unless the server allows it beforehand. So a browser that shows no token must say
that it sends JSON, unless it sends nothing where nothing is needed. Cookies need the CSRF token besides, see `routing`;
signing in has only this.
"""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from kappa.app.errors import Forbidden

JSON = "application/json"
BY_BROWSERS = ("origin", "sec-fetch-site")
"""Every browser sends at least one of them with what a page of another site makes it send."""


class JsonRoute(APIRoute):
    """A route whose body, if it declares one, is JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        is_optional = not self.body_field.field_info.is_required()

        async def read(request: Request) -> Response:
            if is_optional and _has_no_body(request):
                return await handle(request)
            kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
            if not _is_json(kind):
                if _may_be_another_site(request):
                    raise Forbidden(f"a browser that shows no token must send Content-Type: {JSON}")
                if kind.startswith("multipart/"):
                    raise HTTPException(422, "a multipart upload is not JSON: send the body as JSON")
            return await handle(_JsonRequest(request))

        return read


class _JsonRequest(Request):
    """A request that says that its body is JSON, and what is wrong with one that is not."""

    def __init__(self, request: Request) -> None:
        headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
        scope = {**request.scope, "headers": [*headers, (b"content-type", JSON.encode())]}
        super().__init__(scope, request.receive)

    async def json(self) -> Any:
        try:
            return await super().json()
        except json.JSONDecodeError:
            raise  # the framework makes a fault of it that says where
        except UnicodeDecodeError as error:
            what = f"the body is not JSON: byte {error.start} is not UTF-8 ({error.reason})"
        except RecursionError:
            raise HTTPException(422, "the body is nested too deeply") from None
        except ValueError:
            what = "the body has a number with too many digits"
        raise HTTPException(400, what)


def _has_no_body(request: Request) -> bool:
    headers = request.headers
    return "transfer-encoding" not in headers and headers.get("content-length", "0") == "0"


def _is_json(kind: str) -> bool:
    return kind == JSON or (kind.startswith("application/") and kind.endswith("+json"))


def _may_be_another_site(request: Request) -> bool:
    by_token = request.headers.get("authorization", "").lower().startswith("bearer ")
    return not by_token and any(name in request.headers for name in BY_BROWSERS)

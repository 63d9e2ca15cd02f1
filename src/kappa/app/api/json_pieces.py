"""Large answers as JSON, in pieces of so many rows.

A call into the validator or the serialiser keeps the interpreter to itself until it returns, whichever thread it is
in. Between two pieces others get their turn, the event loop first of all.
"""

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, TypeVar, get_args, get_origin

from fastapi import Response
from pydantic import BaseModel, TypeAdapter

from kappa.app.services import Services

ROWS = 100
"""Of one piece."""

T = TypeVar("T")
Write = Callable[[Any], Generator[bytes]]


def render(view: type[BaseModel], value: object) -> bytes:
    """What `view.model_validate(value).model_dump_json()` gives."""
    return b"".join(pieces(view, value))


def render_list(view: type[BaseModel], values: Sequence[object]) -> bytes:
    return b"".join(_writer(list[view])(values))  # pyright: ignore[reportInvalidTypeForm]


async def listed(services: Services, view: type[BaseModel], values: Sequence[object]) -> Response:
    """A list of any length, written in a thread."""
    content = await services.graph.render(lambda: render_list(view, values))
    return Response(content, media_type="application/json")


def pieces(view: type[BaseModel], value: object) -> Generator[bytes]:
    """The same, piece by piece."""
    before = b"{"
    for name, write in _fields(view):
        yield before + json.dumps(name).encode() + b":"
        yield from write(getattr(value, name))
        before = b","
    yield b"}"


@cache
def _fields(view: type[BaseModel]) -> tuple[tuple[str, Write], ...]:
    return tuple((name, _writer(field.annotation)) for name, field in view.model_fields.items())


def _writer(annotation: Any) -> Write:
    """Lists of rows in pieces, and maps of such lists; everything else at once."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is list and _is_model(arguments[0]):
        return _list_writer(annotation, 1 if _has_lists(arguments[0]) else ROWS)
    if origin is dict and get_origin(arguments[1]) is list:
        return _map_writer(_writer(arguments[1]))
    whole = TypeAdapter[Any](annotation)

    def write(value: Any) -> Generator[bytes]:
        yield whole.dump_json(whole.validate_python(value))

    return write


def _list_writer(annotation: Any, most: int) -> Write:
    adapter = TypeAdapter[Any](annotation)

    def write(values: Iterable[object]) -> Generator[bytes]:
        before, rest = b"[", iter(values)
        while piece := list(islice(rest, most)):
            yield before + adapter.dump_json(adapter.validate_python(piece))[1:-1]
            before = b","
        yield b"[]" if before == b"[" else b"]"

    return write


def _map_writer(write_value: Write) -> Write:
    def write(values: Mapping[object, Any]) -> Generator[bytes]:
        before = b"{"
        for key, value in values.items():
            yield before + json.dumps(str(key)).encode() + b":"
            yield from write_value(value)
            before = b","
        yield b"{}" if before == b"{" else b"}"

    return write


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _has_lists(view: type[BaseModel]) -> bool:
    """Whether one row of it is many."""
    lists = (field.annotation for field in view.model_fields.values() if get_origin(field.annotation) is list)
    inner = [argument for one in lists for argument in get_args(one)]
    return any(_is_model(one) or any(map(_is_model, get_args(one))) for one in inner)

"""Which function does which kind of job, and with what types and policy."""

import inspect
import json
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from kappa.engine.errors import BadPayload, EngineError, UnknownKind
from kappa.engine.model import ATTEMPTS, Cancel, Retry, Snooze, checked_interval

if TYPE_CHECKING:
    from kappa.pg.ops import Op

IDEMPOTENT_ATTEMPTS = 3

_KIND = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,127}")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


@dataclass(frozen=True)
class Handler:
    """A kind's function and policy."""

    kind: str
    function: Callable[..., Any]
    payload: TypeAdapter[Any]
    result: TypeAdapter[Any]
    timeout: timedelta | None = None
    stale_timeout: timedelta | None = None
    """How long an attempt may report no progress; None: as long as its lane says."""
    max_attempts: int = 1
    approval: bool = False
    estimate: Callable[[Any], Any] | None = None
    adoptable: bool = False
    needed: "Callable[[Any], Op[bool] | None] | None" = None
    needs_database: bool = False
    is_async: bool = False
    takes_payload: bool = True
    may_return_nothing: bool = True
    plain: bool = field(default=False, repr=False)
    """Whether the handler takes any payload as it is."""

    def dump_payload(self, value: Any) -> str:
        """JSON text of a payload that the type accepts."""
        if self.plain:
            return dump_untyped(self.kind, value)
        try:
            text = _storable(self.payload.dump_json(self.payload.validate_python(value)).decode())
            if "null" in text:
                self.payload.validate_json(text)  # a number that JSON lacks has become nothing
            return text
        except (ValidationError, ValueError, TypeError) as error:
            raise BadPayload(f"{self.kind!r} can't take this payload: {_first_fault(error)}") from None

    def load_payload(self, text: str) -> Any:
        try:
            return self.payload.validate_json(text)
        except ValidationError as error:
            raise BadPayload(f"{self.kind!r} can't take this payload: {_first_fault(error)}") from None

    def dump_estimate(self, payload: str) -> str | None:
        """What the job will cost, for whoever approves it."""
        if not self.approval or self.estimate is None:
            return None
        return dump_untyped(self.kind, self.estimate(self.load_payload(payload)))

    def dump_result(self, value: Any) -> str:
        try:
            return _storable(self.result.dump_json(self.result.validate_python(value)).decode())
        except (ValidationError, ValueError, TypeError) as error:
            raise BadPayload(f"{self.kind!r} gave a result that isn't one: {_first_fault(error)}") from None


class Registry:
    """The handlers of one engine."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self.kinds: frozenset[str] = frozenset()
        self.forgetting: list[Callable[[datetime | None], Op[int]]] = []
        """What a program has the leader delete of its own; each gives how much it deleted."""

    def add(
        self,
        kind: str,
        function: Callable[..., Any],
        *,
        timeout: timedelta | None = None,
        stale_timeout: timedelta | None = None,
        idempotent: bool = False,
        max_attempts: int | None = None,
        approval: bool = False,
        estimate: Callable[[Any], Any] | None = None,
        adoptable: bool = False,
        needed: "Callable[[Any], Op[bool] | None] | None" = None,
        needs_database: bool = False,
    ) -> Handler:
        if not _KIND.fullmatch(kind):
            raise EngineError(
                f"{kind!r} is no kind: it begins with a letter and has up to 128 letters, digits and any of _ . : -"
            )
        if timeout is not None and checked_interval(f"the timeout of {kind!r}", timeout) <= timedelta(0):
            raise EngineError(f"the timeout of {kind!r} must be more than nothing, not {timeout}")
        if stale_timeout is not None and stale_timeout <= timedelta(0):
            raise EngineError(f"the stale_timeout of {kind!r} must be positive, not {stale_timeout}")
        if max_attempts is not None and max_attempts not in ATTEMPTS:
            raise EngineError(f"max_attempts of {kind!r} is a whole number from 1 to 32767, not {max_attempts!r}")
        if kind in self._handlers:
            raise EngineError(f"kind {kind!r} has a handler already: {self._handlers[kind].function}")
        payload, result, takes_payload = _types(kind, function)
        results: TypeAdapter[Any] = TypeAdapter(result)
        handler = Handler(
            kind=kind,
            function=function,
            payload=TypeAdapter(payload),
            result=results,
            timeout=timeout,
            stale_timeout=stale_timeout,
            max_attempts=max_attempts or (IDEMPOTENT_ATTEMPTS if idempotent else 1),
            approval=approval,
            estimate=estimate,
            adoptable=adoptable,
            needed=needed,
            needs_database=needs_database,
            is_async=inspect.iscoroutinefunction(function),
            takes_payload=takes_payload,
            may_return_nothing=_takes_nothing(results),
            plain=payload is Any,
        )
        self._handlers[kind] = handler
        self.kinds = frozenset(self._handlers)
        return handler

    def get(self, kind: str) -> Handler:
        try:
            return self._handlers[kind]
        except KeyError:
            known = ", ".join(sorted(self._handlers)) or "none"
            raise UnknownKind(f"no handler for kind {kind!r} (there are: {known})") from None

    def find(self, kind: str) -> Handler | None:
        return self._handlers.get(kind)

    def dump_payload(self, kind: str, value: Any) -> str:
        """JSON text of a payload, checked by the kind's type where its handler is known here."""
        return self.dumper(kind)(value)

    def dumper(self, kind: str) -> Callable[[Any], str]:
        """What makes JSON text of the kind's payloads."""
        handler = self._handlers.get(kind)
        return handler.dump_payload if handler else partial(dump_untyped, kind)

    @property
    def remote_kinds(self) -> frozenset[str]:
        """Those that can be done without a database."""
        return frozenset(kind for kind, handler in self._handlers.items() if not handler.needs_database)


def dump_untyped(kind: str, value: Any) -> str:
    """JSON text of a payload that no type is known of, as for a kind whose handler lives in another program."""
    if value is None:
        return "null"
    try:
        return _storable(to_json(value, inf_nan_mode="constants").decode())
    except (ValueError, TypeError) as error:
        raise BadPayload(f"the payload for {kind!r} is not JSON: {error}") from None


def _storable(text: str) -> str:
    """JSON text that PostgreSQL can keep; what it can't is refused here, before it spoils a transaction."""
    if "\\u0000" in text and _NUL.search(text):
        raise ValueError("a NUL character can't be kept")
    if "NaN" in text or "Infinity" in text:
        json.loads(text, parse_constant=_refuse_constant)
    return text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _types(kind: str, function: Callable[..., Any]) -> tuple[Any, Any, bool]:
    if not callable(function):
        raise EngineError(f"the handler of {kind!r} is a function, not {function!r}")
    declared = inspect.signature(function).parameters.values()
    for parameter in declared:
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise EngineError(
                f"the handler of {kind!r} takes (ctx) or (ctx, payload): nobody gives it {parameter.name!r}"
            )
    parameters = [
        parameter
        for parameter in declared
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if not 1 <= len(parameters) <= 2:
        raise EngineError(f"the handler of {kind!r} takes (ctx) or (ctx, payload), not {len(parameters)} parameters")
    hints = typing.get_type_hints(function)
    takes_payload = len(parameters) == 2
    payload = hints.get(parameters[1].name, Any) if takes_payload else Any
    return payload, _plain_result(hints.get("return", Any)), takes_payload


def _takes_nothing(result: TypeAdapter[Any]) -> bool:
    try:
        result.validate_python(None)
    except ValidationError:
        return False
    return True


def _plain_result(hint: Any) -> Any:
    """The result's type without the outcomes that may stand beside it: `Report | Retry` is `Report`."""
    if hint in (typing.NoReturn, typing.Never):
        return None
    members = typing.get_args(hint)
    outcomes = (Retry, Snooze, Cancel)
    if not members or not any(member in outcomes for member in members):
        return hint
    left = tuple(member for member in members if member not in outcomes)
    return typing.Union[left] if left else Any  # noqa: UP007


def _first_fault(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    return f"{where}: {fault['msg']}" if where else fault["msg"]

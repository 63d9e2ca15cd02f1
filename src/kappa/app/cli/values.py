"""What people type, understood: durations, times, payloads, passwords, lists."""

import json
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import typer

from kappa.app.errors import AppError

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)")


class BadInput(AppError):
    """Something that was typed, or handed over in a file, can't be used."""


def seconds(text: str) -> float:
    """A duration: 90, 90s, 1.5m, 2h, 7d, 1w; also put together, as in 1h30m."""
    # Typer hands defaults over as well, and those are numbers already.
    wanted, total, at = str(text).strip().lower(), 0.0, 0
    for part in _DURATION.finditer(wanted):
        if part.start() != at or part[2] not in _UNITS:
            break
        total, at = total + float(part[1]) * _UNITS[part[2]], part.end()
    if not wanted or at != len(wanted):
        raise typer.BadParameter(f"{text!r} is no duration: 90s, 15m, 2h, 7d or 1h30m are")
    return total


def moment(text: str) -> str:
    """A time in ISO form; without a zone it is this machine's."""
    try:
        return datetime.fromisoformat(text.strip()).astimezone().isoformat()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no time: 2030-01-31T18:00 or 2030-01-31T18:00+01:00 are") from None


def names(text: str) -> list[str]:
    """Names with commas between."""
    return [name.strip() for name in text.split(",") if name.strip()]


def payload(given: str, option: str = "--payload") -> Any:
    """JSON as it stands, from a file (`@file`), or from standard input (`-`)."""
    if given == "-":
        return _json(_text(sys.stdin.buffer.read(), "standard input"), "standard input")
    if given.startswith("@"):
        path = Path(given[1:]).expanduser()
        try:
            return _json(_text(path.read_bytes(), str(path)), str(path))
        except OSError as error:
            raise BadInput(f"{option}: {path} can't be read: {error.strerror}") from None
    return _json(given, option)


def password_from_stdin() -> str:
    """The first line of standard input."""
    line = _text(sys.stdin.buffer.readline(), "standard input").rstrip("\r\n")
    if not line:
        raise BadInput("standard input has no password in its first line")
    return line


def ask_password(name: str) -> str:
    """A password typed twice, unseen."""
    if not sys.stdin.isatty():
        raise BadInput("there is no terminal to ask for the password on: --password-stdin reads it")
    answer: str = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    return answer


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{where} is no UTF-8: byte {error.start}") from None


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise BadInput(f"{where} is no JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where} is no JSON that can be sent: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")

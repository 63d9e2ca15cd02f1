"""What a server's processes say, line by line: as text for people or as JSON for programs.

A line that a handler writes carries its job, attempt, lane and kind without the handler's doing. No line has a
secret in it that looks like one, and none can be made to look like two.
"""

import json
import logging
import queue
import re
import sys
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from math import isfinite
from typing import Any, TextIO, cast

from kappa.app.settings import LogFormat, LogLevel
from kappa.engine import current_facts

QUIET = (
    *("anthropic", "asyncio", "httpcore", "httpcore2", "httpx", "httpx2", "mcp", "openai", "opentelemetry"),
    *("urllib3", "uvicorn"),
)
"""Libraries whose everyday news are not a server's."""
LINES_AHEAD = 10_000
"""Lines that may wait for a reader of the log who is slow; more are dropped."""
LAST_LINES = 2.0
"""Seconds that the end of a process waits for that reader."""

# What every record has; anything else in it came as `extra` or from the attempt.
_USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

_SECRETS = (
    (re.compile(r"(?i)\b(bearer\s+)[^\s\"',]+"), r"\1…"),
    (re.compile(r"\bkappa_[A-Za-z0-9_-]{43}\b"), "kappa_…"),
    (re.compile(r"(?<=://)([^\s:/@]*):[^\s/@]+@"), r"\1:…@"),
    (re.compile(r"(?i)\b(password|passwd|secret|api_?key)(['\"]?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s,;&]+)"), r"\1\2…"),
)
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {10: "\\n", 13: "\\r", 9: "\\t"}


def without_secrets(text: str) -> str:
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    """What the record says beside its message; of an attempt's facts those that it has not itself."""
    own = {name: value for name, value in record.__dict__.items() if name not in _USUAL}
    return {**current_facts(), **own}


class JsonLines(logging.Formatter):
    """One record, one object. Called where the record is made, as only there the attempt is known."""

    def format(self, record: logging.LogRecord) -> str:
        said = _facts(record) | {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(_plain(said))


class TextLines(logging.Formatter):
    """One record, one line, and its traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [f"{_time(record)} {record.levelname.lower():7} {record.name}: {record.getMessage()}"]
        parts += [f"{name}={value}" for name, value in _facts(record).items()]
        # A path or a handler's text may hold a line break, and with it a line that nobody logged.
        line = " ".join(parts).translate(_CONTROL)
        return without_secrets(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    """What JSON can say, without secrets at any depth."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if isfinite(value) else str(value)
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return {without_secrets(str(key)): _plain(inner) for key, inner in items}
        case list() | tuple():
            return [_plain(inner) for inner in cast("Iterable[Any]", value)]
        case _:
            return without_secrets(str(value))


class _Ahead(logging.Handler):
    """Hands lines to a thread that writes them: an event loop must not wait for whoever reads the log."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_AHEAD)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1
        except Exception:
            self.handleError(record)

    def end(self) -> None:
        """Write what is left, unless nobody reads it."""
        with suppress(queue.Full):
            if self._dropped:
                self._lines.put(f"{self._dropped} lines of the log were dropped: nobody read them", timeout=LAST_LINES)
            self._lines.put(None, timeout=LAST_LINES)
            self._thread.join(LAST_LINES)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            with suppress(OSError, ValueError):  # whoever read it has closed it
                self._stream.write(line + "\n")
                if self._lines.empty():
                    self._stream.flush()


def formatter(form: LogFormat) -> logging.Formatter:
    return JsonLines() if form is LogFormat.JSON else TextLines()


def set_up(form: LogFormat, level: LogLevel, stream: TextIO | None = None) -> None:
    """For a process that may wait for its log, as the child processes of handlers may."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter(form))
    _install(handler, level)


@contextmanager
def writing(form: LogFormat, level: LogLevel, stream: TextIO | None = None) -> Generator[None]:
    """For a process with an event loop: lines are written by a thread, the last of them when the block ends."""
    ahead = _Ahead(stream or sys.stderr)
    ahead.setFormatter(formatter(form))
    before = _install(ahead, level)
    try:
        yield
    finally:
        root = logging.getLogger()
        root.handlers, root.level = before
        ahead.end()


def _install(handler: logging.Handler, level: LogLevel) -> tuple[list[logging.Handler], int]:
    root, number = logging.getLogger(), logging.getLevelNamesMapping()[level.upper()]
    before = (root.handlers, root.level)
    root.handlers = [handler]
    root.setLevel(number)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.DEBUG if level is LogLevel.DEBUG else max(number, logging.WARNING))
    return before

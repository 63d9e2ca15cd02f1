"""Documents are parsed in child processes, which may take so much memory and time and no more.

`ReaderPool` is what a server or worker reads documents with, of whatever format. A document that is too much for its
reader, or that makes it crash, is an error of that document; this process gets nothing of it but the text. Nothing that
a reader sends is believed beyond its bounds.

A reader reads one document and ends. Only short plain texts are read one after the other by the same: no parser written
in C, which a document might take over, sees them, and hundreds of small files would spend their time on forking.
"""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, cast

from kappa.graph.errors import MissingExtra
from kappa.graph.ingest.chunk import ChunkRule
from kappa.graph.ingest.extraction import BadExtraction
from kappa.graph.ingest.intake import Counted
from kappa.graph.ingest.read import Limits, ReadDocument, errors
from kappa.graph.ingest.read.characters import one_line
from kappa.graph.ingest.read.parts import See
from kappa.graph.ingest.reader_wire import OUT_OF_MEMORY, BadMessage, Head, pack, unpack

log = logging.getLogger(__name__)

PATIENCE = 120.0
"""Seconds until a process has begun, on a machine that is very busy."""
WALL = 4
"""How much longer than its processor time a document may take by the clock, for others use the processor as well."""
INTERVAL = 0.1
"""Seconds after which a cancellation is seen."""
MAX_NAME = 1000
MAX_PLAIN = 1 << 20
"""Bytes of a text that is no reason for a process of its own."""
MAX_TEXTS = 200
"""Texts that one reader reads."""
MAX_PICTURE = 64_000_000
ENVIRONMENT = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TZ")
"""What a reader's environment has of ours: nothing that anybody keeps a secret in."""
THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
"""A process that forks has one thread; and each arena of the allocator would take memory of the limit's."""
_ERRORS: dict[str, type[errors.ReadError | MissingExtra]] = {
    one.__name__: one
    for one in (
        errors.ReadError, errors.UnknownFormat, errors.BrokenDocument, errors.EncryptedDocument, errors.EmptyDocument,
        errors.DocumentTooLarge, MissingExtra,
    )
}  # fmt: skip

Check = Callable[[], None]
"""Called again and again while a document is read; what it raises ends the reading."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What one document may take."""

    memory_mb: int = 512
    """Beside the document itself and the parsers."""
    ocr_memory_mb: int = 2048
    """The same where pages are read by OCR."""
    seconds: int = 60
    """Of processor time; for the document without OCR, and again for each page that OCR reads."""
    processes: int = 2
    """Documents at once."""


def _go_on() -> None:
    pass


class ReaderPool:
    """Reads documents, some at once; further callers wait. Safe to use from many threads."""

    def __init__(self, limits: ProcessLimits | None = None) -> None:
        self.limits = limits or ProcessLimits()
        self._free = threading.Semaphore(self.limits.processes)
        self._ocr = threading.Lock()
        """OCR uses all cores for a page, and much memory: one page at a time."""
        self._lock = threading.Lock()
        self._server: _ForkServer | None = None
        self._idle: list[_Child] = []
        self._closed = False

    def count(
        self,
        data: bytes,
        name: str = "",
        limits: Limits | None = None,
        rule: ChunkRule | None = None,
        check: Check = _go_on,
    ) -> Counted:
        """As `intake.count`, in a child process."""
        request = {"do": "count", "rule": asdict(rule or ChunkRule()), "memory_mb": self.limits.memory_mb}
        with self._reading(data, name, check) as reading:
            match reading.run(request, limits or Limits(), 0):
                case (
                    {
                        "media_type": str() as media_type, "words": int() as words, "chunks": int() as chunks,
                        "ocr_pages": int() as ocr_pages, "warnings": [*warnings],
                    },
                    _,
                ):  # fmt: skip
                    return Counted(media_type, words, chunks, ocr_pages, tuple(map(str, warnings)))
                case _:
                    raise reading.invalid("counts are missing")

    def read(
        self,
        data: bytes,
        name: str = "",
        limits: Limits | None = None,
        on_part: Callable[[int, int], None] | None = None,
        see: See | None = None,
        *,
        ocr: bool = True,
        check: Check = _go_on,
    ) -> ReadDocument:
        """As `read.read`, in a child process. A document that needs no `ocr` has less memory."""
        limits = limits or Limits()
        request = {"do": "read", "parts": on_part is not None, "sees": see is not None}
        request |= {"memory_mb": self.limits.ocr_memory_mb if ocr else self.limits.memory_mb}
        with self._reading(data, name, check) as reading:
            reading.on_part, reading.see, reading.ocr = on_part, see, self._ocr
            if ocr:
                reading.memory_setting = "KAPPA_READING_OCR_MEMORY_MB"
            match reading.run(request, limits, max(4 * limits.characters, MAX_PICTURE)):
                case (
                    {
                        "media_type": str() as media_type, "title": str() | None as title, "pages": [*pages],
                        "ocr_pages": int() as ocr_pages, "notes": [*notes],
                    },
                    text,
                ):  # fmt: skip
                    try:
                        return ReadDocument(
                            text.decode(), media_type, title, tuple(map(int, pages)), ocr_pages, tuple(map(str, notes))
                        )
                    except (TypeError, ValueError) as error:
                        raise reading.invalid(error) from error
                case _:
                    raise reading.invalid("parts are missing")

    def close(self) -> None:
        """End every reader; who waits for one gets a `ReaderUnavailable`."""
        with self._lock:
            self._closed = True
            server, self._server = self._server, None
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()
        if server is not None:
            server.close()

    @contextmanager
    def _reading(self, data: bytes, name: str, check: Check) -> "Generator[_Reading]":
        plain = _is_plain(data)
        while not self._free.acquire(timeout=INTERVAL):
            check()
        try:
            child = self._child(plain)
            reading = _Reading(child, data, name, self.limits, check, plain)
            try:
                yield reading
            finally:
                if not (plain and reading.answered and self._keep(child)):
                    reading.end()
                    child.close()
        finally:
            self._free.release()

    def _keep(self, child: "_Child") -> bool:
        """Whether it reads the next text as well."""
        with self._lock:
            if self._closed or child.texts >= MAX_TEXTS:
                return False
            self._idle.append(child)
            return True

    def _child(self, plain: bool) -> "_Child":
        """A reader, forked by a server that is started anew if it has ended; for a text, one that is there."""
        with self._lock:
            if self._closed:
                raise errors.ReaderUnavailable("no documents are read any more: this process is about to end")
            while plain and self._idle:
                child = self._idle.pop()
                if child.alive:
                    return child
                child.close()
            if self._server is not None and not self._server.alive:
                self._server.close()
                self._server = None
            if self._server is None:
                self._server = _ForkServer()
            return self._server.begin()


def _is_plain(data: bytes) -> bool:
    """Whether it is a short text, in UTF-8, that is nothing else as well: GIF and WebP may begin with letters."""
    if len(data) > MAX_PLAIN or b"\0" in data or data.startswith((b"PK", b"GIF8", b"RIFF")) or b"%PDF-" in data[:2048]:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Child:
    """A reader: a socket to speak with it, and one that tells how it ended, and ends it by being closed."""

    def __init__(self, work: socket.socket, status: socket.socket) -> None:
        self.work = work
        self.status = status
        self.texts = 0
        work.settimeout(INTERVAL)

    @property
    def alive(self) -> bool:
        """Whether nothing was heard of its end."""
        try:
            self.status.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        self.work.close()
        self.status.close()


class _ForkServer:
    """The process that forks the readers. It has none of our descriptors, and none of our environment's secrets."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        environment = {name: value for name in ENVIRONMENT if (value := os.environ.get(name)) is not None}
        try:
            self._process = subprocess.Popen(
                # -P: a module in whatever directory this was started from is no module of ours.
                [sys.executable, "-P", "-c", "from kappa.graph.ingest.reader_process import main; main()"],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment | THREADS, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._control.close()
            raise errors.ReaderUnavailable(f"no process to read documents in can be started: {error}") from error
        finally:
            theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def begin(self) -> _Child:
        """A new reader."""
        (work, theirs), (status, told) = socket.socketpair(), socket.socketpair()
        with theirs, told, suppress(OSError):  # it has ended: both sockets say so
            socket.send_fds(self._control, [b"r"], [theirs.fileno(), told.fileno()])
        return _Child(work, status)

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _ReaderEnded(Exception):
    """The reader closed its socket before it gave an answer."""


class _Reading:
    """One document and its reader."""

    def __init__(self, child: _Child, data: bytes, name: str, limits: ProcessLimits, check: Check, plain: bool) -> None:
        self.on_part: Callable[[int, int], None] | None = None
        self.see: See | None = None
        self.ocr: threading.Lock | None = None
        self.memory_setting = "KAPPA_READING_MEMORY_MB"
        self.answered = False
        """Whether the reader gave what it was asked for, or what is wrong with the document."""
        self._child = child
        self._work = child.work
        self._status = child.status
        self._data = data
        self._plain = plain
        self._file_name = name[-MAX_NAME:]  # whose end may say that it is Markdown
        self._name = one_line(name, 200) or "the document"
        self._limits = limits
        self._memory_mb = limits.memory_mb
        self._check = check
        self._ends = time.monotonic() + PATIENCE
        self._begun = False
        self._ended: Head | None = None

    def run(self, request: Head, limits: Limits, max_blob: int) -> tuple[Head, bytearray]:
        """What the reader gives for a document, or the error that says why it doesn't."""
        self._memory_mb = request["memory_mb"]
        try:
            if not self._child.texts:
                self._receive(0)
            self._begun = True
            self._child.texts += 1
            self._ends = time.monotonic() + WALL * self._limits.seconds
            more = {"name": self._file_name, "bytes": len(self._data), "limits": asdict(limits)}
            self._send(request | more | {"seconds": self._limits.seconds, "plain": self._plain})
            self._send({}, self._data)
            return self._converse(limits, max_blob)
        except _ReaderEnded:
            raise self._why_it_ended() from None
        except BadMessage as error:
            raise self.invalid(error) from error

    def _converse(self, limits: Limits, max_blob: int) -> tuple[Head, bytearray]:
        pages = seen = 0
        while True:
            head, blob = self._receive(max_blob)
            match head:
                case {"done": done}:
                    self.answered = True
                    return done, blob
                case {"part": [int() as done, int() as total]} if self.on_part is not None:
                    with self._clock_stopped():
                        self.on_part(done, total)
                case {"see": str() as media_type} if self.see is not None and seen < limits.ocr_pages:
                    seen += 1
                    self._send(self._seen(self.see, bytes(blob), media_type))
                case {"ocr": True} if self.ocr is not None and pages < limits.ocr_pages:
                    pages += 1
                    self._ocr_page(self.ocr)
                case {"error": str() as kind, "detail": str() as detail}:
                    self.answered = True
                    raise _ERRORS.get(kind, errors.ReadError)(one_line(detail, 1000))
                case {"fault": str() as kind, "trace": str() as trace}:
                    log.error("a document's reader failed: %s", trace)
                    raise errors.BrokenDocument(
                        f"{self._name}: it is damaged, and can't be read ({one_line(kind, 100)})"
                    )
                case _:
                    raise BadMessage("it says what it wasn't asked for")

    def _seen(self, see: See, picture: bytes, media_type: str) -> Head:
        with self._clock_stopped():
            try:
                return {"text": see(picture, media_type)}
            except BadExtraction as fault:
                return {"bad": str(fault)}

    def _ocr_page(self, turn: threading.Lock) -> None:
        with self._clock_stopped():
            while not turn.acquire(timeout=INTERVAL):
                self._check()
            try:
                self._ends = time.monotonic() + WALL * self._limits.seconds
                self._send({})
                head, _ = self._receive(0)
                if head != {"ocr": False}:
                    raise BadMessage("a page by OCR without an end")
            finally:
                turn.release()

    @contextmanager
    def _clock_stopped(self) -> Generator[None]:
        """The document has as much time after this as before."""
        left = self._ends - time.monotonic()
        yield
        self._ends = time.monotonic() + left

    def _send(self, head: Head, blob: bytes = b"") -> None:
        for piece in pack(head, blob):
            view = memoryview(piece)
            while view:
                try:
                    view = view[self._work.send(view) :]
                except TimeoutError:
                    self._wait()
                except OSError as error:
                    raise _ReaderEnded from error

    def _receive(self, max_blob: int) -> tuple[Head, bytearray]:
        self._wait()
        return unpack(self._exactly, max_blob)

    def _exactly(self, size: int) -> bytearray:
        found = bytearray()
        while len(found) < size:
            try:
                piece = self._work.recv(min(size - len(found), 1 << 20))
            except TimeoutError:
                self._wait()
                continue
            except OSError as error:
                raise _ReaderEnded from error
            if not piece:
                raise _ReaderEnded
            found += piece
        return found

    def _wait(self) -> None:
        """Whether to wait on: nobody cancelled it, and there is time."""
        self._check()
        if time.monotonic() > self._ends:
            if not self._begun:
                raise errors.ReaderUnavailable(f"no process to read documents in came up within {PATIENCE:g} s")
            raise self._too_long()

    def end(self, *, kill: bool = True) -> Head:
        """Wait for the reader's end, and say how it ended; nothing if its server went away with it."""
        if self._ended is None:
            if kill:
                with suppress(OSError):
                    self._status.shutdown(socket.SHUT_WR)
            self._status.settimeout(PATIENCE)
            said = b""
            with suppress(OSError):
                while piece := self._status.recv(4096):
                    said += piece
            self._ended = cast(dict[str, Any], json.loads(said)) if said else {}
        return self._ended

    def _why_it_ended(self) -> errors.ReadError | errors.ReaderUnavailable:
        """It ended without an answer. That is the document's doing, if it had one."""
        ended = self.end(kill=False)
        code = ended.get("code")
        if code is None or not self._begun:
            why = ended.get("failed", "the process that reads documents ended; its log says why")
            return errors.ReaderUnavailable(f"{self._name} was not read: {why}")
        if code == -signal.SIGXCPU:
            return self._too_long()
        grown_mb = (ended["grown_kb"] * 1024 - len(self._data)) >> 20
        if code == OUT_OF_MEMORY or (code != -signal.SIGKILL and grown_mb > self._memory_mb // 2):
            return errors.DocumentTooLarge(f"{self._name}: it needs more than {self._memory()}: it was not read")
        if code == -signal.SIGKILL:
            return errors.ReaderUnavailable(
                f"{self._name} was not read: its reader was killed; maybe the machine ran out of memory"
            )
        if code == -signal.SIGABRT:
            # What PDFium does that gets no memory. It may have asked for all of it at once, and then has little.
            return errors.DocumentTooLarge(
                f"{self._name}: it needs more than {self._memory()}, or is damaged: its reader gave up (SIGABRT)"
            )
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return errors.BrokenDocument(
            f"{self._name}: its reader crashed on it ({how}): it is damaged, or needs more than {self._memory()}"
        )

    def _too_long(self) -> errors.ReadError:
        return errors.DocumentTooLarge(
            f"{self._name}: it needs more than {self._limits.seconds} s to read (KAPPA_READING_SECONDS): "
            "it was not read"
        )

    def invalid(self, why: object) -> errors.ReadError:
        """What a reader sends that its document has taken over is nobody's text."""
        self.answered = False
        return errors.BrokenDocument(f"{self._name}: its reader gave no valid answer ({one_line(str(why), 200)})")

    def _memory(self) -> str:
        return f"{self._memory_mb:,} MB to read ({self.memory_setting})"

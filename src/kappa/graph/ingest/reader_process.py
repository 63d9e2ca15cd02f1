"""Reads documents in processes of their own: what a document does to its reader ends with that process.

`main` is a fork server. It has imported the parsers and opens no document itself: for each one it forks a process,
which gets the document over a socket, may take so much memory and time and no more, answers, and exits; or goes on with
the next one if both are short texts. Nothing of one
document is there when the next one is read. A reader inherits no other descriptor, and no environment but what Python
needs.

The server's death ends the fork server, whose death ends the readers. The fork server tells how each of them ended.
"""

import ctypes
import gc
import json
import os
import resource
import selectors
import signal
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Never

from kappa.graph.errors import GraphError
from kappa.graph.ingest import intake
from kappa.graph.ingest.chunk import ChunkRule
from kappa.graph.ingest.extraction import BadExtraction
from kappa.graph.ingest.read import Limits, read
from kappa.graph.ingest.reader_wire import OUT_OF_MEMORY, Head, pack, unpack

if TYPE_CHECKING:
    from kappa.graph.ingest.read.parts import Picture

MAX_FILES = 64
_PARSERS = ("charset_normalizer", "markdown_it", "numpy", "PIL.Image", "PIL.ImageOps", "pypdfium2", "xml.parsers.expat")
_SAMPLE = b"# Sample\n\nA *word* and [another](x).\n\n- <b>one</b>\n"
_SET_DEATH_SIGNAL, _SET_NO_NEW_PRIVILEGES = 1, 38
_MB = 1 << 20
_OUT_OF_MEMORY_SAID = ("alloc", "memory")


def main() -> None:
    """Fork a reader for each pair of sockets that comes over standard input, until that is closed."""
    for name in _PARSERS:
        with suppress(ImportError):  # whoever needs it is told which extra brings it
            import_module(name)
    intake.count(_SAMPLE, "sample.md")  # what is made at first use is there for all
    gc.collect()
    gc.freeze()
    _limit(resource.RLIMIT_NOFILE, 4 * MAX_FILES)
    _ForkServer(socket.socket(fileno=0)).run()


class _ForkServer:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._readers: dict[int, socket.socket] = {}
        """For each reader's process, who hears how it ended, and ends it by going away."""
        self._selector = selectors.DefaultSelector()
        self._woken, wake = socket.socketpair()
        for end in (self._woken, wake):
            end.setblocking(False)
        self._wake = wake
        signal.signal(signal.SIGCHLD, _hear)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._selector.register(control, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._control:
                    self._begin()
                elif key.fileobj is self._woken:
                    with suppress(BlockingIOError):
                        self._woken.recv(4096)
                else:
                    # Whoever waits for this document wants it no more.
                    self._selector.unregister(key.fileobj)
                    _kill(key.data)
            self._reap()

    def _begin(self) -> None:
        request, descriptors, _, _ = socket.recv_fds(self._control, 1, 2)
        if not request:
            for reader in self._readers:
                _kill(reader)
            os._exit(0)
        work, status = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        try:
            reader = os.fork()
        except OSError as error:
            _tell(status, {"failed": f"no process could be started: {error.strerror}"})
            status.close()
        else:
            if reader == 0:
                _read_and_exit(work.detach())
            with suppress(OSError):  # it has done so itself, or is over
                os.setpgid(reader, reader)
            self._readers[reader] = status
            self._selector.register(status, selectors.EVENT_READ, reader)
        work.close()

    def _reap(self) -> None:
        while self._readers:
            reader, ended, used = os.wait4(-1, os.WNOHANG)
            if not reader:
                return
            status = self._readers.pop(reader)
            with suppress(KeyError):
                self._selector.unregister(status)
            # Not getrusage of this process: that counts what its own parent had before it was this program.
            grown_kb = _kilobytes(used.ru_maxrss) - _status("VmHWM") // 1024
            _tell(status, {"code": os.waitstatus_to_exitcode(ended), "grown_kb": grown_kb})
            status.close()


def _hear(number: int, frame: FrameType | None) -> None:
    """That a reader ended wakes the selector."""


def _kill(reader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(reader, signal.SIGKILL)


def _tell(status: socket.socket, head: Head) -> None:
    with suppress(OSError):
        status.sendall(json.dumps(head).encode())


def _kilobytes(size: int) -> int:
    return size // 1024 if sys.platform == "darwin" else size


def _read_and_exit(descriptor: int) -> Never:
    """The life of a reader."""
    code = 1
    try:
        _leave_everything(descriptor)
        _Reader(socket.socket(fileno=descriptor)).run()
        code = 0
    except MemoryError:
        code = OUT_OF_MEMORY
    except (EOFError, OSError):
        pass  # nobody listens, or asks, any more
    finally:
        os._exit(code)


def _leave_everything(but: int) -> None:
    """Nothing of the fork server's is left but one descriptor, and what it may do is bounded."""
    parent = os.getppid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with suppress(OSError):
        os.setpgid(0, 0)
    if sys.platform == "linux":
        call = ctypes.CDLL(None).prctl
        call(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        call(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        if os.getppid() != parent:  # it died before that
            os._exit(1)
        # Where the machine runs out of memory, the kernel ends this process before others.
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    os.closerange(3, but)
    os.closerange(but + 1, 4 * MAX_FILES)
    _limit(resource.RLIMIT_NOFILE, MAX_FILES)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)


class _Reader:
    """One document, from the request to the answer; or several, if they are short texts."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._seconds = 0

    def run(self) -> None:
        self._send({"started": True})
        while self._one():
            pass

    def _one(self) -> bool:
        """Read a document, and say whether there may be another."""
        request, _ = self._receive()
        _, sent = self._receive(request["bytes"])
        data = bytes(sent)
        del sent
        self._take_limits(request)
        limits, name = Limits(**request["limits"]), request["name"]
        try:
            if request["do"] == "count":
                counted = intake.count(data, name, limits=limits, rule=ChunkRule(**request["rule"]))
                self._send({"done": asdict(counted)})
            else:
                on_part = self._on_part if request["parts"] else None
                found = read(data, name, limits, on_part, self._see if request["sees"] else None, self._ocr)
                head = {
                    "media_type": found.media_type, "title": found.title, "pages": found.pages,
                    "ocr_pages": found.ocr_pages, "notes": found.notes,
                }  # fmt: skip
                self._send({"done": head}, found.text.encode())
        except GraphError as error:
            self._send({"error": type(error).__name__, "detail": str(error)})
        except (MemoryError, OSError):
            raise
        except Exception as error:
            self._send({"fault": type(error).__name__, "trace": traceback.format_exc()[-4000:]})
            return False
        return request["plain"]

    def _take_limits(self, request: Head) -> None:
        self._seconds = request["seconds"]
        # What is private and can be written counts, and nothing else: libraries map and reserve many times of it.
        _limit(resource.RLIMIT_DATA, _status("VmData") + request["memory_mb"] * _MB)
        if request["do"] == "count":
            # It starts no process and, other than OCR, no thread. (Root may, whatever this says.)
            _limit(resource.RLIMIT_NPROC, 0)
        hard = resource.RLIM_INFINITY if request["plain"] or request["do"] == "read" else self._seconds + 5
        _limit(resource.RLIMIT_CPU, round(_processor_seconds()) + self._seconds, hard)

    def _on_part(self, done: int, total: int) -> None:
        self._send({"part": [done, total]})

    def _see(self, picture: bytes, media_type: str) -> str:
        self._send({"see": media_type}, picture)
        answer, _ = self._receive()
        if "bad" in answer:
            raise BadExtraction(answer["bad"])
        return answer["text"]

    def _ocr(self, picture: "Picture") -> str:
        """A page by OCR, when it is its turn. Its time is its own, not the document's."""
        from kappa.graph.ingest.read.ocr import MAX_CORES, picture_text

        self._send({"ocr": True})
        self._receive()
        spent, (soft, hard) = _processor_seconds(), resource.getrlimit(resource.RLIMIT_CPU)
        _limit(resource.RLIMIT_CPU, round(spent) + self._seconds * MAX_CORES, hard)
        try:
            return picture_text(picture)
        except MemoryError:
            raise
        except Exception as error:  # ONNX Runtime and OpenCV have errors of their own for that
            if any(word in str(error).lower() for word in _OUT_OF_MEMORY_SAID):
                raise MemoryError from error
            raise
        finally:
            _limit(resource.RLIMIT_CPU, soft + round(_processor_seconds() - spent), hard)
            self._send({"ocr": False})

    def _send(self, head: Head, blob: bytes = b"") -> None:
        for piece in pack(head, blob):
            self._server.sendall(piece)

    def _receive(self, max_blob: int = 0) -> tuple[Head, bytearray]:
        return unpack(self._exactly, max_blob)

    def _exactly(self, size: int) -> bytearray:
        found = bytearray(size)
        view, place = memoryview(found), 0
        while place < size:
            got = self._server.recv_into(view[place:])
            if not got:
                raise EOFError
            place += got
        return found


def _limit(what: int, soft: int, hard: int | None = None) -> None:
    """Lower a limit; one that is lower already stays."""
    _, most = resource.getrlimit(what)
    wanted = soft if hard is None else hard
    if most != resource.RLIM_INFINITY:
        wanted = most if wanted == resource.RLIM_INFINITY else min(wanted, most)
        soft = min(soft, most)
    with suppress(ValueError, OSError):  # a platform that doesn't know it
        resource.setrlimit(what, (soft, wanted))


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _status(name: str) -> int:
    """Bytes of a figure of this process's memory, where Linux tells them."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0

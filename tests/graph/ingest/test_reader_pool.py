"""Documents are read in child processes: what a document does to its reader is that document's error, and no more."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kappa.graph.ingest import intake, reader_pool
from kappa.graph.ingest.chunk import ChunkRule
from kappa.graph.ingest.read import (
    BrokenDocument,
    DocumentTooLarge,
    EmptyDocument,
    Limits,
    ReadError,
    ReaderUnavailable,
    UnknownFormat,
    read,
)
from kappa.graph.ingest.reader_pool import ProcessLimits, ReaderPool
from kappa.graph.ingest.reader_wire import pack
from tests.graph.ingest import made
from tests.graph.ingest.test_read import SAMPLES
from tests.ground import Script, eventually
from tests.memory import children, environment, forget_peak, peak, runs

PDF_IN_TEXT = b"\n" * 1000 + b"%PDF-1.4 and no more"
TWO_PAGES = made.pdf([["Otters eat fish."], ["They live in rivers."]])


@pytest.fixture(scope="module")
def pool() -> Iterator[ReaderPool]:
    made = ReaderPool()
    yield made
    made.close()


@pytest.fixture
def small() -> Iterator[ReaderPool]:
    """Little memory, and a second."""
    made = ReaderPool(ProcessLimits(memory_mb=128, ocr_memory_mb=128, seconds=1))
    yield made
    made.close()


class Own:
    """A pool, and its processes. It has read no text, so each reader that there is reads now."""

    def __init__(self) -> None:
        self._others = set(children())
        self.pool = ReaderPool()

    @property
    def server(self) -> int:
        (found,) = set(children()) - self._others
        return found

    @property
    def reader(self) -> int:
        (found,) = children(self.server)
        return found


@pytest.fixture
def own() -> Iterator[Own]:
    made = Own()
    yield made
    made.pool.close()


def while_read(pool: ReaderPool, act: Callable[[], object], check: Callable[[], None] = lambda: None) -> None:
    """Do something while a reader waits for an answer."""

    def see(picture: bytes, media_type: str) -> str:
        act()
        return "an otter"

    assert pool.read(made.picture(["Otter"]), "a.png", see=see, check=check).text == "an otter"


def stands(pool: ReaderPool) -> None:
    """It goes on as if nothing had been."""
    assert pool.read(TWO_PAGES, "otters.pdf", ocr=False) == read(TWO_PAGES, "otters.pdf")


@pytest.mark.parametrize("kind", sorted(set(SAMPLES) - {"image"}))
def test_every_format_is_read_as_in_the_process_itself(pool: ReaderPool, kind: str) -> None:
    data, rule = SAMPLES[kind](), ChunkRule(10, 8, 12, 2)
    parts: list[tuple[int, int]] = []
    found = pool.read(data, f"a.{kind}", on_part=lambda done, total: parts.append((done, total)))
    assert found == read(data, f"a.{kind}")
    assert parts[-1][0] == parts[-1][1] == len(parts)
    assert pool.count(data, f"a.{kind}", rule=rule) == intake.count(data, f"a.{kind}", rule=rule)


def test_a_picture_is_read_by_ocr_in_a_child_or_by_a_model_here(pool: ReaderPool) -> None:
    data = made.picture(["Otters eat fish."])
    found = pool.read(data, "otter.png")
    assert (found.text, found.ocr_pages) == ("Otters eat fish.", 1)
    here = os.getpid()

    def see(picture: bytes, media_type: str) -> str:
        assert os.getpid() == here
        return f"seen: {media_type}"

    assert pool.read(data, "otter.png", see=see).text == "seen: image/png"


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"", EmptyDocument, "a.bin: it is empty"),
        (b"\x7fELF\x02\x01\x01" + bytes(64), UnknownFormat, "a.bin: it is a program"),
        (b"%PDF-1.7\nnothing", BrokenDocument, "a.bin: it is no valid PDF"),
        (b"a" * 100, DocumentTooLarge, "a.bin: it has 100 bytes, and at most 99 are read"),
    ],
)
def test_what_is_wrong_is_said_as_in_the_process_itself(
    pool: ReaderPool, data: bytes, error: type[ReadError], says: str
) -> None:
    for act in (pool.count, pool.read):
        with pytest.raises(error) as caught:
            act(data, "a.bin", Limits(bytes=99))
        assert str(caught.value).startswith(says)


def test_a_kilobyte_that_wants_gigabytes_is_refused_and_costs_this_process_nothing(pool: ReaderPool) -> None:
    stands(pool)
    data = made.hostile_pdf(6)
    assert len(data) < 1500
    before = forget_peak()
    for act in (pool.count, lambda data, name: pool.read(data, name, ocr=False)):
        with pytest.raises(DocumentTooLarge) as caught:
            act(data, "bomb.pdf")
        assert str(caught.value).startswith("bomb.pdf: it needs more than 512 MB to read (KAPPA_READING_MEMORY_MB)")
    assert peak() - before < 32
    stands(pool)


@pytest.mark.parametrize(
    "bomb",
    [
        lambda: made.hostile_pdf(1, 400),
        lambda: made.raw_docx("<w:p><w:r><w:t>" + "a " * 15_000_000 + "</w:t></w:r></w:p>"),
        lambda: made.epub(["<p>" + "a " * 15_000_000 + "</p>"]),
        lambda: made.picture([], "PNG", (6000, 6000)),
        lambda: b"*a* " * 400_000,
    ],
    ids=["pdf", "docx", "epub", "png", "markdown"],
)
def test_a_bomb_of_any_format_costs_itself(small: ReaderPool, bomb: Callable[[], bytes]) -> None:
    stands(small)
    data = bomb()
    before = forget_peak()
    with pytest.raises(DocumentTooLarge):
        small.count(data, "bomb.md", Limits(characters=10_000_000))
    assert peak() - before < 32
    stands(small)


def test_a_slow_document_is_ended(small: ReaderPool) -> None:
    data = made.raw_docx("<w:p><w:r><w:t>a</w:t></w:r></w:p>" * 1_500_000)
    with pytest.raises(DocumentTooLarge) as caught:
        small.count(data, "slow.docx")
    assert str(caught.value) == "slow.docx: it needs more than 1 s to read (KAPPA_READING_SECONDS): it was not read"
    stands(small)


@pytest.mark.parametrize(
    ("number", "error", "says"),
    [
        (signal.SIGSEGV, BrokenDocument, r"a\.png: its reader crashed on it \(SIGSEGV\)"),
        (signal.SIGABRT, DocumentTooLarge, r"a\.png: it needs more than .* or is damaged: its reader gave up"),
        (signal.SIGKILL, ReaderUnavailable, r"a\.png was not read: its reader was killed"),
    ],
)
def test_a_crash_of_a_reader_is_an_error_of_its_document(
    own: Own, number: int, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        while_read(own.pool, lambda: os.kill(own.reader, number))
    stands(own.pool)


def test_a_server_of_readers_that_was_killed_is_started_anew(own: Own) -> None:
    def kill() -> None:
        reader = own.reader
        os.kill(own.server, signal.SIGKILL)
        eventually(lambda: not runs(reader), what="the reader has ended with its server")

    with pytest.raises(ReaderUnavailable, match="the process that reads documents ended"):
        while_read(own.pool, kill)
    stands(own.pool)
    server = own.server
    own.pool.close()
    assert server not in children()
    with pytest.raises(ReaderUnavailable):
        own.pool.count(TWO_PAGES, "a.pdf")


def test_a_reader_has_no_secret_no_descriptor_and_bounds(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAPPA_DATABASE_URL", "KAPPA_OPENAI_API_KEY", "ANTHROPIC_API_KEY", "PGPASSWORD"):
        monkeypatch.setenv(name, "secret")
    seen: list[tuple[dict[str, str], set[str], str]] = []

    def look() -> None:
        place = Path(f"/proc/{own.reader}")
        open_files = {str(one.readlink()).partition(":")[0] for one in (place / "fd").iterdir()}
        variables = environment(own.server) | environment(own.reader)
        seen.append((variables, open_files, (place / "limits").read_text()))

    while_read(own.pool, look)
    variables, open_files, limits = seen[0]
    assert "secret" not in variables.values()
    assert set(variables) <= {*reader_pool.ENVIRONMENT, *reader_pool.THREADS}
    assert open_files == {"/dev/null", "socket"}
    bounds = {line[:26].strip(): line[26:].split()[0] for line in limits.splitlines()}
    assert bounds["Max file size"] == bounds["Max core file size"] == "0"
    assert int(bounds["Max cpu time"]) == 60
    assert 2048 << 20 < int(bounds["Max data size"]) < 3072 << 20


def test_who_loses_patience_leaves_no_reader_behind(own: Own) -> None:
    class Cancelled(Exception):
        pass

    readers: list[int] = []

    def check() -> None:
        if readers:
            raise Cancelled

    with pytest.raises(Cancelled):
        while_read(own.pool, lambda: readers.append(own.reader), check)
    assert not runs(readers[0])

    def fail() -> None:
        readers.append(own.reader)
        raise Cancelled

    with pytest.raises(Cancelled):
        while_read(own.pool, fail)
    assert not runs(readers[1])


def test_short_texts_share_a_reader_and_no_other_document_comes_to_it() -> None:
    others = set(children())
    pool = ReaderPool(ProcessLimits(processes=1))
    try:
        for number in range(3):
            assert pool.count(f"Otters {number}".encode(), "a.txt").words == 2
        with pytest.raises(EmptyDocument):
            pool.count(b" \n", "a.txt")
        (server,) = set(children()) - others
        (same,) = children(server)
        for kind in set(SAMPLES) - {"text", "markdown", "html"}:
            pool.count(SAMPLES[kind](), "a")
            assert children(server) == [same], "another one read that, and has ended"
        assert reader_pool._is_plain(SAMPLES["text"]())
        assert not any(
            map(reader_pool._is_plain, (PDF_IN_TEXT, b"GIF89a", b"RIFFabcdWEBP", b"PK", "\xfc".encode("latin-1")))
        )
        os.kill(same, signal.SIGKILL)
        eventually(lambda: children(server) == [], what="it is gone")
        assert pool.count(b"Otters eat fish.", "a.txt").words == 3
    finally:
        pool.close()


def test_no_more_are_read_at_once_than_may_be() -> None:
    pool = ReaderPool(ProcessLimits(processes=2))
    lock, both, go = threading.Lock(), threading.Event(), threading.Event()
    at_once: list[int] = [0, 0]

    def see(picture: bytes, media_type: str) -> str:
        with lock:
            at_once[0] += 1
            at_once[1] = max(at_once)
            if at_once[0] == 2:
                both.set()
        go.wait(60)
        with lock:
            at_once[0] -= 1
        return "an otter"

    data = made.picture(["Otter"])
    try:
        with ThreadPoolExecutor(6) as threads:
            readings = [threads.submit(pool.read, data, "a.png", see=see) for _ in range(6)]
            assert both.wait(60)
            go.set()
            assert [one.result().text for one in readings] == ["an otter"] * 6
        assert at_once[1] == 2
    finally:
        pool.close()


def test_readers_end_with_the_process_that_they_read_for() -> None:
    script = """
        import sys, threading
        from kappa.graph.ingest.reader_pool import ReaderPool
        from tests.graph.ingest import made

        def hold(picture, media_type):
            print("reading", flush=True)
            threading.Event().wait()

        ReaderPool().read(made.picture(["Otter"]), "a.png", see=hold)
    """
    with Script(script) as reading:
        assert reading.line() == "reading"
        (server,) = children(reading.pid)
        (reader,) = children(server)
        reading.kill()
        eventually(lambda: not any(map(runs, (server, reader))), what="both are gone")


@pytest.mark.parametrize(
    "message",
    [
        pack({"done": {}}),
        pack({"done": {"media_type": "text/plain", "words": "many", "chunks": 1, "ocr_pages": 0, "warnings": []}}),
        pack({"part": [1, 1]}),
        pack({"see": "image/png"}, b"..."),
        (b"\xff" * 64, b""),
        (b"\0\0\0\2" + bytes(8) + b"[]", b""),
        (b"\0\0\0\2" + bytes(8) + b"{]", b""),
    ],
)
def test_a_reader_that_was_taken_over_is_not_believed(
    message: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    work, theirs = socket.socketpair()
    status, told = socket.socketpair()
    pool = ReaderPool()
    monkeypatch.setattr(pool, "_child", lambda plain: reader_pool._Child(work, status))
    with theirs, told:
        for piece in (*pack({"started": True}), *message):
            theirs.sendall(piece)
        told.sendall(b'{"code": 0, "grown_kb": 0}')
        told.shutdown(socket.SHUT_WR)
        with pytest.raises(BrokenDocument, match="gave no valid answer"):
            pool.count(b"Otters", "a.txt")

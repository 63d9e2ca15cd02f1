"""Small files that look like backups and would take a reader's memory or time."""

import itertools
import json
import tarfile
import tracemalloc
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import pytest

from kappa.graph.backup import archive, verify
from kappa.graph.backup.archive import FORMAT, HEADER, MANIFEST, Header
from kappa.graph.errors import BadBackup

LARGE = 128 << 20
MOST = 24 << 20
"""What a reader may hold, in bytes: some pieces, and what a header says."""


def block(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def part(name: str, content: bytes) -> bytes:
    return block(name, len(content)) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def zeros(size: int) -> Iterator[bytes]:
    return itertools.repeat(bytes(1 << 20), size >> 20)


def packed(*pieces: Iterable[bytes]) -> bytes:
    packing = zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join(map(packing.compress, itertools.chain(*pieces))) + packing.flush() + bytes(archive.SEAL_LENGTH)


GOOD = part(
    HEADER,
    Header(kappa_backup=FORMAT, schema_version=1, made_at=datetime.now(UTC), epoch=0, tables={"concepts": ["id"]})
    .model_dump_json()
    .encode(),
)
KINDS = {
    "a PAX header": tarfile.XHDTYPE,
    "a global PAX header": tarfile.XGLTYPE,
    "a Solaris header": tarfile.SOLARIS_XHDTYPE,
    "a long name": tarfile.GNUTYPE_LONGNAME,
    "a long link": tarfile.GNUTYPE_LONGLINK,
    "a sparse file": tarfile.GNUTYPE_SPARSE,
    "a link": tarfile.SYMTYPE,
    "a device": tarfile.BLKTYPE,
}


def refused(content: bytes) -> str:
    """Why, after reading it without holding much."""
    assert len(content) < 2 << 20
    tracemalloc.start()
    try:
        with pytest.raises(BadBackup) as why:
            verify([content[at : at + 65536] for at in range(0, len(content), 65536)])
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()
    return str(why.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [b"", GOOD], ids=["first", "later"])
def test_a_header_that_only_other_tars_have_is_refused_unread(kind: str, before: bytes) -> None:
    content = packed([before, block("concepts/000001", LARGE, KINDS[kind])], zeros(LARGE))
    assert "no plain part" in refused(content)


def test_headers_within_headers_are_refused() -> None:
    chain = block("long", 5, tarfile.GNUTYPE_LONGNAME) + b"name\0".ljust(tarfile.BLOCKSIZE, b"\0")
    assert "no plain part" in refused(packed([GOOD, chain * 20_000]))


@pytest.mark.parametrize("name", [HEADER, MANIFEST])
def test_what_a_backup_says_of_itself_is_short(name: str) -> None:
    before = [b""] if name == HEADER else [GOOD]
    content = packed(before, [block(name, 32 << 20)], itertools.repeat(b'"",' * (1 << 20), 11))
    assert "far too long" in refused(content)


def test_a_size_below_nothing_is_refused() -> None:
    raw = bytearray(block("concepts/000001", 0))
    raw[124:136] = b"\xff" * 12  # as a number in base 256: -1
    raw[148:156] = b"%06o\0 " % (256 + sum(raw[:148]) + sum(raw[156:]))
    assert "no plain part" in refused(packed([GOOD, bytes(raw)]))


def test_parts_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_PARTS", 2000)
    parts = (block(f"concepts/{number:06d}", 0) for number in range(10_000))
    assert "more than 2,000 parts" in refused(packed([GOOD], parts))


def test_nothing_large_stands_behind_the_end() -> None:
    parts = {HEADER: archive.hashlib.sha256(_content(GOOD)).hexdigest()}
    manifest = json.dumps({"kind": "kappa backup", "rows": {}, "parts": parts}).encode()
    content = packed([GOOD, part(MANIFEST, manifest)], zeros(LARGE))
    assert "something stands behind its manifest" in refused(content)


def _content(whole: bytes) -> bytes:
    return whole[tarfile.BLOCKSIZE :].rstrip(b"\0")

"""The container of a backup: a tar inside of gzip, which begins with what it is and ends with proof that it is whole.

    kappa-backup.json     the format, the schema, when, and the columns of each table
    concepts/000001 …     rows as PostgreSQL's COPY writes them as text, in parts of a few megabytes
    manifest.json         rows of each table, SHA-256 of each part

Behind it stands an empty gzip member, which `tar` and `gunzip` pass over in silence, with the SHA-256 of all bytes
before it. So no bit of a file can change, and none can be missing, without being noticed. Both directions are streams:
what is held in memory is one part, which is larger than its bound only where a single row is.

Only what is written here is read: plain parts, each with one header of 512 bytes. The long names, PAX records and
sparse files of other tars are refused before anything of them is read, whatever size they claim.
"""

import hashlib
import tarfile
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kappa.graph.errors import BadBackup

FORMAT = 2
"""2 has the plans of documents as well, so that one whose ingestion had not ended goes on where it was."""
HEADER = "kappa-backup.json"
MANIFEST = "manifest.json"
PART = 4 << 20
"""Bytes of rows in one part."""
MAX_PARTS = 200_000
"""800 GB of rows."""
MAX_HEADER_BYTES = 1 << 20
MAX_MANIFEST_LINE_BYTES = 512
"""For each part that was read: its name, its digest and what stands around them."""
PIECE = 256 << 10

_GZIP = 31
_MAGIC = b"\x1f\x8b"
_SEAL = bytes.fromhex("1f8b 08 04 00000000 00 ff 2400 4b42 2000")
"""A gzip member's head with an extra field of 32 bytes, named KB."""
_EMPTY = bytes.fromhex("0300 00000000 00000000")
SEAL_LENGTH = len(_SEAL) + 32 + len(_EMPTY)


class Header(BaseModel):
    """What a backup says of itself before anything else."""

    model_config = ConfigDict(extra="forbid")

    kappa_backup: int = Field(ge=1)
    """The format's version."""
    schema_version: int = Field(ge=1)
    """The last migration of the graph's tables."""
    made_at: datetime
    epoch: int = Field(ge=0)
    tables: dict[str, list[str]]
    """The columns of each table, in the order of the rows."""


class Manifest(BaseModel):
    """What a backup says of itself at its end."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["kappa backup"] = "kappa backup"
    rows: dict[str, int]
    parts: dict[str, str]
    """SHA-256 of each part, the header's among them."""


class Writer:
    """Takes parts, gives the bytes of the file."""

    def __init__(self) -> None:
        self._packing = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        self._whole = hashlib.sha256()
        self._parts: dict[str, str] = {}

    def header(self, header: Header) -> bytes:
        return self.part(HEADER, header.model_dump_json(indent=1).encode())

    def part(self, name: str, content: bytes) -> bytes:
        self._parts[name] = hashlib.sha256(content).hexdigest()
        return self._member(name, content)

    def end(self, rows: Mapping[str, int]) -> bytes:
        manifest = Manifest(rows=dict(rows), parts=self._parts)
        last = self._member(MANIFEST, manifest.model_dump_json(indent=1).encode())
        last += self._taken(self._packing.compress(bytes(2 * tarfile.BLOCKSIZE)) + self._packing.flush())
        return last + _SEAL + self._whole.digest() + _EMPTY

    def _member(self, name: str, content: bytes) -> bytes:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(content), 0o600
        padding = bytes(-len(content) % tarfile.BLOCKSIZE)
        pack = self._packing.compress
        return self._taken(pack(info.tobuf(tarfile.GNU_FORMAT)) + pack(content) + pack(padding))

    def _taken(self, data: bytes) -> bytes:
        self._whole.update(data)
        return data


class _Unpacked:
    """The tar inside of a file's bytes. At its end the seal has been read and fits, or it is refused."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._packed = b""
        self._tail = b""
        self._whole = hashlib.sha256()
        self._unpacking = zlib.decompressobj(_GZIP)
        self._ready = bytearray()
        self._begun = False

    def read(self, size: int) -> bytes:
        """So many bytes, or fewer at the end."""
        while len(self._ready) < size and not self._unpacking.eof:
            if not self._packed and not self._next():
                raise BadBackup("the backup ends in the middle" if self._tail else "this is no backup: it is empty")
            try:
                self._ready += self._unpacking.decompress(self._packed, PIECE)
            except zlib.error as error:
                raise BadBackup(f"the backup is broken: {error}") from None
            self._packed = self._unpacking.unconsumed_tail
        given = bytes(self._ready[:size])
        del self._ready[:size]
        return given

    def close_whole(self) -> None:
        """Look at the seal, which must come next, behind the zeros that end a tar."""
        if self.read(tarfile.RECORDSIZE).strip(b"\0") or self.read(1):
            raise BadBackup("the backup is broken: something stands behind its manifest")
        rest = self._unpacking.unused_data
        while self._next():
            rest += self._packed
            self._packed = b""
            if len(rest) > SEAL_LENGTH:
                break
        if rest or self._tail != _SEAL + self._whole.digest() + _EMPTY:
            raise BadBackup("the backup is broken: it is not the bytes that were written")

    def _next(self) -> bool:
        """The next bytes before what may be the seal."""
        for piece in self._pieces:
            held = self._tail + piece
            if not self._begun and not held.startswith(_MAGIC[: len(held)]):
                raise BadBackup("this is no backup: it doesn't begin like one")
            self._begun = self._begun or len(held) >= len(_MAGIC)
            cut = max(0, len(held) - SEAL_LENGTH)
            self._tail = held[cut:]
            if cut:
                self._packed = held[:cut]
                self._whole.update(self._packed)
                return True
        return False


class Reader:
    """The parts of a backup, one after the other, each a stream. At the end everything was checked."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._unpacked = _Unpacked(pieces)
        self._sums: dict[str, str] = {}
        self.header = self._header()

    def _header(self) -> Header:
        member = self._next()
        if member is None or member.name != HEADER:
            raise BadBackup("this is no backup: it doesn't begin like one")
        content = self._note(member, MAX_HEADER_BYTES)
        self._sums[HEADER] = hashlib.sha256(content).hexdigest()
        try:
            said = _Version.model_validate_json(content)
            if said.kappa_backup > FORMAT:
                raise BadBackup(
                    f"the backup has format {said.kappa_backup}, this program knows {FORMAT} at most: "
                    f"it was made by a newer version, use that one"
                )
            return Header.model_validate_json(content)
        except ValidationError as error:
            raise BadBackup(f"this is no backup: {error.errors(include_url=False)[0]['msg']}") from None

    def tables(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Each table that has rows, once, with the bytes of its rows: to be read before the next is asked for."""
        member = self._next()
        seen: set[str] = set()
        while member is not None and member.name != MANIFEST:
            table = member.name.partition("/")[0]
            if table in seen or table not in self.header.tables:
                raise BadBackup(f"the backup is broken: {member.name!r} should not stand where it does")
            seen.add(table)
            following: list[tarfile.TarInfo | None] = []
            yield table, self._rows(table, member, following)
            if not following:
                raise AssertionError(f"the rows of {table} were not read")
            member = following[0]
        if member is None:
            raise BadBackup("the backup ends in the middle")
        self._finish(member)

    def _rows(self, table: str, first: tarfile.TarInfo, following: list[tarfile.TarInfo | None]) -> Generator[bytes]:
        member: tarfile.TarInfo | None = first
        while member is not None and member.name.partition("/")[0] == table and "/" in member.name:
            digest = hashlib.sha256()
            for piece in self._content(member):
                digest.update(piece)
                yield piece
            if member.name in self._sums:
                raise BadBackup(f"the backup is broken: it has {member.name!r} twice")
            self._sums[member.name] = digest.hexdigest()
            member = self._next()
        following.append(member)

    def _finish(self, member: tarfile.TarInfo) -> None:
        most = MAX_MANIFEST_LINE_BYTES * (1 + len(self._sums) + len(self.header.tables))
        try:
            self.manifest = Manifest.model_validate_json(self._note(member, most))
        except ValidationError as error:
            raise BadBackup(f"the backup is broken: {error.errors(include_url=False)[0]['msg']}") from None
        if self.manifest.parts != self._sums:
            raise BadBackup("the backup is broken: its parts are not those that its manifest names")
        if self._next() is not None:
            raise BadBackup("the backup is broken: something stands behind its manifest")
        self._unpacked.close_whole()

    def _next(self) -> tarfile.TarInfo | None:
        """The next part, once all of the one before was read; None at the end."""
        block = self._unpacked.read(tarfile.BLOCKSIZE)
        if len(block) == tarfile.BLOCKSIZE and not block.strip(b"\0"):
            return None
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
        except tarfile.TarError as error:
            raise BadBackup(f"the backup is broken: {error}") from None
        if member.type != tarfile.REGTYPE or member.size < 0:
            raise BadBackup(f"this is no backup: {member.name!r} is no plain part")
        if len(self._sums) > MAX_PARTS:
            raise BadBackup(f"this is no backup: it has more than {MAX_PARTS:,} parts")
        return member

    def _note(self, member: tarfile.TarInfo, most: int) -> bytes:
        if member.size > most:
            raise BadBackup("this is no backup: what it says of itself is far too long")
        return b"".join(self._content(member))

    def _content(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        left = member.size
        while left:
            piece = self._unpacked.read(min(PIECE, left))
            if not piece:
                raise BadBackup("the backup ends in the middle")
            left -= len(piece)
            yield piece
        self._unpacked.read(-member.size % tarfile.BLOCKSIZE)


class _Version(BaseModel):
    kappa_backup: int = Field(ge=1)

"""Ids that follow from what they name.

Whoever writes the same concept of the same ontology, on whatever machine, gives it the same id, and the unique
constraint on it makes the second write the first one again. An id is 122 bits of SHA-256 in the form of a UUID
(version 8).
"""

import hashlib
import unicodedata
from functools import lru_cache
from uuid import UUID

REMEMBERED = 1 << 14
"""Labels that were asked for last: each is asked for many times over while its chunk is written."""


def kept(text: str) -> str:
    """A text as PostgreSQL can keep it: it has no NUL, and no half of a character."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


@lru_cache(REMEMBERED)
def normal(label: str) -> str:
    """What two spellings of one label have in common: composed, without case, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", kept(label)).casefold().split())


def content_hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def ontology_key(name: str, again: int = 0) -> UUID:
    """`again` tells an ontology from an earlier one that bore its name first."""
    return _key("ontology", kept(name), str(again))


def document_key(ontology: UUID, digest: bytes) -> UUID:
    return _key("document", ontology.hex, digest.hex())


def source_key(document: UUID, start: int, end: int) -> UUID:
    return _key("source", document.hex, str(start), str(end))


def upload_key(owner: str, name: str, digest: bytes) -> UUID:
    return _key("upload", kept(owner), kept(name), digest.hex())


@lru_cache(REMEMBERED)
def concept_key(ontology: UUID, label: str) -> UUID:
    return _key("concept", ontology.hex, normal(label))


def artifact_key(kind: str, ontology: UUID | None, parameters: str, epoch: int) -> UUID:
    """`parameters` is JSON text that is the same for the same values."""
    return _key("artifact", kept(kind), ontology.hex if ontology else "", parameters, str(epoch))


def proposal_key(kind: str, ontology: UUID, *identity: str) -> UUID:
    return _key("proposal", kind, ontology.hex, *identity)


def _key(*parts: str) -> UUID:
    # The length before each part: no two lists of parts are the same bytes.
    data = b"".join(b"%d:%b" % (len(encoded), encoded) for encoded in (part.encode() for part in parts))
    digest = bytearray(hashlib.sha256(data).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return UUID(bytes=bytes(digest))

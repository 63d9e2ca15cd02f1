"""Takes files in: what is handed in is read once, so that what can't be read is refused at once, and kept for a while.

Nothing goes through OCR here, which takes seconds a page: such pages are counted, and guessed at.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from kappa.graph.identity import content_hash, upload_key
from kappa.graph.ingest.chunk import ChunkRule, chunk
from kappa.graph.ingest.read import DocumentTooLarge, Limits, survey
from kappa.graph.store.uploads import Upload

KEEP = timedelta(days=1)
"""How long a file waits for a job."""

WORDS_OF_A_PAGE = 400
TOKENS_OF_A_WORD = 4 / 3
TOKENS_OF_A_PROMPT = 900
"""What a provider is told beside the text, once a chunk."""
TOKENS_OF_AN_ANSWER = 1.5
"""For each word of the text: a provider's answer is about as long as its question."""
TOKENS_OF_A_PICTURE = 1_600
"""What a page costs a model that sees, about."""
WORDS_OF_A_LABEL = 12
"""So many words bring a label that must be embedded."""

Price = Callable[[int, int], Decimal | None]
"""What so many tokens in and out cost; None if nobody knows."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What there is in a file."""

    media_type: str
    words: int
    chunks: int
    ocr_pages: int
    warnings: tuple[str, ...]
    """What its reader has to say, each in one line."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A file as it is kept, and what its reader has to say, each in one line."""

    upload: Upload
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What reading, extracting and embedding come to."""

    documents: int = 0
    chunks: int = 0
    words: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    embeddings: int = 0
    ocr_pages: int = 0
    price: Decimal | None = None


def check_size(size: int, name: str, limits: Limits | None = None) -> None:
    """Refuse a file that is too large before it is in memory."""
    most = (limits or Limits()).bytes
    if size > most:
        raise DocumentTooLarge(f"{name}: it has {size:,} bytes, and at most {most:,} are read")


def take_in(
    data: bytes,
    name: str,
    owner: str,
    *,
    limits: Limits | None = None,
    rule: ChunkRule | None = None,
    counted: Counted | None = None,
) -> Taken:
    """Look at a file, unless somebody has `counted` it; a `ReadError` says what is wrong with it."""
    counted = counted or count(data, name, limits=limits, rule=rule)
    digest = content_hash(data)
    upload = Upload(
        upload_key(owner, name, digest), owner, name, digest, len(data), counted.media_type, counted.words,
        counted.chunks, counted.ocr_pages,
    )  # fmt: skip
    return Taken(upload, counted.warnings)


def count(data: bytes, name: str, *, limits: Limits | None = None, rule: ChunkRule | None = None) -> Counted:
    """Look at a file, in this process; a `ReadError` says what is wrong with it."""
    rule = rule or ChunkRule()
    found = survey(data, name, limits)
    spans = chunk(found.text, rule)
    words, chunks = sum(span.words for span in spans), len(spans)
    warnings: list[str] = []
    if found.ocr_pages:
        guessed = found.ocr_pages * WORDS_OF_A_PAGE
        words += guessed
        chunks = max(1, math.ceil(words / (rule.target - rule.overlap))) if words > rule.most else 1
        of = f" of {found.pages}" if found.pages > found.ocr_pages else ""
        pages = "page has" if found.ocr_pages == 1 else "pages have"
        warnings.append(f"{found.ocr_pages}{of} {pages} no text: the job reads them, and the estimate guesses at them")
    if found.marks_kept:
        warnings.append("it is so long that its Markdown is taken as plain text, marks and all")
    return Counted(found.media_type, words, chunks, found.ocr_pages, tuple(warnings))


def estimate(uploads: list[Upload], price: Price, *, sees: bool = False) -> Estimate:
    """What some files will come to, together; pictures are looked at by a provider that `sees`."""
    words, chunks = sum(one.words for one in uploads), sum(one.chunks for one in uploads)
    tokens_in = math.ceil(words * TOKENS_OF_A_WORD) + chunks * TOKENS_OF_A_PROMPT
    tokens_out = math.ceil(words * TOKENS_OF_AN_ANSWER)
    pictures = sum(one.ocr_pages for one in uploads if one.media_type.startswith("image/")) if sees else 0
    tokens_in += pictures * TOKENS_OF_A_PICTURE
    tokens_out += math.ceil(pictures * WORDS_OF_A_PAGE * TOKENS_OF_A_WORD)
    return Estimate(
        documents=len(uploads),
        chunks=chunks,
        words=words,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        embeddings=chunks + words // WORDS_OF_A_LABEL,
        ocr_pages=sum(one.ocr_pages for one in uploads),
        price=price(tokens_in, tokens_out),
    )

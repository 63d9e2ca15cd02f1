"""What an ingestion says when it is done. Whoever only reads that needs nothing of what does it."""

from decimal import Decimal
from uuid import UUID

from pydantic import BaseModel


class IngestionResult(BaseModel):
    """What came of it. A chunk that the provider's words could not be used for has failed, and only that one."""

    document: UUID | None = None
    """Of one upload."""
    documents: int
    chunks: int
    failed_chunks: int
    concepts: int
    """How many are new, and so on."""
    instances: int
    relations: int
    matched: int
    """Labels that named a concept which was there under another one."""
    dropped: int
    """What the provider said that could not be kept, such as quotes that don't stand in the text."""
    of_other_models: int = 0
    """Concepts of the ontology that could be matched by their labels only, for want of a `source_embedding`."""
    calls: int = 0
    """Of a provider that is paid for, and what they came to."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost: Decimal = Decimal(0)
    """In US dollars, of the calls whose price is known. What an attempt that was killed had used is not in it."""
    errors: list[str]
    """The first of what went wrong, each in one line."""

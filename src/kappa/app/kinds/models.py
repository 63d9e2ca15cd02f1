"""Which models there are, by the names that settings and requests use. What is heavy is imported when it is opened."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

from kappa.app.kinds import remote_models
from kappa.app.settings import BadSetting, Settings
from kappa.graph import BadQuestion

if TYPE_CHECKING:
    from kappa.graph.ingest.chunk import ChunkRule
    from kappa.graph.ingest.embedding import Embedder
    from kappa.graph.ingest.extraction import Extractor
    from kappa.graph.ingest.reader_pool import ReaderPool


def _free(settings: Settings, tokens_in: int, tokens_out: int) -> Decimal | None:
    return Decimal(0)


@dataclass(frozen=True, slots=True)
class Provider:
    """Where extractions come from."""

    open: "Callable[[Settings], Extractor]"
    price: Callable[[Settings, int, int], Decimal | None] = _free
    """What so many tokens in and out cost, in US dollars; None where nobody knows."""
    ahead: int = 1
    """Chunks of a document that are asked for while one is written."""
    sees: bool = False
    """Whether it reads pictures itself."""
    check: Callable[[Settings], None] = lambda settings: None
    """Raises what somebody has to mend before it can be used, such as a key that is missing; asks nobody."""


def _local_extractor(settings: Settings) -> "Extractor":
    from kappa.graph.ingest.local.extract import LocalExtractor

    return LocalExtractor()


def _local_embedder(settings: Settings) -> "Embedder":
    from kappa.graph.ingest.local.embed import LocalEmbedder

    return LocalEmbedder()


def _remote(name: str) -> Provider:
    return Provider(
        partial(remote_models.extractor, name), partial(remote_models.price, name), remote_models.AHEAD[name],
        sees=True, check=partial(remote_models.check, name),
    )  # fmt: skip


PROVIDERS: dict[str, Provider] = {
    "local": Provider(_local_extractor),
    **{name: _remote(name) for name in remote_models.NAMES},
}
EMBEDDERS: "dict[str, Callable[[Settings], Embedder]]" = {
    "local": _local_embedder,
    **{name: partial(remote_models.embedder, name) for name in remote_models.EMBEDDING_NAMES},
}


def provider(name: str) -> Provider:
    """The provider of this name; an error names those that there are."""
    if name not in PROVIDERS:
        raise BadSetting(f"there is no provider {name!r} (there are: {', '.join(sorted(PROVIDERS))})")
    return PROVIDERS[name]


def check(settings: Settings, name: str) -> None:
    """Whether an ingestion with this provider can be begun; an error says what is missing."""
    provider(name).check(settings)
    if settings.embedder in remote_models.EMBEDDING_NAMES:
        remote_models.embedder(settings.embedder, settings).close()


def check_names(settings: Settings) -> None:
    """Whether there are such models at all: a name that was mistyped would else fail every ingestion later on."""
    for name, value, known in (
        ("KAPPA_PROVIDER", settings.provider, PROVIDERS), ("KAPPA_EMBEDDER", settings.embedder, EMBEDDERS)
    ):  # fmt: skip
        if value not in known:
            raise BadSetting(f"{name} is {value!r} (there are: {', '.join(sorted(known))})")


def open_embedder(settings: Settings) -> "Embedder":
    check_names(settings)
    return EMBEDDERS[settings.embedder](settings)


def open_readers(settings: Settings) -> "ReaderPool":
    """The processes that documents are read in; the first document starts them."""
    from kappa.graph.ingest.reader_pool import ProcessLimits, ReaderPool

    return ReaderPool(
        ProcessLimits(
            memory_mb=settings.reading_memory_mb,
            ocr_memory_mb=settings.reading_ocr_memory_mb,
            seconds=settings.reading_seconds,
            processes=settings.reading_processes,
        )
    )


def chunk_rule(settings: Settings) -> "ChunkRule":
    from kappa.graph.ingest.chunk import ChunkRule

    try:
        return ChunkRule(settings.chunk_target, settings.chunk_least, settings.chunk_most, settings.chunk_overlap)
    except BadQuestion as error:
        raise BadSetting(f"KAPPA_CHUNK_…: {error}") from None

